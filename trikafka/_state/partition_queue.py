"""The batches of one partition that are not done, in order, and which of them may be sent. No I/O.

Written by the accumulator alone. ``batches`` is in the order of the records, whatever the state of each: a batch keeps its
place while it is in flight and while it waits to be sent again, so order needs no other book-keeping.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from .._wire import _implementation
from .outbatch import BatchState, OutBatch
from .sequences import Identity, PartitionSequences

if TYPE_CHECKING:
    from .._wire._fallback_producing import Targets


class PartitionQueue:
    """A partition's batches, its sequence numbers and its backoff."""

    __slots__ = ("batches", "entry", "failures", "leader", "not_before", "open", "partition", "sequences", "topic")

    def __init__(self, topic: str, partition: int, entry: TopicEntry) -> None:
        self.topic, self.partition, self.entry = topic, partition, entry
        self.leader: int | None = None
        self.batches: deque[OutBatch] = deque()
        #: The last batch, while it takes records.
        self.open: OutBatch | None = None
        self.sequences = PartitionSequences()
        #: Nothing is sent before this time, after ``failures`` failures in a row.
        self.not_before = 0.0
        self.failures = 0

    def set_open(self, batch: OutBatch | None) -> None:
        """``batch``, the last one, takes the records from now on; ``None``: no batch does."""
        self.open = batch
        entry = self.entry
        if self.partition < len(entry.queues) and entry.queues[self.partition] is self:
            entry.targets.open[self.partition] = None if batch is None else batch.encoder

    def sendable(self, node: int) -> OutBatch | None:
        """The batch that may go to ``node`` next, as far as order and sequence numbers are concerned.

        * A batch that was sent before goes only when all before it are done: until then the broker would refuse it. While
          a partition is in trouble it therefore has one batch in flight.
        * While a number is lost, no new one is given.
        * Until the broker has taken the first batch of an epoch, nothing is sent behind that: a broker that knows nothing
          of a producer takes any number, so the second batch would be taken though the first was refused.
        * While batches are in flight to another broker, or with an epoch that has ended, nothing is sent behind them.
        """
        sequences = self.sequences
        for place, batch in enumerate(self.batches):
            if batch.state is BatchState.IN_FLIGHT:
                if batch.node != node or (batch.sequence is not None and batch.identity != sequences.identity):
                    return None
            elif place and (batch.attempts or sequences.lost is not None or sequences.unproven):
                return None
            else:
                return batch
        return None

    def ready_at(self, batch: OutBatch, linger: float) -> float:
        """When ``batch`` may be sent, as far as time is concerned."""
        if batch.state is BatchState.OPEN and not batch.hurried:
            return max(self.not_before, batch.created + linger)
        return self.not_before

    def settle(self, current: Identity | None) -> None:
        """Leave a lost number behind, once no batch is left whose answer would tell what became of it."""
        if self.sequences.lost is not None and all(batch.sequence is None for batch in self.batches):
            self.sequences.restart(current)

    def restart(self, current: Identity | None) -> None:
        """The broker cannot have the lost numbers: go on in a new epoch, and number all that is not in flight anew.

        What is in flight with the old epoch is refused when it arrives, and numbered anew then.
        """
        self.sequences.restart(current)
        self._unnumber()

    def renounce(self) -> None:
        """The producer id is somebody else's now: take the next one, and number all that is not in flight anew."""
        self.sequences = PartitionSequences()
        self._unnumber()

    def _unnumber(self) -> None:
        for batch in self.batches:
            if batch.state is not BatchState.IN_FLIGHT:
                batch.sequence = batch.identity = None

    def replace(self, batch: OutBatch, others: list[OutBatch]) -> None:
        """Put ``others`` in the place of ``batch``."""
        place = self.batches.index(batch)
        del self.batches[place]
        for other in reversed(others):
            self.batches.insert(place, other)


class TopicEntry:
    """A topic's partitions, and the one that records without a key stick to (KIP-480, KIP-794)."""

    __slots__ = ("name", "queues", "spent", "sticky_queue", "table_batch", "targets")

    def __init__(self, name: str, table_batch: int) -> None:
        self.name = name
        #: The size up to which rows of a table fill a batch: halved when the broker finds one too large.
        self.table_batch = table_batch
        #: What the appender sees of all this: the encoder of each open batch.
        self.targets: Targets = _implementation.current.Targets(0)
        self.queues: list[PartitionQueue] = []
        self.sticky_queue: PartitionQueue | None = None
        #: Bytes in closed batches since the last switch.
        self.spent = 0

    def take(self, queues: list[PartitionQueue]) -> None:
        """The topic has these partitions now."""
        self.queues = queues
        self.sticky_queue = None
        self.targets = _implementation.current.Targets(len(queues))
        for queue in queues:
            queue.set_open(queue.open)
