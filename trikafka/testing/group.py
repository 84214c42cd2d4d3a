"""The classic group coordinator: members, generations and committed offsets of one group.

A state machine without I/O. Every call changes the group at once, and a member that must wait gets
a :class:`Promise`. The only task is :meth:`Groups.watch`, which calls :meth:`Group.expire` at the
next deadline.

    state         leaves it when
    EMPTY         a member joins                                -> PREPARING
    PREPARING     all members have joined, or the time is up    -> COMPLETING, EMPTY without members
    COMPLETING    the leader has synced                         -> STABLE
                  a member joins, leaves or changes             -> PREPARING
    STABLE        a member joins, leaves or changes             -> PREPARING
                  the leader joins again                        -> PREPARING
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import trio

from trikafka.error_codes import ErrorCode

from ._signal import Promise, WakeSignal
from .modern import ModernGroup, ModernTimes


class GroupState(Enum):
    """The state of a classic group, by the names of DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class JoinResult(NamedTuple):
    """The response to JoinGroup.

    ``members`` is for the leader: (member id, instance id, metadata).
    """

    error: int
    member_id: str = ""
    generation: int = -1
    protocol: str = ""
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


class Synced(NamedTuple):
    """The response to SyncGroup."""

    error: int
    assignment: bytes = b""


class CommittedOffset(NamedTuple):
    """A committed position."""

    offset: int
    leader_epoch: int
    metadata: str


@dataclass(slots=True, eq=False)
class ClassicMember:
    """A member of a classic group.

    ``deadline`` is the end of its session, unless the member waits for a response.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    session_timeout: float
    rebalance_timeout: float
    protocols: list[tuple[str, bytes]]
    deadline: float = math.inf
    assignment: bytes = b""
    synced: bool = False
    joining: Promise[JoinResult] | None = None
    syncing: Promise[Synced] | None = None

    @property
    def waits(self) -> bool:
        """True while the member waits for a response, so that its session cannot end."""
        return self.joining is not None or self.syncing is not None

    def metadata(self, protocol: str) -> bytes:
        """Return the member's metadata for one protocol."""
        return dict(self.protocols).get(protocol, b"")

    def touch(self) -> None:
        """Restart the session timeout."""
        self.deadline = trio.current_time() + self.session_timeout

    def refuse(self, error: int) -> None:
        """Respond with an error to the requests that the member waits for."""
        if self.joining is not None:
            self.joining.give(JoinResult(error, self.member_id))
        if self.syncing is not None:
            self.syncing.give(Synced(error))
        self.joining = None
        self.syncing = None


