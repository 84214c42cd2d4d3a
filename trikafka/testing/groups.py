"""Handlers of the classic group APIs, offsets and the admin's group calls.

JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit, OffsetFetch, OffsetDelete, ListGroups,
DescribeGroups and DeleteGroups.
"""

from __future__ import annotations

from typing import Any

from trikafka.error_codes import ErrorCode

from .call import ScriptedCall
from .group import ClassicMember, CommittedOffset, Group, GroupState, JoinResult
from .messages import Message
from .modern import ModernGroup, Refused


def refusal(call: ScriptedCall, group_id: str, *, nameless: bool = False) -> int:
    """Return the error code of a call on a group before its state matters, or 0.

    With ``nameless`` the group id may be empty, as for offsets.
    """
    if code := call.error(group_id):
        return code
    if not group_id and not nameless:
        return ErrorCode.INVALID_GROUP_ID
    return 0 if call.state.coordinator_of(group_id) is call.node else ErrorCode.NOT_COORDINATOR


def _checked(
    call: ScriptedCall, member_id: str, instance_id: str | None, generation: int | None
) -> tuple[Group | None, int]:
    """Return the group of a member's call, and the error code if the call does not fit."""
    if code := refusal(call, call.request.group_id):
        return None, code
    group = call.groups.by_id.get(call.request.group_id)
    if group is None:
        return None, ErrorCode.UNKNOWN_MEMBER_ID
    return group, group.check(member_id, instance_id, generation)


async def join_group(call: ScriptedCall) -> Message:
    """Respond to JoinGroup once the whole group has joined."""
    joined = await _join(call)
    group = call.groups.by_id.get(call.request.group_id)
    # v0 to v6 cannot say null
    protocol = joined.protocol if joined.protocol or call.version < 7 else None
    return call.respond(
        error_code=joined.error,
        generation_id=joined.generation,
        protocol_type=group.protocol_type if group and not joined.error else None,
        protocol_name=protocol,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=[
            {"member_id": m, "group_instance_id": i, "metadata": data}
            for m, i, data in joined.members
        ],
    )


async def _join(call: ScriptedCall) -> JoinResult:
    request, groups = call.request, call.groups
    session = request.session_timeout_ms / 1000
    if code := refusal(call, request.group_id):
        return JoinResult(code, request.member_id)
    if not groups.min_session_timeout <= session <= groups.max_session_timeout:
        return JoinResult(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)
    instance = request.group_instance_id
    known = groups.by_id.get(request.group_id)
    if known is not None and known.modern is not None:
        if known.modern.members:
            return JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        known.modern = None  # without members it may become a classic group
    holder = known.static_member(instance) if known and instance is not None else None
    if request.member_id and holder is not None and holder.member_id != request.member_id:
        return JoinResult(ErrorCode.FENCED_INSTANCE_ID, request.member_id)
    if request.member_id and not (known and known.knows(request.member_id)):
        return JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
    group = groups.get_or_make(request.group_id)
    protocols = [(item.name, bytes(item.metadata)) for item in request.protocols]
    if not group.accepts(request.protocol_type, protocols, request.member_id):
        return JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
    member_id = request.member_id or groups.new_member_id(instance or call.client_id)
    if not request.member_id and instance is None and call.version >= 4:
        group.expect(member_id, session)
        return JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id)
    rebalance = request.rebalance_timeout_ms / 1000 if call.version >= 1 else session
    member = ClassicMember(member_id, instance, call.client_id, session, rebalance, protocols)
    if holder is not None and not request.member_id:
        return await group.replace(holder, member, can_skip=call.version >= 9).wait()
    return await group.join(member, request.protocol_type).wait()


async def sync_group(call: ScriptedCall) -> Message:
    """Respond with the member's assignment, once the leader has sent all assignments."""
    request = call.request
    group, code = _checked(
        call, request.member_id, request.group_instance_id, request.generation_id
    )
    if group is not None and not code:
        said = request.protocol_type, request.protocol_name
        if call.version >= 5 and said != (group.protocol_type, group.protocol):
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group is None or code:
        return call.respond(error_code=code, assignment=b"")
    assignments = {item.member_id: bytes(item.assignment) for item in request.assignments}
    synced = await group.sync(request.member_id, assignments).wait()
    named = (
        {}
        if synced.error
        else {"protocol_type": group.protocol_type, "protocol_name": group.protocol}
    )
    return call.respond(error_code=synced.error, assignment=synced.assignment, **named)


async def heartbeat(call: ScriptedCall) -> Message:
    """Respond to a heartbeat."""
    request = call.request
    group, code = _checked(
        call, request.member_id, request.group_instance_id, request.generation_id
    )
    if group is not None and not code:
        code = group.heartbeat(request.member_id)
    return call.respond(error_code=code)


