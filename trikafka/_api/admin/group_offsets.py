"""The offsets of a group, read, set and deleted from outside of it: requests and responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import trio
from kafka.protocol.consumer import OffsetDeleteRequest

from ..._managers.commits.offset_messages import (
    Positions,
    commit_request,
    fetch_request,
    read_commit_response,
    read_fetched,
)
from ..._net.deadlines import RunningCall
from ..._state.group.member import Member
from ..._wire.messages import portions
from ...errors import (
    ErrorCode,
    IllegalStateError,
    MemberFencedError,
    RebalanceInProgressError,
    TrikafkaError,
    from_code,
)
from ...interfaces import CoordinatorKind
from ...types import OffsetAndMetadata, TopicPartition
from .messages import by_topic, partition_error
from .routing import Parts, Routing

#: The codes that a response has for a partition. All others are about the group.
_OF_PARTITIONS = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    }
)


async def fetch(
    routing: Routing,
    call: RunningCall,
    parts: Parts[TopicPartition, OffsetAndMetadata | None],
    group: str,
    *,
    everything: bool,
) -> None:
    """Read the offsets of the partitions that are left, or all of the group."""

    def read(response: Any, groups: list[str]) -> None:
        result = response.groups[0] if response.groups else response
        if result.error_code:
            raise from_code(result.error_code, f"group {group!r}", operation="Describe")
        found, failures = read_fetched(result, {})
        for tp in [*found, *failures] if everything else ():
            parts.add(tp)
        for tp, at in found.items():
            parts.done(tp, at)
        for tp, error in failures.items():
            parts.failed(tp, error)

    def build(asked: list[TopicPartition] | None) -> Any:
        return fetch_request(group, Member(None).identity, asked, {})

    if everything:
        await _ask(routing, call, group, build(None), read)
    else:
        await _ask_in_portions(routing, call, group, parts.left, build, read)
    parts.check(parts.left, "OffsetFetch")


async def commit(
    routing: Routing,
    call: RunningCall,
    parts: Parts[TopicPartition, None],
    group: str,
    positions: Positions,
) -> None:
    """Set the offsets of the partitions that are left.

    Raises:
        IllegalStateError: The group has members.
    """

    def build(asked: list[TopicPartition]) -> Any:
        chosen = {tp: positions[tp] for tp in asked}
        return commit_request(group, Member(None).identity, chosen, {})

    def read(response: Any, groups: list[str]) -> None:
        for tp, code in read_commit_response(response, {}).items():
            if code and code not in _OF_PARTITIONS:
                raise _group_error(group, code)
            if code:
                parts.failed(tp, partition_error(code, tp, "Read"))
            else:
                parts.done(tp, None)

    await _ask_in_portions(routing, call, group, parts.left, build, read)
    parts.check(parts.left, "OffsetCommit")


def _group_error(group: str, code: int) -> TrikafkaError:
    error = from_code(code, f"group {group!r}", operation="Read")
    if isinstance(error, RebalanceInProgressError):
        error.retriable = True  # the rebalance shows whether the group has members
    if not isinstance(error, MemberFencedError):
        return error
    refused = IllegalStateError(
        f"group {group!r} has members, which would overwrite the offsets: stop them first"
    )
    refused.__cause__ = error
    return refused


async def delete(
    routing: Routing, call: RunningCall, parts: Parts[TopicPartition, None], group: str
) -> None:
    """Delete the offsets of the partitions that are left."""
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
    part = topic.OffsetDeleteRequestPartition

    def build(asked: list[TopicPartition]) -> Any:
        return OffsetDeleteRequest(
            group_id=group,
            topics=[
                topic(name=name, partitions=[part(partition_index=number) for number in numbers])
                for name, numbers in by_topic(asked).items()
            ],
        )

    def read(response: Any, groups: list[str]) -> None:
        if response.error_code:
            raise from_code(response.error_code, f"group {group!r}", operation="Delete")
        for each in response.topics:
            for result in each.partitions:
                tp = TopicPartition(each.name, result.partition_index)
                if result.error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
                    why = (
                        f"group {group!r} has members that are subscribed to topic {tp.topic!r}; "
                        "stop them first"
                    )
                    parts.failed(tp, from_code(result.error_code, why))
                elif result.error_code:
                    parts.failed(tp, partition_error(result.error_code, tp, "Read"))
                else:
                    parts.done(tp, None)

    await _ask_in_portions(routing, call, group, parts.left, build, read)
    parts.check(parts.left, "OffsetDelete")


async def _ask_in_portions(
    routing: Routing,
    call: RunningCall,
    group: str,
    partitions: Iterable[TopicPartition],
    build: Callable[[list[TopicPartition]], Any],
    read: Callable[[Any, list[str]], None],
) -> None:
    await trio.lowlevel.checkpoint()
    for portion in portions(partitions):
        await _ask(routing, call, group, build(portion), read)


async def _ask(
    routing: Routing,
    call: RunningCall,
    group: str,
    request: Any,
    read: Callable[[Any, list[str]], None],
) -> None:
    await routing.coordinators(call, CoordinatorKind.GROUP, [group], lambda groups: request, read)
