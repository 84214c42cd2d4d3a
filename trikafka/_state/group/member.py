"""The life of a group member as a table: its states and their order.

No I/O; the membership manager alone reports to it.

The states of the classic and of the consumer protocol (KIP-848) are in one table, each with its
legal predecessors. Java's PREPARING_REBALANCE and COMPLETING_REBALANCE are JOINING and SYNCING
here.

==================  ================================================  ==============================
state               meaning                                           comes after
==================  ================================================  ==============================
UNJOINED            not in the group; the next step is to join        JOINING, SYNCING, STALE,
                                                                      FENCED, LEAVING
JOINING             a JoinGroup, or the first heartbeat of the        UNJOINED, SYNCING, REVOKED,
                    consumer protocol, is under way                   ASSIGNING, RECONCILING,
                                                                      ACKNOWLEDGING, STABLE
SYNCING             the generation is known; a SyncGroup is under     JOINING
                    way
PREPARE_REVOCATION  some partitions are to be revoked and deliver     SYNCING, STABLE
                    no more records; the member waits for the
                    consuming task, and for the last commit
REVOKING            the listeners run for the partitions to revoke    PREPARE_REVOCATION
REVOKED             the partitions are revoked; an eager member       PREPARE_REVOCATION, REVOKING
                    joins next, a cooperative one adds the new ones
ASSIGNING           the new partitions are known; the listeners run   SYNCING, REVOKED
RECONCILING         (KIP-848) the assignment is known; listeners      JOINING, ACKNOWLEDGING, STABLE
                    run, partitions are revoked and added
ACKNOWLEDGING       (KIP-848) the assignment is reconciled; the       RECONCILING
                    heartbeat that reports this is due
STABLE              in the group, consuming                           JOINING, ASSIGNING,
                                                                      ACKNOWLEDGING
STALE               left because ``max_poll_interval_ms`` passed;     all from JOINING to STABLE
                    joins again at the next receive (KIP-62)
FENCED              the group no longer knows the member; its         all from JOINING to STABLE
                    partitions are lost, then it joins again
LEAVING             leaving the group                                 all others
==================  ================================================  ==============================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ...errors import TrikafkaError


class MemberState(Enum):
    """The state of a group member; the module's table gives the meanings."""

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
# The states that may follow at any time while the group knows the member.
_OUT = frozenset({_S.FENCED, _S.STALE, _S.LEAVING})
_AFTER: dict[MemberState, frozenset[MemberState]] = {
    _S.UNJOINED: frozenset({_S.JOINING, _S.LEAVING}),
    _S.JOINING: frozenset(
        {_S.SYNCING, _S.RECONCILING, _S.STABLE, _S.UNJOINED, _S.FENCED, _S.LEAVING, _S.STALE}
    ),
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
class MemberIdentity:
    """The identity of the member in the group. ``generation`` -1: not in the group.

    With the consumer protocol (KIP-848) ``epochs`` is true, and the generation is the member's
    epoch.
    """

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    epochs: bool = False

    @property
    def joined(self) -> bool:
        """True while the group knows the member in a generation."""
        return self.generation >= 0


class Member:
    """The member's state and identity. An illegal step is a bug and raises."""

    def __init__(self, instance_id: str | None) -> None:
        self.state = MemberState.UNJOINED
        #: How often the member has become STABLE.
        self.settlings = 0
        #: True if the member has been STABLE since it last began to join.
        self.settled = False
        self.identity = MemberIdentity(instance_id=instance_id)
        #: Whether the member leads its generation of the classic protocol; ``None``: the group has
        #: no leader, or it is not known.
        self.leads: bool | None = None
        #: The members to which this one, as the leader, assigns nothing: their subscriptions cannot
        #: be read.
        self.left_out: tuple[str, ...] = ()
        #: When the last heartbeat that was answered was sent.
        self.last_heartbeat: float | None = None
        #: Why the last heartbeat was not answered.
        self.heartbeat_error: Exception | None = None
        #: When the next heartbeat is due, counted from the last that was answered.
        self.heartbeat_due = -math.inf
        self._heartbeat_interval = 0.0
        #: The error that keeps the member out of its group for now.
        self.hindrance: TrikafkaError | None = None
        #: When the member tries again to join, after a refusal.
        self.next_attempt = -math.inf
        #: The refusal that no receive has raised yet; :meth:`pop_refusal` takes it.
        self.refusal: TrikafkaError | None = None
        self._on_settled: list[Callable[[], object]] = []
        self._on_moved: list[Callable[[MemberState], object]] = []

    @property
    def joining(self) -> bool:
        """True while the member is joining a generation without a response so far."""
        return self.state is MemberState.JOINING

    def to(self, state: MemberState) -> None:
        """Go to ``state``."""
        if state is not self.state and state not in _AFTER[self.state]:
            raise AssertionError(f"a member cannot go from {self.state.value} to {state.value}")
        if state is MemberState.STABLE and self.state is not state:
            self.settlings += 1
        self.state = state
        self.settled = state is MemberState.STABLE or (
            self.settled and state is not MemberState.JOINING
        )
        for moved in self._on_moved:
            moved(state)
        self._settle()

    def when_moved(self, act: Callable[[MemberState], object]) -> None:
        """Call ``act`` with each state that the member enters."""
        self._on_moved.append(act)

    def when_settled(self, act: Callable[[], object]) -> None:
        """Call ``act`` each time the member proves to be in its group."""
        self._on_settled.append(act)

    def _settle(self) -> None:
        # A member whose heartbeats are refused, and nothing else, becomes STABLE with each attempt
        # to join. That proves nothing: only an answered heartbeat does.
        if self.state is MemberState.STABLE and (
            self.hindrance is None or self.hindrance is not self.heartbeat_error
        ):
            self.unhindered()
            for act in self._on_settled:
                act()

    def know_as(self, member_id: str, generation: int = -1, *, epochs: bool = False) -> None:
        """Set the identity that the group gave; whether this member leads is not known then."""
        self.identity = MemberIdentity(member_id, generation, self.identity.instance_id, epochs)
        self.leads = None
        self.left_out = ()

    def attributes(self) -> dict[str, str]:
        """Return the member's id as an attribute of metrics; empty outside of the group."""
        member_id = self.identity.member_id
        return {"group_member_id": member_id} if member_id else {}

    def set_leader(self, leads: bool) -> None:
        """Record whether this member leads the generation that it has just joined."""
        self.leads = leads

    def set_left_out(self, members: tuple[str, ...]) -> None:
        """Record the members to which this one, as the leader, cannot assign anything."""
        self.left_out = members

    def heartbeat_answered(self, sent: float) -> None:
        """Record that the coordinator accepted the heartbeat sent at that time."""
        self.last_heartbeat = sent
        self.heartbeat_error = None
        self.heartbeat_due = sent + self._heartbeat_interval
        if self.hindrance is not None:
            self._settle()

    def heartbeats_begin(self, now: float, interval: float) -> None:
        """Expect a heartbeat each ``interval`` seconds from now on."""
        self._heartbeat_interval = interval
        self.heartbeat_due = now + interval

    def heartbeat_failed(self, error: Exception) -> None:
        """Record that a heartbeat got no response, or a refusal."""
        self.heartbeat_error = error

    def hindered(self, error: TrikafkaError) -> None:
        """Record why the member cannot get into its group now. It keeps trying."""
        self.hindrance = error

    def refused(self, error: TrikafkaError, next_attempt: float) -> None:
        """Record a refusal, which one receive raises.

        The member tries again at ``next_attempt``.
        """
        self.hindrance = error
        self.refusal = error
        self.next_attempt = next_attempt

    def unhindered(self) -> None:
        """Clear the reason that kept the member out of its group.

        The member is in its group, or has nothing to do there.
        """
        self.hindrance = None
        self.refusal = None
        self.next_attempt = -math.inf

    def pop_refusal(self) -> TrikafkaError | None:
        """Return the refusal that no receive has raised yet, once."""
        refusal = self.refusal
        self.refusal = None
        return refusal

    def forget(self, *, keep_id: bool = False) -> None:
        """End the generation; ``keep_id``: join again as the same member."""
        self.know_as(self.identity.member_id if keep_id else "")
