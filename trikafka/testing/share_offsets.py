"""Handlers for the administration of share groups (KIP-932) and streams groups (KIP-1071).

A share group here has start offsets and no members. There is no streams group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trikafka.error_codes import ErrorCode

from .call import ScriptedCall
from .groups import refusal
from .messages import Message
from .moving import find_partition


async def share_group_describe(call: ScriptedCall) -> Message:
    """Describe share groups: each is empty."""
    groups = []
    for group_id in call.request.group_ids:
        code = refusal(call, group_id)
        if not code and group_id not in call.state.share_offsets:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        groups.append(
            {
                "error_code": code,
                "error_message": f"Group {group_id} not found." if code else None,
                "group_id": group_id,
                "group_state": "" if code else "Empty",
                "group_epoch": 0 if code else 1,
                "assignment_epoch": 0 if code else 1,
                "assignor_name": "" if code else "simple",
                "members": [],
            }
        )
    return call.respond(groups=groups)


async def streams_group_describe(call: ScriptedCall) -> Message:
    """Respond that no group is a streams group."""
    return call.respond(
        groups=[
            {
                "error_code": refusal(call, group_id) or ErrorCode.GROUP_ID_NOT_FOUND,
                "error_message": f"Group {group_id} is not a streams group.",
                "group_id": group_id,
                "group_state": "",
                "members": [],
            }
            for group_id in call.request.group_ids
        ]
    )


async def describe_share_group_offsets(call: ScriptedCall) -> Message:
    """Return the start offsets of share groups: those of the request, or all."""
    groups = []
    for group in call.request.groups:
        code = refusal(call, group.group_id)
        stored = call.state.share_offsets.get(group.group_id, {})
        asked: Iterable[tuple[str, int]] = (
            sorted(stored)
            if group.topics is None
            else [(topic.topic_name, each) for topic in group.topics for each in topic.partitions]
        )
        topics: dict[str, list[dict[str, Any]]] = {}
        for name, number in () if code else asked:
            log, missing = find_partition(call, name, number)
            start = stored.get((name, number), -1)
            known = log is not None and start >= 0 and not missing
            topics.setdefault(name, []).append(
                {
                    "partition_index": number,
                    "start_offset": start,
                    "leader_epoch": log.leader_epoch if log is not None and known else -1,
                    "lag": log.end - start if log is not None and known else -1,
                    "error_code": missing,
                }
            )
        groups.append(
            {
                "group_id": group.group_id,
                "error_code": code,
                "topics": [_topic(call, name, parts) for name, parts in topics.items()],
            }
        )
    return call.respond(groups=groups)


async def alter_share_group_offsets(call: ScriptedCall) -> Message:
    """Set start offsets; a new group is made."""
    request = call.request
    if code := refusal(call, request.group_id):
        return call.respond(error_code=code, responses=[])
    stored = call.state.share_offsets.setdefault(request.group_id, {})
    responses = []
    for topic in request.topics:
        parts = []
        for part in topic.partitions:
            _, code = find_partition(call, topic.topic_name, part.partition_index)
            if not code:
                stored[topic.topic_name, part.partition_index] = part.start_offset
            parts.append({"partition_index": part.partition_index, "error_code": code})
        responses.append(_topic(call, topic.topic_name, parts))
    return call.respond(error_code=0, responses=responses)


async def delete_share_group_offsets(call: ScriptedCall) -> Message:
    """Delete the offsets of whole topics."""
    request = call.request
    code = refusal(call, request.group_id)
    if not code and request.group_id not in call.state.share_offsets:
        code = ErrorCode.GROUP_ID_NOT_FOUND
    if code:
        return call.respond(error_code=code, responses=[])
    stored = call.state.share_offsets[request.group_id]
    responses = []
    for topic in request.topics:
        found, code = call.state.find_topic(topic.topic_name, None)
        code = call.error(topic.topic_name) or code
        for place in [each for each in stored if each[0] == topic.topic_name and not code]:
            del stored[place]
        answer = {"topic_name": topic.topic_name, "error_code": code}
        responses.append(answer | ({"topic_id": found.topic_id} if found is not None else {}))
    return call.respond(error_code=0, responses=responses)


def _topic(call: ScriptedCall, name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    answer: dict[str, Any] = {"topic_name": name, "partitions": parts}
    if name in call.state.topics:
        answer["topic_id"] = call.state.topics[name].topic_id
    return answer
