"""The life of a group member as a table: its states and which may follow which. No I/O; the membership manager alone tells it.

One table for both protocols: SYNCING is the classic protocol's alone, ACKNOWLEDGING the consumer protocol's (KIP-848).

====================  ======================================================================================
UNJOINED              not in the group; the next step is to join
JOINING               a JoinGroup, or the first heartbeat of the consumer protocol, is under way
SYNCING               the generation is known; a SyncGroup is under way
RECONCILING           the assignment is known; listeners run, partitions come and go
ACKNOWLEDGING         the assignment is brought about; the heartbeat that says so is due
STABLE                in the group, consuming
STALE                 left because ``max_poll_interval_ms`` passed; joins again at the next receive (KIP-62)
FENCED                the group no longer knows the member; its partitions are lost, then it joins again
LEAVING               on the way out
====================  ======================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class MemberState(Enum):
    """See the module."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    RECONCILING = "reconciling"
    ACKNOWLEDGING = "acknowledging"
    STABLE = "stable"
    STALE = "stale"
    FENCED = "fenced"
    LEAVING = "leaving"


_S = MemberState
_AFTER: dict[MemberState, frozenset[MemberState]] = {
    _S.UNJOINED: frozenset({_S.JOINING, _S.LEAVING}),
    _S.JOINING: frozenset({_S.SYNCING, _S.RECONCILING, _S.STABLE, _S.UNJOINED, _S.FENCED, _S.LEAVING, _S.STALE}),
    _S.SYNCING: frozenset({_S.RECONCILING, _S.UNJOINED, _S.FENCED, _S.LEAVING, _S.STALE, _S.JOINING}),
    _S.RECONCILING: frozenset({_S.ACKNOWLEDGING, _S.STABLE, _S.JOINING, _S.FENCED, _S.STALE, _S.LEAVING}),
    _S.ACKNOWLEDGING: frozenset({_S.RECONCILING, _S.STABLE, _S.JOINING, _S.FENCED, _S.STALE, _S.LEAVING}),
    _S.STABLE: frozenset({_S.RECONCILING, _S.JOINING, _S.FENCED, _S.STALE, _S.LEAVING}),
    _S.STALE: frozenset({_S.UNJOINED, _S.LEAVING}),
    _S.FENCED: frozenset({_S.UNJOINED, _S.LEAVING}),
    _S.LEAVING: frozenset({_S.UNJOINED}),
}


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the member is to the group. ``generation`` -1: not in it.

    With the consumer protocol (KIP-848) ``epochs`` is true, and the generation is the member's epoch.
    """

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    epochs: bool = False

    @property
    def joined(self) -> bool:
        """Whether the group knows the member in a generation."""
        return self.generation >= 0


class Member:
    """The member's state and identity. An illegal step is a bug and raises."""

    def __init__(self, instance_id: str | None) -> None:
        self.state = MemberState.UNJOINED
        self.identity = Identity(instance_id=instance_id)

    def to(self, state: MemberState) -> None:
        """Go to ``state``."""
        if state is not self.state and state not in _AFTER[self.state]:
            raise AssertionError(f"a member cannot go from {self.state.value} to {state.value}")
        self.state = state

    def know_as(self, member_id: str, generation: int = -1, *, epochs: bool = False) -> None:
        """Take over the identity that the group gave."""
        self.identity = Identity(member_id, generation, self.identity.instance_id, epochs)

    def forget(self, *, keep_id: bool = False) -> None:
        """The generation is over; ``keep_id``: join again as the same member."""
        self.know_as(self.identity.member_id if keep_id else "")
