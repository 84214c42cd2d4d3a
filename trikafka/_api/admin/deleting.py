"""The deletion of records and of a group's offsets: requests and responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from kafka.protocol.admin import DeleteRecordsRequest
from kafka.protocol.consumer import OffsetDeleteRequest

from ...errors import ConfigurationError, ErrorCode, TrikafkaError, from_code, topic_error
from ...types import OffsetSpec, TopicPartition
from .messages import partitions_of

#: In a DeleteRecords request: up to the last stable record of all replicas.
_END = -1


def checked_limits(before: Mapping[TopicPartition, OffsetSpec | int]) -> dict[TopicPartition, int]:
    """Return the checked argument of ``delete_records``. Raises :exc:`ConfigurationError`."""
    if not isinstance(before, Mapping):
        raise ConfigurationError(
            f"delete_records wants a mapping of TopicPartition to offset, not {before!r}"
        )
    partitions_of(before)
    for tp, offset in before.items():
        whole = isinstance(offset, int) and not isinstance(offset, bool | OffsetSpec)
        if offset is not OffsetSpec.LATEST and not (whole and 0 <= offset < 1 << 63):
            raise ConfigurationError(
                f"for {tp}: delete_records wants the offset of the first record to keep, or "
                f"OffsetSpec.LATEST for all, not {offset!r}"
            )
    return {
        TopicPartition(*tp): _END if offset is OffsetSpec.LATEST else int(offset)
        for tp, offset in before.items()
    }


def delete_records_request(
    before: Mapping[TopicPartition, int], partitions: Iterable[TopicPartition], timeout_ms: int
) -> DeleteRecordsRequest:
    """Return a DeleteRecords request for these partitions of one leader."""
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    part = topic.DeleteRecordsPartition
    return DeleteRecordsRequest(
        topics=[
            topic(
                name=name,
                partitions=[part(partition_index=tp.partition, offset=before[tp]) for tp in tps],
            )
            for name, tps in groupby(sorted(partitions), key=lambda tp: tp.topic)
        ],
        timeout_ms=timeout_ms,
    )


def read_low_watermarks(
    response: Any, found: dict[TopicPartition, int], failed: dict[TopicPartition, TrikafkaError]
) -> None:
    """Take in a DeleteRecords response."""
    for topic in response.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            if part.error_code:
                failed[tp] = _error(part.error_code, tp, "Delete")
            else:
                found[tp] = part.low_watermark


def delete_offsets_request(group: str, partitions: Iterable[TopicPartition]) -> OffsetDeleteRequest:
    """Return an OffsetDelete request."""
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
    part = topic.OffsetDeleteRequestPartition
    return OffsetDeleteRequest(
        group_id=group,
        topics=[
            topic(name=name, partitions=[part(partition_index=tp.partition) for tp in tps])
            for name, tps in groupby(sorted(partitions), key=lambda tp: tp.topic)
        ],
    )


def read_deleted_offsets(
    response: Any,
    group: str,
    left: set[TopicPartition],
    failed: dict[TopicPartition, TrikafkaError],
) -> None:
    """Take in an OffsetDelete response. Raises the error of the group."""
    if response.error_code:
        raise from_code(response.error_code, f"group {group!r}", operation="Delete")
    for topic in response.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            left.discard(tp)
            if part.error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
                failed[tp] = from_code(
                    part.error_code,
                    f"group {group!r} has members that are subscribed to topic {tp.topic!r}; stop "
                    "them first",
                )
            elif part.error_code:
                failed[tp] = _error(part.error_code, tp, "Read")


def _error(code: int, tp: TopicPartition, operation: str) -> TrikafkaError:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return topic_error(code, tp.topic, make=False)
    return from_code(code, str(tp), operation=operation)
