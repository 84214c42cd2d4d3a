"""Tells observers what becomes of a consumer's membership of its group, each change once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from .._state.member import Identity, Member
from ..interfaces import CoordinatorKind
from ..types import MembershipEvent, MembershipEventKind, Node

#: Told of each change.
Watch: TypeAlias = Callable[[MembershipEvent], object]
#: After these the member is out of the group; where it then says goodbye, that is no second change.
_OUT = frozenset({"left", "expelled", "fenced", "session_lost"})


class MembershipEvents:
    """What happened is told by who owns the change; nothing here waits. ``watch`` is ``None`` where nobody wants to know."""

    def __init__(self, group: str, member: Member, watch: Watch | None) -> None:
        self._group, self._member, self._watch = group, member, watch
        self._inside = False  # the last that was told of the membership is that it joined

    def tell(self, kind: MembershipEventKind, reason: str, error: Exception | None = None) -> None:
        """This has just happened to the member, with the identity that it still has, or to its coordinator."""
        self._tell(kind, self._member.identity, reason, error)

    def left(self, identity: Identity, reason: str, error: Exception | None = None) -> None:
        """The member that was this said goodbye. Told unless it was out before; ``error``: the group did not confirm it."""
        if self._inside:
            self._tell("left", identity, reason, error)

    def coordinator(self, kind: CoordinatorKind, key: str, node: Node | None) -> None:
        """A coordinator was found at ``node``, or is not known any more (``None``). Told where it is this group's."""
        if (kind, key) != (CoordinatorKind.GROUP, self._group):
            return
        if node is None:
            self.tell("coordinator_lost", "the coordinator moved or does not respond; it is looked up at its next use")
        else:
            self.tell("coordinator_found", f"broker {node.node_id} at {node} coordinates the group")

    def _tell(self, kind: MembershipEventKind, identity: Identity, reason: str, error: Exception | None) -> None:
        if kind == "joined" or kind in _OUT:
            self._inside = kind == "joined"
        if self._watch is not None:
            self._watch(MembershipEvent(kind, self._group, identity.member_id, identity.generation, reason, error))
