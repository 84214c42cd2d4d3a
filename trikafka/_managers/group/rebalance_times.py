"""The times of a member's rebalances, for the client's metrics (KIP-714)."""

from __future__ import annotations

from collections.abc import Callable

import trio

from ..._state.group.member import Member, MemberState

_BEGIN = frozenset({MemberState.JOINING, MemberState.PREPARE_REVOCATION, MemberState.RECONCILING})
_BROKEN_OFF = frozenset({MemberState.STALE, MemberState.FENCED, MemberState.LEAVING})


class RebalanceTimes:
    """The watch that measures from the first step of a rebalance until the member is STABLE.

    Further attempts to join belong to the same rebalance. A rebalance that the member leaves is
    not measured.
    """

    def __init__(self, member: Member, record: Callable[[float], object]) -> None:
        self._record = record
        self._since: float | None = None
        member.when_moved(self._moved)

    def _moved(self, state: MemberState) -> None:
        if state in _BEGIN:
            self._since = trio.current_time() if self._since is None else self._since
        elif state in _BROKEN_OFF:
            self._since = None
        elif state is MemberState.STABLE and self._since is not None:
            self._record(trio.current_time() - self._since)
            self._since = None
