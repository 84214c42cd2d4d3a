"""Produce, InitProducerId, Fetch, ListOffsets and OffsetForLeaderEpoch: one handler an API."""

from __future__ import annotations

from typing import Any

import trio

from .batches import BadBatch, split_batches, verify
from .call import Call, HangUp
from .messages import Message
from .state import Partition, StoredBatch, Topic

_MAX_MESSAGE_BYTES = 1_048_588


def _led(call: Call, name: str | None, topic_id: Any, index: int) -> tuple[Topic | None, Partition | None, int]:
    """The partition that a request names, and the error if this node does not lead it."""
    topic, code = call.state.find_topic(name, topic_id)
    label = topic.name if topic else name
    if scripted := call.error(label, index):
        return topic, None, scripted
    partition = topic.partition(index) if topic else None
    if partition is None:
        return topic, None, code or 3
    if partition.leader != call.node.node_id:
        return topic, partition, 6
    return topic, partition, 0


def _epoch_error(partition: Partition, epoch: int) -> int:
    if epoch < 0 or epoch == partition.leader_epoch:
        return 0
    return 74 if epoch < partition.leader_epoch else 75


def _moved(call: Call, partition: Partition | None, code: int) -> dict[str, Any]:
    """Who leads instead (KIP-951), for those versions that can say so."""
    if code != 6 or partition is None or partition.leader is None:
        return {}
    return {"current_leader": {"leader_id": partition.leader, "leader_epoch": partition.leader_epoch}}


