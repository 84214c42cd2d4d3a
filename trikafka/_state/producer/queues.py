"""A producer's batches that are not done: by partition, by topic, and by leader. No I/O.

A :class:`PartitionQueue` decides which of its batches may be sent. A :class:`TopicQueues` chooses
the partition of each record. :class:`Queues` has all partitions, and those with batches for each
broker. The accumulator and the completion of batches alone call them.
"""

from __future__ import annotations

import random
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from ..._wire import _implementation
from ..._wire.columns import Columns, RecordBatch
from ..._wire.partitioning import (
    BY_MURMUR2,
    NO_KEYS,
    KeyRule,
    group_rows,
    partition_columns,
    partition_for_key,
)
from ..._wire.records import BatchEncoder
from ...errors import ConfigurationError
from ...interfaces import Partitioner
from ...types import TopicPartition
from .producer_batch import ProducerBatch
from .sequences import PartitionSequences, ProducerState

#: The obstacles to sending batches, and since when each exists. An obstacle is a broker (its id)
#: that is not connected, or has as many requests in flight as allowed; a partition without a known
#: leader, or that the transaction's coordinator does not know; or the missing producer id.
BlockedSince: TypeAlias = dict[Hashable, float]
#: The obstacle of batches of every broker that wait for a producer id.
PRODUCER_ID = "producer id"


