"""Share groups in the scripted cluster (KIP-932): members, sessions, and the records' states.

No I/O. The rules are those of Kafka's brokers. Locks end in virtual time: each look at a partition
first makes the records available whose locks have ended.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias

from trikafka.error_codes import ErrorCode

from ._signal import WakeSignal

#: A partition: its topic's id and its number.
Part: TypeAlias = tuple[uuid.UUID, int]
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
_LAST_EPOCH = 2**31 - 1


class RecordState(Enum):
    """The state of a record in a share partition.

    AVAILABLE: it can be delivered. ACQUIRED: a member holds it. ACKNOWLEDGED: a member has accepted
    it. ARCHIVED: a member has rejected it, or it was delivered too often.
    """

    AVAILABLE = "available"
    ACQUIRED = "acquired"
    ACKNOWLEDGED = "acknowledged"
    ARCHIVED = "archived"


@dataclass(slots=True)
class SharedRecord:
    """One offset from the start of a share partition on.

    Attributes:
        state: The state.
        count: The number of deliveries.
        kept_count: The number in the stored state, which a new leader loads.
        member: The id of the member that holds the record, or empty.
        lock_ends: The time when that member's lock ends.
    """

    state: RecordState = RecordState.AVAILABLE
    count: int = 0
    kept_count: int = 0
    member: str = ""
    lock_ends: float = 0.0


class ScriptedShareError(Exception):
    """The broker refuses a request, or a partition's acknowledgements."""

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        super().__init__(reason)


@dataclass(slots=True)
class ShareTimes:
    """The configuration of all share groups. A test may change it.

    Attributes:
        lock: The seconds for which a record is locked for a member.
        delivery_limit: The number of deliveries after which a record is archived.
        heartbeat_interval: The seconds between a member's heartbeats.
        session_limit: The number of share sessions that a node can hold.
        auto_offset_reset: The start of a new group, ``"latest"`` or ``"earliest"``.
        renewals: Whether a member may renew a lock.
    """

    lock: float = 30
    delivery_limit: int = 5
    heartbeat_interval: float = 5
    session_limit: int = 2000
    auto_offset_reset: str = "latest"
    renewals: bool = True


class LedLog(Protocol):
    """The log of a partition: its first and its next offset, and its leader."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def leader(self) -> int | None: ...
    @property
    def led_since(self) -> int:
        """The epoch in which the leader became one."""


class SharedPartition:
    """A partition as one group sees it: what is acquired, by whom, and until when."""

    def __init__(self, start: int, times: ShareTimes, led_since: int) -> None:
        self.start = start
        self.records: dict[int, SharedRecord] = {}
        self._times = times
        self._led_since = led_since

    def record(self, offset: int) -> SharedRecord:
        """Return the record at an offset."""
        return self.records.setdefault(offset, SharedRecord())

    # A broker stores the state of a record when the record is acknowledged or released, or its lock
    # ends. Only the leader knows that a record is acquired.
    def load(self, led_since: int) -> None:
        """Load the stored state if another leader has begun: what was acquired is available."""
        if led_since == self._led_since:
            return
        self._led_since = led_since
        for record in self.records.values():
            if record.state is RecordState.ACQUIRED:
                record.state = RecordState.AVAILABLE
                record.member = ""
                record.count = record.kept_count

    def expire(self, now: float) -> None:
        """End the locks whose time is over."""
        for record in self.records.values():
            if record.state is RecordState.ACQUIRED and record.lock_ends <= now:
                self._free(record)

    def lock_ends(self) -> float | None:
        """Return when the next lock ends; ``None`` if none is held."""
        return min(
            (
                each.lock_ends
                for each in self.records.values()
                if each.state is RecordState.ACQUIRED
            ),
            default=None,
        )

    def available(self, offset: int) -> bool:
        """Return whether an offset can be acquired."""
        record = self.records.get(offset)
        return offset >= self.start and (record is None or record.state is RecordState.AVAILABLE)

    def acquire(self, offset: int, member: str, now: float) -> int:
        """Acquire an offset for a member; return the count of its deliveries."""
        record = self.record(offset)
        record.state = RecordState.ACQUIRED
        record.member = member
        record.count += 1
        record.lock_ends = now + self._times.lock
        return record.count

    def acknowledge(self, member: str, kinds: Mapping[int, int], now: float) -> None:
        """Take a member's acknowledgements by offset: all of them, or none.

        Raises:
            ScriptedShareError: The member does not hold one of the records.
        """
        for offset, kind in kinds.items():
            record = self.records.get(offset)
            if (
                record is None
                or record.state is not RecordState.ACQUIRED
                or record.member != member
                or (kind == RENEW and not self._times.renewals)
            ):
                raise ScriptedShareError(
                    ErrorCode.INVALID_RECORD_STATE, f"the member does not hold offset {offset}"
                )
        for offset, kind in kinds.items():
            record = self.records[offset]
            if kind == RENEW:
                record.lock_ends = now + self._times.lock
            elif kind == RELEASE:
                self._free(record)
            else:
                record.state = RecordState.ACKNOWLEDGED if kind == ACCEPT else RecordState.ARCHIVED

    def release(self, member: str) -> None:
        """Free what a member holds: its session has ended."""
        for record in self.records.values():
            if record.state is RecordState.ACQUIRED and record.member == member:
                self._free(record)

    def _free(self, record: SharedRecord) -> None:
        record.member = ""
        record.kept_count = record.count
        record.state = (
            RecordState.ARCHIVED
            if record.count >= self._times.delivery_limit
            else RecordState.AVAILABLE
        )


@dataclass(slots=True, eq=False)
class ScriptedShareSession:
    """The session of a member with one node. ``epoch`` is that of the next request."""

    connection: int
    partitions: dict[Part, None] = field(default_factory=dict)
    epoch: int = 0

    def advance(self) -> None:
        """Expect the next epoch; after the last one comes 1."""
        self.epoch = 1 if self.epoch == _LAST_EPOCH else self.epoch + 1


@dataclass(slots=True)
class ShareMember:
    """A member as the coordinator knows it."""

    member_id: str
    epoch: int
    topics: frozenset[str]
    informed: frozenset[Part] | None = None


@dataclass(slots=True)
class ShareGroup:
    """A share group: its members, and the partitions that they have shared."""

    epoch: int = 0
    members: dict[str, ShareMember] = field(default_factory=dict)
    partitions: dict[Part, SharedPartition] = field(default_factory=dict)

    def assign(self, parts_of: Callable[[str], Iterable[Part]]) -> dict[str, frozenset[Part]]:
        """Return each member's partitions: at least one, and each partition at least once."""
        topics = sorted({topic for member in self.members.values() for topic in member.topics})
        wanted: dict[str, list[Part]] = {name: [] for name in self.members}
        for topic in topics:
            takers = sorted(name for name, each in self.members.items() if topic in each.topics)
            parts = list(parts_of(topic))
            for turn in range(max(len(parts), len(takers)) if parts else 0):
                wanted[takers[turn % len(takers)]].append(parts[turn % len(parts)])
        return {name: frozenset(parts) for name, parts in wanted.items()}


