"""The group coordinator of the consumer protocol (KIP-848): members, epochs, assignments.

A state machine without I/O. No call waits: each heartbeat moves its member one step towards the
target assignment. A partition moves to its new owner only after the old one has released it.
:meth:`ModernGroup.expire` removes members that were silent for the session timeout, and members
that did not release their partitions within the rebalance timeout. As in Kafka since 4.3, there is
at most one new target per ``assignment_interval``; until then the members stay in their epoch.

    state         leaves it when
    STABLE        there is a newer target assignment                         -> one of the three
    UNREVOKED     the member reports that it has released what was revoked   -> one of the three
    UNRELEASED    the other members have released its new partitions         -> STABLE
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import trio

from trikafka.error_codes import ErrorCode

from .assignors import ASSIGNORS, Part, Parts
from .state import Topic

LEAVES = -1
LEAVES_FOR_A_WHILE = -2


class Refused(Exception):
    """The coordinator refuses a call. ``code`` is the error code of the response."""

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        self.reason = reason
        super().__init__(reason)


class ModernTimes(NamedTuple):
    """The broker's configured times, in seconds."""

    session_timeout: float = 45
    heartbeat_interval: float = 5
    assignment_interval: float = 1


class Beat(NamedTuple):
    """A heartbeat.

    ``None``, or a negative time, means unchanged since the last heartbeat. Times are in seconds.
    """

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    rebalance_timeout: float = -1
    names: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Parts | None = None

    @property
    def full(self) -> bool:
        """True if the heartbeat states everything, so that the response does, too."""
        return (
            self.rebalance_timeout >= 0
            and (self.names is not None or self.regex is not None)
            and self.owned is not None
        )


class Reply(NamedTuple):
    """The response to a heartbeat. ``assignment`` is ``None`` if it is unchanged."""

    member_id: str
    epoch: int
    assignment: Parts | None = None