def not_added(place: TopicPartition) -> tuple[str, TopicPartition]:
    """Return the obstacle key of a partition that its transaction does not contain yet.

    Batches for it wait until the coordinator has added it (version 1).
    """
    return "not added", place


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The settings by which a producer chooses partitions.

    ``stick_for``: bytes after which keyless records go to another partition. The producer checks
    the numbers that ``partitioner`` returns (``guarded_partitioner``).
    """

    stick_for: int
    partitioner: Partitioner | None = None
    keys: KeyRule = BY_MURMUR2
    adaptive: bool = True
    #: Returns whether a broker has taken nothing for so long that keyless records go elsewhere.
    is_out_of_reach: Callable[[int], bool] = lambda node: False
    #: Returns whether a broker is in the producer's rack (KIP-1123); None: racks do not matter.
    is_in_rack: Callable[[int], bool] | None = None
    random: random.Random = field(default_factory=random.Random)


class RowGroup(NamedTuple):
    """Rows of some columns, in order, for one partition.

    The row numbers are ``rows[start:stop]``, or without ``rows`` the positions from ``start`` to
    ``stop``. ``partition`` is ``None`` for rows without a key, if none of the columns' rows has
    one: each batch of them may go to another partition.
    """

    partition: int | None
    rows: memoryview | None
    start: int
    stop: int

    def put(self, encoder: BatchEncoder, columns: Columns, start: int, max_size: int) -> int:
        """Encode rows from ``start`` on until ``max_size`` is reached; return where to go on."""
        return encoder.extend_columns(
            columns, rows=self.rows, start=start, stop=self.stop, max_size=max_size
        )


class PartitionQueue:
    """The batches and the backoff of a partition.

    ``batches`` is in the order of the records, in any state: a batch keeps its place while it is in
    flight and while it waits to be sent again. So order needs no other bookkeeping. The epoch and
    the numbers are in ``sequences``, the partition's row in the producer's state.
    """

    __slots__ = (
        "backoff_waived",
        "batches",
        "failures",
        "leader",
        "not_before",
        "place",
        "sequences",
        "topic",
    )

    def __init__(self, sequences: PartitionSequences) -> None:
        self.place = sequences.place
        self.sequences = sequences
        #: The topic, as long as records may be added; ``None`` when the cluster does not know the
        #: partition (any more).
        self.topic: TopicQueues | None = None
        self.leader: int | None = None
        self.batches: deque[ProducerBatch] = deque()
        #: Nothing is sent before this time, after ``failures`` failures in a row.
        self.not_before = 0.0
        self.failures = 0
        #: The move (from, to) between brokers for which the backoff was waived, once until a batch
        #: is delivered. Without that limit two brokers that name each other would be asked without
        #: an end.
        self.backoff_waived: tuple[int | None, int] | None = None

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.place} leader={self.leader} batches={len(self.batches)}>"

    # --- topic and leader -------------------------------------------------------------------------

    def attach(self, topic: TopicQueues | None) -> None:
        """Attach the queue to ``topic`` (again); ``None``: the partition is gone.

        The open batch has been closed before.
        """
        self.topic = topic

    def lead(self, leader: int | None) -> None:
        """Set the partition's leader.

        The backoff after a failure at another broker is waived, the first time.
        """
        before = self.leader
        self.leader = leader
        if leader is not None and self.not_before and self.backoff_waived is None:
            self.backoff_waived = (before, leader)
            self.not_before = 0.0

    # A broker that no longer leads names its successor in its refusal (KIP-951), and the batch can
    # go there at once: the successor has refused nothing. Two brokers that named each other, each
    # in a higher epoch, once received over 3,000 Produce requests in a moment, since each change of
    # the leader cleared the backoff. So the backoff is waived for one move, ``backoff_waived``,
    # until a batch is delivered.
    def may_skip_backoff(self, node: int | None) -> bool:
        """Return whether a batch that ``node`` refused may go to the leader without a backoff.

        The leader is another broker by now, and has refused nothing.
        """
        if self.leader is None or self.leader == node:
            return False
        if self.backoff_waived is None:
            self.backoff_waived = (node, self.leader)
        return self.backoff_waived == (node, self.leader)

    # --- the open batch ---------------------------------------------------------------------------

    @property
    def open(self) -> ProducerBatch | None:
        """The batch that takes records, always the last one."""
        if self.topic is None:
            return None
        encoder = self.topic.open.encoders[self.place.partition]
        batch: ProducerBatch | None = None if encoder is None else encoder.owner
        return batch

    def add(self, batch: ProducerBatch) -> None:
        """Make ``batch`` the open batch. The one before it has been closed."""
        assert self.topic is not None
        assert batch.encoder is not None
        self.batches.append(batch)
        self.topic.open.open(self.place.partition, batch.encoder)

    def close(self) -> ProducerBatch | None:
        """Take no more records into the open batch, if there is one; return it."""
        batch = self.open
        if batch is None or self.topic is None:
            return None
        batch.close()
        self.topic.closed(self.place.partition, batch.size)
        return batch

    # --- sending ----------------------------------------------------------------------------------

    def sendable(self, node: int) -> ProducerBatch | None:
        """Return the batch that may go to ``node`` next, as far as order and numbers allow.

        ``None``: no batch may.

        * A batch that was sent before goes only when all before it are done: until then the broker
          would refuse it. So a partition in trouble has one batch in flight.
        * A batch that the numbers forbid is not sent: see :meth:`PartitionSequences.allows_batch`.
        * While batches are in flight to another broker, or with an epoch that has ended, nothing is
          sent behind them.
        * With numbers, nothing is sent behind a batch in flight that has expired.
        """
        sequences = self.sequences
        for place, batch in enumerate(self.batches):
            if batch.in_flight:
                if batch.node != node:
                    return None
                # The number of an expired batch may be lost with its connection. A batch sent
                # behind it would be refused then as out of order. Java's client waits, too
                # (TransactionManager.hasUnresolvedSequence).
                outdated = batch.identity != sequences.identity
                if batch.sequence is not None and (batch.settled or outdated):
                    return None
                continue
            overtakes = place and batch.attempts
            fits = not overtakes and sequences.allows_batch(
                first=not place, numbered=batch.sequence is not None
            )
            return batch if fits else None
        return None

    def ready_at(self, batch: ProducerBatch, linger: float) -> float:
        """Return the time at which ``batch`` may be sent, as far as linger and backoff allow."""
        if not batch.flushing and batch is self.open:
            return max(self.not_before, batch.created + linger)
        return self.not_before

    def send(self, batch: ProducerBatch, node: int, producer: ProducerState, now: float) -> None:
        """Make ``batch`` part of a request to ``node``, with its numbers or the next ones.

        A batch keeps the numbers that it was given.
        """
        if producer.numbered and batch.sequence is None:
            sequence = self.sequences.assign(batch.count, batch.created)
            batch.number(sequence, self.sequences.identity, transactional=producer.transactional)
        batch.sent(node, now)

    # --- results of batches -----------------------------------------------------------------------

    def acknowledged(self, batch: ProducerBatch) -> None:
        """Record that the broker has ``batch``; reset the backoff."""
        if self.is_of_this_epoch(batch):
            assert batch.sequence is not None
            self.sequences.acknowledge(batch.sequence, batch.count, batch.created)
        self.failures = 0
        self.not_before = 0.0
        self.backoff_waived = None

    def failed(self, batch: ProducerBatch, error: Exception | None) -> None:
        """Record that ``batch`` is removed with ``error``.

        The broker may or may not have the batch, or surely has not.
        """
        if self.is_of_this_epoch(batch):
            assert batch.sequence is not None
            self.sequences.lose(batch.sequence, batch.count, batch.possibly_in_flight_at, error)

    def is_of_this_epoch(self, batch: ProducerBatch) -> bool:
        """Return whether the batch has numbers of the partition's present epoch."""
        return batch.sequence is not None and batch.identity == self.sequences.identity

    def back_off(self, now: float, delay: Callable[[int], float]) -> None:
        """Send nothing for ``delay(failures)`` seconds after a failure.

        Batches that fail together are one failure.
        """
        if now >= self.not_before:
            self.failures += 1
            self.not_before = now + delay(self.failures)

    def hold(self, until: float) -> None:
        """Send nothing before ``until``."""
        self.not_before = max(self.not_before, until)

    def remove(self, batch: ProducerBatch) -> None:
        """Remove ``batch``, which has its outcome.

        If a number is lost and no batch with a number is left, a new epoch begins.
        """
        if self.batches[0] is batch:
            self.batches.popleft()
        else:
            self.batches.remove(batch)
        if self.sequences.lost is not None and all(
            other.sequence is None for other in self.batches
        ):
            self.sequences.leave_behind()

    def is_known_written(self, batch: ProducerBatch) -> bool:
        """Return whether the broker has the batch, since it has acknowledged a later one."""
        return (
            self.is_of_this_epoch(batch)
            and batch.sequence is not None
            and batch.sequence + batch.count <= self.sequences.acknowledged
        )

    def restart(self) -> None:
        """Continue in a new epoch, since the broker cannot have the lost numbers.

        Batches that are not in flight get new numbers. A batch in flight with the old epoch is
        refused when it arrives, and gets new numbers then.
        """
        self.sequences.restart()
        self._unnumber()

    def reset_sequences(self) -> None:
        """Continue under the producer's next identity, with all batches that are not in flight."""
        self.sequences.reset()
        self._unnumber()

    def _unnumber(self) -> None:
        for batch in self.batches:
            if not batch.in_flight:
                batch.unnumber()

    def replace(self, batch: ProducerBatch, others: list[ProducerBatch]) -> None:
        """Replace ``batch`` by ``others``, in their order."""
        place = self.batches.index(batch)
        del self.batches[place]
        for other in reversed(others):
            self.batches.insert(place, other)