async def leave_group(call: ScriptedCall) -> Message:
    """Remove members from the group."""
    request = call.request
    if call.version < 3:
        group, code = _checked(call, request.member_id, None, None)
        if group is not None and code == ErrorCode.UNKNOWN_MEMBER_ID:
            code = 0 if request.member_id in group.pending else ErrorCode.UNKNOWN_MEMBER_ID
        if group is not None and not code:
            group.remove(request.member_id)
        return call.respond(error_code=code)
    if code := refusal(call, request.group_id):
        return call.respond(error_code=code, members=[])
    group = call.groups.by_id.get(request.group_id)
    members = []
    for item in request.members:
        code = (
            ErrorCode.UNKNOWN_MEMBER_ID
            if group is None
            else _leave_one(group, item.member_id, item.group_instance_id)
        )
        members.append(
            {
                "member_id": item.member_id,
                "group_instance_id": item.group_instance_id,
                "error_code": code,
            }
        )
    return call.respond(error_code=0, members=members)


def _leave_one(group: Group, member_id: str, instance_id: str | None) -> int:
    if group.modern is not None:
        holders = [
            each.member_id
            for each in group.modern.members.values()
            if (each.instance_id == instance_id if instance_id else each.member_id == member_id)
        ]
        for each in holders:
            group.modern.remove(each)
        return 0 if holders else ErrorCode.UNKNOWN_MEMBER_ID
    if instance_id is not None:
        holder = group.static_member(instance_id)
        if holder is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member_id and holder.member_id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        member_id = holder.member_id
    return 0 if group.remove(member_id) else ErrorCode.UNKNOWN_MEMBER_ID


