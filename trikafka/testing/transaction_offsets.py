"""The check of offset commits in transactions (KIP-447)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from trikafka.error_codes import ErrorCode

from .call import ScriptedCall
from .group import Group
from .modern import ModernGroup, Refused
from .transactions import Identity, Target

Admit: TypeAlias = Callable[[ScriptedCall, str | None, Identity, Target], int]


def commit_refusal(call: ScriptedCall, producer: Identity, admit: Admit) -> int:
    """Return the error code for a TxnOffsetCommit, or 0.

    The transaction is checked first, the group's membership second.
    """
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


def _membership(call: ScriptedCall, group: Group | None) -> int:
    request = call.request
    says = call.version >= 3
    generation = request.generation_id_or_member_epoch if says else -1
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
        return (
            ErrorCode.ILLEGAL_GENERATION
            if refused.code == ErrorCode.STALE_MEMBER_EPOCH
            else refused.code
        )
    return ErrorCode.NONE
