"""Delivery from all partitions together: a fair merge over their readers.

Owned by the consumer. Every receive counts as a poll (``max_poll_interval_ms``), marks the records
of the receive before it as processed, and runs the rebalance listeners. A cancelled receive never
loses a record (see :mod:`trikafka._api.consumer.reader`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import trio

from ..._managers.group.listener_invoker import RebalanceListenerInvoker
from ..._managers.group.poll_timer import PollTimer
from ..._net.signal import Signal
from ..._state.consumer.assignment import AssignedPartition, Assignment
from ..._state.consumer.fetch_buffer import FetchBuffer
from ..._state.consumer.progress import Cursor
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
    """Delivery of the assigned partitions' records, in turns; one task at a time.

    ``check`` raises the errors that the user must see before a delivery. ``end_streams`` lets a
    receive read the partitions that streams have read, and raises while other tasks use those.
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
    ) -> None:
        self._max_poll_records = config.max_poll_records
        self._assignment = assignment
        self._buffer = buffer
        self._readers = readers
        self._invoker = invoker
        self._poll_timer = poll_timer
        self._check = check
        self._arrived = arrived  # there may be something to receive
        self._end_streams = end_streams
        self._receiving = False  # a task is in a receive
        # The reason why no receive may begin now: the consumer unsubscribes.
        self._stopped: str | None = None
        # The partitions of the records that were delivered last.
        self._in_hand: list[AssignedPartition] = []
        # The reader of the batch that is delivered record by record.
        self._reader: PartitionReader | None = None
        self._cursor: Cursor | None = None
        self._last_yield = 0.0
        self.records = record_iterator(self.record)

    def stop(self, why: str | None) -> None:
        """Let no receive begin, because of ``why``; ``None`` permits them again."""
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
            self._end_streams()

    # --- record by record ---

    async def record(self) -> AnyRecord:
        """Return the next record; wait for it. Raises as :meth:`batch`.

        This is the full path; ``records`` is the short one.
        """
        # While a cursor is live, the next record is in memory, decoded and owned: no error,
        # listener or fetch has to be looked at, because each of these ends the cursor or posts news
        # (``Receiver.news``). So this branch does what a receive must do for every record, and no
        # more: the check for cancellation, a turn for the other tasks and a poll at most once a
        # millisecond.
        #
        # The cursor and ``pending`` are looked at again after the checkpoint: meanwhile another
        # task may have sought, or the membership may have posted a rebalance. A record that was
        # delivered after that would belong to a partition that is being revoked.
        cursor = self._cursor
        if cursor is not None:
            now = trio.current_time()
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

        Raises :exc:`trio.WouldBlock` if not, or if a rebalance has to be served first.
        """
        self._claim()
        cursor, now = self._cursor, trio.current_time()
        if cursor is not None:
            self._poll_timer.polled(now)
            if cursor.live and not self._invoker.pending:
                return cursor.take()
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
        """Note that other tasks have just run; return the current time."""
        self._last_yield = trio.current_time()
        self.records.turn_begun()
        return self._last_yield

    def news(self) -> None:
        """Send the next record over the full path: something concerns the whole consumer.

        A rebalance that was posted, for example.
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
        """Return the next batch; ``None`` past ``timeout`` seconds, or once ``stop()`` is true.

        ``timeout=None`` waits without a limit. With ``until``, only its partitions deliver, and
        only records before its offsets. ``raw``: only the bytes are needed, so async deserializers
        are not called.
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
        """Wait until there is a batch to deliver, and deliver nothing.

        Arguments as of :meth:`batch`. False past ``timeout`` seconds, or once ``stop()`` is true.
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
        """Return the next batch and what else is buffered; an empty list once ``stop()`` is true.

        Only the wait can be cancelled: later, batches have been delivered that must not be lost.
        """
        batch = await self.batch(None, until, stop, raw=True)
        if batch is None:
            return []
        batches = [batch]
        rows, size, last_yield = len(batch), batch.nbytes, trio.current_time()
        since = size  # the last turn of others, in bytes
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
        """Return another buffered batch for the batches just delivered, if there is one.

        Those do not count as processed by this.
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
        """Return the next batch and what else is buffered. Raises as :meth:`batch_nowait`."""
        batches = [self.batch_nowait(until, raw=True)]
        rows, size = len(batches[0]), batches[0].nbytes
        while (
            rows < max_rows
            and size < max_bytes
            and not self._invoker.pending
            and (partition := self._buffer.next_partition()) is not None
        ):
            reader, before = self._readers.of(partition), partition.ticket
            try:
                batch = reader.next_batch_nowait(raw=True)
            except (CorruptRecordError, PluginError):  # the next receive raises it
                break
            if batch is not None:
                batches.append(self._deliver(reader, batch))
                rows, size = rows + len(batches[-1]), size + batches[-1].nbytes
            elif partition.ticket != before:  # something corrupt, which the next receive raises
                break
        return batches

    def batch_nowait(
        self, until: Until | None = None, *, raw: bool = False
    ) -> RecordBatch[Any, Any]:
        """Return the next batch if one is buffered. Raises :exc:`trio.WouldBlock` otherwise."""
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

    # --- the way that all receives share ---

    async def _next(
        self,
        deadline: float,
        until: Until | None,
        stop: Callable[[], bool] | None = None,
        *,
        raw: bool = False,
    ) -> Ready | None:
        """Serve what is due, and take the next batch that holds a record.

        ``None`` at the deadline, or once ``stop()`` is true.
        """
        if (
            stop is not None or not self._buffer.empty
        ):  # an empty buffer means a wait, in which other tasks run
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        now = self._turn_begun()
        try:
            self._claim()
            self._begin(now)
        # The error will be raised again at the next call: a loop that calls at once must not keep
        # other tasks from running.
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
            self._polled(trio.current_time())

    async def _next_ready(
        self,
        now: float,
        deadline: float,
        until: Until | None,
        stop: Callable[[], bool] | None,
        raw: bool,
    ) -> Ready | None:
        while True:
            if now - self._last_yield >= TURN:  # fetches may hold much without a record
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
                now = trio.current_time()
            elif await self._wait(deadline):
                now = self._turn_begun()
            else:
                return None

    async def _wait(self, deadline: float) -> bool:
        """Wait for something to deliver; return False at the deadline.

        The time of the wait counts as polling.
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

    def give_up(self) -> None:
        """Return what is under way to the buffer: streams read the partitions from now on.

        Counts as a poll: what was delivered before is processed.
        """
        self._check_turn()
        self._release()
        self._begin(trio.current_time())
        self._buffer.begin()

    def _polled(self, now: float) -> None:
        """Note a poll.

        A receive that only waits for a listener does not count. A listener has
        ``max_poll_interval_ms`` in all, however often a receive checks whether it has returned.
        """
        if self._invoker.busy:
            self._poll_timer.check_session(now)
        else:
            self._poll_timer.polled(now)

    def _begin(self, now: float) -> None:
        """Begin a receive: what the receive before it delivered is processed now."""
        self._polled(now)
        self._check()
        self._buffer.begin()
        in_hand = self._in_hand
        self._in_hand = []
        for partition in in_hand:
            partition.came_back()
