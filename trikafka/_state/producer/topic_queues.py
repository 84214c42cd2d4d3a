"""The topics of a producer, the choice of a record's partition, and what blocks batches. No I/O.

The accumulator alone calls it.
"""

from __future__ import annotations

import random
from array import array
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
from .partition_queue import PartitionQueue
from .producer_batch import ProducerBatch
from .sequences import ProducerState

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
        """Take over the queues of the topic's partitions, whose number has changed."""
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
        """Return the queue that a batch is in, or was in."""
        # A plain tuple equals the TopicPartition that is the key, and is cheaper to make.
        return self._queues[batch.topic, batch.partition]  # type: ignore[index]

    def every(self) -> Iterable[PartitionQueue]:
        """Return all queues, also those without batches."""
        return self._queues.values()

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
        """Take over a topic's partitions: ``leaders[p]`` leads partition ``p``."""
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
        self.close(queue)
        if not queue.batches:
            self._activate(queue)
        queue.add(batch)
        self._on_work(queue.leader)

    def removed_from(self, queue: PartitionQueue) -> None:
        """Update the queue's place after one of its batches has left it."""
        if queue.batches:
            self._on_work(queue.leader)
        else:
            self._deactivate(queue)

    def move_to_end(self, queue: PartitionQueue) -> None:
        """Put the queue at the end of its broker's row: it had its turn."""
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
