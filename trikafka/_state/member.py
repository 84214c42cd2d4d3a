"""The life of a group member as a table: its states and which may follow which. No I/O; the membership manager alone tells it.

The states of seed 001 and of the consumer protocol (KIP-848) in one table, each with its legal predecessors. Where seed 001 says
PREPARING_REBALANCE and COMPLETING_REBALANCE, here is JOINING and SYNCING.

==================  ==================================================================  ==========================================
state               meaning                                                             comes after
==================  ==================================================================  ==========================================
UNJOINED            not in the group; the next step is to join                          JOINING, SYNCING, STALE, FENCED, LEAVING
JOINING             a JoinGroup, or the first heartbeat of the consumer protocol, is    UNJOINED, SYNCING, REVOKED, ASSIGNING,
                    under way                                                           RECONCILING, ACKNOWLEDGING, STABLE
SYNCING             the generation is known; a SyncGroup is under way                   JOINING
PREPARE_REVOCATION  nothing more is delivered of what goes; it waits for the consuming  SYNCING, STABLE
                    task, and for the last commit
REVOKING            the listeners are told what goes                                    PREPARE_REVOCATION
REVOKED             it is given up; an eager member joins next, a cooperative one       PREPARE_REVOCATION, REVOKING
                    takes what is new
ASSIGNING           what is new is known; the listeners are told                        SYNCING, REVOKED
RECONCILING         (KIP-848) the assignment is known; listeners run, partitions come   JOINING, ACKNOWLEDGING, STABLE
                    and go
ACKNOWLEDGING       (KIP-848) that is done; the heartbeat that says so is due           RECONCILING
STABLE              in the group, consuming                                             JOINING, ASSIGNING, ACKNOWLEDGING
STALE               left because ``max_poll_interval_ms`` passed; joins again at the    all from JOINING to STABLE
                    next receive (KIP-62)
FENCED              the group no longer knows the member; its partitions are lost,      all from JOINING to STABLE
                    then it joins again
LEAVING             on the way out                                                      all others
==================  ==================================================================  ==========================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class MemberState(Enum):
    """See the module."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    PREPARE_REVOCATION = "prepare revocation"
    REVOKING = "revoking"
    REVOKED = "revoked"
    ASSIGNING = "assigning"
    RECONCILING = "reconciling"
    ACKNOWLEDGING = "acknowledging"
    STABLE = "stable"
    STALE = "stale"
    FENCED = "fenced"
    LEAVING = "leaving"


_S = MemberState
_OUT = frozenset({_S.FENCED, _S.STALE, _S.LEAVING})  # what may come at any time while the group knows the member
_AFTER: dict[MemberState, frozenset[MemberState]] = {
    _S.UNJOINED: frozenset({_S.JOINING, _S.LEAVING}),
    _S.JOINING: frozenset({_S.SYNCING, _S.RECONCILING, _S.STABLE, _S.UNJOINED, _S.FENCED, _S.LEAVING, _S.STALE}),
    _S.SYNCING: frozenset({_S.PREPARE_REVOCATION, _S.ASSIGNING, _S.UNJOINED, _S.JOINING}) | _OUT,
    _S.PREPARE_REVOCATION: frozenset({_S.REVOKING, _S.REVOKED}) | _OUT,
    _S.REVOKING: frozenset({_S.REVOKED}) | _OUT,
    _S.REVOKED: frozenset({_S.ASSIGNING, _S.JOINING}) | _OUT,
    _S.ASSIGNING: frozenset({_S.STABLE, _S.JOINING}) | _OUT,
    _S.RECONCILING: frozenset({_S.ACKNOWLEDGING, _S.JOINING}) | _OUT,
    _S.ACKNOWLEDGING: frozenset({_S.RECONCILING, _S.STABLE, _S.JOINING}) | _OUT,
    _S.STABLE: frozenset({_S.RECONCILING, _S.PREPARE_REVOCATION, _S.JOINING}) | _OUT,
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
        self.settled = False  # it has been STABLE since it last began to join
        self.identity = Identity(instance_id=instance_id)
        self.leads: bool | None = None  # of a generation of the classic protocol; None: nobody leads, or it is not known
        self.last_heartbeat: float | None = None  # when the last one went out that was answered
        self.heartbeat_error: Exception | None = None  # why the last one was not

    @property
    def joining(self) -> bool:
        """Whether it is on its way into a generation, and has not heard yet that it is in it."""
        return self.state is MemberState.JOINING

    def to(self, state: MemberState) -> None:
        """Go to ``state``."""
        if state is not self.state and state not in _AFTER[self.state]:
            raise AssertionError(f"a member cannot go from {self.state.value} to {state.value}")
        self.state = state
        self.settled = state is MemberState.STABLE or (self.settled and state is not MemberState.JOINING)

    def know_as(self, member_id: str, generation: int = -1, *, epochs: bool = False) -> None:
        """Take over the identity that the group gave."""
        self.identity = Identity(member_id, generation, self.identity.instance_id, epochs)
        self.leads = None

    def is_leader(self, leads: bool) -> None:
        """The generation that it has just joined has chosen its leader: this member, or another."""
        self.leads = leads

    def heartbeat_answered(self, sent: float) -> None:
        """The coordinator has answered the heartbeat that went out then, and the member is in its group."""
        self.last_heartbeat, self.heartbeat_error = sent, None

    def heartbeat_failed(self, error: Exception) -> None:
        """A heartbeat got no response, or one that says why the member is not in its group."""
        self.heartbeat_error = error

    def forget(self, *, keep_id: bool = False) -> None:
        """The generation is over; ``keep_id``: join again as the same member."""
        self.know_as(self.identity.member_id if keep_id else "")
