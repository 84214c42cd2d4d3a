"""Handlers of ShareGroupHeartbeat, ShareFetch and ShareAcknowledge (KIP-932, 1206, 1222)."""

from __future__ import annotations

from functools import partial
from typing import Any

import trio

from trikafka.error_codes import ErrorCode

from .call import ScriptedCall
from .groups import refusal
from .leaders import endpoints
from .messages import Message
from .share import (
    RENEW,
    Part,
    ScriptedShareError,
    ScriptedShareSession,
    SharedPartition,
    ShareGroup,
    ShareMember,
    kinds_of,
)
from .state import Partition, State

_LEAVES, _CLOSES, _OPENS = -1, -1, 0


async def share_group_heartbeat(call: ScriptedCall) -> Message:
    """Let a member join, stay or leave."""
    request, shares = call.request, call.state.shares
    if code := refusal(call, request.group_id):
        return call.respond(error_code=code)
    known = call.groups.by_id.get(request.group_id)
    if known is not None and (known.members or known.modern is not None):
        return call.respond(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message="the group is of another type"
        )
    if request.member_epoch == _LEAVES:
        group = shares.by_id.get(request.group_id)
        if group is not None and group.members.pop(request.member_id, None) is not None:
            group.epoch += 1
        return call.respond(error_code=0, member_id=request.member_id, member_epoch=_LEAVES)
    if request.member_epoch == 0:
        group = shares.group(request.group_id)
        if request.subscribed_topic_names is None:
            return call.respond(error_code=ErrorCode.INVALID_REQUEST, error_message="no topics")
        group.epoch += 1
        group.members[request.member_id] = ShareMember(request.member_id, group.epoch, frozenset())
    group = shares.by_id.get(request.group_id) or ShareGroup()
    member = group.members.get(request.member_id)
    if member is None:
        return call.respond(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    if request.subscribed_topic_names is not None:
        member.topics = frozenset(request.subscribed_topic_names)
    member.epoch = group.epoch
    assigned = group.assign(lambda topic: _parts(call, topic))[member.member_id]
    news = assigned != member.informed or request.member_epoch == 0
    member.informed = assigned
    by_topic: dict[Any, list[int]] = {}
    for topic_id, index in sorted(assigned):
        by_topic.setdefault(topic_id, []).append(index)
    return call.respond(
        error_code=0,
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=round(shares.times.heartbeat_interval * 1000),
        assignment={
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": numbers}
                for topic_id, numbers in by_topic.items()
            ]
        }
        if news
        else None,
    )


def _parts(call: ScriptedCall, name: str) -> list[Part]:
    topic = call.state.topics.get(name)
    return [] if topic is None else [(topic.topic_id, each.index) for each in topic.partitions]


async def share_fetch(call: ScriptedCall) -> Message:
    """Acknowledge, then acquire: at once if there is something, else within ``max_wait_ms``."""
    request = call.request
    try:
        session = _session(call, fetches=True)
        outcomes = {part: _acknowledge(call, part, batches) for part, batches in _named(call)}
    except ScriptedShareError as refused:
        return call.respond(error_code=refused.code, error_message=str(refused), responses=[])
    session.partitions.update(dict.fromkeys(part for part, _ in _named(call)))
    for item in request.forgotten_topics_data or ():
        for index in item.partitions:
            session.partitions.pop((item.topic_id, index), None)
    answers = _acquire_all(call, session)
    with trio.move_on_after(request.max_wait_ms / 1000):
        while not any(
            answer["acquired_records"] or answer["error_code"] for answer in answers.values()
        ):
            with trio.move_on_at(_next_lock(call, session)):
                await call.state.changed.wait()
            answers = _acquire_all(call, session)
    for part, (code, reason) in outcomes.items():
        answer = answers.setdefault(part, _nothing(part))
        answer |= {"acknowledge_error_code": code, "acknowledge_error_message": reason}
        if code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            answer |= _hint(call, part)
    session.advance()
    included = {
        part: answer
        for part, answer in answers.items()
        if answer["acquired_records"] or answer["error_code"] or part in outcomes
    }
    return call.respond(
        error_code=0,
        acquisition_lock_timeout_ms=round(call.state.shares.times.lock * 1000),
        responses=_by_topic(included),
        node_endpoints=endpoints(call, _hinting(included)),
    )


