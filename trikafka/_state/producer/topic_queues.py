"""The topics of a producer, the queues and leaders of their partitions, and what blocks them.

No I/O.

The accumulator alone calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from ..._wire import _implementation
from ...types import TopicPartition
from .partition_chooser import PartitionChooser, Partitioning
from .partition_queue import PartitionQueue
from .producer_batch import ProducerBatch
from .sequences import ProducerState

#: The obstacle of batches of every broker that wait for a producer id.
PRODUCER_ID = "producer id"


def not_added(place: TopicPartition) -> tuple[str, TopicPartition]:
    """Return the obstacle key of a partition that its transaction does not contain yet.

    Batches for it wait until the coordinator has added it (version 1).
    """
    return "not added", place


class BlockedSince:
    """The obstacles to sending batches, and since when each exists.

    Written by the accumulator's parts alone. An obstacle is one of these:

    - a broker (its id) that is not connected, or has as many requests in flight as allowed;
    - a partition without a known leader, or that the transaction's coordinator does not know;
    - the missing producer id.
    """

    __slots__ = ("_clock", "_since")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[Hashable, float] = {}

    def met(self, what: Hashable) -> None:
        """Record that the obstacle exists from now on, if it did not before."""
        if what not in self._since:
            self._since[what] = self._clock()

    def overcome(self, what: Hashable) -> None:
        """Remove the obstacle."""
        self._since.pop(what, None)

    def since(self, what: Hashable) -> float | None:
        """Return since when the obstacle exists; ``None``: it does not."""
        return self._since.get(what)


class TopicQueues:
    """A topic that the cluster knows: its partitions' queues, open batches and chooser."""

    __slots__ = ("chooser", "name", "open", "queues", "table_batch")

    def __init__(self, name: str, how: Partitioning, table_batch: int) -> None:
        self.name = name
        #: The size up to which rows of a table fill a batch.
        self.table_batch = table_batch
        #: The open batches and the sticky partition, as the appender reads them.
        self.open = _implementation.current.OpenBatches()
        self.queues: list[PartitionQueue] = []
        self.chooser = PartitionChooser(name, how, self.queues, self.open)

    def resize(self, queues: list[PartitionQueue]) -> None:
        """Take over the queues of the topic's partitions, whose number has changed."""
        self.queues[:] = queues
        self.open.resize(len(queues))

    def closed(self, partition: int, size: int) -> None:
        """Record that the partition's batch, of ``size`` bytes, takes no more records."""
        self.open.close(partition)
        self.chooser.closed(partition, size)

    def found_too_large(self, size: int) -> None:
        """Make the batches of tables smaller: the broker refused one of this size as too large."""
        self.table_batch = min(self.table_batch, size // 2)


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
        *,
        on_work: Callable[[int | None], object],
        on_closed: Callable[[ProducerBatch], object],
    ) -> None:
        self._how = how
        self._table_batch = table_batch
        self._producer = producer
        self._blocked_since = blocked_since
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
            self._blocked_since.met(queue.place)
        else:
            self._blocked_since.overcome(queue.place)
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
        """Make ``batch`` the queue's open batch; the one before it is closed."""
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

    def to_the_end(self, queue: PartitionQueue) -> None:
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