async def offset_commit(call: ScriptedCall) -> Message:
    """Store offsets if the member belongs to the current generation."""
    request = call.request
    code = _commit_refusal(call)
    topics = []
    for item in request.topics:
        topic, missing = call.state.find_topic(item.name, item.topic_id)
        parts = []
        for part in item.partitions:
            label = topic.name if topic else item.name
            # As in Kafka, a missing topic is refused before the member is checked.
            unknown = missing or (
                0
                if topic is not None and topic.partition(part.partition_index) is not None
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            error = call.error(label, part.partition_index) or unknown or code
            if not error and len(part.committed_metadata or "") > 4096:
                error = ErrorCode.OFFSET_METADATA_TOO_LARGE
            if not error:
                committed = CommittedOffset(
                    part.committed_offset,
                    part.committed_leader_epoch,
                    part.committed_metadata or "",
                )
                call.groups.get_or_make(request.group_id).offsets[label, part.partition_index] = (
                    committed
                )
            parts.append({"partition_index": part.partition_index, "error_code": error})
        topics.append({"name": item.name, "topic_id": item.topic_id, "partitions": parts})
    return call.respond(topics=topics)


async def offset_delete(call: ScriptedCall) -> Message:
    """Delete committed offsets of a group without members."""
    request = call.request
    group = call.groups.by_id.get(request.group_id)
    code = refusal(call, request.group_id) or (ErrorCode.GROUP_ID_NOT_FOUND if group is None else 0)
    topics: list[Message] = []
    if code or group is None:
        return call.respond(error_code=code, topics=topics)
    for item in request.topics:
        parts = []
        for part in item.partitions:
            # A broker asks whether a member is subscribed to the topic. Here any member will do.
            error = (
                ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                if group.members or (group.modern and group.modern.members)
                else 0
            )
            error = call.error(item.name, part.partition_index) or error
            if not error:
                group.offsets.pop((item.name, part.partition_index), None)
            parts.append({"partition_index": part.partition_index, "error_code": error})
        topics.append({"name": item.name, "partitions": parts})
    return call.respond(error_code=0, topics=topics)


def _commit_refusal(call: ScriptedCall) -> int:
    request = call.request
    if call.state.coordinator_of(request.group_id) is not call.node:
        return ErrorCode.NOT_COORDINATOR
    generation = request.generation_id_or_member_epoch
    group = call.groups.by_id.get(request.group_id)
    if group is None or group.empty:
        # A consumer that is not a member may commit to an empty group.
        if generation < 0:
            return ErrorCode.NONE
        if group is not None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.GROUP_ID_NOT_FOUND if call.version >= 9 else ErrorCode.ILLEGAL_GENERATION
    if group.modern is not None:
        return _modern_commit_refusal(call, group.modern)
    code = group.check(request.member_id, request.group_instance_id, generation)
    if code:
        return code
    if group.state is GroupState.COMPLETING:
        return ErrorCode.REBALANCE_IN_PROGRESS
    group.members[request.member_id].touch()
    return 0


def _modern_commit_refusal(call: ScriptedCall, modern: ModernGroup) -> int:
    request = call.request
    try:
        modern.member(request.member_id)
        if call.version < 9:
            return ErrorCode.UNSUPPORTED_VERSION  # the consumer protocol needs version 9
        modern.check(request.member_id, request.generation_id_or_member_epoch)
    except Refused as refused:
        return refused.code
    return 0


async def offset_fetch(call: ScriptedCall) -> Message:
    """Return committed offsets; -1 for none."""
    request = call.request
    if call.version < 8:
        code = refusal(call, request.group_id, nameless=True)
        return call.respond(
            error_code=code, topics=_fetch_topics(call, request.group_id, request.topics, code)
        )
    groups = []
    for item in request.groups:
        code = refusal(call, item.group_id, nameless=True) or _reader_refusal(call, item)
        topics = [] if code else _fetch_topics(call, item.group_id, item.topics, 0)
        groups.append({"group_id": item.group_id, "topics": topics, "error_code": code})
    return call.respond(groups=groups)


def _reader_refusal(call: ScriptedCall, item: Any) -> int:
    """Return the error code for a member of the consumer protocol with an old epoch, or 0.

    A request without a member id comes from an admin and is not checked.
    """
    group = call.groups.by_id.get(item.group_id)
    if group is None or group.modern is None or (item.member_id is None and item.member_epoch < 0):
        return 0
    try:
        group.modern.check(item.member_id or "", item.member_epoch)
    except Refused as refused:
        return refused.code
    return 0


def _fetch_topics(
    call: ScriptedCall, group_id: str, topics: Any, code: int
) -> list[dict[str, Any]]:
    group = call.groups.by_id.get(group_id)
    offsets = group.offsets if group else {}
    asked: list[tuple[str | None, Any, list[int]]]
    if topics is None:
        names = dict.fromkeys(name for name, _ in offsets)
        asked = [
            (name, None, [index for topic, index in offsets if topic == name]) for name in names
        ]
    else:
        asked = [
            (item.name, item.topic_id if call.version >= 10 else None, item.partition_indexes)
            for item in topics
        ]
    answers = []
    for name, topic_id, indexes in asked:
        topic, missing = call.state.find_topic(name, topic_id)
        label = topic.name if topic else name or ""
        parts = []
        for index in indexes:
            found = offsets.get((label, index), CommittedOffset(-1, -1, ""))
            unstable = (
                group is not None
                and call.version >= 7
                and call.request.require_stable
                and group.is_unstable(label, index)
            )
            # an unknown name is no error here, but an unknown id is
            error = (
                call.error(label, index)
                or code
                or (
                    missing
                    if missing == ErrorCode.UNKNOWN_TOPIC_ID
                    else ErrorCode.UNSTABLE_OFFSET_COMMIT
                    if unstable
                    else 0
                )
            )
            if error:
                found = CommittedOffset(-1, -1, "")
            parts.append(
                {
                    "partition_index": index,
                    "committed_offset": found.offset,
                    "committed_leader_epoch": found.leader_epoch,
                    "metadata": found.metadata,
                    "error_code": error,
                }
            )
        answer: dict[str, Any] = {"name": label, "partitions": parts}
        if call.version >= 10:
            answer["topic_id"] = topic.topic_id if topic else topic_id
        answers.append(answer)
    return answers


async def list_groups(call: ScriptedCall) -> Message:
    """List the groups that this node coordinates."""
    if code := call.error():
        return call.respond(error_code=code, groups=[])
    states = {name.lower() for name in call.request.states_filter or ()}
    types = {name.lower() for name in call.request.types_filter or ()}
    groups = [
        {
            "group_id": group.group_id,
            "protocol_type": group.protocol_type if group.modern is None else "consumer",
            "group_state": group.state_name,
            "group_type": group.kind,
        }
        for group in call.groups.by_id.values()
        if call.state.coordinator_of(group.group_id) is call.node
        and (not states or group.state_name.lower() in states)
        and (not types or group.kind in types)
    ]
    return call.respond(error_code=0, groups=groups)


async def describe_groups(call: ScriptedCall) -> Message:
    """Describe the state and the members of groups."""
    return call.respond(groups=[_describe(call, group_id) for group_id in call.request.groups])


def _describe(call: ScriptedCall, group_id: str) -> dict[str, Any]:
    empty = {"group_id": group_id, "protocol_type": "", "protocol_data": "", "members": []}
    if code := refusal(call, group_id):
        return empty | {"error_code": code, "group_state": ""}
    group = call.groups.by_id.get(group_id)
    if group is None or group.modern is not None:
        return empty | {
            "error_code": ErrorCode.GROUP_ID_NOT_FOUND if call.version >= 6 else 0,
            "group_state": "Dead",
        }
    shown = group.state is GroupState.STABLE
    members = [
        {
            "member_id": member.member_id,
            "group_instance_id": member.instance_id,
            "client_id": member.client_id,
            "client_host": "/127.0.0.1",
            "member_metadata": member.metadata(group.protocol) if shown else b"",
            "member_assignment": member.assignment if shown else b"",
        }
        for member in group.members.values()
    ]
    return {
        "error_code": 0,
        "group_id": group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol if shown else "",
        "members": members,
    }


async def delete_groups(call: ScriptedCall) -> Message:
    """Delete groups that have no members."""
    results = []
    for group_id in call.request.groups_names:
        code = refusal(call, group_id)
        group = call.groups.by_id.get(group_id)
        if not code and group is None:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        elif (
            not code and group is not None and not (group.empty and group.state is GroupState.EMPTY)
        ):
            code = ErrorCode.NON_EMPTY_GROUP
        if not code:
            del call.groups.by_id[group_id]
        results.append({"group_id": group_id, "error_code": code})
    return call.respond(results=results)
