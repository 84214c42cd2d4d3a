"""Handlers of ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from trikafka.error_codes import ErrorCode

from .assignors import ASSIGNORS, Part
from .call import ScriptedCall
from .group import Group
from .groups import refusal
from .messages import Message
from .modern import LEAVES, LEAVES_FOR_A_WHILE, Beat, ModernGroup, Refused, by_topic, check_regex


async def consumer_group_heartbeat(call: ScriptedCall) -> Message:
    """Let a member join, stay, move towards the target assignment, or leave."""
    try:
        return _heartbeat(call)
    except Refused as refused:
        return call.respond(error_code=refused.code, error_message=refused.reason)


def _heartbeat(call: ScriptedCall) -> Message:
    request, groups = call.request, call.groups
    _validate(call)
    if code := refusal(call, request.group_id):
        raise Refused(code, "")
    if request.subscribed_topic_regex:
        check_regex(request.subscribed_topic_regex)
    modern = _modern(call, groups.by_id.get(request.group_id))
    if request.member_epoch in (LEAVES, LEAVES_FOR_A_WHILE):
        reply = modern.leave(request.member_id, request.instance_id, request.member_epoch)
    else:
        reply = modern.heartbeat(_beat(call))
    groups.changed.notify()
    return call.respond(
        error_code=0,
        member_id=reply.member_id,
        member_epoch=reply.epoch,
        heartbeat_interval_ms=0
        if reply.epoch < 0
        else round(groups.modern.heartbeat_interval * 1000),
        assignment=None
        if reply.assignment is None
        else {"topic_partitions": _parts(reply.assignment)},
    )


def _beat(call: ScriptedCall) -> Beat:
    request = call.request
    owned = request.topic_partitions
    return Beat(
        member_id=request.member_id or call.groups.new_member_id(call.client_id),
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        client_id=call.client_id,
        rebalance_timeout=request.rebalance_timeout_ms / 1000
        if request.rebalance_timeout_ms >= 0
        else -1,
        names=None
        if request.subscribed_topic_names is None
        else tuple(request.subscribed_topic_names),
        regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None
        if owned is None
        else frozenset((item.topic_id, index) for item in owned for index in item.partitions),
    )


def _modern(call: ScriptedCall, group: Group | None) -> ModernGroup:
    """Return the group; create it, or convert a classic group without members.

    Raises:
        Refused: The group has classic members, or does not exist.
    """
    joins = call.request.member_epoch == 0
    if group is not None and group.modern is not None:
        return group.modern
    if not joins or (group is not None and (group.members or group.pending)):
        raise Refused(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Group {call.request.group_id} is not a consumer group."
        )
    group = call.groups.get_or_make(call.request.group_id)
    group.modern = ModernGroup(
        call.state.topics,
        call.groups.modern.session_timeout,
        call.groups.modern.assignment_interval,
    )
    return group.modern


def _validate(call: ScriptedCall) -> None:
    """Raise :exc:`Refused` for what a broker refuses before it looks for the group."""
    request = call.request
    needs_id = call.version >= 1 or request.member_epoch != 0
    away = request.member_epoch == LEAVES_FOR_A_WHILE
    checks = [
        (needs_id and not request.member_id, "MemberId can't be empty."),
        (not request.group_id, "GroupId can't be empty."),
        (request.instance_id == "", "InstanceId can't be empty."),
        (request.rack_id == "", "RackId can't be empty."),
        (
            request.member_epoch < LEAVES_FOR_A_WHILE,
            "MemberEpoch must be greater than or equal to -2.",
        ),
        (away and request.instance_id is None, "InstanceId can't be null."),
    ]
    if request.member_epoch == 0:
        nothing = request.subscribed_topic_names is None and request.subscribed_topic_regex is None
        owned = request.topic_partitions
        checks += [
            (
                request.rebalance_timeout_ms == -1,
                "RebalanceTimeoutMs must be provided in first request.",
            ),
            (owned is None or bool(owned), "TopicPartitions must be empty when (re-)joining."),
            (
                nothing,
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
                "(re-)joining.",
            ),
        ]
    for wrong, reason in checks:
        if wrong:
            raise Refused(ErrorCode.INVALID_REQUEST, reason)
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        raise Refused(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported, only "
            f"{', '.join(ASSIGNORS)}.",
        )


def _parts(parts: Collection[Part]) -> list[dict[str, Any]]:
    return [
        {"topic_id": topic, "partitions": numbers} for topic, numbers in by_topic(parts).items()
    ]


async def consumer_group_describe(call: ScriptedCall) -> Message:
    """Describe the state and the members of groups of the consumer protocol."""
    return call.respond(groups=[_describe(call, group_id) for group_id in call.request.group_ids])


def _describe(call: ScriptedCall, group_id: str) -> dict[str, Any]:
    group = call.groups.by_id.get(group_id)
    code = refusal(call, group_id) or (
        0 if group is not None and group.modern is not None else ErrorCode.GROUP_ID_NOT_FOUND
    )
    if code or group is None or group.modern is None:
        message = (
            f"Group {group_id} not found."
            if group is None
            else f"Group {group_id} is not a consumer group."
        )
        return {
            "group_id": group_id,
            "error_code": code,
            "error_message": message if code == ErrorCode.GROUP_ID_NOT_FOUND else None,
        }
    modern = group.modern
    names = {topic.topic_id: name for name, topic in call.state.topics.items()}

    def named(parts: Collection[Part]) -> dict[str, Any]:
        return {
            "topic_partitions": [
                item | {"topic_name": names.get(item["topic_id"], "")} for item in _parts(parts)
            ]
        }

    members = [
        {
            "member_id": member.member_id,
            "instance_id": member.instance_id,
            "rack_id": member.rack_id,
            "member_epoch": member.epoch,
            "client_id": member.client_id,
            "client_host": "/127.0.0.1",
            "subscribed_topic_names": sorted(member.names),
            "subscribed_topic_regex": member.regex,
            "assignment": named(member.assigned),
            "target_assignment": named(modern.target.get(member.member_id, ())),
            "member_type": 1,
        }
        for member in modern.members.values()
    ]
    return {
        "group_id": group_id,
        "group_state": modern.state,
        "group_epoch": modern.epoch,
        "assignment_epoch": modern.assignment_epoch,
        "assignor_name": modern.assignor,
        "members": members,
    }
