"""The list of all groups, and the descriptions of groups of every kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest

from ..._net.deadlines import RunningCall
from ..._wire.extra_messages import ConsumerGroupDescribeRequest, ShareGroupDescribeRequest
from ..._wire.releases import explained_refusal
from ...errors import ErrorCode, TrikafkaError, from_code
from ...errors.groups import decisive, with_others
from ...interfaces import CoordinatorKind
from ...types import GroupDescription
from . import messages
from .routing import Parts, Routing
from .types import GroupListing

_NO_GROUP = ErrorCode.GROUP_ID_NOT_FOUND
#: The requests that describe groups of other kinds than the classic one.
_REQUESTS: dict[str, Callable[..., Any]] = {
    "consumer": ConsumerGroupDescribeRequest,
    "share": ShareGroupDescribeRequest,
}


async def listed(
    routing: Routing, call: RunningCall, parts: Parts[int, list[GroupListing]]
) -> None:
    """List the groups of each broker, which coordinates them."""
    await routing.every_broker(call, parts, _list_request, messages.read_listed)


async def described(
    routing: Routing,
    call: RunningCall,
    parts: Parts[str, GroupDescription],
    *,
    operations: bool = False,
) -> None:
    """Describe the groups that are left."""
    # DescribeGroups knows the classic protocol alone, and calls groups of other kinds dead. So the
    # coordinators are asked for the real kind of groups that are called dead, and of no others.
    dead: set[str] = set()
    failure: TrikafkaError | None = None
    try:
        await routing.coordinators(
            call,
            CoordinatorKind.GROUP,
            parts.left,
            lambda names: DescribeGroupsRequest(
                groups=names, include_authorized_operations=operations
            ),
            lambda response, names: _read_classic(parts, dead, response),
            refuse=parts.refuse,
        )
    except TrikafkaError as error:  # of one coordinator: the others' groups are described
        failure = error
    if dead:
        await _describe_others(routing, call, parts, dead, operations=operations)
    if failure is not None:
        raise failure
    parts.check(parts.left, "DescribeGroups")


async def _describe_others(
    routing: Routing,
    call: RunningCall,
    parts: Parts[str, GroupDescription],
    dead: Collection[str],
    *,
    operations: bool,
) -> None:
    """Describe groups that DescribeGroups reports as dead: of other kinds, or missing."""
    kinds: dict[str, dict[str, GroupDescription]] = {kind: {} for kind in _REQUESTS}

    def read(response: Any, names: list[str]) -> None:
        known = {one.group_id: one for one in messages.read_listed(response) if one.state}
        for name in names:
            if name not in known:
                # As Java's client; a broker before 4.0 describes such a group as dead (KIP-1043).
                parts.failed(name, from_code(_NO_GROUP, f"group {name!r}", operation="Describe"))
                continue
            kind = known[name].type or ""
            listed = GroupDescription(name, known[name].state or "", kind, (), kind or None)
            if kind in kinds:
                kinds[kind][name] = listed
            else:
                parts.done(name, listed)

    ask = partial(routing.coordinators, call, CoordinatorKind.GROUP, refuse=parts.refuse)

    async def describe(kind: str) -> None:
        request = _REQUESTS[kind]
        listings = kinds[kind]
        await ask(
            list(listings),
            lambda names: request(group_ids=names, include_authorized_operations=operations),
            lambda response, names: _read_modern(parts, kind, listings, response),
        )

    # A failure of one coordinator does not keep the groups of others from being described.
    errors: list[Exception] = []
    works: list[Callable[[], Awaitable[None]]] = [
        lambda: ask(sorted(dead), lambda names: _list_request(), read)
    ]
    works += [partial(describe, kind) for kind in _REQUESTS]
    for work in works:
        try:
            await work()
        except TrikafkaError as error:
            errors.append(error)
    if errors:
        raise with_others(decisive(errors), errors)


def _list_request() -> ListGroupsRequest:
    return ListGroupsRequest(states_filter=[], types_filter=[])


def _read_classic(parts: Parts[str, GroupDescription], dead: set[str], response: Any) -> None:
    for group in response.groups:
        if group.error_code == _NO_GROUP or (not group.error_code and group.group_state == "Dead"):
            dead.add(group.group_id)
        elif group.error_code:
            parts.failed(group.group_id, _error(group))
        else:
            parts.done(group.group_id, messages.read_group(group))


def _read_modern(
    parts: Parts[str, GroupDescription],
    kind: str,
    listings: Mapping[str, GroupDescription],
    response: Any,
) -> None:
    for group in response.groups:
        if not group.error_code:
            parts.done(group.group_id, messages.read_modern_group(group, kind))
        elif group.error_code == _NO_GROUP:  # deleted meanwhile, or of another kind by now
            parts.done(group.group_id, listings[group.group_id])
        else:
            parts.failed(group.group_id, explained_refusal(_error(group), kind))


def _error(group: Any) -> TrikafkaError:
    return from_code(group.error_code, f"group {group.group_id!r}", operation="Describe")
