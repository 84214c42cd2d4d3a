"""The topics that a producer writes to, the queues of their partitions, and which brokers those are for. No I/O.

Told by the accumulator alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from .._wire import _implementation
from ..types import TopicPartition
from .delivery_time import Obstacles
from .partition_chooser import PartitionChooser, Partitioning
from .partition_queue import PartitionQueue
from .producer_batch import ProducerBatch
from .producer_state import ProducerState


class TopicQueues:
    """A topic that the cluster knows: its partitions, which of their batches take records, and which partition is whose."""

    __slots__ = ("chooser", "name", "open", "queues", "table_batch")

    def __init__(self, name: str, how: Partitioning, table_batch: int) -> None:
        self.name = name
        #: The size up to which rows of a table fill a batch.
        self.table_batch = table_batch
        #: What the appender sees of all this.
        self.open = _implementation.current.OpenBatches()
        self.queues: list[PartitionQueue] = []
        self.chooser = PartitionChooser(name, how, self.queues, self.open)

    def resize(self, queues: list[PartitionQueue]) -> None:
        """The topic has these partitions now."""
        self.queues[:] = queues
        self.open.resize(len(queues))

    def closed(self, partition: int, size: int) -> None:
        """The partition's batch, of ``size`` bytes, takes no more records."""
        self.open.close(partition)
        self.chooser.closed(partition, size)

    def found_too_large(self, size: int) -> None:
        """The broker found a batch of this size too large: those of tables are made smaller from now on."""
        self.table_batch = min(self.table_batch, size // 2)


class Queues:
    """All partitions of one producer.

    ``on_work(leader)`` is called when something may have become sendable to that broker (``None``: the leader is not known);
    ``on_closed(batch)`` when a batch takes no more records.
    """

    def __init__(
        self,
        how: Partitioning,
        table_batch: int,
        producer: ProducerState,
        obstacles: Obstacles,
        *,
        on_work: Callable[[int | None], object],
        on_closed: Callable[[ProducerBatch], object],
    ) -> None:
        self._how, self._table_batch, self._producer, self._obstacles = how, table_batch, producer, obstacles
        self._on_work, self._on_closed = on_work, on_closed
        self._topics: dict[str, TopicQueues] = {}
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._work: dict[int | None, dict[PartitionQueue, None]] = {}  # those with batches, in turn, by their leader

    # --- what is there -----------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicQueues | None:
        """A topic; ``None`` if it is not known."""
        return self._topics.get(name)

    def of(self, batch: ProducerBatch) -> PartitionQueue:
        """The queue that a batch stands in, or stood in."""
        return self._queues[batch.topic, batch.partition]  # type: ignore[index]  # it is as good a key, and need not be made

    def every(self) -> Iterable[PartitionQueue]:
        """All queues, also those without batches."""
        return self._queues.values()

    def led_by(self, node: int | None) -> Iterable[PartitionQueue]:
        """The queues with batches for a broker, in turn. To be copied by who changes which those are."""
        return self._work.get(node, ())

    @property
    def leaders(self) -> list[int]:
        """The brokers that there are batches for."""
        return [leader for leader in self._work if leader is not None]

    def active(self) -> list[PartitionQueue]:
        """The queues with batches."""
        return [queue for work in self._work.values() for queue in work]

    def batches(self) -> Iterator[ProducerBatch]:
        """All batches that are not done. Those of a partition come in order."""
        return (batch for work in self._work.values() for queue in work for batch in queue.batches)

    # --- the cluster -------------------------------------------------------------------------------------------------

    def update(self, name: str, leaders: Sequence[int | None]) -> TopicQueues:
        """Take over a topic's partitions: ``leaders[p]`` leads partition ``p``."""
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = TopicQueues(name, self._how, self._table_batch)
        if len(leaders) != len(topic.queues):
            self._detach(topic.queues[len(leaders) :])
            topic.resize([self._attached(topic, number) for number in range(len(leaders))])
        for queue, leader in zip(topic.queues, leaders, strict=True):
            self._lead(queue, leader)
        return topic

    def forget(self, name: str) -> None:
        """The cluster does not know the topic (any more): what waits goes on waiting, in batches that take no more records."""
        topic = self._topics.pop(name, None)
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
            self._obstacles.met(queue.place)
        else:
            self._obstacles.overcome(queue.place)
        if active:
            self._activate(queue)
            self._on_work(leader)

    # --- the batches -------------------------------------------------------------------------------------------------

    def close(self, queue: PartitionQueue) -> None:
        """Take no more records into the queue's open batch, if there is one."""
        batch = queue.close()
        if batch is not None:
            self._on_closed(batch)
            self._on_work(queue.leader)

    def close_all(self) -> None:
        """Let no batch take records any more."""
        for work in self._work.values():
            for queue in work:
                self.close(queue)

    def add(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """``batch`` takes the queue's records from now on; the one before is closed."""
        self.close(queue)
        if not queue.batches:
            self._activate(queue)
        queue.add(batch)
        self._on_work(queue.leader)

    def removed_from(self, queue: PartitionQueue) -> None:
        """A batch of the queue has left it: others may go, or there is nothing left."""
        if queue.batches:
            self._on_work(queue.leader)
        else:
            self._deactivate(queue)

    def to_the_end(self, queue: PartitionQueue) -> None:
        """The queue had its turn."""
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
