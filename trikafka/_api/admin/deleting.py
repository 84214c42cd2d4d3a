"""The deletion of records and of groups: requests and responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka.protocol.admin import DeleteRecordsRequest

from ..._net.deadlines import RunningCall
from ..._wire._format import MAX_INT64
from ..._wire.extra_messages import DeleteGroupsRequest
from ...config.whole import is_whole, whole
from ...errors import ConfigurationError, ErrorCode, from_code
from ...interfaces import CoordinatorKind
from ...types import OffsetSpec, TopicPartition
from .messages import by_topic, named, partition_error, partitions_of
from .routing import Parts, Routing

#: Stands for the partition's high watermark in a DeleteRecords request.
_END = -1


def checked_limits(before: Mapping[TopicPartition, OffsetSpec | int]) -> dict[TopicPartition, int]:
    """Return the checked argument of ``delete_records``. Raises :exc:`ConfigurationError`."""
    if not isinstance(before, Mapping):
        raise ConfigurationError(
            f"delete_records wants a mapping of TopicPartition to offset, not {before!r}"
        )
    chosen = partitions_of(before)
    for tp, offset in before.items():
        if offset is not OffsetSpec.LATEST and (
            isinstance(offset, OffsetSpec) or not is_whole(whole(offset), most=MAX_INT64)
        ):
            raise ConfigurationError(
                f"for {tp}: delete_records wants the offset of the first record to keep, or "
                f"OffsetSpec.LATEST for all, not {offset!r}"
            )
    return {
        tp: _END if (offset := before[tp]) is OffsetSpec.LATEST else int(offset) for tp in chosen
    }


async def delete_records(
    routing: Routing,
    call: RunningCall,
    parts: Parts[TopicPartition, int],
    before: Mapping[TopicPartition, int],
) -> None:
    """Ask the leaders to delete the records of those partitions that have no result yet."""
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    part = topic.DeleteRecordsPartition

    def build(partitions: list[TopicPartition]) -> Any:
        return DeleteRecordsRequest(
            topics=[
                topic(
                    name=name,
                    partitions=[
                        part(partition_index=number, offset=before[TopicPartition(name, number)])
                        for number in numbers
                    ],
                )
                for name, numbers in by_topic(partitions).items()
            ],
            timeout_ms=int(call.step_limit * 1000),
        )

    def read(response: Any, partitions: list[TopicPartition]) -> None:
        for each in response.topics:
            for result in each.partitions:
                tp = TopicPartition(each.name, result.partition_index)
                if result.error_code:
                    parts.failed(tp, partition_error(result.error_code, tp, "Delete"))
                else:
                    parts.done(tp, result.low_watermark)

    await routing.leaders(call, parts, build, read)
    parts.check(parts.left, "DeleteRecords")


async def delete_groups(routing: Routing, call: RunningCall, parts: Parts[str, None]) -> None:
    """Ask the coordinators to delete those groups that have no result yet."""

    def read(response: Any, groups: list[str]) -> None:
        for each in response.results:
            if each.error_code:
                what = named("group", each.group_id, each.error_message)
                error = from_code(each.error_code, what, operation="Delete")
                parts.failed(each.group_id, error, made_before=ErrorCode.GROUP_ID_NOT_FOUND)
            else:
                parts.done(each.group_id, None)

    await routing.coordinators(
        call,
        CoordinatorKind.GROUP,
        parts.left,
        lambda groups: DeleteGroupsRequest(groups_names=groups),
        read,
        refuse=parts.refuse,
        doubt=parts.doubt,
    )
    parts.check(parts.left, "DeleteGroups")
