"""The list of all groups, and the descriptions of groups of every kind."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest

from ..._net.deadlines import RunningCall
from ..._wire.extra_messages import ConsumerGroupDescribeRequest, ShareGroupDescribeRequest
from ...errors import DamagedResponseError, ErrorCode, TrikafkaError, from_code
from ...interfaces import CoordinatorKind
from ...types import GroupDescription, Node
from . import messages
from .routing import Routing
from .types import GroupListing

_NO_GROUP = ErrorCode.GROUP_ID_NOT_FOUND
#: The requests that describe groups of other kinds than the classic one.
_REQUESTS: dict[str, Callable[..., Any]] = {
    "consumer": ConsumerGroupDescribeRequest,
    "share": ShareGroupDescribeRequest,
}
Found = dict[str, GroupDescription]


class GroupLookups:
    """The requests about groups of every kind, one attempt each."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def listed(self, call: RunningCall) -> list[GroupListing]:
        """Return the groups of all coordinators, by name."""
        found: dict[str, GroupListing] = {}

        def read(response: Any, node: Node) -> None:
            found.update((group.group_id, group) for group in messages.read_listed(response))

        await self._routing.every_broker(
            call, lambda: ListGroupsRequest(states_filter=[], types_filter=[]), read
        )
        return [found[name] for name in sorted(found)]

    async def described(
        self, call: RunningCall, groups: Collection[str], found: Found, *, operations: bool = False
    ) -> None:
        """Describe the groups that are not in ``found`` yet. Raises the error of one."""
        # DescribeGroups knows the classic protocol alone, and calls groups of other kinds dead.
        # Only then the list of all groups has to be asked for the real kind.
        await self._ask(
            call,
            [group for group in groups if group not in found],
            lambda names: DescribeGroupsRequest(
                groups=names, include_authorized_operations=operations
            ),
            partial(_read_classic, found),
        )
        if any(group.state == "Dead" for group in found.values()):
            await self._describe_others(call, found, operations=operations)
        if missing := [group for group in groups if group not in found]:
            raise DamagedResponseError(
                f"the response to DescribeGroups leaves out {missing[0]!r}, which was asked for"
            )

    async def _describe_others(self, call: RunningCall, found: Found, *, operations: bool) -> None:
        """Correct groups of other kinds, which DescribeGroups reports as dead."""
        kinds: dict[str, list[str]] = {kind: [] for kind in _REQUESTS}
        for listed in await self.listed(call):
            known = found.get(listed.group_id)
            if known is None or known.state != "Dead" or not listed.state:
                continue
            kind = listed.type or ""
            found[listed.group_id] = GroupDescription(
                listed.group_id, listed.state, kind, (), kind or None
            )
            if kind in kinds:
                kinds[kind].append(listed.group_id)
        for kind, names in kinds.items():
            request = _REQUESTS[kind]
            await self._ask(
                call,
                names,
                lambda groups, request=request: request(
                    group_ids=groups, include_authorized_operations=operations
                ),
                partial(_read_modern, found, kind),
            )

    async def _ask(
        self,
        call: RunningCall,
        groups: list[str],
        build: Callable[..., Any],
        read: Callable[[Any], None],
    ) -> None:
        await self._routing.coordinators(
            call,
            CoordinatorKind.GROUP,
            groups,
            lambda names: build(names),
            lambda response, names: read(response),
        )


def _read_classic(found: Found, response: Any) -> None:
    failure: TrikafkaError | None = None
    for group in response.groups:
        if group.error_code == _NO_GROUP:
            found[group.group_id] = GroupDescription(group.group_id, "Dead", "", ())
        elif group.error_code:
            failure = from_code(group.error_code, f"group {group.group_id!r}", operation="Describe")
        elif group.group_state == "Dead":
            found[group.group_id] = GroupDescription(group.group_id, "Dead", "", ())
        else:
            found[group.group_id] = messages.read_group(group)
    if failure is not None:
        raise failure


def _read_modern(found: Found, kind: str, response: Any) -> None:
    for group in response.groups:
        if not group.error_code:
            found[group.group_id] = messages.read_modern_group(group, kind)
        elif group.error_code != _NO_GROUP:  # deleted meanwhile, or of another kind by now
            raise from_code(group.error_code, f"group {group.group_id!r}", operation="Describe")