async def share_acknowledge(call: ScriptedCall) -> Message:
    """Take acknowledgements; with the last epoch, end the session."""
    request = call.request
    try:
        session = _session(call, fetches=False)
        outcomes = {part: _acknowledge(call, part, batches) for part, batches in _named(call)}
    except ScriptedShareError as refused:
        return call.respond(error_code=refused.code, error_message=str(refused), responses=[])
    if request.share_session_epoch == _CLOSES:
        _close(call, request.group_id, request.member_id)
    else:
        session.advance()
    call.state.changed.notify()
    answers = {
        part: {"partition_index": part[1], "error_code": code, "error_message": reason}
        | (_hint(call, part) if code == ErrorCode.NOT_LEADER_OR_FOLLOWER else _no_leader())
        for part, (code, reason) in outcomes.items()
    }
    return call.respond(
        error_code=0,
        acquisition_lock_timeout_ms=round(call.state.shares.times.lock * 1000),
        responses=_by_topic(answers),
        node_endpoints=endpoints(call, _hinting(answers)),
    )


def disconnected(state: Any, node_id: int, connection: int) -> None:
    """End the sessions of a connection that is gone."""
    for (node, group, member), session in list(state.shares.sessions.items()):
        if node == node_id and session.connection == connection:
            state.shares.close(node, group, member, partial(_log_of, state))


def _close(call: ScriptedCall, group: str, member: str) -> None:
    call.state.shares.close(call.node.node_id, group, member, partial(_log_of, call.state))


def _log_of(state: State, part: Part) -> Partition | None:
    topic, _ = state.find_topic(None, part[0])
    return None if topic is None else topic.partition(part[1])


def _session(call: ScriptedCall, *, fetches: bool) -> ScriptedShareSession:
    request, shares = call.request, call.state.shares
    if call.fail is not None and call.fail.topic is None:
        raise ScriptedShareError(call.fail.code, "scripted")
    epoch = request.share_session_epoch
    node_id = call.node.node_id
    acknowledges = any(batches for _, batches in _named(call))
    if fetches and call.version >= 2 and request.is_renew_ack:
        limits = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records)
        if any(limits):
            raise ScriptedShareError(ErrorCode.INVALID_REQUEST, "a renewal brings no records")
    if epoch == _OPENS:
        if not fetches:
            raise ScriptedShareError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH, "ShareAcknowledge opens no session"
            )
        if acknowledges:
            raise ScriptedShareError(
                ErrorCode.INVALID_REQUEST, "a new session has no acknowledgements"
            )
        return shares.open(node_id, request.group_id, request.member_id, call.connection)
    return shares.find(node_id, request.group_id, request.member_id, epoch)


def _named(call: ScriptedCall) -> list[tuple[Part, list[tuple[int, int, list[int]]]]]:
    return [
        (
            (item.topic_id, part.partition_index),
            [
                (each.first_offset, each.last_offset, list(each.acknowledge_types))
                for each in part.acknowledgement_batches or ()
            ],
        )
        for item in call.request.topics
        for part in item.partitions
    ]


def _acknowledge(
    call: ScriptedCall, part: Part, batches: list[tuple[int, int, list[int]]]
) -> tuple[int, str | None]:
    """Take the acknowledgements of one partition; return its error code and message."""
    if not batches:
        return 0, None
    kinds = kinds_of(batches)
    if RENEW in kinds.values() and not (call.version >= 2 and call.request.is_renew_ack):
        raise ScriptedShareError(ErrorCode.INVALID_REQUEST, "a renewal has to be announced")
    log, code = _log(call, part)
    scripted = call.fail is not None and call.fail.code == ErrorCode.INVALID_RECORD_STATE
    if scripted and log is not None and call.error(log.topic, part[1]):
        return ErrorCode.INVALID_RECORD_STATE, "scripted"
    if log is None or code:
        return code, None
    shared = _shared(call, part, log)
    try:
        shared.acknowledge(call.request.member_id, kinds, trio.current_time())
    except ScriptedShareError as refused:
        return refused.code, str(refused)
    call.state.changed.notify()
    return 0, None