@dataclass(slots=True, eq=False)
class Group:
    """One consumer group."""

    group_id: str
    initial_delay: float
    changed: WakeSignal
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str | None = None
    members: dict[str, ClassicMember] = field(default_factory=dict)
    # Member ids sent with MEMBER_ID_REQUIRED, and their deadlines.
    pending: dict[str, float] = field(default_factory=dict)
    offsets: dict[tuple[str, int], CommittedOffset] = field(default_factory=dict)
    deadline: float = math.inf  # of PREPARING and COMPLETING
    delaying: bool = False  # the first rebalance waits for more members
    # Offsets of open transactions, by producer id and epoch.
    held: dict[tuple[int, int], dict[tuple[str, int], CommittedOffset]] = field(
        default_factory=dict
    )
    # The state of a group of the consumer protocol (KIP-848). Of the fields above, such a group
    # uses only the offsets.
    modern: ModernGroup | None = None

    @property
    def kind(self) -> str:
        """The group's type as ListGroups shows it."""
        return "classic" if self.modern is None else "consumer"

    @property
    def state_name(self) -> str:
        """The group's state, for either protocol."""
        return self.state.value if self.modern is None else self.modern.state

    @property
    def empty(self) -> bool:
        """True if the group has no members of either protocol."""
        return not self.members if self.modern is None else not self.modern.members

    # -- requests of members

    def check(self, member_id: str, instance_id: str | None, generation: int | None) -> int:
        """Return the error code for a member's call, or 0."""
        if instance_id is not None:
            owner = self.static_member(instance_id)
            if owner is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if owner.member_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return (
            ErrorCode.ILLEGAL_GENERATION
            if generation is not None and generation != self.generation
            else 0
        )

    def knows(self, member_id: str) -> bool:
        """Return whether a member may join with this member id."""
        return member_id in self.members or member_id in self.pending

    def static_member(self, instance_id: str) -> ClassicMember | None:
        """Return the member with a group instance id."""
        return next(
            (member for member in self.members.values() if member.instance_id == instance_id), None
        )

    def accepts(
        self, protocol_type: str, protocols: Sequence[tuple[str, bytes]], member_id: str
    ) -> bool:
        """Return whether a member with these protocols fits the other members."""
        if not protocol_type or not protocols:
            return False
        others = [member for member in self.members.values() if member.member_id != member_id]
        if not others:
            return True
        common = {name for name, _ in protocols}
        for member in others:
            common &= {name for name, _ in member.protocols}
        return protocol_type == self.protocol_type and bool(common)

    def expect(self, member_id: str, session_timeout: float) -> None:
        """Record an assigned member id whose member has not joined yet."""
        self.pending[member_id] = trio.current_time() + session_timeout
        self.changed.notify()

    def join(self, member: ClassicMember, protocol_type: str) -> Promise[JoinResult]:
        """Let a member join, for the first time or again; ``member`` replaces the known one."""
        promise: Promise[JoinResult] = Promise()
        self.pending.pop(member.member_id, None)
        known = self.members.get(member.member_id)
        if known is not None and not self._rejoin_matters(known, member):
            known.touch()
            promise.give(self._joined(known))
            self.changed.notify()
            return promise
        if known is not None:
            member.assignment = known.assignment
        member.joining = promise
        self.members[member.member_id] = member
        self.protocol_type = protocol_type
        self._gather_members()
        self.changed.notify()
        return promise

    def _rejoin_matters(self, known: ClassicMember, new: ClassicMember) -> bool:
        if self.state is GroupState.COMPLETING:
            return known.protocols != new.protocols  # if equal, the response was lost: repeat it
        if self.state is GroupState.STABLE:
            return known.protocols != new.protocols or known.member_id == self.leader
        return True

    def _gather_members(self) -> None:
        if self.state is GroupState.PREPARING:
            self._complete_join_if_all()
        else:
            self._rebalance()

    def replace(
        self, old: ClassicMember, new: ClassicMember, *, can_skip: bool
    ) -> Promise[JoinResult]:
        """Replace a static member that returns with a new member id (KIP-345).

        A stable group need not rebalance for it.
        """
        promise: Promise[JoinResult] = Promise()
        old.refuse(ErrorCode.FENCED_INSTANCE_ID)
        del self.members[old.member_id]
        self.members[new.member_id] = new
        new.assignment = old.assignment
        new.synced = old.synced
        led = old.member_id == self.leader
        if led:
            self.leader = new.member_id
        if self.state is GroupState.STABLE and old.protocols == new.protocols:
            new.touch()
            answer = self._joined(new)
            if led and can_skip:
                answer = answer._replace(skip_assignment=True)
            elif led:
                answer = answer._replace(leader=old.member_id, members=())
            promise.give(answer)
        else:
            new.joining = promise
            self._gather_members()
        self.changed.notify()
        return promise

    def sync(self, member_id: str, assignments: dict[str, bytes]) -> Promise[Synced]:
        """Return a member's assignment; the leader's request carries all assignments."""
        promise: Promise[Synced] = Promise()
        member = self.members[member_id]
        if self.state is GroupState.COMPLETING:
            member.synced = True
            member.syncing = promise
            if member_id == self.leader:
                self._assign(assignments)
        elif self.state is GroupState.STABLE:
            member.touch()
            promise.give(Synced(0, member.assignment))
        else:
            promise.give(Synced(ErrorCode.REBALANCE_IN_PROGRESS))
        self.changed.notify()
        return promise

    def heartbeat(self, member_id: str) -> int:
        """Record a heartbeat; return the error code that makes the member join again, or 0."""
        self.members[member_id].touch()
        self.changed.notify()
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else 0

    def remove(self, member_id: str) -> bool:
        """Remove a member; return False if there is no such member."""
        if self.pending.pop(member_id, None) is not None:
            self._complete_join_if_all()
            self.changed.notify()
            return True
        member = self.members.pop(member_id, None)
        if member is None:
            return False
        member.refuse(ErrorCode.UNKNOWN_MEMBER_ID)
        if member_id == self.leader:
            self.leader = None
        if self.state is GroupState.PREPARING:
            self._complete_join_if_all()
        elif self.state is not GroupState.EMPTY:
            self._rebalance()
        self.changed.notify()
        return True

    def refuse_all(self, error: int) -> None:
        """Respond with an error to all waiting members, because the coordinator has moved."""
        for member in self.members.values():
            if member.waits:
                member.touch()
            member.refuse(error)
        self.changed.notify()

    # -- offsets in transactions

    def hold_offsets(
        self, producer_id: int, epoch: int, offsets: dict[tuple[str, int], CommittedOffset]
    ) -> None:
        """Store offsets that count once the producer's transaction commits."""
        self.held.setdefault((producer_id, epoch), {}).update(offsets)

    def holds_offsets(self, producer_id: int, epoch: int) -> bool:
        """Return whether the producer has an open transaction here, in this epoch."""
        return (producer_id, epoch) in self.held

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """Apply or discard the offsets of the producer's ended transaction."""
        for key in [key for key in self.held if key[0] == producer_id]:
            offsets = self.held.pop(key)
            if commit:
                self.offsets.update(offsets)

    def is_unstable(self, topic: str, partition: int) -> bool:
        """Return whether an open transaction has an offset for this partition."""
        return any((topic, partition) in offsets for offsets in self.held.values())

    # -- time

    @property
    def next_deadline(self) -> float:
        """The time of the next timeout."""
        if self.modern is not None:
            return self.modern.next_deadline
        sessions = [member.deadline for member in self.members.values() if not member.waits]
        return min([self.deadline, *sessions, *self.pending.values()])

    def expire(self, now: float) -> None:
        """Remove the members whose time is up; finish an overdue rebalance."""
        if self.modern is not None:
            self.modern.expire(now)
            return
        for member_id in [member_id for member_id, until in self.pending.items() if until <= now]:
            self.remove(member_id)
        for member in list(self.members.values()):
            if not member.waits and member.deadline <= now:
                self.remove(member.member_id)
        if self.deadline > now:
            return
        if self.state is GroupState.PREPARING:
            self._complete_join()
        elif self.state is GroupState.COMPLETING:
            for member in list(self.members.values()):
                if not member.synced:
                    self.remove(member.member_id)

    # -- from one generation to the next

    def _rebalance(self) -> None:
        first = self.state is GroupState.EMPTY
        for member in self.members.values():
            if member.syncing is not None:
                member.syncing.give(Synced(ErrorCode.REBALANCE_IN_PROGRESS))
                member.syncing = None
                member.touch()
        self.state = GroupState.PREPARING
        self.delaying = first and self.initial_delay > 0
        wait = (
            self.initial_delay
            if first
            else max((member.rebalance_timeout for member in self.members.values()), default=0)
        )
        self.deadline = trio.current_time() + wait
        if not self.delaying:
            self._complete_join_if_all()

    def _complete_join_if_all(self) -> None:
        all_joined = (
            all(member.joining is not None for member in self.members.values()) and not self.pending
        )
        if self.state is GroupState.PREPARING and all_joined and not self.delaying:
            self._complete_join()

    def _complete_join(self) -> None:
        self.delaying = False
        for member in list(self.members.values()):
            if member.joining is None and member.instance_id is None:
                del self.members[member.member_id]
                if member.member_id == self.leader:
                    self.leader = None
        joined = [member for member in self.members.values() if member.joining is not None]
        now = trio.current_time()
        if self.members and not joined:  # only static members, and none has joined
            self.deadline = now + max(member.rebalance_timeout for member in self.members.values())
            return
        self.generation += 1
        if not self.members:
            self.state = GroupState.EMPTY
            self.protocol = ""
            self.leader = None
            self.deadline = math.inf
            return
        self.state = GroupState.COMPLETING
        self.deadline = now + max(member.rebalance_timeout for member in self.members.values())
        if self.leader is None or self.members[self.leader] not in joined:
            self.leader = joined[0].member_id
        self.protocol = self._vote()
        for member in self.members.values():
            member.synced = False
        for member in joined:
            assert member.joining is not None
            member.joining.give(self._joined(member))
            member.joining = None
            member.touch()

    def _vote(self) -> str:
        members = list(self.members.values())
        common = set.intersection(*({name for name, _ in member.protocols} for member in members))
        votes = [next(name for name, _ in member.protocols if name in common) for member in members]
        return max(votes, key=votes.count)

    def _joined(self, member: ClassicMember) -> JoinResult:
        leads = member.member_id == self.leader
        all_members = tuple(
            (other.member_id, other.instance_id, other.metadata(self.protocol))
            for other in self.members.values()
        )
        return JoinResult(
            0,
            member.member_id,
            self.generation,
            self.protocol,
            self.leader or "",
            all_members if leads else (),
        )

    def _assign(self, assignments: dict[str, bytes]) -> None:
        self.state = GroupState.STABLE
        self.deadline = math.inf
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.syncing is not None:
                member.syncing.give(Synced(0, member.assignment))
                member.syncing = None
                member.touch()


