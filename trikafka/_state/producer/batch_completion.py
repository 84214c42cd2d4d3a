"""The outcome of batches: what a response or a time-out means for a batch and those behind it.

No I/O, no awaits. A part of the accumulator; it keeps the order of a partition's records. The
produce manager reports responses, failures and the time to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TYPE_CHECKING, NamedTuple

from ..._wire.records import BatchEncoder
from ...error_codes import ErrorCode
from ...errors import (
    BrokerResponseError,
    DeliveryTimeoutError,
    DuplicateSequenceError,
    MessageTooLargeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RequestTimedOutError,
    TrikafkaError,
    UnknownProducerIdError,
    from_code,
)
from ...errors.counts import counted
from ...types import UnsentRecord
from .producer_batch import ProducerBatch
from .queues import PRODUCER_ID, BlockedSince, PartitionQueue, Queues, not_added
from .sequences import ProducerState

if TYPE_CHECKING:
    from ..._wire._fallback_producing import BufferMemory

_COORDINATOR = "the transaction's coordinator"
# The refusals of a batch's producer id, epoch or sequence number.
_REFUSED_NUMBERS = (OutOfOrderSequenceError, UnknownProducerIdError, ProducerFencedError)


@dataclass(slots=True)
class Counters:
    """The numbers of records and batches by outcome."""

    accepted: int = 0
    delivered: int = 0
    failed: int = 0
    batches_retried: int = 0
    batches_split: int = 0
    batches_expired: int = 0


class BatchReports:
    """The accumulator's reports about its batches. Here they do nothing; its owner overrides them.

    Each must be quick, and must not call the accumulator.
    """

    def closed(self, batch: ProducerBatch) -> None:
        """Report a batch that takes no more records."""

    def sent(self, batch: ProducerBatch) -> None:
        """Report a batch that is about to be sent, for the first time or again."""

    def settled(self, batch: ProducerBatch) -> None:
        """Report a batch whose records have their outcome."""


class OldestBatch(NamedTuple):
    """The first batch of a partition without an outcome, with its phase.

    ``since``: the time from which the batch could have been sent.
    """

    batch: ProducerBatch
    since: float
    phase: str


# Order after a lost batch. The invariant: the log has the records of a partition in the order of
# ``send`` and none of them twice, and a record whose error says that it is not in the log is not
# there. Brokers enforce the order of sequence numbers. So most of the invariant follows from two
# rules: when a batch may be sent (``PartitionQueue``), and which number it keeps (``sequences``).
# These are the ambiguous cases:
#
# 1. The request got no response. The batch keeps its number and place, and is sent again before
#    those behind it. The broker recognizes a copy by its number.
# 2. The broker says DUPLICATE_SEQUENCE_NUMBER, or refuses a number although it has acknowledged a
#    later one: the batch is in the log, and succeeds without an offset.
# 3. The broker refuses a number as out of order. If batches stand before this one, their outcome
#    decides. If none does, an earlier batch was removed and the broker does not have it: the
#    partition continues in a new epoch. It must not do so while copies of both batches may still
#    arrive from a lost connection (see ``sequences``).
# 4. A batch expires in flight (KIP-91). Its acks fail at once, but the batch stays in its place
#    until the request has ended. Nothing is sent behind it until then, since its number may be
#    lost.
# 5. The batch is a part of a split batch that the broker may have as a whole. Its number is not
#    replaced, because the records could be in the log under the number of the whole. The batch
#    fails as possibly written.
#
# A batch of a transaction is never renumbered: it fails, and the transaction is aborted.
class BatchCompletion:
    """The decisions about the outcome of each batch.

    Args:
        queues: The queues of the partitions.
        memory: The memory of the accumulator.
        producer: The producer's identity, and whether it may renumber batches.
        blocked_since: The times since when batches cannot be sent, by cause.
        delivery_timeout: ``delivery_timeout_ms`` in seconds.
        retries: The most attempts after the first one.
        make_encoder: Returns an encoder for a part of a split batch.
        delay: Returns the seconds to back off after so many failures.
        on_work: Called with a broker when a batch may have become sendable to it.
        reports: Called with each event of a batch.
    """

    __slots__ = (
        "_blocked_since",
        "_delay",
        "_make_encoder",
        "_memory",
        "_on_work",
        "_producer",
        "_queues",
        "_reports",
        "_retries",
        "_timeout",
        "counters",
        "last_error",
    )

    def __init__(
        self,
        queues: Queues,
        memory: BufferMemory,
        producer: ProducerState,
        blocked_since: BlockedSince,
        *,
        delivery_timeout: float,
        retries: float,
        make_encoder: Callable[[], BatchEncoder],
        delay: Callable[[int], float],
        on_work: Callable[[int | None], object],
        reports: BatchReports,
    ) -> None:
        self._queues = queues
        self._memory = memory
        self._producer = producer
        self._blocked_since = blocked_since
        self._retries = retries
        self._timeout = delivery_timeout
        self._make_encoder = make_encoder
        self._delay = delay
        self._on_work = on_work
        self._reports = reports
        self.counters = Counters()
        #: The error of the last failed attempt or batch; ``None`` after a later delivery.
        self.last_error: Exception | None = None

    # --- before the responses ---------------------------------------------------------------------

    def closed(self, batch: ProducerBatch) -> None:
        """Count the records of a batch that takes no more."""
        self.counters.accepted += batch.count
        self._reports.closed(batch)

    def sending(self, batch: ProducerBatch) -> None:
        """Count a batch that is about to be sent if it has been sent before."""
        self.counters.batches_retried += batch.attempts > 0
        self._reports.sent(batch)

    # --- responses --------------------------------------------------------------------------------

    def succeeded(
        self, batch: ProducerBatch, base_offset: int | None, append_time: int | None
    ) -> None:
        """Complete a batch that the broker has acknowledged."""
        if not batch.in_flight:
            return
        self.last_error = None
        queue = self._queues.of(batch)
        queue.acknowledged(batch)
        self._finish(queue, batch, base_offset, append_time, None)

    def refused(
        self, batch: ProducerBatch, error: TrikafkaError, now: float, *, unsent: bool = False
    ) -> None:
        """Handle a failed attempt: a refusal, or a request without a response.

        A batch that has expired in flight is removed now. Any other is sent again in its place, is
        split, or fails. ``unsent``: no byte of the batch was sent.
        """
        if not batch.in_flight:
            return
        queue = self._queues.of(batch)
        node = batch.node
        batch.attempt_failed(error, now, unsent=unsent)
        self.last_error = error
        if not (unsent or isinstance(error, BrokerResponseError)):
            queue.sequences.lost_contact()
        outdated = batch.sequence is not None and not queue.is_of_this_epoch(batch)
        refused_number = isinstance(error, OutOfOrderSequenceError | UnknownProducerIdError)
        if isinstance(error, DuplicateSequenceError) or (
            refused_number and queue.is_known_written(batch)
        ):
            self.succeeded(batch, None, None)
        elif batch.settled:
            self._fail_batch(queue, batch, None)
        elif outdated and (error.retriable or isinstance(error, _REFUSED_NUMBERS)):
            # The batch was behind the lost batch that ended its epoch. The broker cannot have it,
            # because it accepts no batch behind a gap.
            batch.wait_again()
            batch.unnumber()
        elif refused_number:
            self._numbers_refused(queue, batch, node, error, now)
        elif isinstance(error, MessageTooLargeError) and batch.count > 1:
            if queue.topic is not None:
                queue.topic.found_too_large(batch.size)
            self._split(queue, batch, [batch.count // 2])
        elif error.retriable and batch.attempts <= self._retries:
            if not queue.may_skip_backoff(node):
                queue.back_off(now, self._delay)
            batch.wait_again(queue.not_before)
        else:
            if isinstance(error, ProducerFencedError):
                self._fenced(queue, error)
            self._fail_batch(queue, batch, error)
        self._on_work(queue.leader)

    def _numbers_refused(
        self,
        queue: PartitionQueue,
        batch: ProducerBatch,
        node: int | None,
        error: TrikafkaError,
        now: float,
    ) -> None:
        """Handle the refusal of a batch's sequence number (case 3 above)."""
        brokers = queue.sequences.possibly_in_flight_at & batch.possibly_in_flight_at
        may_still_arrive = node is not None and node in brokers
        if queue.batches[0] is not batch:  # the outcome of the batches before it decides
            batch.wait_again()
        elif (may_still_arrive and not self._producer.renumbers) or (
            batch.is_part and batch.maybe_written
        ):
            if batch.is_part and batch.maybe_written:
                reason = "they are part of a split batch, which the broker may have as a whole"
            else:
                reason = "they were sent on a lost connection behind others"
            records = counted(batch.count, "record")
            doubt = f"{batch.place}, {records}: {reason}, and may be in the log"
            doubtful = from_code(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, doubt)
            # The cause is usually a time-out, and a caller may want to handle this error as one.
            doubtful.__cause__ = queue.sequences.lost_by
            self._fail_batch(queue, batch, doubtful)
        elif may_still_arrive and (until := queue.sequences.doubt(now)) > now:
            # Copies of the lost batch and of this one may still be on their way to this broker. If
            # they arrive after this batch got another number, it would be written twice. So it
            # keeps its number for a while, by which the broker recognizes the copy.
            queue.hold(until)
            batch.wait_again(until)
        elif self._producer.renumbers:
            # No backoff if old copies may still arrive: the broker refuses them only after it has a
            # batch of the new epoch.
            if not may_still_arrive:
                queue.back_off(now, self._delay)
            batch.wait_again(queue.not_before)
            queue.restart()
        else:
            self._fail_batch(queue, batch, error)

    def _fenced(self, queue: PartitionQueue, error: TrikafkaError) -> None:
        self._producer.fenced(error)
        if self._producer.renumbers:
            queue.reset_sequences()

    def _split(
        self, queue: PartitionQueue, batch: ProducerBatch, cuts: list[int]
    ) -> list[ProducerBatch]:
        size = batch.size
        parts = batch.split(cuts, self._make_encoder)
        self._memory.take(sum(part.size for part in parts))
        self._memory.give(size)
        queue.replace(batch, parts)
        self.counters.batches_split += 1
        return parts

    def records_refused(
        self,
        batch: ProducerBatch,
        error: TrikafkaError,
        refused: Mapping[int, TrikafkaError],
        now: float,
    ) -> None:
        """Fail the records that the broker refused, and send the others without them (KIP-467).

        Args:
            batch: The batch. The broker has appended none of its records.
            error: The error of the whole batch.
            refused: The errors of the refused records, by index.
            now: The current time (Trio's clock).
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
        renumbered = batch.sequence is not None and self._producer.renumbers
        if first and renumbered and queue.batches and not batch.maybe_written:
            # The refused records leave a gap in the sequence numbers. If batches stand before this
            # one, no restart is needed here: the broker will refuse the number behind the gap, and
            # case 3 above handles that. If an earlier attempt may have written the whole batch, its
            # parts keep their numbers. Under new ones they could be written twice (case 5).
            queue.restart()
        self._on_work(queue.leader)

    # --- no response ------------------------------------------------------------------------------

    def unreachable(self, node: int, error: Exception) -> None:
        """Record why batches for ``node`` wait: there is no connection, or no producer id.

        A batch that expires names ``error`` as the cause.
        """
        for queue in self._queues.led_by(node):
            self.last_error = error
            for batch in queue.batches:
                if not batch.in_flight:
                    batch.delayed(error)

    def throttled(self, node: int, error: Exception) -> None:
        """Record that a quota of ``node`` delays its batches, including those in flight.

        A batch that has failed an attempt before keeps the error of that attempt as its cause.
        """
        for queue in self._queues.led_by(node):
            for batch in queue.batches:
                if not batch.settled and batch.last_error is None:
                    batch.delayed(error)

    def expire(self, now: float, at_most: float = math.inf) -> int:
        """Fail the batches older than the delivery timeout, at most ``at_most``; return how many.

        The batches of a partition expire in order (KIP-91). A batch in flight keeps its place until
        its request has ended, because the batches behind it depend on its outcome.
        """
        count = 0
        for queue in self._queues.active():
            old = takewhile(
                lambda each: each.settled or each.created + self._timeout <= now, queue.batches
            )
            for batch in [each for each in old if not each.settled]:
                if count >= at_most:
                    return count
                count += 1
                self._expire(
                    queue, batch, self._timed_out(queue, batch, now, "send", self._timeout)
                )
        return count

    def _expire(
        self, queue: PartitionQueue, batch: ProducerBatch, error: DeliveryTimeoutError
    ) -> None:
        self._close(queue, batch)
        self.counters.batches_expired += 1
        if batch.in_flight:
            batch.ignore_response()
            self._settle(batch, None, None, error)
        else:
            self._fail_batch(queue, batch, error)

    def _timed_out(
        self, queue: PartitionQueue, batch: ProducerBatch, now: float, call: str, limit: float
    ) -> DeliveryTimeoutError:
        phase, seconds = batch.time_spent(now, self._obstacle(queue))
        cause = batch.last_error or _waited_for(queue, batch, phase)
        error = DeliveryTimeoutError(
            call,
            limit,
            batch.attempts,
            cause,
            topic=batch.topic,
            partition=batch.partition,
            phase=phase,
            seconds=seconds,
            maybe_written=batch.maybe_written or batch.in_flight,
        )
        error.__cause__ = cause
        return error

    def oldest(self, now: float) -> UnsentRecord | None:
        """Return the record that has been without an outcome for longest."""
        first = (
            (queue, next((batch for batch in queue.batches if not batch.settled), None))
            for queue in self._queues.active()
        )
        waiting = [(queue, batch) for queue, batch in first if batch is not None]
        if not waiting:
            return None
        queue, batch = min(waiting, key=lambda each: each[1].created)
        phase, _ = batch.time_spent(now, self._obstacle(queue))
        return UnsentRecord(batch.place, now - batch.created, phase, batch.last_error)

    def heads(self, now: float, linger: float) -> list[OldestBatch]:
        """Return the first batch without an outcome of each partition.

        While this is the same batch, the partition makes no progress. ``linger``: ``linger_ms`` in
        seconds; a batch that still takes records can be sent after it.
        """
        found = []
        for queue in self._queues.active():
            batch = next((batch for batch in queue.batches if not batch.settled), None)
            if batch is not None:
                lingers = batch is queue.open and not batch.flushing
                phase, _ = batch.time_spent(now, self._obstacle(queue))
                found.append(
                    OldestBatch(batch, batch.created + linger if lingers else batch.created, phase)
                )
        return found

    def _obstacle(self, queue: PartitionQueue) -> tuple[str, float] | None:
        """Return what keeps the queue's batches from being sent, and since when."""
        if queue.leader is None:
            return "a leader", self._blocked_since.get(queue.place, 0.0)
        for what, key in (
            ("a producer id", PRODUCER_ID),
            (_COORDINATOR, not_added(queue.place)),
            ("a connection", queue.leader),
        ):
            since = self._blocked_since.get(key)
            if since is not None:
                return what, since
        return None

    def next_deadline(self) -> float:
        """Return the time at which the next batch expires; ``inf`` if there is none."""
        first = (
            next((batch.created for batch in queue.batches if not batch.settled), math.inf)
            for queue in self._queues.active()
        )
        return min(first, default=math.inf) + self._timeout

    def abort_unsent(self, error: Exception, now: float, at_most: float) -> int:
        """Fail the batches that were never sent; return how many there were.

        A batch that was sent once gets its outcome from the brokers.
        """
        count = 0
        for queue in self._queues.active():
            most = int(min(at_most - count, len(queue.batches)))
            unsent = list(islice((batch for batch in queue.batches if not batch.attempts), most))
            for batch in unsent:
                self._abort(queue, batch, error, now)
            count += len(unsent)
        return count

    def abort(
        self, error: Exception, now: float, *, anonymous: bool = False, at_most: float = math.inf
    ) -> int:
        """Fail all batches, those in flight included; return how many there were.

        If ``error`` is a time-out, each batch gets an error of its own that says in which phase its
        time has passed. With ``anonymous`` only batches of partitions without a producer id fail.
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

    def _abort(
        self, queue: PartitionQueue, batch: ProducerBatch, error: Exception, now: float
    ) -> None:
        if isinstance(error, DeliveryTimeoutError):
            error = self._timed_out(queue, batch, now, error.call, error.limit)
        self._close(queue, batch)
        if batch.in_flight:
            batch.ignore_response()
        self._fail_batch(queue, batch, error)

    def _close(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        if batch is queue.open:
            self._queues.close(queue)

    # --- the end of a batch -----------------------------------------------------------------------

    def _fail_batch(
        self, queue: PartitionQueue, batch: ProducerBatch, error: Exception | None
    ) -> None:
        """Remove a batch with ``error``; ``None``: the batch has its error already."""
        queue.failed(batch, batch.error if error is None else error)
        self._finish(queue, batch, None, None, error)

    def _finish(
        self,
        queue: PartitionQueue,
        batch: ProducerBatch,
        base_offset: int | None,
        append_time: int | None,
        error: Exception | None,
    ) -> None:
        batch.done()
        if not batch.settled:
            self._settle(batch, base_offset, append_time, error)
        queue.remove(batch)
        self._queues.removed_from(queue)
        self._memory.give(batch.size)

    def _settle(
        self,
        batch: ProducerBatch,
        base_offset: int | None,
        append_time: int | None,
        error: Exception | None,
    ) -> None:
        if isinstance(error, TrikafkaError):
            # One error may fail several batches, and the broker may have some of them. So each
            # batch gets an error of its own.
            error = error.of_records(batch.maybe_written)
        batch.settle(base_offset, append_time, error)
        if error is None:
            self.counters.delivered += batch.count
        else:
            self.counters.failed += batch.count
            self.last_error = error
            self._producer.batch_failed(error)
        self._reports.settled(batch)


def _waited_for(
    queue: PartitionQueue, batch: ProducerBatch, phase: str
) -> RequestTimedOutError | None:
    """Return an error that says what a batch without a failed attempt waits for at its broker.

    ``None``: its leader has no part in the wait.
    """
    if batch.in_flight:
        return RequestTimedOutError(f"no response while waiting for Produce to broker {batch.node}")
    # The leader has no part in the wait for the transaction's coordinator.
    if queue.leader is None or phase == f"waiting for {_COORDINATOR}":
        return None
    return RequestTimedOutError(f"{phase}; the leader is broker {queue.leader}")
