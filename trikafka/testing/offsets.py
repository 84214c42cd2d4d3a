"""Handlers of ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from typing import Any

from trikafka.error_codes import ErrorCode

from .call import ScriptedCall
from .leaders import led
from .messages import Message
from .state import Partition

LATEST = -1
EARLIEST = -2
OF_MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_SINCE = {
    LATEST: 0,
    EARLIEST: 0,
    OF_MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


async def list_offsets(call: ScriptedCall) -> Message:
    """Return offsets by time, or those with a name such as the latest."""
    topics = []
    for item in call.request.topics:
        parts = [_list_one(call, item.name, part) for part in item.partitions]
        topics.append({"name": item.name, "partitions": parts})
    return call.respond(topics=topics)


def _list_one(call: ScriptedCall, topic: str, part: Any) -> dict[str, Any]:
    _, partition, code = led(call, topic, None, part.partition_index, part.current_leader_epoch)
    if not code and part.timestamp < 0 and call.version < _SINCE.get(part.timestamp, 99):
        code = ErrorCode.UNSUPPORTED_VERSION
    answer = {
        "partition_index": part.partition_index,
        "error_code": code,
        "timestamp": -1,
        "offset": -1,
        "leader_epoch": -1,
    }
    if partition is None or code:
        return answer
    offset, timestamp, epoch = _find(
        partition, part.timestamp, committed=call.request.isolation_level == 1
    )
    return answer | {"timestamp": timestamp, "offset": offset, "leader_epoch": epoch}


def _find(partition: Partition, wanted: int, *, committed: bool) -> tuple[int, int, int]:
    """Return offset, timestamp and leader epoch; -1 for a value that does not exist."""
    last = partition.stable_end if committed else partition.end
    match wanted:
        case -1:
            return last, -1, partition.leader_epoch
        case -2:
            return partition.start, -1, partition.epoch_at(partition.start)
        case -4:
            start = max(partition.start, partition.tiered)
            return start, -1, partition.epoch_at(start)
        case -5 if partition.tiered > partition.start:
            return partition.tiered - 1, -1, partition.epoch_at(partition.tiered - 1)
        case -6 if partition.tiered > partition.start:
            return partition.tiered, -1, partition.epoch_at(partition.tiered)
        case -5 | -6:
            return -1, -1, -1
        case -3:
            wanted = max((batch.info.max_timestamp for batch in partition.batches), default=-1)
    found = partition.find_time(wanted) if wanted >= 0 else None
    if found is None or found[0] >= last:
        return -1, -1, -1
    return *found, partition.epoch_at(found[0])


async def offset_for_leader_epoch(call: ScriptedCall) -> Message:
    """Return the end of an epoch in a partition's log."""
    topics = []
    for item in call.request.topics:
        parts = [_epoch_end(call, item.topic, part) for part in item.partitions]
        topics.append({"topic": item.topic, "partitions": parts})
    return call.respond(topics=topics)


def _epoch_end(call: ScriptedCall, topic: str, part: Any) -> dict[str, Any]:
    _, partition, code = led(call, topic, None, part.partition, part.current_leader_epoch)
    answer = {"error_code": code, "partition": part.partition, "leader_epoch": -1, "end_offset": -1}
    found = partition.epoch_end(part.leader_epoch) if partition is not None and not code else None
    return answer if found is None else answer | {"leader_epoch": found[0], "end_offset": found[1]}
