"""What to fetch from which broker, and what not now: from the leader or the replica that it prefers (KIP-392), not before the wait
after an error is over, not while enough is buffered. No I/O.

The assignment says in which partitions something changed, the cluster's snapshot who leads them, and a clock whose wait is over.
Only those partitions are looked at, so a fetch costs what it moves and not what is assigned. What is wanted of a broker goes into
its :class:`~trikafka._state.fetch_session.FetchSession`. The fetch manager alone writes here, by telling what happened.
"""

from __future__ import annotations

import math
from collections import Counter
from heapq import heappop, heappush
from typing import NamedTuple
from uuid import UUID

from ..errors import TrikafkaError
from .assignment import AssignedPartition, Assignment
from .cluster import ClusterSnapshot
from .fetch_buffer import FetchBuffer
from .fetch_session import FetchSession, Wanted
from .partition_state import PartitionState

_NO_ID = UUID(int=0)


class _Source:
    """Where one partition is fetched from."""

    __slots__ = (
        "error", "failures", "fetched_at", "first", "leader_epoch", "node", "replica", "replica_until", "resets", "retry_at",
        "ticket",
    )  # fmt: skip

    def __init__(self) -> None:
        self.node: int | None = None  # the broker in whose session it is
        self.replica: int | None = None  # the broker that the leader prefers
        self.replica_until = 0.0
        self.failures = 0  # since it made progress
        self.retry_at = 0.0  # no fetch before, unless something has overtaken the ticket
        self.ticket = -1
        self.resets = False  # the wait is for a reset
        self.first = 0  # the first request of the session whose response, if it has come, says that fetching it works
        self.fetched_at: float | None = None  # by a fetch before that one
        self.error: TrikafkaError | None = None  # of the last fetch, if that failed
        self.leader_epoch = -1  # in which the position is known to be in the leader's log


class Found(NamedTuple):
    """What :meth:`FetchPlan.update` found out, for the fetch manager to carry out."""

    recreated: list[AssignedPartition]  #: their topic was deleted and created anew (KIP-516): their positions mean nothing
    resets: list[AssignedPartition]  #: their wait before a reset is over


