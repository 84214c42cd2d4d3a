"""The offsets and descriptions of share groups (KIP-932): values, requests and responses.

A share group has a start offset a partition: everything before it is settled. Requests about a
share group go to its group coordinator, not to the share coordinator, which keeps its state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from ..._net.deadlines import RunningCall
from ..._wire.extra_messages import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    ShareGroupDescribeRequest,
)
from ..._wire.releases import explained_refusal
from ...errors import (
    ConfigurationError,
    ErrorCode,
    IllegalStateError,
    TrikafkaError,
    combined,
    from_code,
    topic_error,
)
from ...interfaces import CoordinatorKind
from ...types import TopicPartition
from ..client.option_parsing import names_of
from .messages import (
    by_topic,
    check_offset,
    named,
    number_or_none,
    of_partition,
    partitions_of,
    read_modern_group,
)
from .routing import Parts, Routing

T = TypeVar("T")
#: The partitions to list, by group; ``None`` means all that a group has offsets for.
Wanted = dict[str, list[TopicPartition] | None]


@dataclass(frozen=True, slots=True)
class SharePartitionOffset:
    """The position of a share group in a partition.

    Attributes:
        start_offset: The first offset that is not settled. The group may have settled or acquired
            single records after it.
        leader_epoch: The leader epoch of that offset; ``None`` if the group does not know it.
        lag: The records that the group has not settled yet (Kafka 4.2, KIP-1226); ``None`` if the
            broker does not say.
    """

    start_offset: int
    leader_epoch: int | None
    lag: int | None


PartitionOffsets = dict[TopicPartition, SharePartitionOffset]


def checked_wanted(groups: Mapping[str, Iterable[TopicPartition] | None] | Iterable[str]) -> Wanted:
    """Return the checked argument of ``list_share_group_offsets``.

    Raises :exc:`ConfigurationError`.
    """
    names = names_of("groups", groups)
    if not isinstance(groups, Mapping):
        return dict.fromkeys(names)
    return {
        name: None if groups[name] is None else partitions_of(groups[name] or ()) for name in names
    }


def checked_starts(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the checked argument of ``alter_share_group_offsets``.

    Raises :exc:`ConfigurationError`.
    """
    if not isinstance(offsets, Mapping):
        raise ConfigurationError(
            f"offsets must be a mapping of TopicPartition to offset, not {offsets!r}"
        )
    return {tp: check_offset(offsets[tp]) for tp in partitions_of(offsets)}


async def describe(
    routing: Routing,
    call: RunningCall,
    parts: Parts[str, T],
    *,
    operations: bool,
    kind: str,
    request: Any,
    read_group: Callable[[Any], T],
) -> None:
    """Ask the coordinators to describe the groups that are left, by the request of their kind."""

    def build(groups: list[str]) -> Any:
        return request(group_ids=groups, include_authorized_operations=operations)

    def read(response: Any, groups: list[str]) -> None:
        for group in response.groups:
            if group.error_code:
                parts.failed(group.group_id, _group_error(group, "Describe", kind))
            else:
                parts.done(group.group_id, read_group(group))
        parts.check(groups, request.__name__.removesuffix("Request"))

    await routing.coordinators(
        call, CoordinatorKind.GROUP, parts.left, build, read, refuse=parts.refuse
    )


#: Describe share groups.
describe_share = partial(
    describe,
    kind="share",
    request=ShareGroupDescribeRequest,
    read_group=partial(read_modern_group, kind="share"),
)


async def offsets(
    routing: Routing, call: RunningCall, parts: Parts[str, PartitionOffsets], wanted: Wanted
) -> None:
    """Ask the coordinators for the offsets of the groups that are left."""
    # Kafka 4.4.0 never answers a request that names a partition which its topic lacks.
    named = {group: wanted[group] or () for group in parts.left}
    lacking = await routing.lacking(call, dict.fromkeys(chain.from_iterable(named.values())))
    for group, partitions in named.items():
        if failures := {tp: lacking[tp] for tp in partitions if tp in lacking}:
            parts.failed(group, combined(failures))

    def build(groups: list[str]) -> Any:
        group = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
        return DescribeShareGroupOffsetsRequest(
            groups=[group(group_id=name, topics=_topics(wanted[name])) for name in groups]
        )

    def read(response: Any, groups: list[str]) -> None:
        for group in response.groups:
            if group.error_code:
                parts.failed(group.group_id, _group_error(group, "Describe"))
                continue
            found, failed = _offsets(group)
            if failed:
                parts.failed(group.group_id, combined(failed))
            else:
                parts.done(group.group_id, found)
        parts.check(groups, "DescribeShareGroupOffsets")

    await routing.coordinators(
        call, CoordinatorKind.GROUP, parts.left, build, read, refuse=parts.refuse
    )


