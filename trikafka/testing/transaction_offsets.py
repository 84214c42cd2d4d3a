"""Who may commit a group's offsets in a transaction (KIP-447)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from trikafka.error_codes import ErrorCode

from .call import Call
from .group import Group
from .modern import ModernGroup, Refused
from .transactions import Identity, Target

Admit: TypeAlias = Callable[[Call, str | None, Identity, Target], int]


def commit_refusal(call: Call, producer: Identity, admit: Admit) -> int:
    """The error for a TxnOffsetCommit: of the transaction first, of the group's membership then; or 0."""
    request = call.request
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if call.state.coordinator_of(request.group_id) is not call.node:
        return ErrorCode.NOT_COORDINATOR
    group = call.groups.by_id.get(request.group_id)
    holds = group is not None and group.holds_offsets(*producer)
    if not holds and (code := admit(call, request.transactional_id, producer, request.group_id)):
        return code
    return _membership(call, group)


def _membership(call: Call, group: Group | None) -> int:
    request = call.request
    says = call.version >= 3
    generation = request.generation_id if says else -1
    member_id = request.member_id if says else ""
    instance = request.group_instance_id if says else None
    if group is None:
        return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
    nameless = generation < 0 and not member_id and instance is None
    if nameless or (generation < 0 and group.empty):
        return ErrorCode.NONE
    if group.modern is not None:
        return _modern(group.modern, member_id, generation)
    return group.check(member_id, instance, generation)


def _modern(modern: ModernGroup, member_id: str, epoch: int) -> int:
    try:
        modern.check(member_id, epoch)
    except Refused as refused:
        return ErrorCode.ILLEGAL_GENERATION if refused.code == ErrorCode.STALE_MEMBER_EPOCH else refused.code
    return ErrorCode.NONE
