"""The changes of a consumer's membership of its group, reported to observers once each."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..._state.group.member import Member, MemberIdentity
from ...hooks import renamed_member
from ...interfaces import CoordinatorKind, MembershipNews
from ...types import MembershipEvent, MembershipEventKind, Node

#: An observer: called with each change.
Watch: TypeAlias = Callable[[MembershipEvent], object]
#: After these events the member is no longer in the group. If it then leaves, that is not reported.
_OUT = frozenset({"left", "stale", "fenced", "session_lost"})

_RENAMED = (
    'the membership event "expelled" is now called "stale"; the next release removes the old name'
)


class _Stale(str):
    """The kind ``"stale"``, which also equals ``"expelled"``: its name in the last release."""

    # Observers compare `event.kind` with a literal, by `==` or `match`, and both call `__eq__`. A
    # look-up in a set or dict finds only the new spelling, because it compares hashes first.
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str) and str.__eq__(other, "expelled"):
            warnings.warn(_RENAMED, DeprecationWarning, stacklevel=2)
            return True
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        if isinstance(other, str) and str.__eq__(other, "expelled"):
            warnings.warn(_RENAMED, DeprecationWarning, stacklevel=2)
            return False
        return str.__ne__(self, other)


_STALE = cast("MembershipEventKind", _Stale("stale"))


class MembershipEvents:
    """The reporter of membership changes to the observers. No method waits.

    ``watch``: called with each change; ``None`` without observers.
    """

    def __init__(self, group: str, member: Member, watch: Watch | None) -> None:
        self._group = group
        self._member = member
        self._watch = watch
        # True if the last report about the membership was that the member joined.
        self._inside = False

    def report(
        self, kind: MembershipEventKind, reason: str, error: Exception | None = None
    ) -> None:
        """Report an event of the member or of its coordinator, with the member's current identity.

        A plugin's manager may still report ``"expelled"``, with a warning.
        """
        if cast("str", kind) == "expelled":
            warnings.warn(_RENAMED, DeprecationWarning, stacklevel=2)
            kind = "stale"
        self._notify(kind, self._member.identity, reason, error)

    def left(self, identity: MemberIdentity, reason: str, error: Exception | None = None) -> None:
        """Report that the member with this ``identity`` has left.

        Reports nothing if the member was out before. ``error`` is set if the group did not confirm
        the leave.
        """
        if self._inside:
            self._notify("left", identity, reason, error)

    def coordinator(self, kind: CoordinatorKind, key: str, node: Node | None) -> None:
        """Report that a coordinator was found at ``node``, or is not known any more (``None``).

        Only this group's coordinator is reported.
        """
        if (kind, key) != (CoordinatorKind.GROUP, self._group):
            return
        if node is None:
            self.report(
                "coordinator_lost",
                "the coordinator moved or does not respond; it is looked up at its next use",
            )
        else:
            self.report(
                "coordinator_found", f"broker {node.node_id} at {node} coordinates the group"
            )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a member by its name in the last release, with a warning."""
            return renamed_member(self, MembershipNews, name)

    def _notify(
        self,
        kind: MembershipEventKind,
        identity: MemberIdentity,
        reason: str,
        error: Exception | None,
    ) -> None:
        if kind == "stale":
            kind = _STALE
        if kind == "joined" or kind in _OUT:
            self._inside = kind == "joined"
        if self._watch is not None:
            self._watch(
                MembershipEvent(
                    kind, self._group, identity.member_id, identity.generation, reason, error
                )
            )
