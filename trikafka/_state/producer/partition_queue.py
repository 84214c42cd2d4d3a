"""The batches of one partition that are not done, in order, and which may be sent. No I/O.

The accumulator alone calls it. ``batches`` is in the order of the records, in any state: a batch
keeps its place while it is in flight and while it waits to be sent again. So order needs no other
bookkeeping.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from .producer_batch import ProducerBatch
from .sequences import PartitionSequences, ProducerState

if TYPE_CHECKING:
    from ..._wire._fallback_producing import OpenBatches


class OpenTopic(Protocol):
    """The topic of a queue, as far as the queue and its batches' outcomes need it."""

    @property
    def open(self) -> OpenBatches:
        """The open batches of the topic's partitions."""

    def closed(self, partition: int, size: int) -> None:
        """Record that the partition's batch, of ``size`` bytes, takes no more records."""

    def found_too_large(self, size: int) -> None:
        """Record that the broker refused a batch of this size as too large."""


class PartitionQueue:
    """The batches and the backoff of a partition.

    Its epoch and numbers are in ``sequences``, its row in the producer's state.
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
        self.topic: OpenTopic | None = None
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

    def attach(self, topic: OpenTopic | None) -> None:
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
        """Put ``others`` in the place of ``batch``."""
        place = self.batches.index(batch)
        del self.batches[place]
        for other in reversed(others):
            self.batches.insert(place, other)
