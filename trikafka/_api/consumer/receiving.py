"""Delivery from all partitions together: a fair merge over their readers.

The consumer owns the receiver. Every receive counts as a poll (``max_poll_interval_ms``), marks the
records of the receive before it as processed, and runs the rebalance listeners. A cancelled receive
never loses a record (see :mod:`trikafka._api.consumer.reader`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import trio

from ..._managers.group.listener_invoker import RebalanceListenerInvoker
from ..._managers.group.poll_timer import PollTimer
from ..._net.clock import clock_of_run
from ..._net.signal import Signal
from ..._state.consumer.assignment import AssignedPartition, Assignment, Cursor
from ..._state.consumer.fetch_buffer import FetchBuffer
from ..._wire.columns import RecordBatch
from ...config import ConsumerConfig
from ...errors import CorruptRecordError, PluginError
from ...types import AnyRecord, TopicPartition
from ..client.turns import TURN, TURN_BYTES, record_iterator
from .reader import PartitionReader, Readers

_BUSY = (
    "this consumer is receiving already, in another task or in the receive that runs this "
    "rebalance listener"
)
Until = Mapping[TopicPartition, int]
Ready = tuple[PartitionReader, RecordBatch[Any, Any]]


class Receiver:
    """Delivery of the records of the assigned partitions, to one task at a time.

    ``check`` raises the errors that must reach the user before a delivery. ``end_streams`` ends the
    streams, so that a receive can read their partitions; it raises while other tasks use streams.
    ``check_run`` raises in another Trio run: its clock would also disturb the member's timers.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        assignment: Assignment,
        buffer: FetchBuffer,
        readers: Readers,
        invoker: RebalanceListenerInvoker,
        poll_timer: PollTimer,
        arrived: Signal,
        check: Callable[[], None],
        end_streams: Callable[[], None],
        check_run: Callable[[], None],
    ) -> None:
        self._now = clock_of_run()
        self._max_poll_records = config.max_poll_records
        self._assignment = assignment
        self._buffer = buffer
        self._readers = readers
        self._invoker = invoker
        self._poll_timer = poll_timer
        self._check = check
        self._arrived = arrived  # there may be something to receive
        self._end_streams = end_streams
        self._check_run = check_run
        self._receiving = False  # a task is in a receive
        # The reason why no receive may begin now: the consumer unsubscribes.
        self._stopped: str | None = None
        # The partitions of the records that were delivered last.
        self._in_hand: list[AssignedPartition] = []
        # The reader of the batch that is delivered record by record.
        self._reader: PartitionReader | None = None
        self._cursor: Cursor | None = None
        self._last_yield = 0.0
        self._polled_at = 0.0  # by a receive of a record without waiting
        self.records = record_iterator(self.record)

    def stop(self, why: str | None) -> None:
        """Refuse receives, because of ``why``; ``None`` permits them again."""
        self._stopped = why

    def _check_turn(self) -> None:
        """Raise :exc:`trio.BusyResourceError` if no receive may begin now."""
        if self._receiving:
            raise trio.BusyResourceError(_BUSY)
        if self._stopped is not None:
            raise trio.BusyResourceError(self._stopped)

    def _claim(self) -> None:
        """Raise as :meth:`_check_turn`, and if other tasks use streams."""
        self._check_turn()
        if self._buffer.by_stream:
            self._check_run()  # a call of another thread must not end the streams
            self._end_streams()

    # --- record by record ---

    async def record(self) -> AnyRecord:
        """Wait for the next record and return it. Raises as :meth:`batch`.

        ``records`` is a shorter way for records that are decoded already, and falls back to this
        one.
        """
        # While a cursor is live, the next record is in memory, decoded, and of a partition that is
        # owned. Errors, listeners and fetches need no check, because each of them ends the cursor
        # or calls ``news``. So this branch does only what every receive must do: it checks for
        # cancellation, and once a millisecond it lets other tasks run and counts a poll.
        #
        # The cursor and ``pending`` are checked after the checkpoint. During it another task may
        # have called seek(), or the membership may have posted a rebalance; the record could then
        # belong to a partition that is being revoked.
        cursor = self._cursor
        if cursor is not None and cursor.live:
            self._check_run()
            now = self._now()
            if now - self._last_yield >= TURN:
                self._poll_timer.polled(now)
                await trio.lowlevel.checkpoint()
                self._turn_begun()
            else:
                await trio.lowlevel.checkpoint_if_cancelled()
            if cursor.live and not self._invoker.pending:
                self.records.follow(cursor)
                return cursor.take()
        while True:
            ready = await self._next(float("inf"), None)
            if ready is not None:
                return self._begin_records(*ready)

    def record_nowait(self) -> AnyRecord:
        """Return the next record if one is buffered.

        Raises :exc:`trio.WouldBlock` if there is none, or if a rebalance must be served first.
        """
        self._claim()
        try:
            now = trio.current_time()
        except RuntimeError:  # another thread
            self._check_run()
            raise
        cursor = self._cursor
        if cursor is not None:
            # Once in a turn, not for each record. Another run's clock is out of the turn.
            if not 0.0 <= now - self._polled_at < TURN:
                self._check_run()
                self._poll_timer.polled(now)
                self._polled_at = now
            if cursor.live and not self._invoker.pending:
                return cursor.take()
        self._check_run()
        self._begin(now)
        self._release()
        self._assignment.limit(None)
        if not self._invoker.pending and (ready := self._next_nowait()) is not None:
            return self._begin_records(*ready)
        raise trio.WouldBlock

    def _begin_records(self, reader: PartitionReader, batch: RecordBatch[Any, Any]) -> AnyRecord:
        self._reader = reader
        self._cursor = reader.begin_records(batch)
        self._in_hand.append(reader.partition)
        self._buffer.count_delivered(batch.nbytes)
        self.records.follow(self._cursor)
        return self._cursor.take()

    def _turn_begun(self) -> float:
        """Record that other tasks have just run; return the current time."""
        self._last_yield = self._now()
        self.records.turn_begun()
        return self._last_yield

    def news(self) -> None:
        """End the short way of ``records``: the next record must come from :meth:`record`.

        The cause is an event of the whole consumer, such as a rebalance that was posted.
        """
        self.records.follow(None)

    def _release(self) -> None:
        """Return the rest of a batch that is delivered record by record to the buffer."""
        reader = self._reader
        self._reader = None
        self._cursor = None
        self.records.follow(None)
        if reader is not None:
            reader.release()

    # --- batch by batch ---

    async def batch(
        self,
        timeout: float | None,
        until: Until | None = None,
        stop: Callable[[], bool] | None = None,
        *,
        raw: bool = False,
    ) -> RecordBatch[Any, Any] | None:
        """Return the next batch; ``None`` after ``timeout`` seconds, or once ``stop()`` is true.

        Args:
            timeout: The seconds to wait for a batch; ``None``: no limit.
            until: Deliver only these partitions, and only records before these offsets.
            stop: Checked after each event; ends the wait.
            raw: Only the bytes are needed, so async deserializers are not called.

        Raises:
            trio.BusyResourceError: Another task receives, or uses a stream.
            TrikafkaError: The error of the consumer, or of a partition whose turn it is.
        """
        deadline = float("inf") if timeout is None else trio.current_time() + timeout
        ready = await self._next(deadline, until, stop, raw=raw)
        return None if ready is None else self._deliver(*ready)

    async def wait(
        self,
        timeout: float | None,
        until: Until | None = None,
        stop: Callable[[], bool] | None = None,
        *,
        raw: bool = False,
    ) -> bool:
        """Wait until there is a batch to deliver, without delivering it.

        Return False after ``timeout`` seconds, or once ``stop()`` is true. The arguments are those
        of :meth:`batch`.
        """
        deadline = float("inf") if timeout is None else trio.current_time() + timeout
        ready = await self._next(deadline, until, stop, raw=raw)
        if ready is None:
            return False
        reader, batch = ready
        self._buffer.put_back(reader.partition, batch)  # decoded, and the first to be delivered
        return True

    async def gather(
        self, until: Until | None, stop: Callable[[], bool] | None, max_rows: int, max_bytes: int
    ) -> list[RecordBatch[Any, Any]]:
        """Wait for a batch; return it with further batches that are buffered.

        Return an empty list once ``stop()`` is true. Only the wait can be cancelled: once a batch
        has been delivered, a cancellation would lose it.
        """
        batch = await self.batch(None, until, stop, raw=True)
        if batch is None:
            return []
        batches = [batch]
        rows = len(batch)
        size = batch.nbytes
        last_yield = trio.current_time()
        since = size  # bytes since other tasks last ran
        self._receiving = True
        try:
            with trio.CancelScope(shield=True):
                while (
                    rows < max_rows
                    and size < max_bytes
                    and (further := await self._further()) is not None
                ):
                    batches.append(further)
                    rows += len(further)
                    size += further.nbytes
                    since += further.nbytes
                    if since >= TURN_BYTES or trio.current_time() - last_yield >= TURN:
                        await trio.lowlevel.checkpoint()
                        last_yield = trio.current_time()
                        since = 0
        finally:
            self._receiving = False
        return batches

    async def _further(self) -> RecordBatch[Any, Any] | None:
        """Return a buffered batch to be delivered with those before it; ``None`` if there is none.

        Unlike a new receive, this does not mark the batches before it as processed.
        """
        while (
            not self._invoker.pending and (partition := self._buffer.next_partition()) is not None
        ):
            reader = self._readers.of(partition)
            before = partition.ticket
            try:
                batch = await reader.further_batch()
            except (CorruptRecordError, PluginError):  # the next receive raises it
                return None
            if batch is not None:
                return self._deliver(reader, batch)
            if partition.ticket != before:  # something corrupt, which the next receive raises
                return None
        return None

    def gather_nowait(
        self, until: Until | None, max_rows: int, max_bytes: int
    ) -> list[RecordBatch[Any, Any]]:
        """Return all buffered batches up to the limits. Raises as :meth:`batch_nowait`."""
        batches = [self.batch_nowait(until, raw=True)]
        rows = len(batches[0])
        size = batches[0].nbytes
        while (
            rows < max_rows
            and size < max_bytes
            and not self._invoker.pending
            and (partition := self._buffer.next_partition()) is not None
        ):
            reader = self._readers.of(partition)
            before = partition.ticket
            try:
                batch = reader.next_batch_nowait(raw=True)
            except (CorruptRecordError, PluginError):  # the next receive raises it
                break
            if batch is not None:
                batches.append(self._deliver(reader, batch))
                rows += len(batches[-1])
                size += batches[-1].nbytes
            elif partition.ticket != before:  # something corrupt, which the next receive raises
                break
        return batches

    def batch_nowait(
        self, until: Until | None = None, *, raw: bool = False
    ) -> RecordBatch[Any, Any]:
        """Return the next batch if one is buffered. Raises :exc:`trio.WouldBlock` otherwise."""
        self._check_run()
        self._claim()
        self._begin(trio.current_time())
        self._release()
        self._assignment.limit(until)
        if not self._invoker.pending and (ready := self._next_nowait(raw=raw)) is not None:
            return self._deliver(*ready)
        raise trio.WouldBlock

    def _deliver(
        self, reader: PartitionReader, batch: RecordBatch[Any, Any]
    ) -> RecordBatch[Any, Any]:
        self._in_hand.append(reader.partition)
        batch = reader.deliver(batch, self._max_poll_records)
        self._buffer.count_delivered(batch.nbytes)
        return batch

    # --- the steps that all receives share ---

    async def _next(
        self,
        deadline: float,
        until: Until | None,
        stop: Callable[[], bool] | None = None,
        *,
        raw: bool = False,
    ) -> Ready | None:
        """Run due listeners, raise due errors, and take the next batch that holds a record.

        Return ``None`` at the deadline, or once ``stop()`` is true.
        """
        self._check_run()
        # With an empty buffer the wait for records lets other tasks run, so no full checkpoint is
        # needed here.
        if stop is not None or not self._buffer.empty:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        now = self._turn_begun()
        try:
            self._claim()
            self._begin(now)
        # The next call will raise the same error. A loop that calls again at once must not keep
        # other tasks from running, so there is a checkpoint here, too.
        except Exception:
            await trio.lowlevel.cancel_shielded_checkpoint()
            raise
        self._receiving = True
        self._assignment.receive_begun()
        try:
            self._release()
            return await self._next_ready(now, deadline, until, stop, raw)
        finally:
            self._receiving = False
            self._assignment.receive_ended()
            self._polled(self._now())

    async def _next_ready(
        self,
        now: float,
        deadline: float,
        until: Until | None,
        stop: Callable[[], bool] | None,
        raw: bool,
    ) -> Ready | None:
        while True:
            if now - self._last_yield >= TURN:  # fetched batches may hold no records
                await trio.lowlevel.checkpoint()
                self._turn_begun()
            finished = await self._invoker.invoke(deadline)
            self._check()
            if not finished:
                return None
            self._assignment.limit(until)
            if stop is not None and stop():
                return None
            if (partition := self._buffer.next_partition()) is not None:
                reader = self._readers.of(partition)
                if (batch := await reader.next_batch(raw=raw)) is not None:
                    return reader, batch
                now = self._now()
            elif await self._wait(deadline):
                now = self._turn_begun()
            else:
                return None

    async def _wait(self, deadline: float) -> bool:
        """Wait for something to deliver; return False at the deadline.

        The member counts as polling during the wait.
        """
        with self._poll_timer.waiting():
            if deadline == float("inf"):
                await self._arrived.wait()
                return True
            with trio.move_on_at(deadline) as scope:
                await self._arrived.wait()
            return not scope.cancelled_caught

    def _next_nowait(self, *, raw: bool = False) -> Ready | None:
        while (partition := self._buffer.next_partition()) is not None:
            reader = self._readers.of(partition)
            if (batch := reader.next_batch_nowait(raw=raw)) is not None:
                return reader, batch
        return None

    def return_rest(self) -> None:
        """Return the rest of a receive to the buffer, so that streams can read the partitions.

        This counts as a poll, and the records delivered before count as processed.
        """
        self._check_turn()
        self._release()
        self._begin(trio.current_time())
        self._buffer.begin()

    def _polled(self, now: float) -> None:
        """Count a poll, unless a rebalance listener is still running.

        A listener may take ``max_poll_interval_ms`` in all. Receives that are called while it runs
        do not extend that time.
        """
        if self._invoker.busy:
            self._poll_timer.check_session(now)
        else:
            self._poll_timer.polled(now)

    def _begin(self, now: float) -> None:
        """Begin a receive; mark the records of the receive before it as processed.

        Call ``_check_run`` first.
        """
        self._polled(now)
        self._check()
        self._buffer.begin()
        in_hand = self._in_hand
        self._in_hand = []
        for partition in in_hand:
            partition.mark_all_processed()
