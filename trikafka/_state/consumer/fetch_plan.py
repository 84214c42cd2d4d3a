"""The plan of fetches: which partitions to fetch from which broker now. No I/O.

A partition is fetched from its leader, or from the replica that the leader prefers (KIP-392). It is
not fetched before its wait after an error is over, nor while enough of it is buffered.

Three sources report changes: the assignment (which partitions changed), the cluster's snapshot (who
leads them) and a heap of timers (whose wait is over). Only these partitions are checked. So the
cost of a fetch depends on the partitions with changes, and not on all that are assigned. The result
for each broker is in its :class:`~trikafka._state.consumer.fetch_session.FetchSession`. Only the
fetch manager changes the plan, by reporting events.

When the source of a partition changes
-------------------------------------

=========================================  ======================================================
event                                      the partition is fetched from
=========================================  ======================================================
the snapshot has another leader            that leader; if its epoch is newer, after the position
                                           is checked against its log (KIP-320)
the leader names a replica in a response   the replica, for ``metadata_max_age_ms``
the replica answers with an error, names   the leader
another replica, or leaves the cluster
the replica is silent or unreachable, or   the leader; for ``metadata_max_age_ms`` no Fetch has the
replicas keep failing                      client's rack, so leaders name no replicas
the snapshot has no leader                 no broker; the partition is in ``leaderless``
=========================================  ======================================================
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple
from uuid import UUID

from ...errors import TrikafkaError
from ...interfaces import ClusterSnapshot
from .assignment import AssignedPartition, Assignment
from .fetch_buffer import FetchBuffer
from .fetch_session import FetchSession, Wanted
from .partition_state import PartitionState

_NO_ID = UUID(int=0)


@dataclass(slots=True)
class _Source:
    """The state of fetching one partition: its broker, replica, failures and waits."""

    #: The broker whose session has the partition.
    node: int | None = None
    #: The replica that the leader prefers, until ``replica_until``.
    replica: int | None = None
    replica_until: float = 0.0
    #: Failures since the last progress.
    failures: int = 0
    #: No fetch before this time, unless ``ticket`` has been overtaken.
    retry_at: float = 0.0
    ticket: int = -1
    #: True while the wait is for a reset.
    resets: bool = False
    #: The session's first request about the partition. Its response proves that fetching works.
    first: int = 0
    #: The time of the last successful fetch before that request.
    fetched_at: float | None = None
    #: The error of the last fetch, if it failed.
    error: TrikafkaError | None = None
    #: The epoch in which the position is known to be in the leader's log.
    leader_epoch: int = -1


class PlanActions(NamedTuple):
    """The findings of :meth:`FetchPlan.update`, for the fetch manager to carry out."""

    #: Partitions whose topic was deleted and recreated (KIP-516): their positions are void.
    recreated: list[AssignedPartition]
    #: Partitions whose wait before a reset is over.
    resets: list[AssignedPartition]


class FetchPlan:
    """The fetch sessions of all brokers, and what every partition waits for."""

    def __init__(self, assignment: Assignment, buffer: FetchBuffer) -> None:
        self._assignment = assignment
        self._buffer = buffer
        self.sessions: dict[int, FetchSession] = {}
        #: Partitions to fetch that have no known leader, and why.
        self.leaderless: dict[AssignedPartition, TrikafkaError] = {}
        self._snapshot = ClusterSnapshot()
        #: The ids of the snapshot's topics.
        self._ids: dict[str, UUID | None] = {}
        self._sources: dict[AssignedPartition, _Source] = {}
        #: Partitions omitted since enough of them is buffered, and the broker they would come from.
        self._full: dict[AssignedPartition, int] = {}
        #: The number of those partitions by broker.
        self._full_at: Counter[int] = Counter()
        self._share = 0
        #: True if the buffer was crowded at the last update.
        self._crowded = False
        #: A heap of waits; the number decides between equal times.
        self._timers: list[tuple[float, int, AssignedPartition]] = []
        self._waits = 0
        self._joined: set[int] = set()
        self._no_replicas_until = 0.0
        self._actions = PlanActions([], [])

    def update(self, snapshot: ClusterSnapshot, now: float) -> set[int]:
        """Apply changes of cluster and partitions; return the brokers with more to fetch."""
        changed = self._assignment.fetching_changes()
        share = self._buffer.share(len(self._assignment))
        crowded = self._buffer.crowded
        if snapshot is not self._snapshot or share != self._share or crowded != self._crowded:
            self._snapshot = snapshot
            self._share = share
            self._crowded = crowded
            self._ids.clear()
            changed |= dict.fromkeys(self._assignment)
        while self._timers and self._timers[0][0] <= now:
            changed[heappop(self._timers)[2]] = None
        self._joined = set()
        for partition in changed:
            self._place(partition, now)
        return self._joined

    # Reading.

    @property
    def partitions(self) -> int:
        """The number of assigned partitions."""
        return len(self._assignment)

    @property
    def next_timer(self) -> float:
        """The time at which the next wait is over (``math.inf``: there is none)."""
        return self._timers[0][0] if self._timers else math.inf

    def is_short_of_room(self, node: int) -> bool:
        """Return whether a partition of this broker is omitted since enough of it is buffered."""
        return self._full_at[node] > 0

    def room(self, node: int, most: int, partition_bytes: int) -> int:
        """Return how many bytes to fetch from a broker now; 0: there is no room.

        Buffered records of paused partitions are dropped if they leave no room.
        """
        brokers = sum(
            bool(session.wanted) or self._full_at[number] > 0
            for number, session in self.sessions.items()
        )
        wanted = min(most, len(self.sessions[node].wanted) * partition_bytes)
        room = self._buffer.room(brokers, self._buffer.buffered_from(node), wanted)
        if not room and (idle := self._buffer.idle_from(node)):
            for partition in idle:
                partition.refetch(partition.position or 0)
            room = self._buffer.room(brokers, self._buffer.buffered_from(node), wanted)
        if not room:
            return 0
        wanting = {number for number, session in self.sessions.items() if session.wanted}
        self._buffer.keep_in_row(wanting & self._snapshot.nodes.keys())
        if self._buffer.may_fetch(node, room):
            return room
        if self._buffer.crowded or not self._buffer.by_stream:
            for partition in self._buffer.droppable(room):
                partition.refetch(partition.position or 0)
        return room if self._buffer.may_fetch(node, room) else 0

    def pop_actions(self) -> PlanActions:
        """Return the findings since the last call, each once."""
        found = self._actions
        self._actions = PlanActions([], [])
        return found

    def reads_from_follower(self, partition: AssignedPartition, node: int) -> bool:
        """Return whether the partition is fetched from ``node`` as its preferred replica."""
        source = self._sources.get(partition)
        return source is not None and source.replica == node

    def failures(self, partition: AssignedPartition) -> int:
        """Return the number of successive failures of the partition."""
        source = self._sources.get(partition)
        return 0 if source is None else source.failures

    def last_fetch(self, partition: AssignedPartition) -> tuple[float | None, TrikafkaError | None]:
        """Return when the partition was last fetched with success, and the error since then.

        ``None`` as the time: never. A session's response that does not name the partition has
        nothing new of it, and counts as a success, too.
        """
        if (source := self._sources.get(partition)) is None:
            return None, None
        session = None if source.node is None else self.sessions[source.node]
        if session is None:
            return source.fetched_at, source.error
        if session.answered >= source.first:
            return session.answered_at, session.error
        return source.fetched_at, session.error or source.error

    def source_of(self, partition: AssignedPartition) -> int | None:
        """Return the broker whose session has the partition; ``None`` while it is not fetched."""
        source = self._sources.get(partition)
        return None if source is None else source.node

    # Events.

    def fetch_failed(self, partition: AssignedPartition, error: TrikafkaError) -> None:
        """Record that the response being taken in has an error for the partition."""
        source = self._sources.setdefault(partition, _Source())
        self._end_fetches(source)
        source.error = error

    def progressed(self, partition: AssignedPartition) -> None:
        """Reset the failures of the partition after a successful fetch."""
        if (source := self._sources.get(partition)) is not None:
            source.failures = 0

    def back_off(self, partition: AssignedPartition, until: float, *, reset: bool = False) -> None:
        """Fetch the partition not before ``until``, unless the user seeks.

        ``reset``: the position is reset then.
        """
        source = self._sources.setdefault(partition, _Source())
        source.failures += 1
        source.retry_at = until
        source.ticket = partition.ticket
        source.resets = reset
        self._wait(until, partition)
        self._assignment.fetching_changed(partition)

    def prefer(self, partition: AssignedPartition, replica: int | None, until: float = 0.0) -> None:
        """Fetch the partition from ``replica`` until that time (``None``: from the leader)."""
        source = self._sources.setdefault(partition, _Source())
        source.replica = replica
        source.replica_until = until
        if replica is not None:
            self._wait(until, partition)
        self._assignment.fetching_changed(partition)

    def unreachable(self, node: int, until: float) -> None:
        """Fetch from the leaders what was fetched from this broker as a follower.

        The broker does not respond. A leader that does not know this yet may name it again, so
        replicas are not used before ``until``.
        """
        for wanted in self.sessions[node].wanted.values():
            if self.reads_from_follower(wanted.ticket.partition, node):
                self.prefer(wanted.ticket.partition, None)
                self.distrust_replicas(until)

    def remove_if_idle(self, node: int) -> bool:
        """Forget a broker that left the cluster, unless a partition still needs it.

        Returns whether the broker was forgotten.
        """
        if self.sessions[node].wanted or self._full_at[node]:
            return False
        del self.sessions[node]
        return True

    def distrust_replicas(self, until: float) -> None:
        """Request no preferred replicas until that time: those that leaders name do not serve."""
        self._no_replicas_until = until

    def trusts_replicas(self, now: float) -> bool:
        """Return whether requests carry the client's rack, so that leaders name replicas."""
        return now >= self._no_replicas_until

    # Internal.

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
            wanted = Wanted(partition.fetch_begun(), source.leader_epoch, epoch, partition.topic_id)
            session.fetch(partition.tp, wanted)

    def _leave(self, partition: AssignedPartition, source: _Source) -> None:
        if source.node is not None:
            self._end_fetches(source)
            self.sessions[source.node].forget(partition.tp)
            source.node = None

    # A session's response names only partitions with news (KIP-227), so silence about a partition
    # is as good as a success, but only for requests that named it or whose session had it.
    # ``source.first`` is the first such request. When the partition leaves the session, or fails in
    # it, the period ends here: if ``first`` was answered, the last answer is the last success. The
    # request in flight no longer counts, since its response may be about another source.
    def _end_fetches(self, source: _Source) -> None:
        """Close the partition's proof of successful fetches with the session's last answer.

        Responses up to ``session.answered`` covered this partition; the request in flight does not.
        """
        if source.node is not None:
            session = self.sessions[source.node]
            if session.answered >= source.first:
                source.fetched_at = session.answered_at
                source.error = None
            source.first = session.requests + 1

    def _unmark(self, partition: AssignedPartition) -> None:
        self.leaderless.pop(partition, None)
        if (node := self._full.pop(partition, None)) is not None:
            self._full_at[node] -= 1

    # The order of the checks matters.
    #
    # 1. A recreated topic comes first: the position is void, even of a paused partition.
    # 2. Then the leader's epoch: before a new leader is asked, or a replica that follows it, the
    #    position is validated against its log (KIP-320). A partition that is paused, full, in a
    #    wait or at a limit is checked, too: its buffer has records of the old leader.
    # 3. Then the partition itself: fetchable, and not in a wait after an error.
    # 4. Then its leader. Without one the partition is in ``leaderless``, and the manager requests
    #    metadata.
    # 5. The replica replaces the leader only here, so a replica is never used without a known
    #    leader.
    # 6. The buffer comes last: a partition without room has to count for the broker that it would
    #    be fetched from (``is_short_of_room``).
    def _node_of(self, partition: AssignedPartition, source: _Source, now: float) -> int | None:
        """Return the broker from which to fetch the partition now; ``None``: it is not fetched."""
        self._unmark(partition)
        if self._is_of_another_topic(partition, source):
            return None
        try:
            node = self._snapshot.leader(partition.tp).node_id
        except TrikafkaError as error:
            if partition.fetchable and not self._is_waiting(partition, source, now):
                self.leaderless[partition] = error
            return None
        if (
            not self._is_valid(partition, source)
            or not partition.fetchable
            or self._is_waiting(partition, source, now)
        ):
            return None
        self._assignment.found(partition)
        if source.replica is not None:
            if now < source.replica_until and source.replica in self._snapshot.nodes:
                node = source.replica
            else:
                source.replica = None
        if self._buffer.leaves_out(partition):
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
            self._actions.resets.append(partition)
            return True
        return False

    def _is_valid(self, partition: AssignedPartition, source: _Source) -> bool:
        """Return whether the position is in the leader's log, as far as is known."""
        if partition.state is not PartitionState.FETCHING:
            return True  # without a position, or being validated: checked afterwards
        epoch = self._snapshot.leader_epoch(partition.tp)
        known = source.leader_epoch
        if epoch != known:
            source.leader_epoch = epoch
            # The first leader that is seen need not be the one that has given the position. A
            # fetch with an epoch is its own check. Without the epoch of the leader that has given
            # the position, the epoch of the record before it is compared.
            if partition.located_by is not None:
                known = max(known, partition.located_by)
            if known < 0 and partition.fetch_epoch is None and partition.leader_epoch is not None:
                known = partition.leader_epoch
            # A lower epoch follows a damaged response that had named an epoch that never existed.
            if 0 <= known < epoch:
                if partition.leader_epoch is not None:
                    partition.begin_validation()
                    return False
                # Of a position without an epoch nothing can be validated. But the records buffered
                # behind it come from the old leader. Their delivery would give the position its
                # epoch, and only the next election would check it.
                if partition.fetch_offset != partition.position:
                    partition.refetch(partition.position or 0)
        return True

    def _is_of_another_topic(self, partition: AssignedPartition, source: _Source) -> bool:
        """Return whether the topic was recreated since the partition's position was found.

        Paused partitions are checked, too, so that later seeks are in the new topic.
        """
        if (
            partition.state is not PartitionState.FETCHING
            or (topic_id := self._topic_id(partition.tp.topic)) is None
        ):
            return False
        if partition.is_in(topic_id):
            return False
        source.leader_epoch = self._snapshot.leader_epoch(partition.tp)
        self._actions.recreated.append(partition)
        return True

    def _topic_id(self, topic: str) -> UUID | None:
        if topic not in self._ids:
            info = self._snapshot.topics.get(topic)
            topic_id = None if info is None or info.topic_id is None else UUID(info.topic_id)
            self._ids[topic] = None if topic_id == _NO_ID else topic_id
        return self._ids[topic]