class ModernMemberState(Enum):
    """A member's progress towards the target assignment."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    UNRELEASED = "unreleased"


@dataclass(slots=True, eq=False)
class ModernMember:
    """A member of the consumer protocol.

    Its session ends at ``deadline``. It must release the partitions in ``revoking`` before
    ``revoke_until``.
    """

    member_id: str
    client_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout: float = 0
    names: frozenset[str] = frozenset()
    regex: str = ""
    assignor: str = ""
    epoch: int = 0
    previous_epoch: int = 0
    state: ModernMemberState = ModernMemberState.STABLE
    assigned: Parts = frozenset()
    revoking: Parts = frozenset()
    deadline: float = math.inf
    revoke_until: float = math.inf

    def learn(self, beat: Beat) -> bool:
        """Apply a heartbeat; return whether subscription or assignor changed."""
        before = self.names, self.regex, self.assignor
        self.client_id = beat.client_id
        if beat.rack_id is not None:
            self.rack_id = beat.rack_id
        if beat.rebalance_timeout >= 0:
            self.rebalance_timeout = beat.rebalance_timeout
        if beat.names is not None:
            self.names = frozenset(beat.names)
        if beat.regex is not None:
            self.regex = beat.regex
        if beat.assignor is not None:
            self.assignor = beat.assignor
        return before != (self.names, self.regex, self.assignor)

    def wants(self, topic: str) -> bool:
        """Return whether the member subscribes to a topic."""
        return topic in self.names or bool(self.regex and re.fullmatch(self.regex, topic))

    def enter(self, epoch: int) -> None:
        """Enter an epoch."""
        if epoch != self.epoch:
            self.previous_epoch = self.epoch
            self.epoch = epoch


@dataclass(slots=True, eq=False)
class ModernGroup:
    """The members of one group.

    ``epoch`` counts the changes. ``assignment_epoch`` is the epoch of the ``target``.
    """

    topics: Mapping[str, Topic]
    session_timeout: float
    assignment_interval: float
    epoch: int = 1  # Kafka's first member comes into epoch 2
    assignment_epoch: int = 0
    assigned_at: float = -math.inf
    members: dict[str, ModernMember] = field(default_factory=dict)
    target: dict[str, Parts] = field(default_factory=dict)
    # The topics that the target was computed for.
    _known: dict[str, tuple[uuid.UUID, int]] = field(default_factory=dict)

    # -- called by the handlers

    def heartbeat(self, beat: Beat) -> Reply:
        """Process one heartbeat of one member.

        Raises:
            Refused: The member may not continue.
        """
        member, changed = self._admit(beat)
        changed |= member.learn(beat)
        known = {
            name: (topic.topic_id, len(topic.partitions))
            for name, topic in self.topics.items()
            if self._wanted(name)
        }
        if changed or known != self._known:
            self._known = known
            self.epoch += 1
        if (
            self.assignment_epoch < self.epoch
            and trio.current_time() >= self.assigned_at + self.assignment_interval
        ):
            self._assign()
        before = member.assigned
        self._reconcile(member, beat.owned)
        member.deadline = trio.current_time() + self.session_timeout
        news = beat.epoch == 0 or beat.full or member.assigned != before
        return Reply(member.member_id, member.epoch, member.assigned if news else None)

    def leave(self, member_id: str, instance_id: str | None, epoch: int) -> Reply:
        """Remove a member, or mark a static one as temporarily away.

        Raises:
            Refused: The member is unknown.
        """
        if instance_id is None:
            member = self.member(member_id)
        else:
            member = self._holder(member_id, instance_id)
            if epoch == LEAVES_FOR_A_WHILE:  # its partitions are kept until its session ends
                member.epoch = epoch
                member.revoking = frozenset()
                member.revoke_until = math.inf
                return Reply(member_id, epoch)
        self.remove(member.member_id)
        return Reply(member_id, epoch)

    def check(self, member_id: str, epoch: int) -> None:
        """Check the member epoch of a commit, or of a look-up of commits.

        Raises:
            Refused: The member is unknown, or its epoch is not current.
        """
        member = self.member(member_id)
        if epoch != member.epoch:
            raise Refused(
                ErrorCode.STALE_MEMBER_EPOCH,
                f"The member epoch {epoch} is not the current one, {member.epoch}.",
            )

    def member(self, member_id: str) -> ModernMember:
        """Return the member with that id.

        Raises:
            Refused: There is none.
        """
        if member_id not in self.members:
            raise Refused(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of the group."
            )
        return self.members[member_id]

    def remove(self, member_id: str) -> None:
        """Remove a member; its partitions are free at once."""
        del self.members[member_id]
        self.target.pop(member_id, None)
        self.epoch += 1
        if not self.members:  # from Kafka 4.4 on, nothing is left to assign
            self.assignment_epoch = self.epoch

    @property
    def state(self) -> str:
        """The group's state as Kafka shows it."""
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        settled = all(
            member.state is ModernMemberState.STABLE and member.epoch == self.epoch
            for member in self.members.values()
        )
        return "Stable" if settled else "Reconciling"

    @property
    def assignor(self) -> str:
        """The assignor that most members request."""
        votes = [member.assignor for member in self.members.values() if member.assignor]
        return max(votes, key=votes.count) if votes else next(iter(ASSIGNORS))

    # -- time

    @property
    def next_deadline(self) -> float:
        """The time of the next timeout."""
        return min(
            (min(member.deadline, member.revoke_until) for member in self.members.values()),
            default=math.inf,
        )

    def expire(self, now: float) -> None:
        """Remove the members whose time is up."""
        for member in list(self.members.values()):
            if min(member.deadline, member.revoke_until) <= now:
                self.remove(member.member_id)

    # -- admission of heartbeats

    def _admit(self, beat: Beat) -> tuple[ModernMember, bool]:
        """Return the member of a heartbeat, and whether it is new.

        Raises:
            Refused: The member id, instance id or epoch does not fit.
        """
        if beat.instance_id is not None:
            holder = self._static(beat.instance_id)
            if beat.epoch == 0 and holder is not None:
                return self._take_over(holder, beat), False
            if beat.epoch != 0:
                self._holder(beat.member_id, beat.instance_id)
        if beat.epoch == 0 and beat.member_id not in self.members:
            self.members[beat.member_id] = made = ModernMember(
                beat.member_id, beat.client_id, beat.instance_id
            )
            return made, True
        member = self.member(beat.member_id)
        if beat.epoch == 0:
            return member, False  # a member may always join again
        if beat.epoch > member.epoch:
            raise Refused(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The member epoch {beat.epoch} is greater than the coordinator's, {member.epoch}.",
            )
        lost = (
            beat.epoch == member.previous_epoch
            and beat.owned is not None
            and beat.owned <= member.assigned
        )
        if beat.epoch < member.epoch and not lost:  # the last response may have been lost
            raise Refused(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The member epoch {beat.epoch} is smaller than the coordinator's, {member.epoch}.",
            )
        return member, False

    def _static(self, instance_id: str) -> ModernMember | None:
        return next(
            (member for member in self.members.values() if member.instance_id == instance_id), None
        )

    def _holder(self, member_id: str, instance_id: str) -> ModernMember:
        holder = self._static(instance_id)
        if holder is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance {instance_id} is unknown.")
        if holder.member_id != member_id:
            raise Refused(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Instance {instance_id} belongs to another member now.",
            )
        return holder

    def _take_over(self, old: ModernMember, beat: Beat) -> ModernMember:
        if old.epoch != LEAVES_FOR_A_WHILE:
            raise Refused(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Instance {beat.instance_id} is still held by member {old.member_id}.",
            )
        new = ModernMember(
            beat.member_id,
            beat.client_id,
            old.instance_id,
            old.rack_id,
            old.rebalance_timeout,
            old.names,
            old.regex,
            old.assignor,
        )
        new.assigned = old.assigned
        del self.members[old.member_id]
        self.members[new.member_id] = new
        self.target[new.member_id] = self.target.pop(old.member_id, frozenset())
        return new

    # -- towards the target assignment

    def _wanted(self, topic: str) -> bool:
        return any(member.wants(topic) for member in self.members.values())

    def _assign(self) -> None:
        wishes = {
            member.member_id: {
                topic_id: count
                for name, (topic_id, count) in self._known.items()
                if member.wants(name)
            }
            for member in self.members.values()
        }
        self.target = ASSIGNORS[self.assignor](wishes, self.target)
        self.assignment_epoch = self.epoch
        self.assigned_at = trio.current_time()

    def _reconcile(self, member: ModernMember, owned: Parts | None) -> None:
        if member.state is ModernMemberState.STABLE and member.epoch == self.assignment_epoch:
            return
        if member.state is ModernMemberState.UNREVOKED and (
            owned is None or owned & member.revoking
        ):
            return
        target = self.target.get(member.member_id, frozenset())
        kept = member.assigned & target
        given_up = member.assigned - target
        member.revoking = frozenset()
        member.revoke_until = math.inf
        if given_up and (owned is None or owned & given_up):
            member.state = ModernMemberState.UNREVOKED
            member.assigned = kept
            member.revoking = given_up
            member.revoke_until = trio.current_time() + member.rebalance_timeout
            return
        others = [other for other in self.members.values() if other is not member]
        held = {part for other in others for part in other.assigned | other.revoking}
        member.state = ModernMemberState.UNRELEASED if target & held else ModernMemberState.STABLE
        member.assigned = kept | (target - held)
        member.enter(self.assignment_epoch)


def check_regex(regex: str) -> None:
    try:
        re.compile(regex)
    except re.error as error:
        raise Refused(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
        ) from error


def by_topic(parts: Collection[Part]) -> dict[uuid.UUID, list[int]]:
    """Return partitions in the form of the messages: the sorted numbers by topic."""
    found: dict[uuid.UUID, list[int]] = {}
    for topic, index in sorted(parts):
        found.setdefault(topic, []).append(index)
    return found
