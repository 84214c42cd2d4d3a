"""Batches out of the books: what a response of a broker, or none in time, means for a batch and those around it. No I/O, no awaits.

A part of the accumulator: the heart of order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .._wire.records import BatchEncoder
from ..error_codes import ErrorCode
from ..errors import (
    DeliveryTimeoutError,
    DuplicateSequenceError,
    MessageTooLargeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    TrikafkaError,
    UnknownProducerIdError,
    from_code,
)
from .buffer_pool import BufferPool
from .partition_queue import PartitionQueue
from .producer_batch import BatchState, ProducerBatch
from .producer_identity import ProducerIdentity
from .topic_queues import Queues

_REFUSED_NUMBERS = (OutOfOrderSequenceError, UnknownProducerIdError, ProducerFencedError)


@dataclass(slots=True)
class Counters:
    """What has become of the records and batches so far."""

    accepted: int = 0
    delivered: int = 0
    failed: int = 0
    batches_retried: int = 0
    batches_split: int = 0

    def closed(self, batch: ProducerBatch) -> None:
        """A batch takes no more records."""
        self.accepted += batch.count

    def sent(self, batch: ProducerBatch) -> None:
        """A batch is about to be sent, for the first time or again."""
        self.batches_retried += batch.attempts > 0

    def settled(self, batch: ProducerBatch) -> None:
        """The records of a batch have their outcome."""
        if batch.error is None:
            self.delivered += batch.count
        else:
            self.failed += batch.count

    def split(self) -> None:
        """A batch was too large for the broker."""
        self.batches_split += 1


class Outcomes:
    """Decides what becomes of batches. ``delay(failures)``: seconds to back off; ``on_failed(batch)``: a batch has failed."""

    __slots__ = ("_delay", "_identity", "_make_encoder", "_on_failed", "_on_work", "_pool", "_queues", "_timeout", "counters")

    def __init__(
        self,
        queues: Queues,
        pool: BufferPool,
        identity: ProducerIdentity,
        *,
        delivery_timeout: float,
        make_encoder: Callable[[], BatchEncoder],
        delay: Callable[[int], float],
        on_work: Callable[[int | None], object],
        on_failed: Callable[[ProducerBatch], object],
    ) -> None:
        self._queues, self._pool, self._identity = queues, pool, identity
        self._timeout, self._make_encoder, self._delay = delivery_timeout, make_encoder, delay
        self._on_work, self._on_failed = on_work, on_failed
        self.counters = Counters()

    # --- responses ---------------------------------------------------------------------------------------------------

    def succeeded(self, batch: ProducerBatch, base_offset: int | None, append_time: int | None) -> None:
        """The broker has the batch."""
        if batch.state is not BatchState.IN_FLIGHT:
            return
        queue = self._queues.of(batch)
        queue.acknowledged(batch)
        self._finish(queue, batch, base_offset, append_time, None)

    def refused(self, batch: ProducerBatch, error: TrikafkaError, now: float) -> None:
        """The broker refused the batch, or nobody knows whether it took it.

        A batch that has expired in flight is done now; others are sent again in their place, are split, or fail.
        """
        if batch.state is not BatchState.IN_FLIGHT:
            return
        queue, node = self._queues.of(batch), batch.node
        batch.attempt_failed(error)
        outdated = batch.sequence is not None and not queue.is_of_this_epoch(batch)
        if isinstance(error, DuplicateSequenceError):
            self.succeeded(batch, None, None)
        elif batch.settled:
            self._give_up(queue, batch, None)
        elif outdated and (error.retriable or isinstance(error, _REFUSED_NUMBERS)):
            # It stood behind the gap that ended its epoch, so the broker cannot have taken it.
            batch.wait_again()
            batch.unnumber()
        elif isinstance(error, OutOfOrderSequenceError | UnknownProducerIdError):
            self._numbers_refused(queue, batch, node, error, now)
        elif isinstance(error, MessageTooLargeError) and batch.count > 1 and not batch.maybe_written:
            self._split(queue, batch)  # one that may be in the log must not come again in other pieces
        elif error.retriable:
            batch.wait_again()
            self._back_off(queue, now)
        else:
            if isinstance(error, ProducerFencedError):
                self._fenced(queue, error)
            self._give_up(queue, batch, error)
        self._on_work(queue.leader)

    def _numbers_refused(
        self, queue: PartitionQueue, batch: ProducerBatch, node: int | None, error: TrikafkaError, now: float
    ) -> None:
        if queue.batches[0] is not batch:  # the outcome of those before it will tell
            batch.wait_again()
        elif node in queue.sequences.strays & batch.strays:
            # What is lost may be on its way to this broker still, and behind it an older copy of this one, which would make two.
            doubt = (
                f"{batch.place}, {batch.count} records: they were sent on a lost connection behind others, and may be in the log"
            )
            self._give_up(queue, batch, from_code(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, doubt))
        elif self._identity.renumbers:
            batch.wait_again()
            queue.restart(self._identity)
            self._back_off(queue, now)
        else:
            self._give_up(queue, batch, error)

    def _fenced(self, queue: PartitionQueue, error: TrikafkaError) -> None:
        self._identity.fenced(error)
        if self._identity.renumbers:
            queue.renounce()

    def _back_off(self, queue: PartitionQueue, now: float) -> None:
        if now >= queue.not_before:  # batches that fail together are one failure
            queue.back_off(now, self._delay(queue.failures + 1))

    def _split(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        size = batch.size
        parts = batch.split([batch.count // 2], self._make_encoder)
        self._pool.take(sum(part.size for part in parts))
        self._pool.give(size)
        queue.replace(batch, parts)
        if queue.topic is not None:
            queue.topic.found_too_large(size)
        self.counters.split()

    # --- no response -------------------------------------------------------------------------------------------------

    def unreachable(self, node: int, error: Exception) -> None:
        """There is no connection to ``node``, or no producer id: what waits for it knows why, should its time be up."""
        for queue in self._queues.led_by(node):
            for batch in queue.batches:
                if batch.state is not BatchState.IN_FLIGHT:
                    batch.delayed(error)

    def expire(self, now: float) -> int:
        """Fail the batches that are older than the delivery timeout, the oldest first (KIP-91). Returns how many.

        A batch in flight keeps its place until its request has ended, so that what follows knows what became of it.
        """
        count = 0
        for batch in list(self._queues.batches()):
            if batch.settled or batch.created + self._timeout > now:
                continue
            count += 1
            queue = self._queues.of(batch)
            self._close(queue, batch)
            error = DeliveryTimeoutError("send", self._timeout, batch.attempts, batch.last_error)
            error.__cause__ = batch.last_error
            if batch.state is BatchState.IN_FLIGHT:
                batch.given_up_in_flight()
                self._settle(batch, None, None, error)
            else:
                self._give_up(queue, batch, error)
        return count

    def next_deadline(self) -> float:
        """When the next batch expires; ``inf`` if there is none."""
        created = min((batch.created for batch in self._queues.batches() if not batch.settled), default=math.inf)
        return created + self._timeout

    def abort(self, error: Exception, *, anonymous: bool = False) -> None:
        """Fail everything, what is in flight included; with ``anonymous`` only what waits for a producer id."""
        for batch in list(self._queues.batches()):
            queue = self._queues.of(batch)
            if anonymous and queue.sequences.identity is not None:
                continue
            self._close(queue, batch)
            if batch.state is BatchState.IN_FLIGHT:
                batch.given_up_in_flight()
            self._give_up(queue, batch, error)

    def _close(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        if batch is queue.open:
            self._queues.close(queue)

    # --- the end of a batch ------------------------------------------------------------------------------------------

    def _give_up(self, queue: PartitionQueue, batch: ProducerBatch, error: Exception | None) -> None:
        """Remove a batch that the broker may or may not have, or surely has not. ``None``: it has its error already."""
        queue.given_up(batch)
        self._finish(queue, batch, None, None, error)

    def _finish(
        self, queue: PartitionQueue, batch: ProducerBatch, base_offset: int | None, append_time: int | None, error: Exception | None
    ) -> None:
        batch.done()
        if not batch.settled:
            self._settle(batch, base_offset, append_time, error)
        queue.remove(batch, self._identity)
        self._queues.removed_from(queue)
        self._pool.give(batch.size)

    def _settle(self, batch: ProducerBatch, base_offset: int | None, append_time: int | None, error: Exception | None) -> None:
        batch.settle(base_offset, append_time, error)
        self.counters.settled(batch)
        if error is not None:
            self._identity.batch_failed(error)
            self._on_failed(batch)