def _log(call: ScriptedCall, part: Part) -> tuple[Partition | None, int]:
    topic, code = call.state.find_topic(None, part[0])
    log = topic.partition(part[1]) if topic else None
    if log is None:
        return None, code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    scripted = call.error(log.topic, part[1])
    if scripted and scripted != ErrorCode.INVALID_RECORD_STATE:
        return log, scripted
    return log, 0 if log.leader == call.node.node_id else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _shared(call: ScriptedCall, part: Part, log: Partition) -> SharedPartition:
    shared = call.state.shares.partition(call.request.group_id, part, log)
    shared.load(log.led_since)
    shared.expire(trio.current_time())
    return shared


def _acquire_all(call: ScriptedCall, session: ScriptedShareSession) -> dict[Part, dict[str, Any]]:
    left = call.request.max_records
    size = 0
    answers = {}
    for part in session.partitions:
        answer, taken = _acquire(call, part, left, size)
        answers[part] = answer
        left -= taken
        size += len(answer["records"])
    return answers


def _acquire(call: ScriptedCall, part: Part, most: int, size: int) -> tuple[dict[str, Any], int]:
    """Acquire records of one partition, behind ``size`` bytes of others; return their number."""
    answer = _nothing(part)
    log, code = _log(call, part)
    if log is None or code:
        return answer | {"error_code": code} | (
            _hint(call, part) if code == ErrorCode.NOT_LEADER_OR_FOLLOWER else {}
        ), 0
    shared = _shared(call, part, log)
    if most <= 0:
        return answer, 0
    exact = call.version >= 2 and call.request.share_acquire_mode == 1
    now = trio.current_time()
    taken = 0
    data = b""
    ranges = list[list[int]]()
    for batch in log.read(max(shared.start, log.start), log.end):
        if taken >= most:
            break
        mine = [
            offset
            for offset in range(max(batch.base, log.start), batch.end)
            if shared.available(offset)
        ]
        mine = mine[: most - taken] if exact else mine
        if not mine:
            continue
        # A response has at least one batch, however few bytes were requested.
        if size + len(data) and size + len(data) + len(batch.data) > call.request.max_bytes:
            break
        data += batch.data
        taken += len(mine)
        for offset in mine:
            count = shared.acquire(offset, call.request.member_id, now)
            if ranges and ranges[-1][1] == offset - 1 and ranges[-1][2] == count:
                ranges[-1][1] = offset
            else:
                ranges.append([offset, offset, count])
    acquired = [
        {"first_offset": first, "last_offset": last, "delivery_count": count}
        for first, last, count in ranges
    ]
    return answer | {"records": data, "acquired_records": acquired}, taken


def _next_lock(call: ScriptedCall, session: ScriptedShareSession) -> float:
    ends = [
        found
        for part in session.partitions
        if (shared := call.state.shares.group(call.request.group_id).partitions.get(part))
        and (found := shared.lock_ends()) is not None
    ]
    return min(ends, default=float("inf"))


def _nothing(part: Part) -> dict[str, Any]:
    return {
        "partition_index": part[1],
        "error_code": 0,
        "acknowledge_error_code": 0,
        "records": b"",
        "acquired_records": [],
    } | _no_leader()


def _no_leader() -> dict[str, Any]:
    return {"current_leader": {"leader_id": -1, "leader_epoch": -1}}


def _hint(call: ScriptedCall, part: Part) -> dict[str, Any]:
    topic, _ = call.state.find_topic(None, part[0])
    log = topic.partition(part[1]) if topic else None
    if log is None or log.leader is None:
        return _no_leader()
    return {"current_leader": {"leader_id": log.leader, "leader_epoch": log.leader_epoch}}


def _by_topic(answers: dict[Part, dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[Any, list[dict[str, Any]]] = {}
    for (topic_id, _), answer in answers.items():
        found.setdefault(topic_id, []).append(answer)
    return [{"topic_id": topic_id, "partitions": parts} for topic_id, parts in found.items()]


def _hinting(answers: dict[Part, dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in answers.values() if each["current_leader"]["leader_id"] >= 0]