def _endpoints(call: Call, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    leaders = {part["current_leader"]["leader_id"] for part in parts if "current_leader" in part}
    nodes = [call.state.nodes[number] for number in sorted(leaders)]
    return [{"node_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack} for node in nodes]


async def init_producer_id(call: Call) -> Message:
    """A new producer id; with a transactional id always the same one, its epoch one higher."""
    request, state = call.request, call.state
    if code := call.error():
        return call.respond(error_code=code, producer_id=-1, producer_epoch=-1)
    name = request.transactional_id
    if name is not None and state.coordinator_of(name) is not call.node:
        return call.respond(error_code=16, producer_id=-1, producer_epoch=-1)
    if name in state.transactional:
        producer_id, epoch = state.transactional[name]
        if request.producer_id not in (-1, producer_id) or (request.producer_id >= 0 and request.producer_epoch != epoch):
            return call.respond(error_code=90, producer_id=-1, producer_epoch=-1)
        epoch += 1
    else:
        producer_id, epoch = state.next_producer_id, 0
        state.next_producer_id += 1
    if name is not None:
        state.transactional[name] = producer_id, epoch
    return call.respond(error_code=0, producer_id=producer_id, producer_epoch=epoch)


async def produce(call: Call) -> Message | None:
    """Check the batches, append them, and say where they are."""
    request, answers = call.request, []
    acks_ok = request.acks in (-1, 0, 1)
    for item in request.topic_data:
        parts = [_produce_one(call, item, part, acks_ok) for part in item.partition_data]
        answers.append({"name": item.name, "topic_id": item.topic_id, "partition_responses": parts})
    call.state.changed.notify()
    everything = [part for answer in answers for part in answer["partition_responses"]]
    if request.acks == 0:
        if any(part["error_code"] for part in everything):
            raise HangUp  # as Kafka: the only way to tell a producer that wants no answer
        return None
    return call.respond(responses=answers, node_endpoints=_endpoints(call, everything))


def _produce_one(call: Call, item: Any, part: Any, acks_ok: bool) -> dict[str, Any]:
    topic, partition, code = _led(call, item.name, item.topic_id, part.index)
    answer = {"index": part.index, "error_code": code or (0 if acks_ok else 21), "base_offset": -1, "log_start_offset": -1}
    answer |= _moved(call, partition, code)
    if topic is None or partition is None or answer["error_code"]:
        return answer
    own_time = call.state.clock() if topic.config.get("message.timestamp.type") == "LogAppendTime" else None
    try:
        batches = split_batches(bytes(part.records or b""))
        if len(batches) != 1:
            raise BadBatch(87, f"a produce request has one batch a partition, not {len(batches)}")
        if len(batches[0]) > int(topic.config.get("max.message.bytes", _MAX_MESSAGE_BYTES)):
            raise BadBatch(10, f"the batch has {len(batches[0])} bytes")
        verify(batches[0])
        answer["base_offset"] = partition.store(batches[0], log_append_time=own_time)
    except BadBatch as bad:
        return answer | {"error_code": bad.code, "error_message": str(bad)}
    answer["log_start_offset"] = partition.start
    if own_time is not None:
        answer["log_append_time_ms"] = own_time
    return answer


async def fetch(call: Call) -> Message:
    """Long poll: answer when there are ``min_bytes``, when a partition has an error, or after ``max_wait_ms``."""
    request = call.request
    if request.session_id:
        return call.respond(error_code=70, session_id=0, responses=[])
    if call.fail is not None and call.fail.topic is None and call.fail.code in (70, 71):
        return call.respond(error_code=call.fail.code, session_id=0, responses=[])
    responses, size, urgent = _read(call)
    with trio.move_on_after(request.max_wait_ms / 1000):
        while size < request.min_bytes and not urgent:
            await call.state.changed.wait()
            responses, size, urgent = _read(call)
    parts = [part for response in responses for part in response["partitions"]]
    return call.respond(session_id=0, responses=responses, node_endpoints=_endpoints(call, parts))


def _read(call: Call) -> tuple[list[dict[str, Any]], int, bool]:
    left, size, urgent = call.request.max_bytes, 0, not call.request.topics
    responses = []
    for item in call.request.topics:
        parts = []
        for part in item.partitions:
            answer = _fetch_one(call, item, part, left, first=size == 0)
            left -= len(answer["records"])
            size += len(answer["records"])
            urgent = urgent or answer["error_code"] != 0
            parts.append(answer)
        responses.append({"topic": item.topic, "topic_id": item.topic_id, "partitions": parts})
    return responses, size, urgent


def _fetch_one(call: Call, item: Any, part: Any, left: int, *, first: bool) -> dict[str, Any]:
    _, partition, code = _led(call, item.topic, item.topic_id, part.partition)
    answer: dict[str, Any] = {"partition_index": part.partition, "high_watermark": -1, "aborted_transactions": None, "records": b""}
    if partition is not None and not code:
        code = _epoch_error(partition, part.current_leader_epoch)
    if partition is None:
        return answer | {"error_code": code, "aborted_transactions": []}
    if code:
        return answer | {"error_code": code} | _moved(call, partition, code)
    answer |= {"high_watermark": partition.end, "last_stable_offset": partition.stable_end, "log_start_offset": partition.start}
    if not partition.start <= part.fetch_offset <= partition.end:
        return answer | {"error_code": 1, "high_watermark": -1, "last_stable_offset": -1, "log_start_offset": -1}
    committed_only = call.request.isolation_level == 1
    batches = partition.read(part.fetch_offset, partition.stable_end if committed_only else partition.end)
    if committed_only:
        answer["aborted_transactions"] = [
            {"producer_id": producer, "first_offset": start}
            for producer, start, end in partition.aborted
            if end >= part.fetch_offset
        ]
    return answer | {"error_code": 0, "records": _cut(batches, min(part.partition_max_bytes, left), first=first)}


def _cut(batches: list[StoredBatch], limit: int, *, first: bool) -> bytes:
    """The bytes of a log segment up to the limit: the last batch may be cut in the middle, but the first of all comes whole.

    Of another partition whose first batch does not fit nothing comes, as from Kafka since version 3 of Fetch.
    """
    if not batches:
        return b""
    data = b"".join(batch.data for batch in batches)
    if first:
        limit = max(limit, len(batches[0].data))
    return data[:limit] if limit >= len(batches[0].data) else b""


async def list_offsets(call: Call) -> Message:
    """Offsets by time, or the earliest, the latest, and that of the largest timestamp."""
    topics = []
    for item in call.request.topics:
        parts = [_list_one(call, item.name, part) for part in item.partitions]
        topics.append({"name": item.name, "partitions": parts})
    return call.respond(topics=topics)


def _list_one(call: Call, topic: str, part: Any) -> dict[str, Any]:
    _, partition, code = _led(call, topic, None, part.partition_index)
    if partition is not None and not code:
        code = _epoch_error(partition, part.current_leader_epoch)
    answer = {"partition_index": part.partition_index, "error_code": code, "timestamp": -1, "offset": -1, "leader_epoch": -1}
    if partition is None or code:
        return answer
    timestamp, offset = -1, -1
    if part.timestamp == -1:
        offset = partition.stable_end if call.request.isolation_level == 1 else partition.end
    elif part.timestamp in (-2, -4):
        offset = partition.start
    elif part.timestamp == -3:
        timestamp = max((batch.info.max_timestamp for batch in partition.batches), default=-1)
        found = partition.find_time(timestamp) if timestamp >= 0 else None
        offset = found[0] if found else -1
    elif part.timestamp >= 0 and (found := partition.find_time(part.timestamp)):
        offset, timestamp = found
    return answer | {"timestamp": timestamp, "offset": offset, "leader_epoch": partition.leader_epoch if offset >= 0 else -1}


async def offset_for_leader_epoch(call: Call) -> Message:
    """Where an epoch of a partition's log ends."""
    topics = []
    for item in call.request.topics:
        parts = [_epoch_end(call, item.topic, part) for part in item.partitions]
        topics.append({"topic": item.topic, "partitions": parts})
    return call.respond(topics=topics)


def _epoch_end(call: Call, topic: str, part: Any) -> dict[str, Any]:
    _, partition, code = _led(call, topic, None, part.partition)
    if partition is not None and not code:
        code = _epoch_error(partition, part.current_leader_epoch)
    answer = {"error_code": code, "partition": part.partition, "leader_epoch": -1, "end_offset": -1}
    if partition is None or code or part.leader_epoch > partition.leader_epoch:
        return answer
    epoch, end = partition.epoch_end(part.leader_epoch)
    return answer | {"leader_epoch": epoch, "end_offset": end}
