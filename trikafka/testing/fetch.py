"""Fetch: the long poll, sessions (KIP-227), followers (KIP-392) and truncation (KIP-320)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from trikafka.error_codes import ErrorCode

from .call import ScriptedCall
from .leaders import endpoints, hint, led
from .messages import Message
from .sessions import FINAL, INITIAL, PartKey, ScriptedFetchSession, SessionPartition, asked
from .state import Partition, StoredBatch

_SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)


async def fetch(call: ScriptedCall) -> Message:
    """Respond when there are ``min_bytes``, when a partition has other news, or after a wait.

    The wait lasts at most ``max_wait_ms``.
    """
    request = call.request
    if call.fail is not None and call.fail.topic is None and call.fail.code in _SESSION_ERRORS:
        return call.respond(error_code=call.fail.code, session_id=0, responses=[])
    session, wanted, code = _session(call)
    if code:
        return call.respond(error_code=code, session_id=0, responses=[])
    for item in wanted.values():
        topic, _ = call.state.find_topic(item.topic, item.topic_id)
        item.name = topic.name if topic else item.name
    answers, urgent = _read(call, wanted)
    with trio.move_on_after(request.max_wait_ms / 1000):
        while (
            sum(len(answer["records"]) for answer in answers.values()) < request.min_bytes
            and not urgent
        ):
            await call.state.changed.wait()
            answers, urgent = _read(call, wanted)
    included = _included(session, wanted, answers, full=request.session_epoch in (FINAL, INITIAL))
    return call.respond(
        session_id=session.session_id if session else 0,
        responses=_by_topic(wanted, included),
        node_endpoints=endpoints(call, included.values()),
    )


def _session(
    call: ScriptedCall,
) -> tuple[ScriptedFetchSession | None, dict[PartKey, SessionPartition], int]:
    """Return the session of a request, the partitions to fetch, and an error code or 0."""
    request = call.request
    sessions = call.node.sessions
    by_id = call.version >= 13
    if request.session_epoch in (FINAL, INITIAL):
        wanted = asked(request, by_id)
        sessions.close(request.session_id)
        opened = sessions.open(by_id, wanted) if request.session_epoch == INITIAL else None
        return opened, wanted, 0
    session, code = sessions.find(request.session_id, request.session_epoch, by_id)
    if session is None:
        return None, {}, code
    session.update(request)
    session.advance()
    if not session.wanted:
        sessions.close(session.session_id)
        return None, {}, 0
    return session, session.wanted, 0


def _included(
    session: ScriptedFetchSession | None,
    wanted: Mapping[PartKey, SessionPartition],
    answers: Mapping[PartKey, dict[str, Any]],
    *,
    full: bool,
) -> dict[PartKey, dict[str, Any]]:
    """Return the partitions of the response: all, or in a session only those with news."""
    if session is None:
        return dict(answers)
    included = {key: answer for key, answer in answers.items() if wanted[key].news(answer) or full}
    session.move_to_end([key for key, answer in included.items() if answer["records"]])
    return included


def _by_topic(
    wanted: Mapping[PartKey, SessionPartition], included: Mapping[PartKey, dict[str, Any]]
) -> list[dict[str, Any]]:
    responses: dict[Any, dict[str, Any]] = {}
    for key, answer in included.items():
        item = wanted[key]
        response = responses.setdefault(
            key[0], {"topic": item.topic, "topic_id": item.topic_id, "partitions": []}
        )
        response["partitions"].append(answer)
    return list(responses.values())


def _read(
    call: ScriptedCall, wanted: Mapping[PartKey, SessionPartition]
) -> tuple[dict[PartKey, dict[str, Any]], bool]:
    left, size, urgent = call.request.max_bytes, 0, not wanted
    answers = {}
    for key, item in wanted.items():
        answers[key] = answer = _fetch_one(call, item, left, first=size == 0)
        left -= len(answer["records"])
        size += len(answer["records"])
        urgent = (
            urgent
            or answer["error_code"] != 0
            or "diverging_epoch" in answer
            or "preferred_read_replica" in answer
        )
    return answers, urgent


def _fetch_one(
    call: ScriptedCall, item: SessionPartition, left: int, *, first: bool
) -> dict[str, Any]:
    part = item.part
    follows = call.state.has_racks and call.version >= 11
    _, partition, code = led(
        call,
        item.topic,
        item.topic_id,
        part.partition,
        part.current_leader_epoch,
        followers=follows,
    )
    # A session remembers the name that the id had before the topic was deleted.
    if code == ErrorCode.UNKNOWN_TOPIC_ID and item.name is not None:
        code = (
            ErrorCode.INCONSISTENT_TOPIC_ID
            if item.name in call.state.topics
            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
    answer: dict[str, Any] = {
        "partition_index": part.partition,
        "high_watermark": -1,
        "aborted_transactions": None,
        "records": b"",
    }
    if partition is None:
        return answer | {"error_code": code, "aborted_transactions": []}
    if code:
        return answer | {"error_code": code} | hint(call, partition, code)
    end = partition.high_watermark(call.node.node_id)
    stable = min(partition.stable_end, end)
    here = answer | {
        "error_code": 0,
        "high_watermark": end,
        "last_stable_offset": stable,
        "log_start_offset": partition.start,
    }
    nowhere = {"high_watermark": -1, "last_stable_offset": -1, "log_start_offset": -1}
    if (other := _nearer(call, partition, part.fetch_offset)) is not None:
        return here | {"preferred_read_replica": other}
    last_epoch = part.last_fetched_epoch if call.version >= 12 else -1
    if (known := _diverging(partition, last_epoch, part.fetch_offset)) is not None:
        return here | {"diverging_epoch": {"epoch": known[0], "end_offset": known[1]}}
    newest = partition.leader_epoch
    if call.node.node_id != partition.leader:
        # A follower learns of an epoch with the first record of it.
        newest = partition.epoch_at(end - 1)
    if not partition.start <= part.fetch_offset <= end or last_epoch > newest:
        return answer | nowhere | {"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}
    if part.fetch_offset < partition.tiered and not partition.remote_readable:
        return answer | nowhere | {"error_code": ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE}
    batches = partition.read(
        part.fetch_offset, stable if call.request.isolation_level == 1 else end
    )
    data, upto = _cut(batches, min(part.partition_max_bytes, left), first=first)
    if call.request.isolation_level == 1:
        here["aborted_transactions"] = _aborted(partition, part.fetch_offset, upto)
    return here | {"records": data}


def _nearer(call: ScriptedCall, partition: Partition, offset: int) -> int | None:
    """Return the follower in the consumer's rack to read from, or ``None``."""
    rack = call.request.rack_id if call.version >= 11 else ""
    if not rack or partition.leader != call.node.node_id or call.node.rack == rack:
        return None
    nodes = [
        call.state.nodes[number] for number in partition.replicas if number != call.node.node_id
    ]
    near = [
        n.node_id
        for n in nodes
        if n.rack == rack
        and n.listed
        and partition.start <= offset <= partition.high_watermark(n.node_id)
    ]
    return max(near, key=partition.high_watermark, default=None)