class FetchPlan:
    """See the module."""

    def __init__(self, assignment: Assignment, buffer: FetchBuffer) -> None:
        self._assignment, self._buffer = assignment, buffer
        self.sessions: dict[int, FetchSession] = {}
        self.leaderless: dict[AssignedPartition, TrikafkaError] = {}  # wanted, and there is nobody to ask
        self._snapshot = ClusterSnapshot()
        self._ids: dict[str, UUID | None] = {}  # of the snapshot's topics
        self._sources: dict[AssignedPartition, _Source] = {}
        self._full: dict[AssignedPartition, int] = {}  # left out since enough is buffered, and the broker it would come from
        self._full_at: Counter[int] = Counter()  # how many, by broker
        self._share = 0
        self._timers: list[tuple[float, int, AssignedPartition]] = []  # a heap; the number decides between equal times
        self._waits = 0
        self._joined: set[int] = set()
        self._no_replicas_until = 0.0
        self._found = Found([], [])

    def update(self, snapshot: ClusterSnapshot, now: float) -> set[int]:
        """Take in what has changed. Returns the brokers that are to be asked for more partitions than before."""
        changed = self._assignment.fetching_changes()
        share = self._buffer.share(len(self._assignment))
        if snapshot is not self._snapshot or share != self._share:
            self._snapshot, self._share = snapshot, share
            self._ids.clear()
            changed |= dict.fromkeys(self._assignment)
        while self._timers and self._timers[0][0] <= now:
            changed[heappop(self._timers)[2]] = None
        self._joined = set()
        for partition in changed:
            self._place(partition, now)
        return self._joined

    # Questions.

    @property
    def partitions(self) -> int:
        """How many are assigned."""
        return len(self._assignment)

    @property
    def next_timer(self) -> float:
        """When the next wait is over (``math.inf``: there is none)."""
        return self._timers[0][0] if self._timers else math.inf

    def is_short_of_room(self, node: int) -> bool:
        """Whether partitions of this broker are left out because enough of them is buffered."""
        return self._full_at[node] > 0

    def room(self, node: int, most: int, partition_bytes: int) -> int:
        """How many bytes to fetch from a broker now. What is buffered of paused partitions is dropped where it leaves none."""
        brokers = sum(bool(session.wanted) or self._full_at[number] > 0 for number, session in self.sessions.items())
        wanted = min(most, len(self.sessions[node].wanted) * partition_bytes)
        room = self._buffer.room(brokers, self._buffer.buffered_from(node), wanted)
        if not room and (idle := self._buffer.idle_from(node)):
            for partition in idle:
                partition.refetch(partition.position or 0)
            room = self._buffer.room(brokers, self._buffer.buffered_from(node), wanted)
        return room

    def take_found(self) -> Found:
        """What has to be carried out. Told once."""
        found, self._found = self._found, Found([], [])
        return found

    def reads_from_follower(self, partition: AssignedPartition, node: int) -> bool:
        """Whether ``node`` is asked as the preferred replica."""
        source = self._sources.get(partition)
        return source is not None and source.replica == node

    def failures(self, partition: AssignedPartition) -> int:
        """How often in a row it was put off."""
        source = self._sources.get(partition)
        return 0 if source is None else source.failures

    def last_fetch(self, partition: AssignedPartition) -> tuple[float | None, TrikafkaError | None]:
        """When a fetch last succeeded that was about it too (``None``: none has), and why later ones did not.

        A session's response that does not name a partition has nothing new of it, and is as good as one that does.
        """
        if (source := self._sources.get(partition)) is None:
            return None, None
        session = None if source.node is None else self.sessions[source.node]
        if session is not None and session.answered >= source.first:
            return session.answered_at, None
        return source.fetched_at, source.error

    # What happened.

    def fetch_failed(self, partition: AssignedPartition, error: TrikafkaError) -> None:
        """A response, which is being taken in, has an error for it."""
        source = self._sources.setdefault(partition, _Source())
        self._end_fetches(source)
        source.error = error

    def progressed(self, partition: AssignedPartition) -> None:
        """A fetch of it succeeded."""
        if (source := self._sources.get(partition)) is not None:
            source.failures = 0

    def put_off(self, partition: AssignedPartition, until: float, *, reset: bool = False) -> None:
        """Do not fetch it before ``until`` (and then reset it), unless the user goes elsewhere."""
        source = self._sources.setdefault(partition, _Source())
        source.failures += 1
        source.retry_at, source.ticket, source.resets = until, partition.ticket, reset
        self._wait(until, partition)
        self._assignment.fetching_changed(partition)

    def prefer(self, partition: AssignedPartition, replica: int | None, until: float = 0.0) -> None:
        """Fetch it from this replica until then (``None``: from the leader)."""
        source = self._sources.setdefault(partition, _Source())
        source.replica, source.replica_until = replica, until
        if replica is not None:
            self._wait(until, partition)
        self._assignment.fetching_changed(partition)

    def unreachable(self, node: int, until: float) -> None:
        """This broker does not respond: what is read from it as a follower comes from the leader again.

        A leader may not know yet, and name it again: so replicas are not trusted before ``until``.
        """
        for wanted in self.sessions[node].wanted.values():
            if self.reads_from_follower(wanted.ticket.partition, node):
                self.prefer(wanted.ticket.partition, None)
                self.distrust_replicas(until)

    def let_go(self, node: int) -> bool:
        """This broker is not in the cluster any more: forget it, if nothing is wanted of it. Whether that is so."""
        if self.sessions[node].wanted or self._full_at[node]:
            return False
        del self.sessions[node]
        return True

    def distrust_replicas(self, until: float) -> None:
        """Leaders name replicas that are no use: everything is read from the leaders themselves until then."""
        self._no_replicas_until = until

    def trusts_replicas(self, now: float) -> bool:
        """Whether leaders are to name preferred replicas."""
        return now >= self._no_replicas_until

    # Inside.

    def _wait(self, until: float, partition: AssignedPartition) -> None:
        self._waits += 1
        heappush(self._timers, (until, self._waits, partition))

    def _place(self, partition: AssignedPartition, now: float) -> None:
        if partition.state is PartitionState.GONE:
            self._leave(partition, self._sources.pop(partition, _Source()))
            self._unmark(partition)
            return
        source = self._sources.setdefault(partition, _Source())
        node = self._node_of(partition, source, now)
        if source.node is not None and source.node != node:
            self._leave(partition, source)
        if node is not None:
            session = self.sessions.setdefault(node, FetchSession())
            if source.node is None:
                self._joined.add(node)
                source.first = session.requests + 1
            source.node = node
            epoch = -1 if partition.fetch_epoch is None else partition.fetch_epoch
            wanted = Wanted(partition.fetch_begun(), source.leader_epoch, epoch, partition.progress.topic_id)
            session.fetch(partition.tp, wanted)

    def _leave(self, partition: AssignedPartition, source: _Source) -> None:
        if source.node is not None:
            self._end_fetches(source)
            self.sessions[source.node].forget(partition.tp)
            source.node = None

    def _end_fetches(self, source: _Source) -> None:
        """What its session has answered until now may have been about it; what it is being asked now is not."""
        if source.node is not None:
            session = self.sessions[source.node]
            if session.answered >= source.first:
                source.fetched_at, source.error = session.answered_at, None
            source.first = session.requests + 1

    def _unmark(self, partition: AssignedPartition) -> None:
        self.leaderless.pop(partition, None)
        if (node := self._full.pop(partition, None)) is not None:
            self._full_at[node] -= 1

    def _node_of(self, partition: AssignedPartition, source: _Source, now: float) -> int | None:
        """The broker to fetch it from now, if it is to be fetched."""
        self._unmark(partition)
        if self._is_of_another_topic(partition, source) or not partition.fetchable or self._is_waiting(partition, source, now):
            return None
        try:
            node = self._snapshot.leader(partition.tp).node_id
        except TrikafkaError as error:
            self.leaderless[partition] = error
            return None
        self._assignment.found(partition)
        if not self._is_valid(partition, source):
            return None
        if source.replica is not None:
            if now < source.replica_until and source.replica in self._snapshot.nodes:
                node = source.replica
            else:
                source.replica = None
        if self._buffer.size_of(partition) >= self._share:
            self._full[partition] = node
            self._full_at[node] += 1
            self._buffer.await_room(partition, self._share)
            return None
        return node

    def _is_waiting(self, partition: AssignedPartition, source: _Source, now: float) -> bool:
        if source.ticket != partition.ticket:
            return False
        if source.retry_at > now:
            return True
        if source.resets:
            source.resets = False
            self._found.resets.append(partition)
            return True
        return False

    def _is_valid(self, partition: AssignedPartition, source: _Source) -> bool:
        """Whether the position is in its present leader's log, as far as is known."""
        epoch, known = self._snapshot.leader_epoch(partition.tp), source.leader_epoch
        if epoch > known:
            source.leader_epoch = epoch
            if known >= 0 and partition.progress.leader_epoch is not None:
                partition.begin_validation()
                return False
        return True

    def _is_of_another_topic(self, partition: AssignedPartition, source: _Source) -> bool:
        """Whether the topic was created anew since its position was found. A paused one learns that, too: later seeks count."""
        if partition.state is not PartitionState.FETCHING or (topic_id := self._topic_id(partition.tp.topic)) is None:
            return False
        if partition.is_in(topic_id):
            return False
        source.leader_epoch = self._snapshot.leader_epoch(partition.tp)
        self._found.recreated.append(partition)
        return True

    def _topic_id(self, topic: str) -> UUID | None:
        if topic not in self._ids:
            info = self._snapshot.topics.get(topic)
            topic_id = None if info is None or info.topic_id is None else UUID(info.topic_id)
            self._ids[topic] = None if topic_id == _NO_ID else topic_id
        return self._ids[topic]
