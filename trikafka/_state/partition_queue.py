"""The batches of one partition that are not done, in order, and which of them may be sent. No I/O.

Told by the accumulator alone. ``batches`` is in the order of the records, whatever the state of each: a batch keeps its place while
it is in flight and while it waits to be sent again, so order needs no other book-keeping.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from .producer_batch import ProducerBatch
from .producer_state import ProducerState
from .sequences import PartitionSequences

if TYPE_CHECKING:
    from .topic_queues import TopicQueues


class PartitionQueue:
    """A partition's batches and its backoff. Its epoch and its numbers are ``sequences``, its row in the producer's state."""

    __slots__ = ("batches", "failures", "leader", "not_before", "place", "sequences", "spared", "topic")

    def __init__(self, sequences: PartitionSequences) -> None:
        self.place, self.sequences = sequences.place, sequences
        #: Its topic, as long as records may come in: ``None`` when the cluster does not know the partition (any more).
        self.topic: TopicQueues | None = None
        self.leader: int | None = None
        self.batches: deque[ProducerBatch] = deque()
        #: Nothing is sent before this time, after ``failures`` failures in a row.
        self.not_before = 0.0
        self.failures = 0
        #: Between which brokers it moved when its wait was spared it, once until a batch is delivered: two that name each other
        #: would be asked without an end.
        self.spared: tuple[int | None, int] | None = None

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.place} leader={self.leader} batches={len(self.batches)}>"

    # --- what the cluster says ---------------------------------------------------------------------------------------

    def attach(self, topic: TopicQueues | None) -> None:
        """The partition is one of ``topic`` (again); ``None``: it is gone. Whatever took records has been closed."""
        self.topic = topic

    def lead(self, leader: int | None) -> None:
        """The broker that leads it now. What failed at the one before need not wait for this one, the first time."""
        before, self.leader = self.leader, leader
        if leader is not None and self.not_before and self.spared is None:
            self.spared, self.not_before = (before, leader), 0.0

    def spares(self, node: int | None) -> bool:
        """Whether what ``node`` refused may go to the leader at once, which is another by now and has refused nothing."""
        if self.leader is None or self.leader == node:
            return False
        if self.spared is None:
            self.spared = (node, self.leader)
        return self.spared == (node, self.leader)

    # --- the batch that takes records --------------------------------------------------------------------------------

    @property
    def open(self) -> ProducerBatch | None:
        """The batch that takes records, always the last one."""
        if self.topic is None:
            return None
        encoder = self.topic.open.encoders[self.place.partition]
        batch: ProducerBatch | None = None if encoder is None else encoder.owner
        return batch

    def add(self, batch: ProducerBatch) -> None:
        """``batch`` takes the records from now on. The one before has been closed."""
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

    # --- what may be sent --------------------------------------------------------------------------------------------

    def sendable(self, node: int) -> ProducerBatch | None:
        """The batch that may go to ``node`` next, as far as order and sequence numbers are concerned.

        * A batch that was sent before goes only when all before it are done: until then the broker would refuse it. While
          a partition is in trouble it therefore has one batch in flight.
        * What the numbers forbid is not sent: see :meth:`PartitionSequences.admits`.
        * While batches are in flight to another broker, or with an epoch that has ended, nothing is sent behind them.
        """
        sequences = self.sequences
        for place, batch in enumerate(self.batches):
            if batch.in_flight:
                if batch.delivery.node != node or (batch.sequence is not None and batch.identity != sequences.identity):
                    return None
                continue
            overtakes = place and batch.delivery.attempts
            fits = not overtakes and sequences.admits(first=not place, numbered=batch.sequence is not None)
            return batch if fits else None
        return None

    def ready_at(self, batch: ProducerBatch, linger: float) -> float:
        """When ``batch`` may be sent, as far as time is concerned."""
        if not batch.hurried and batch is self.open:
            return max(self.not_before, batch.created + linger)
        return self.not_before

    def send(self, batch: ProducerBatch, node: int, producer: ProducerState, now: float) -> None:
        """``batch`` becomes part of a request to ``node``, with its numbers, which it keeps, or the next ones."""
        if producer.numbered and batch.sequence is None:
            sequence = self.sequences.assign(batch.count, batch.created)
            batch.number(sequence, self.sequences.identity, transactional=producer.transactional)
        batch.sent(node, now)

    # --- what became of it -------------------------------------------------------------------------------------------

    def acknowledged(self, batch: ProducerBatch) -> None:
        """The broker has ``batch``."""
        if self.is_of_this_epoch(batch):
            assert batch.sequence is not None
            self.sequences.acknowledge(batch.sequence, batch.count, batch.created)
        self.failures, self.not_before, self.spared = 0, 0.0, None

    def given_up(self, batch: ProducerBatch, error: Exception | None) -> None:
        """``batch`` is removed with ``error``: the broker may or may not have it, or surely has not."""
        if self.is_of_this_epoch(batch):
            assert batch.sequence is not None
            self.sequences.lose(batch.sequence, batch.count, batch.delivery.strays, error)

    def is_of_this_epoch(self, batch: ProducerBatch) -> bool:
        """Whether the batch has numbers that count still."""
        return batch.sequence is not None and batch.identity == self.sequences.identity

    def back_off(self, now: float, delay: Callable[[int], float]) -> None:
        """A batch failed: nothing is sent for ``delay(failures)`` seconds. Batches that fail together are one failure."""
        if now >= self.not_before:
            self.failures += 1
            self.not_before = now + delay(self.failures)

    def remove(self, batch: ProducerBatch) -> None:
        """``batch`` has its outcome, and all that there is to know of it is known."""
        if self.batches[0] is batch:
            self.batches.popleft()
        else:
            self.batches.remove(batch)
        if self.sequences.lost is not None and all(other.sequence is None for other in self.batches):
            self.sequences.leave_behind()

    def is_known_written(self, batch: ProducerBatch) -> bool:
        """Whether the broker has the batch, for it has taken a later one."""
        return (
            self.is_of_this_epoch(batch)
            and batch.sequence is not None
            and batch.sequence + batch.count <= self.sequences.acknowledged
        )

    def restart(self) -> None:
        """The broker cannot have the lost numbers: go on in a new epoch, and number all that is not in flight anew.

        What is in flight with the old epoch is refused when it arrives, and numbered anew then.
        """
        self.sequences.restart()
        self._unnumber()

    def renounce(self) -> None:
        """The numbers so far are worth nothing: begin under the producer's next identity, with all that is not in flight."""
        self.sequences.renounce()
        self._unnumber()

    def _unnumber(self) -> None:
        for batch in self.batches:
            if not batch.in_flight:
                batch.unnumber()

    def replace(self, batch: ProducerBatch, others: list[ProducerBatch]) -> None:
        """Put ``others`` in the place of ``batch``."""
        place = self.batches.index(batch)
        del self.batches[place]
        for other in reversed(others):
            self.batches.insert(place, other)