def _topics(partitions: list[TopicPartition] | None) -> list[Any] | None:
    group = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
    topic = group.DescribeShareGroupOffsetsRequestTopic
    if partitions is None:
        return None
    return [
        topic(topic_name=name, partitions=numbers) for name, numbers in by_topic(partitions).items()
    ]


def _offsets(group: Any) -> tuple[PartitionOffsets, dict[TopicPartition, TrikafkaError]]:
    found: PartitionOffsets = {}
    failed: dict[TopicPartition, TrikafkaError] = {}
    for topic in group.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.topic_name, part.partition_index)
            if part.error_code:
                failed[tp] = of_partition(tp, part.error_code, part.error_message, "Describe")
            elif part.start_offset >= 0:  # -1: the group has no state of it yet
                found[tp] = SharePartitionOffset(
                    part.start_offset, number_or_none(part.leader_epoch), number_or_none(part.lag)
                )
    return dict(sorted(found.items())), failed


async def alter(
    routing: Routing,
    call: RunningCall,
    parts: Parts[TopicPartition, None],
    group: str,
    starts: Mapping[TopicPartition, int],
) -> None:
    """Let the coordinator set the start offsets that are left."""
    topic = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
    part_of = topic.AlterShareGroupOffsetsRequestPartition
    asked = parts.left

    def build(groups: list[str]) -> Any:
        return AlterShareGroupOffsetsRequest(
            group_id=group,
            topics=[
                topic(
                    topic_name=name,
                    partitions=[
                        part_of(
                            partition_index=number,
                            start_offset=starts[TopicPartition(name, number)],
                        )
                        for number in numbers
                    ],
                )
                for name, numbers in by_topic(asked).items()
            ],
        )

    def read(response: Any, groups: list[str]) -> None:
        _check_group(group, response, "Read")
        for each in response.responses:
            for part in each.partitions:
                tp = TopicPartition(each.topic_name, part.partition_index)
                if part.error_code:
                    parts.failed(tp, of_partition(tp, part.error_code, part.error_message, "Read"))
                else:
                    parts.done(tp, None)
        parts.check(asked, "AlterShareGroupOffsets")

    await routing.coordinators(call, CoordinatorKind.GROUP, [group] if asked else [], build, read)


async def delete(routing: Routing, call: RunningCall, parts: Parts[str, None], group: str) -> None:
    """Let the coordinator delete the offsets of the topics that are left."""
    topic = DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic
    asked = parts.left

    def build(groups: list[str]) -> Any:
        return DeleteShareGroupOffsetsRequest(
            group_id=group, topics=[topic(topic_name=name) for name in asked]
        )

    def read(response: Any, groups: list[str]) -> None:
        _check_group(group, response, "Delete")
        for each in response.responses:
            if each.error_code:
                parts.failed(each.topic_name, _topic_error(each))
            else:
                parts.done(each.topic_name, None)
        parts.check(asked, "DeleteShareGroupOffsets")

    await routing.coordinators(call, CoordinatorKind.GROUP, [group] if asked else [], build, read)


def _topic_error(each: Any) -> TrikafkaError:
    if each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return topic_error(each.error_code, each.topic_name, make=False)
    what = named("topic", each.topic_name, each.error_message)
    return from_code(each.error_code, what, operation="Read")


def _check_group(group: str, response: Any, operation: str) -> None:
    """Raise the error of the whole group, if there is one."""
    if response.error_code == ErrorCode.NON_EMPTY_GROUP:
        raise IllegalStateError(
            f"share group {group!r} has members, which go on from its present offsets: stop them "
            "first"
        )
    if response.error_code:
        what = named("group", group, response.error_message)
        error = from_code(response.error_code, what, operation=operation)
        raise explained_refusal(error, "share")


def _group_error(group: Any, operation: str, kind: str = "share") -> TrikafkaError:
    """Return the error of a group in a response."""
    what = named("group", group.group_id, group.error_message)
    return explained_refusal(from_code(group.error_code, what, operation=operation), kind)