class Groups:
    """All groups of a cluster."""

    def __init__(
        self, initial_delay: float, session_timeouts: tuple[float, float], modern: ModernTimes
    ) -> None:
        self.initial_delay = initial_delay
        self.min_session_timeout, self.max_session_timeout = session_timeouts
        self.modern = modern
        self.by_id: dict[str, Group] = {}
        self.changed = WakeSignal()
        self._members_made = 0

    def get_or_make(self, group_id: str) -> Group:
        """Return the group with that id; create it if necessary."""
        if group_id not in self.by_id:
            self.by_id[group_id] = Group(group_id, self.initial_delay, self.changed)
        return self.by_id[group_id]

    def forget_topic(self, name: str) -> None:
        """Discard the committed offsets of a deleted topic, as Kafka does."""
        for group in self.by_id.values():
            group.offsets = {
                place: committed for place, committed in group.offsets.items() if place[0] != name
            }

    def new_member_id(self, prefix: str) -> str:
        """Return a new member id; the sequence of ids is the same in every run."""
        self._members_made += 1
        return f"{prefix}-{self._members_made:04d}"

    async def watch(self) -> None:
        """Expire members and rebalances at their deadlines, forever."""
        while True:
            deadline = min((group.next_deadline for group in self.by_id.values()), default=math.inf)
            with trio.move_on_at(deadline):
                await self.changed.wait()
            for group in list(self.by_id.values()):
                group.expire(trio.current_time())