class ShareGroups:
    """All share groups, and the sessions of all nodes."""

    def __init__(self, changed: WakeSignal) -> None:
        self.times = ShareTimes()
        self.by_id: dict[str, ShareGroup] = {}
        #: By node, group and member.
        self.sessions: dict[tuple[int, str, str], ScriptedShareSession] = {}
        self._changed = changed

    def group(self, group_id: str) -> ShareGroup:
        """Return a group; a new one if there is none."""
        return self.by_id.setdefault(group_id, ShareGroup())

    def partition(self, group_id: str, part: Part, log: LedLog) -> SharedPartition:
        """Return a partition of a group, which begins where the group's configuration says."""
        partitions = self.group(group_id).partitions
        if part not in partitions:
            earliest = self.times.auto_offset_reset == "earliest"
            start = log.start if earliest else log.end
            partitions[part] = SharedPartition(start, self.times, log.led_since)
        return partitions[part]

    def open(self, node: int, group: str, member: str, connection: int) -> ScriptedShareSession:
        """Open a session, in place of an older one.

        Raises:
            ScriptedShareError: The node has no room for another one.
        """
        key = (node, group, member)
        taken = sum(each[0] == node for each in self.sessions if each != key)
        if taken >= self.times.session_limit:
            raise ScriptedShareError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED, "no room for another share session"
            )
        session = self.sessions[key] = ScriptedShareSession(connection)
        return session

    def find(self, node: int, group: str, member: str, epoch: int) -> ScriptedShareSession:
        """Return the session of a request.

        Raises:
            ScriptedShareError: There is none, or the epoch is not its next one.
        """
        session = self.sessions.get((node, group, member))
        if session is None:
            raise ScriptedShareError(ErrorCode.SHARE_SESSION_NOT_FOUND, "no such share session")
        if epoch not in (session.epoch, -1):
            raise ScriptedShareError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH,
                f"the share session expects epoch {session.epoch}, not {epoch}",
            )
        return session

    def close(
        self, node: int, group: str, member: str, log_of: Callable[[Part], LedLog | None]
    ) -> None:
        """End a session; the node frees what the member holds of partitions that it leads."""
        if self.sessions.pop((node, group, member), None) is None:
            return
        for part, partition in self.group(group).partitions.items():
            log = log_of(part)
            if log is not None and log.leader == node:
                partition.load(log.led_since)
                partition.release(member)
        self._changed.notify()

    def forget_sessions(self, node: int | None = None) -> None:
        """Discard sessions without freeing what their members hold."""
        for key in [key for key in self.sessions if node in (None, key[0])]:
            del self.sessions[key]

    def fence(self, group_id: str) -> None:
        """Remove all members of a group; they have to join again."""
        self.group(group_id).members.clear()


def kinds_of(batches: Iterable[tuple[int, int, list[int]]]) -> dict[int, int]:
    """Return the acknowledgement of each offset.

    Raises:
        ScriptedShareError: The ranges overlap or do not ascend, or a type does not exist.
    """
    kinds: dict[int, int] = {}
    before = -1
    for first, last, types in batches:
        count = last - first + 1
        if first <= before or count < 1 or len(types) not in (1, count):
            raise ScriptedShareError(
                ErrorCode.INVALID_REQUEST, "the ranges do not ascend, or do not fit"
            )
        if not all(GAP <= kind <= RENEW for kind in types):
            raise ScriptedShareError(ErrorCode.INVALID_REQUEST, f"no such acknowledgement: {types}")
        kinds.update(
            zip(range(first, last + 1), types * count if len(types) == 1 else types, strict=True)
        )
        before = last
    return kinds