def _diverging(partition: Partition, last_epoch: int, offset: int) -> tuple[int, int] | None:
    """Return the epoch and offset where the consumer's log diverges from this one (KIP-320).

    ``None`` if the consumer's last record is part of this log.
    """
    if last_epoch < 0 or offset < partition.start:
        return None
    known = partition.epoch_end(last_epoch)
    return known if known is not None and (known[0] < last_epoch or known[1] < offset) else None


def _aborted(partition: Partition, offset: int, upto: int) -> list[dict[str, int]]:
    """Return the aborted transactions that overlap the fetched offsets."""
    return [
        {"producer_id": producer, "first_offset": start}
        for producer, start, end in partition.aborted
        if end >= offset and start < upto
    ]


def _cut(batches: list[StoredBatch], limit: int, *, first: bool) -> tuple[bytes, int]:
    """Return the bytes of a log segment up to the limit, and the offset after them.

    The last batch may be cut in the middle. The first batch of the response is always complete. If
    the first batch of another partition does not fit, the partition returns nothing, as in Kafka
    since Fetch v3.
    """
    if not batches:
        return b"", 0
    smallest = len(batches[0].data)
    if first:
        limit = max(limit, smallest)
    if limit < smallest:
        return b"", 0
    size = upto = 0
    for batch in batches:
        if size >= limit:
            break
        size += len(batch.data)
        upto = batch.end
    return b"".join(batch.data for batch in batches)[:limit], upto
