"""The records that a producer has accepted and not yet settled: batched, bounded, in order. No I/O, no awaits.

Owns every batch from the first record to the outcome, ``buffer_memory``, the choice of partition, and what an answer of a
broker means for order and sequence numbers. The produce manager alone calls what changes it; ``append`` is called by the
producer's ``send`` and its kin, ``extend`` by its ``send_arrow``. How records come in stands in :mod:`.intake`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

from .._wire.records import BatchEncoder
from ..errors import (
    DeliveryTimeoutError,
    DuplicateSequenceError,
    MessageTooLargeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    TrikafkaError,
    UnknownProducerIdError,
)
from .intake import Ack, Counters, Intake, Limits, Partitioner
from .outbatch import BatchState, OutBatch
from .partition_queue import PartitionQueue
from .sequences import Identity
from .transaction import ProducerTransaction

__all__ = ["Accumulator", "Counters", "Limits", "Partitioner"]

_REFUSED_NUMBERS = (OutOfOrderSequenceError, UnknownProducerIdError, ProducerFencedError)


class Accumulator(Intake[Ack]):
    """All partitions of one producer. ``Ack`` is what ``append`` returns, a subclass of the record path's ``Ticket``.

    ``on_work(leader)`` is called when something may have become sendable to that broker (``None``: the leader is not known);
    ``on_room()`` when memory was given back; ``on_failed(batch)`` when a batch has failed. They must be quick and not call back.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        make_encoder: Callable[[], BatchEncoder],
        ticket: type[Ack],
        clock: Callable[[], float],
        delay: Callable[[int], float],
        on_work: Callable[[int | None], object],
        on_room: Callable[[], object],
        on_failed: Callable[[OutBatch], object] = lambda batch: None,
        partitioner: Partitioner | None = None,
        choose: random.Random | None = None,
        transaction: ProducerTransaction | None = None,
    ) -> None:
        super().__init__(
            limits,
            make_encoder=make_encoder,
            ticket=ticket,
            clock=clock,
            on_work=on_work,
            partitioner=partitioner,
            choose=choose,
        )
        self._delay, self._on_room, self._on_failed = delay, on_room, on_failed
        self._transaction = transaction

    # --- batches out -------------------------------------------------------------------------------------------------

    def due_at(self, node: int, now: float) -> float:
        """When something can be sent to ``node``: not after ``now`` if there is something, ``inf`` if nothing waits."""
        linger = 0.0 if self.exhausted else self._limits.linger
        earliest = math.inf
        for queue in self._work.get(node, ()):
            batch = self._sendable(queue, node)
            if batch is not None:
                earliest = min(earliest, queue.ready_at(batch, linger))
                if earliest <= now:
                    break
        return earliest

    def hurry(self, batches: Iterable[OutBatch]) -> None:
        """Let these batches linger no more; those that are open go on taking records until they are sent."""
        for batch in batches:
            if batch.state is BatchState.OPEN and not batch.hurried:
                batch.hurried = True
                self._on_work(self._queues[batch.place].leader)

    def drain(self, node: int, now: float, limit: int) -> list[OutBatch]:
        """Take the batches for the next request to ``node``: one a partition, ``limit`` bytes in all, in turn."""
        linger = 0.0 if self.exhausted else self._limits.linger
        work = self._work.get(node, {})
        chosen: list[OutBatch] = []
        total = 0
        for queue in list(work):
            batch = self._sendable(queue, node)
            if batch is None or queue.ready_at(batch, linger) > now:
                continue
            if chosen and total + batch.size > limit:
                break
            self._take_off(queue, batch, node)
            total += batch.size
            chosen.append(batch)
            del work[queue]
            work[queue] = None  # the last one in turn now
        return chosen

    def _sendable(self, queue: PartitionQueue, node: int) -> OutBatch | None:
        if self._limits.idempotent and self.identity is None and queue.sequences.identity is None:
            return None
        batch = queue.sendable(node)
        if batch is not None and self._transaction is not None and not self._transaction.admits(batch.place):
            return None  # the coordinator is to be told first
        return batch

    def _take_off(self, queue: PartitionQueue, batch: OutBatch, node: int) -> None:
        self._close(batch)
        if self._limits.idempotent and batch.sequence is None:
            batch.sequence = queue.sequences.assign(batch.count, self.identity or Identity(-1, -1))
            batch.identity = queue.sequences.identity
        batch.state, batch.node = BatchState.IN_FLIGHT, node
        self.counters.batches_retried += batch.attempts > 0
        batch.attempts += 1

    # --- answers -----------------------------------------------------------------------------------------------------

    def succeeded(self, batch: OutBatch, base_offset: int | None, append_time: int | None) -> None:
        """The broker has the batch."""
        if batch.state is not BatchState.IN_FLIGHT:
            return
        queue = self._queues[batch.place]
        if batch.sequence is not None and batch.identity == queue.sequences.identity:
            queue.sequences.acknowledge(batch.sequence, batch.count)
        queue.failures, queue.not_before = 0, 0.0
        self._finish(queue, batch, base_offset, append_time, None)

    def refused(self, batch: OutBatch, error: TrikafkaError, now: float) -> None:
        """The broker refused the batch, or nobody knows whether it took it. Decides what becomes of it: the heart of order.

        A batch that has expired in flight is done now; others are sent again in their place, are split, or fail.
        """
        if batch.state is not BatchState.IN_FLIGHT:
            return
        queue = self._queues[batch.place]
        batch.note(error)
        outdated = batch.sequence is not None and batch.identity != queue.sequences.identity
        renews = self._transaction is None  # in a transaction the coordinator alone raises the epoch: the batch fails, and so does that
        if isinstance(error, DuplicateSequenceError):
            self.succeeded(batch, None, None)
        elif batch.settled:
            self._fail_batch(queue, batch, None)
        elif renews and outdated and (error.retriable or isinstance(error, _REFUSED_NUMBERS)):
            # It stood behind the gap that ended its epoch, so the broker cannot have taken it.
            batch.state = BatchState.WAITING
            batch.sequence = batch.identity = None
        elif renews and isinstance(error, OutOfOrderSequenceError | UnknownProducerIdError):
            batch.state = BatchState.WAITING
            if queue.batches[0] is batch:  # else the outcome on those before it will tell
                self._restart(queue)
                self._back_off(queue, now)
        elif isinstance(error, MessageTooLargeError) and batch.count > 1 and not batch.maybe_written:
            self._split(queue, batch)  # one that may be in the log must not come again in other pieces
        elif error.retriable:
            batch.state = BatchState.WAITING
            self._back_off(queue, now)
        elif renews and isinstance(error, ProducerFencedError):
            self.identity = None
            queue.renounce()
            self._fail_batch(queue, batch, error)
        else:
            self._fail_batch(queue, batch, error)
        self._on_work(queue.leader)

    def unreachable(self, node: int, error: Exception) -> None:
        """There is no connection to ``node``: what waits for it knows why, should its time be up."""
        for queue in self._work.get(node, ()):
            for batch in queue.batches:
                if batch.state is not BatchState.IN_FLIGHT:
                    batch.last_error = error

    def identify(self, identity: Identity) -> None:
        """A transaction's coordinator gave this identity: what is sent from now on has it, and numbers begin anew."""
        self.identity = identity
        for queue in self._queues.values():
            queue.renounce()

    def expire(self, now: float) -> int:
        """Fail the batches that are older than the delivery timeout, the oldest first (KIP-91). Returns how many.

        A batch in flight keeps its place until its request has ended, so that what follows knows what became of it.
        """
        count = 0
        limit = self._limits.delivery_timeout
        for batch in self._batches():
            if batch.settled or batch.created + limit > now:
                continue
            count += 1
            self._close(batch)
            error = DeliveryTimeoutError("send", limit, batch.attempts, batch.last_error)
            error.__cause__ = batch.last_error
            if batch.state is BatchState.IN_FLIGHT:
                batch.maybe_written = True
                self._settle(batch, None, None, error)
            else:
                self._fail_batch(self._queues[batch.place], batch, error)
        return count

    def next_deadline(self) -> float:
        """When the next batch expires; ``inf`` if there is none."""
        created = min((batch.created for batch in self._batches() if not batch.settled), default=math.inf)
        return created + self._limits.delivery_timeout

    def abort(self, error: Exception, *, anonymous: bool = False) -> None:
        """Fail everything, what is in flight included; with ``anonymous`` only what waits for a producer id."""
        for batch in self._batches():
            if anonymous and self._queues[batch.place].sequences.identity is not None:
                continue
            self._close(batch)
            batch.maybe_written |= batch.state is BatchState.IN_FLIGHT
            self._fail_batch(self._queues[batch.place], batch, error)

    def _back_off(self, queue: PartitionQueue, now: float) -> None:
        if now >= queue.not_before:  # batches that fail together are one failure
            queue.failures += 1
            queue.not_before = now + self._delay(queue.failures)

    def _restart(self, queue: PartitionQueue) -> None:
        queue.restart(self.identity)
        self._note_identity(queue)

    def _note_identity(self, queue: PartitionQueue) -> None:
        if queue.sequences.identity is None:
            self.identity = None  # its last epoch is used up: the producer needs a new id

    def _split(self, queue: PartitionQueue, batch: OutBatch) -> None:
        self.appender.free += batch.size
        halves = batch.split((self._make_encoder(), self._make_encoder()))
        self.appender.free -= sum(half.size for half in halves)
        queue.replace(batch, halves)
        queue.entry.table_batch = min(queue.entry.table_batch, batch.size // 2)
        batch.state, batch.encoder = BatchState.DONE, None
        self.counters.batches_split += 1

    def _fail_batch(self, queue: PartitionQueue, batch: OutBatch, error: Exception | None) -> None:
        """Remove a batch that the broker may or may not have, or surely has not."""
        sequences = queue.sequences
        if batch.sequence is not None and batch.identity == sequences.identity:
            sequences.lose(batch.sequence, batch.count)
        self._finish(queue, batch, None, None, error)

    def _finish(
        self, queue: PartitionQueue, batch: OutBatch, base_offset: int | None, append_time: int | None, error: Exception | None
    ) -> None:
        batch.state, batch.encoder, batch.node = BatchState.DONE, None, None
        if not batch.settled:
            self._settle(batch, base_offset, append_time, error)
        if queue.batches[0] is batch:
            queue.batches.popleft()
        else:
            queue.batches.remove(batch)
        if queue.sequences.lost is not None and self._transaction is None:
            queue.settle(self.identity)
            self._note_identity(queue)
        if queue.batches:
            self._on_work(queue.leader)  # what stood behind it
        else:
            self._deactivate(queue)
        self.appender.free += batch.size
        self._on_room()

    def _settle(self, batch: OutBatch, base_offset: int | None, append_time: int | None, error: Exception | None) -> None:
        batch.settle(base_offset, append_time, error)
        if error is None:
            self.counters.delivered += batch.count
        else:
            self.counters.failed += batch.count
            self._on_failed(batch)