class TopicQueues:
    """A topic that the cluster knows: its partitions' queues and open batches, and their choice.

    The partition of a record is chosen so:

    1. An explicit partition is used as it is.
    2. Else the user's partitioner decides, if there is one.
    3. Else the key decides, by the rule of the built-in partitioner (``_wire/partitioning.py``).
    4. Else the record goes to the partition that keyless records stick to, until a batch's worth of
       bytes is there (KIP-480, KIP-794).

    The hashes are in the record path, where the fast path of a record uses them. The sticky
    partition is kept in ``open``, where the fast path reads it.
    """

    __slots__ = ("_how", "_spent", "name", "open", "queues", "table_batch")

    def __init__(self, name: str, how: Partitioning, table_batch: int) -> None:
        self.name = name
        self._how = how
        #: The size up to which rows of a table fill a batch.
        self.table_batch = table_batch
        #: The open batches and the sticky partition, as the appender reads them.
        self.open = _implementation.current.OpenBatches()
        self.queues: list[PartitionQueue] = []
        self._spent = 0  # bytes in closed batches of the sticky partition

    def resize(self, queues: list[PartitionQueue]) -> None:
        """Set the queues of the topic's partitions, whose number has changed."""
        self.queues = queues
        self.open.resize(len(queues))

    def closed(self, partition: int, size: int) -> None:
        """Record that the partition's batch, of ``size`` bytes, takes no more records.

        After a batch's worth of bytes, keyless records stick to another partition.
        """
        self.open.close(partition)
        if partition == self.open.sticky:
            self._spent += size
            if self._spent >= self._how.stick_for:
                self.open.stick(-1)

    def found_too_large(self, size: int) -> None:
        """Make the batches of tables smaller: the broker refused one of this size as too large."""
        self.table_batch = min(self.table_batch, size // 2)

    # --- the partition of a record ----------------------------------------------------------------

    def choose(self, key: bytes | None, partition: int | None) -> int | None:
        """Return the partition of a record; ``None``: there is no such ``partition``.

        -1 stands for the sticky partition.
        """
        if partition is not None:
            if partition < 0:
                raise ConfigurationError(
                    f"partition must be a whole number from 0, not {partition}"
                )
            return partition if partition < len(self.queues) else None
        if self._how.partitioner is not None:
            return self._how.partitioner(self.name, key, range(len(self.queues)))
        rule = self._how.keys
        if (-1 if key is None else len(key)) < rule.shortest:
            return -1
        return partition_for_key(key or b"", len(self.queues), rule.kind)

    def stuck_to(self) -> PartitionQueue:
        """Return the queue of the sticky partition, chosen now if there is none."""
        return self.queues[self.open.sticky] if self.open.sticky >= 0 else self.switch()

    # The weight of a partition is the length of the longest queue minus its own, plus one, as in
    # Java's client (KIP-794): a slow broker, whose queues are long, gets fewer records. Without
    # ``adaptive`` all weights are equal (KIP-480). Partitions without a leader, or whose leader has
    # taken nothing for ``partitioner_availability_timeout_ms``, are left out while there are
    # others. If there are no others the records wait there, as a partition has to be chosen.
    def switch(self) -> PartitionQueue:
        """Stick to another partition from now on, chosen at random by weight.

        Shorter queues have larger weights.
        """
        led = [queue for queue in self.queues if queue.leader is not None]
        far = {
            node
            for node in {queue.leader for queue in led}
            if node is not None and self._how.is_out_of_reach(node)
        }
        near = [queue for queue in led if queue.leader not in far] if far else led
        candidates = near or led or self.queues
        # After the others: a broker of the rack that takes nothing is worse than another rack.
        if (is_in_rack := self._how.is_in_rack) is not None:
            candidates = [
                queue
                for queue in candidates
                if queue.leader is not None and is_in_rack(queue.leader)
            ] or candidates
        weights = None
        if self._how.adaptive:
            longest = max(len(queue.batches) for queue in candidates)
            weights = [longest + 1 - len(queue.batches) for queue in candidates]
        (queue,) = self._how.random.choices(candidates, weights)
        self._spent = 0
        self.open.stick(queue.place.partition)
        return queue

    def split_rows(
        self, columns: Columns, explicit: memoryview | int | None, keyed: bool
    ) -> list[RowGroup]:
        """Group rows of a table by partition, or all for the sticky partition.

        ``explicit`` is a partition, or one for each row (32-bit numbers, -1: the key decides).
        ``keyed``: there may be keys.

        Raises:
            ValueError: a partition does not exist.
            PluginError: the partitioner failed, or returned something else than a partition.
        """
        if isinstance(explicit, int):
            return [RowGroup(explicit, None, 0, columns.count)]
        if self._how.partitioner is not None:
            explicit = self._ask_for_rows(self._how.partitioner, columns, explicit)
        elif explicit is None and (
            self._how.keys is NO_KEYS or (not keyed and self._how.keys.shortest >= 0)
        ):
            return [RowGroup(None, None, 0, columns.count)]
        count = len(self.queues)
        numbers = partition_columns(
            columns.key_offsets,
            columns.key_data,
            columns.key_validity,
            count,
            explicit,
            self.stuck_to().place.partition,
            self._how.keys,
        )
        rows, bounds = group_rows(numbers, count)
        spans = ((number, bounds[number], bounds[number + 1]) for number in range(count))
        return [
            RowGroup(number, rows, start, stop) for number, start, stop in spans if start < stop
        ]

    def _ask_for_rows(
        self, partitioner: Partitioner, columns: Columns, explicit: memoryview | None
    ) -> memoryview:
        numbers = array("i")
        every = range(len(self.queues))
        for row, record in enumerate(RecordBatch(self.name, -1, columns, -1)):
            given = -1 if explicit is None else explicit[row]
            numbers.append(partitioner(self.name, record.key, every) if given == -1 else given)
        return memoryview(numbers)


class Queues:
    """All partitions of one producer.

    ``on_work(leader)`` is called when something may have become sendable to that broker (``None``:
    the leader is not known). ``on_closed(batch)`` is called when a batch takes no more records.
    """

    def __init__(
        self,
        how: Partitioning,
        table_batch: int,
        producer: ProducerState,
        blocked_since: BlockedSince,
        clock: Callable[[], float],
        *,
        on_work: Callable[[int | None], object],
        on_closed: Callable[[ProducerBatch], object],
    ) -> None:
        self._how = how
        self._table_batch = table_batch
        self._producer = producer
        self._blocked_since = blocked_since
        self._clock = clock
        self._on_work = on_work
        self._on_closed = on_closed
        #: The topics that the cluster knows.
        self.topics: dict[str, TopicQueues] = {}
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        #: The queues with batches by their leader, in the order of their turns.
        self._work: dict[int | None, dict[PartitionQueue, None]] = {}

    # --- contents ---------------------------------------------------------------------------------

    def of(self, batch: ProducerBatch) -> PartitionQueue:
        """Return the queue that a batch is in."""
        # A plain tuple equals the TopicPartition that is the key, and is cheaper to make.
        return self._queues[batch.topic, batch.partition]  # type: ignore[index]

    def is_open(self, batch: ProducerBatch) -> bool:
        """Return whether a batch, done or not, takes records."""
        queue = self._queues.get((batch.topic, batch.partition))  # type: ignore[call-overload]
        return queue is not None and batch is queue.open

    def reset_sequences(self) -> None:
        """Continue in all partitions under the producer's next identity."""
        for queue in list(self._queues.values()):
            queue.reset_sequences()
            self._release(queue)

    def led_by(self, node: int | None) -> Iterable[PartitionQueue]:
        """Return the queues with batches for a broker, in turn.

        Copy the result before changing which queues those are.
        """
        return self._work.get(node, ())

    @property
    def leaders(self) -> list[int]:
        """The brokers for which there are batches."""
        return [leader for leader in self._work if leader is not None]

    def active(self) -> list[PartitionQueue]:
        """Return the queues with batches."""
        return [queue for work in self._work.values() for queue in work]

    def batches(self) -> Iterator[ProducerBatch]:
        """Return all batches that are not done; those of a partition are in order."""
        return (batch for work in self._work.values() for queue in work for batch in queue.batches)

    # --- the cluster ------------------------------------------------------------------------------

    def update(self, name: str, leaders: Sequence[int | None]) -> TopicQueues:
        """Set a topic's partitions and leaders: ``leaders[p]`` leads partition ``p``."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = TopicQueues(name, self._how, self._table_batch)
        if len(leaders) != len(topic.queues):
            self._detach(topic.queues[len(leaders) :])
            topic.resize([self._attached(topic, number) for number in range(len(leaders))])
        for queue, leader in zip(topic.queues, leaders, strict=True):
            self._lead(queue, leader)
        return topic

    def forget(self, name: str) -> None:
        """Forget a topic that the cluster does not know (any more).

        Its batches keep waiting, and take no more records.
        """
        topic = self.topics.pop(name, None)
        if topic is not None:
            self._detach(topic.queues)

    def _attached(self, topic: TopicQueues, number: int) -> PartitionQueue:
        place = TopicPartition(topic.name, number)
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = PartitionQueue(self._producer.partition(place))
        queue.attach(topic)
        return queue

    def _detach(self, queues: Iterable[PartitionQueue]) -> None:
        for queue in queues:
            self.close(queue)
            queue.attach(None)
            self._lead(queue, None)
            self._release(queue)

    # A producer may run for weeks and write to topics that exist for an hour. What stays behind for
    # a deleted one would add up, and each new identity of the producer would walk over all of it.
    def _release(self, queue: PartitionQueue) -> None:
        """Drop the queue of a partition that is gone, unless its batches or numbers are needed."""
        if (
            queue.topic is None
            and not queue.batches
            and self._producer.release_partition(queue.sequences)
        ):
            del self._queues[queue.place]
            self._blocked_since.pop(queue.place, None)
            self._blocked_since.pop(not_added(queue.place), None)

    def _lead(self, queue: PartitionQueue, leader: int | None) -> None:
        if queue.leader == leader:
            return
        active = bool(queue.batches)
        if active:
            self._deactivate(queue)
        queue.lead(leader)
        if leader is None:
            self._blocked_since.setdefault(queue.place, self._clock())
        else:
            self._blocked_since.pop(queue.place, None)
        if active:
            self._activate(queue)
            self._on_work(leader)

    # --- the batches ------------------------------------------------------------------------------

    def close(self, queue: PartitionQueue) -> None:
        """Take no more records into the queue's open batch, if there is one."""
        batch = queue.close()
        if batch is not None:
            self._on_closed(batch)
            self._on_work(queue.leader)

    def close_all(self) -> None:
        """Close all open batches."""
        for work in self._work.values():
            for queue in work:
                self.close(queue)

    def add(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Make ``batch`` the queue's open batch, and close the previous one."""
        if queue.batches:
            self.close(queue)
        else:
            self._activate(queue)
        queue.add(batch)
        self._on_work(queue.leader)

    def removed_from(self, queue: PartitionQueue) -> None:
        """Update the queue's place after one of its batches has left it."""
        if queue.batches:
            self._on_work(queue.leader)
        else:
            self._deactivate(queue)
            self._release(queue)

    def move_to_end(self, queue: PartitionQueue) -> None:
        """Move the queue behind the others of its broker: it had its turn."""
        work = self._work[queue.leader]
        del work[queue]
        work[queue] = None

    def _activate(self, queue: PartitionQueue) -> None:
        self._work.setdefault(queue.leader, {})[queue] = None

    def _deactivate(self, queue: PartitionQueue) -> None:
        work = self._work[queue.leader]
        del work[queue]
        if not work:
            del self._work[queue.leader]
