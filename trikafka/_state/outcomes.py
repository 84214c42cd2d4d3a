"""Batches out of the books: what a response of a broker, or none in time, means for a batch and those around it. No I/O, no awaits.

A part of the accumulator: the heart of order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile

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
from ..types import UnsentRecord
from .buffer_pool import BufferPool
from .delivery_time import PRODUCER_ID, Obstacles, not_added
from .partition_queue import PartitionQueue
from .producer_batch import ProducerBatch
from .producer_state import ProducerState
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
    batches_expired: int = 0

    def closed(self, batch: ProducerBatch) -> None:
        """A batch takes no more records."""
        self.accepted += batch.count

    def sent(self, batch: ProducerBatch) -> None:
        """A batch is about to be sent, for the first time or again."""
        self.batches_retried += batch.delivery.attempts > 0

    def settled(self, batch: ProducerBatch) -> None:
        """The records of a batch have their outcome."""
        if batch.outcome.error is None:
            self.delivered += batch.count
        else:
            self.failed += batch.count

    def expired(self, batch: ProducerBatch) -> None:
        """A batch was not acknowledged in time."""
        self.batches_expired += 1

    def split(self) -> None:
        """A batch was too large for the broker."""
        self.batches_split += 1


class Outcomes:
    """Decides what becomes of batches. ``delay(failures)``: seconds to back off; ``on_failed(batch)``: a batch has failed."""

    __slots__ = (
        "_delay",
        "_make_encoder",
        "_obstacles",
        "_on_failed",
        "_on_work",
        "_pool",
        "_producer",
        "_queues",
        "_retries",
        "_timeout",
        "counters",
        "last_error",
    )

    def __init__(
        self,
        queues: Queues,
        pool: BufferPool,
        producer: ProducerState,
        obstacles: Obstacles,
        *,
        delivery_timeout: float,
        retries: float,
        make_encoder: Callable[[], BatchEncoder],
        delay: Callable[[int], float],
        on_work: Callable[[int | None], object],
        on_failed: Callable[[ProducerBatch], object],
        counters: Counters | None = None,
    ) -> None:
        self._queues, self._pool, self._producer, self._obstacles = queues, pool, producer, obstacles
        self._retries = retries
        self._timeout, self._make_encoder, self._delay = delivery_timeout, make_encoder, delay
        self._on_work, self._on_failed = on_work, on_failed
        self.counters = counters or Counters()
        #: What an attempt, or a batch, failed with last; ``None`` once a batch was delivered after that.
        self.last_error: Exception | None = None

    # --- responses ---------------------------------------------------------------------------------------------------

    def succeeded(self, batch: ProducerBatch, base_offset: int | None, append_time: int | None) -> None:
        """The broker has the batch."""
        if not batch.in_flight:
            return
        self.last_error = None
        queue = self._queues.of(batch)
        queue.acknowledged(batch)
        self._finish(queue, batch, base_offset, append_time, None)

    def refused(self, batch: ProducerBatch, error: TrikafkaError, now: float, *, unsent: bool = False) -> None:
        """The broker refused the batch, or nobody knows whether it took it, or (``unsent``) no byte of it could be sent.

        A batch that has expired in flight is done now; others are sent again in their place, are split, or fail.
        """
        if not batch.in_flight:
            return
        queue, node = self._queues.of(batch), batch.delivery.node
        batch.attempt_failed(error, now, unsent=unsent)
        self.last_error = error
        outdated = batch.sequence is not None and not queue.is_of_this_epoch(batch)
        refused_number = isinstance(error, OutOfOrderSequenceError | UnknownProducerIdError)
        if isinstance(error, DuplicateSequenceError) or (refused_number and queue.is_known_written(batch)):
            self.succeeded(batch, None, None)
        elif batch.settled:
            self._fail_batch(queue, batch, None)
        elif outdated and (error.retriable or isinstance(error, _REFUSED_NUMBERS)):
            # It stood behind the gap that ended its epoch, so the broker cannot have taken it.
            batch.wait_again()
            batch.unnumber()
        elif refused_number:
            self._numbers_refused(queue, batch, node, error, now)
        elif isinstance(error, MessageTooLargeError) and batch.count > 1:
            self._split_in_two(queue, batch)
        elif error.retriable and batch.delivery.attempts <= self._retries:
            if not queue.spares(node):
                queue.back_off(now, self._delay)
            batch.wait_again(queue.not_before)
        else:
            if isinstance(error, ProducerFencedError):
                self._fenced(queue, error)
            self._fail_batch(queue, batch, error)
        self._on_work(queue.leader)

    def _numbers_refused(
        self, queue: PartitionQueue, batch: ProducerBatch, node: int | None, error: TrikafkaError, now: float
    ) -> None:
        if queue.batches[0] is not batch:  # the outcome of those before it will tell
            batch.wait_again()
        elif node in queue.sequences.strays & batch.delivery.strays or (batch.is_part and batch.delivery.maybe_written):
            # What is lost may be on its way to this broker still, and behind it an older copy of this one, which would make two.
            # Or this is a piece of what the broker has had as a whole.
            doubt = (
                f"{batch.place}, {batch.count} records: they were sent on a lost connection behind others, and may be in the log"
            )
            doubtful = from_code(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, doubt)
            doubtful.__cause__ = queue.sequences.lost_by  # an expiry above all: who waits may count it as one
            self._fail_batch(queue, batch, doubtful)
        elif self._producer.renumbers:
            queue.back_off(now, self._delay)
            batch.wait_again(queue.not_before)
            queue.restart()
        else:
            self._fail_batch(queue, batch, error)

    def _fenced(self, queue: PartitionQueue, error: TrikafkaError) -> None:
        self._producer.fenced(error)
        if self._producer.renumbers:
            queue.renounce()

    def _split_in_two(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        if queue.topic is not None:
            queue.topic.found_too_large(batch.size)
        self._split(queue, batch, [batch.count // 2])

    def _split(self, queue: PartitionQueue, batch: ProducerBatch, cuts: list[int]) -> list[ProducerBatch]:
        size = batch.size
        parts = batch.split(cuts, self._make_encoder)
        self._pool.take(sum(part.size for part in parts))
        self._pool.give(size)
        queue.replace(batch, parts)
        self.counters.split()
        return parts

    def records_refused(self, batch: ProducerBatch, error: TrikafkaError, refused: Mapping[int, TrikafkaError], now: float) -> None:
        """The broker has taken nothing of the batch because of these records, by index (KIP-467). The others are sent without them.

        ``error`` is what it says of the batch.
        """
        if not batch.in_flight or batch.settled or batch.count == 1 or not refused:
            self.refused(batch, refused.get(0, error), now)
            return
        queue = self._queues.of(batch)
        batch.attempt_failed(error, now)
        first = queue.batches[0] is batch
        cuts = sorted({cut for index in refused for cut in (index, index + 1)} - {0, batch.count})
        parts = self._split(queue, batch, cuts)
        for start, part in zip((0, *cuts), parts, strict=True):
            if start in refused:
                self._fail_batch(queue, part, refused[start])
        if first and batch.numbered and queue.batches and self._producer.renumbers:
            queue.restart()  # else the numbers of those behind tell the broker of the gap, in time
        self._on_work(queue.leader)

    # --- no response -------------------------------------------------------------------------------------------------

    def unreachable(self, node: int, error: Exception) -> None:
        """There is no connection to ``node``, or no producer id: what waits for it knows why, should its time be up."""
        for queue in self._queues.led_by(node):
            self.last_error = error
            for batch in queue.batches:
                if not batch.in_flight:
                    batch.delayed(error)

    def throttled(self, node: int, error: Exception) -> None:
        """A quota of ``node`` keeps its batches back, those in flight too. One that was refused has a better cause."""
        for queue in self._queues.led_by(node):
            for batch in queue.batches:
                if not batch.settled and batch.delivery.last_error is None:
                    batch.delayed(error)

    def expire(self, now: float, at_most: float = math.inf) -> int:
        """Fail the batches that are older than the delivery timeout, a partition's in order (KIP-91), ``at_most`` so many.

        Returns how many. A batch in flight keeps its place until its request has ended: so what follows knows what became of it.
        """
        count = 0
        for queue in self._queues.active():
            old = takewhile(lambda each: each.settled or each.created + self._timeout <= now, queue.batches)
            for batch in [each for each in old if not each.settled]:
                if count >= at_most:
                    return count
                count += 1
                self._expire(queue, batch, self._timed_out(queue, batch, now, "send", self._timeout))
        return count

    def _expire(self, queue: PartitionQueue, batch: ProducerBatch, error: DeliveryTimeoutError) -> None:
        self._close(queue, batch)
        self.counters.expired(batch)
        if batch.in_flight:
            batch.given_up_in_flight()
            self._settle(batch, None, None, error)
        else:
            self._fail_batch(queue, batch, error)

    def _timed_out(self, queue: PartitionQueue, batch: ProducerBatch, now: float, call: str, limit: float) -> DeliveryTimeoutError:
        in_flight = batch.in_flight
        phase, seconds = batch.delivery.time.report(now, in_flight, None if in_flight else self._obstacle(queue))
        error = DeliveryTimeoutError(
            call,
            limit,
            batch.delivery.attempts,
            batch.delivery.last_error,
            topic=batch.topic,
            partition=batch.partition,
            phase=phase,
            seconds=seconds,
            maybe_written=batch.delivery.maybe_written or in_flight,
        )
        error.__cause__ = batch.delivery.last_error
        return error

    def oldest(self, now: float) -> UnsentRecord | None:
        """The record that has been without an outcome for longest."""
        first = ((queue, next((batch for batch in queue.batches if not batch.settled), None)) for queue in self._queues.active())
        waiting = [(queue, batch) for queue, batch in first if batch is not None]
        if not waiting:
            return None
        queue, batch = min(waiting, key=lambda each: each[1].created)
        in_flight = batch.in_flight
        phase, _ = batch.delivery.time.report(now, in_flight, None if in_flight else self._obstacle(queue))
        return UnsentRecord(batch.place, now - batch.created, phase, batch.delivery.last_error)

    def _obstacle(self, queue: PartitionQueue) -> tuple[str, float] | None:
        """What keeps the queue's batches from being sent, and since when."""
        if queue.leader is None:
            return "a leader", self._obstacles.since(queue.place) or 0.0
        coordinator = "the transaction's coordinator"
        for what, key in (("a producer id", PRODUCER_ID), (coordinator, not_added(queue.place)), ("a connection", queue.leader)):
            since = self._obstacles.since(key)
            if since is not None:
                return what, since
        return None

    def next_deadline(self) -> float:
        """When the next batch expires; ``inf`` if there is none."""
        first = (next((batch.created for batch in queue.batches if not batch.settled), math.inf) for queue in self._queues.active())
        return min(first, default=math.inf) + self._timeout

    def abort_unsent(self, error: Exception, now: float, at_most: float = math.inf) -> int:
        """Fail what was never sent; returns how many batches that were. What was sent once has its outcome from the brokers."""
        count = 0
        for queue in self._queues.active():
            most = int(min(at_most - count, len(queue.batches)))
            unsent = list(islice((batch for batch in queue.batches if not batch.delivery.attempts), most))
            for batch in unsent:
                self._abort(queue, batch, error, now)
            count += len(unsent)
        return count

    def abort(self, error: Exception, now: float, *, anonymous: bool = False, at_most: float = math.inf) -> int:
        """Fail everything, what is in flight included; with ``anonymous`` only what waits for a producer id.

        Returns how many batches that were. Of a time-out each record gets one of its own, which says where its time went.
        """
        count = 0
        for queue in self._queues.active():
            if anonymous and queue.sequences.identity is not None:
                continue
            while queue.batches:
                if count >= at_most:
                    return count
                count += 1
                self._abort(queue, queue.batches[0], error, now)
        return count

    def _abort(self, queue: PartitionQueue, batch: ProducerBatch, error: Exception, now: float) -> None:
        if isinstance(error, DeliveryTimeoutError):
            error = self._timed_out(queue, batch, now, error.call, error.limit)
        self._close(queue, batch)
        if batch.in_flight:
            batch.given_up_in_flight()
        self._fail_batch(queue, batch, error)

    def _close(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        if batch is queue.open:
            self._queues.close(queue)

    # --- the end of a batch ------------------------------------------------------------------------------------------

    def _fail_batch(self, queue: PartitionQueue, batch: ProducerBatch, error: Exception | None) -> None:
        """Remove a batch that the broker may or may not have, or surely has not. ``None``: it has its error already."""
        queue.given_up(batch, batch.outcome.error if error is None else error)
        self._finish(queue, batch, None, None, error)

    def _finish(
        self, queue: PartitionQueue, batch: ProducerBatch, base_offset: int | None, append_time: int | None, error: Exception | None
    ) -> None:
        batch.done()
        if not batch.settled:
            self._settle(batch, base_offset, append_time, error)
        queue.remove(batch)
        self._queues.removed_from(queue)
        self._pool.give(batch.size)

    def _settle(self, batch: ProducerBatch, base_offset: int | None, append_time: int | None, error: Exception | None) -> None:
        batch.settle(base_offset, append_time, error)
        self.counters.settled(batch)
        if error is not None:
            self.last_error = error
            self._producer.batch_failed(error)
            self._on_failed(batch)
