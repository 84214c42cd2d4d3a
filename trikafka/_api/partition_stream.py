"""One stream: the records of one assigned partition, handed out in order to a task of the user's own. See ``streams.py``.

What its handler holds is processed once the handler's task comes back for more, whether it gets some or is cancelled then. A
task that went away without coming back (cancelled, or raising) has not processed it: whoever reads the partition next gets it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

import trio

from .._state.assignment import AssignedPartition
from .._state.partition_state import PartitionState
from .._state.progress import Cursor
from .._wire.columns import RecordBatch
from ..types import OffsetAndMetadata, Record, TopicPartition
from .batches import ArrowBatches
from .reader import PartitionReader
from .turns import TURN, record_iterator

if TYPE_CHECKING:
    from .streams import Streams

_log = logging.getLogger("trikafka.streams")


class PartitionStream:
    """The records of one assigned partition, in order. Made by ``Consumer.partitions``; one task at a time receives from it.

    Iterate over it for records. It ends (the iteration, or :exc:`trio.EndOfChannel` from :meth:`receive`) when the partition is
    revoked or lost, and when the consumer unsubscribes or closes. A partition that comes back has a new stream.

    Coming back for more says that what was handed out before is processed, of this partition alone. ``async with stream:`` is not
    needed, but says when its handler is done with it: on a revocation, that is waited for, and leaving the block without an
    exception means that all is processed.
    """

    __slots__ = (
        "_assigned", "_busy", "_cursor", "_entered", "_last_seen", "_left", "_reader", "_records", "_streams", "_task", "_warned",
    )  # fmt: skip

    def __init__(self, streams: Streams, assigned: AssignedPartition, reader: PartitionReader) -> None:
        self._streams, self._assigned, self._reader = streams, assigned, reader
        self._cursor: Cursor | None = None
        self._last_seen = trio.current_time()  # when somebody asked for more, and others had their turn
        self._task: trio.lowlevel.Task | None = None  # that received last
        self._busy = self._entered = self._left = self._warned = False
        self._records = record_iterator(self._record)

    def __repr__(self) -> str:
        return f"<trikafka.PartitionStream {self.partition}{' ended' if self.ended else ''}>"

    @property
    def partition(self) -> TopicPartition:
        """The partition that it reads."""
        return self._assigned.tp

    @property
    def position(self) -> int | None:
        """The offset of the next record that it hands out; ``None`` while that is looked up."""
        return self._assigned.position

    @property
    def ended(self) -> bool:
        """Whether it hands out nothing more: the partition was taken away, or the stream was closed."""
        return self._left or not self._assigned.owned

    # One by one.

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._records

    async def __anext__(self) -> Record:
        return await self._records.__anext__()

    async def _record(self) -> Record:
        """The next one, by the whole way, which ``_records`` shortens where it can."""
        cursor = self._cursor
        if cursor is not None and cursor.live:
            now = trio.current_time()
            try:
                if now - self._last_seen >= TURN:
                    self._last_seen, self._warned = now, False
                    self._streams.check_session(now)
                    await trio.lowlevel.checkpoint()
                    self._records.turn_begun()
                else:
                    await trio.lowlevel.checkpoint_if_cancelled()
            except trio.Cancelled:
                if not self._busy:  # else another task has gone on from what was in hand; that must not hide the cancellation
                    self._came_back()
                raise
            if cursor.live:
                self._records.follow(cursor)
                return cursor.take()
        batch = await self._next()
        if batch is None:
            raise StopAsyncIteration
        return self._begin_records(batch)

    async def receive(self) -> Record:
        """The next record; waits for it. Cancelled: no record is lost.

        Raises :exc:`trio.EndOfChannel` when the stream has ended, :exc:`trio.BusyResourceError` if another task receives from it,
        and what stops this partition (:exc:`CorruptRecordError`, no valid offset) or the whole consumer (no authorization).
        """
        try:
            return await self._records.__anext__()
        except StopAsyncIteration:
            raise trio.EndOfChannel from None

    def receive_nowait(self) -> Record:
        """The next record if it is buffered. Raises :exc:`trio.WouldBlock` otherwise, and what :meth:`receive` raises."""
        cursor = self._cursor
        if cursor is not None and cursor.live:
            self._last_seen = trio.current_time()
            self._streams.check_session(self._last_seen)
            if cursor.live:
                return cursor.take()
        self._came_back()
        self._task = trio.lowlevel.current_task()
        self._streams.check()
        if self.ended:
            raise trio.EndOfChannel
        self._claim()
        if (error := self._assigned.take_error()) is not None:
            raise error
        while self._streams.has_records(self._assigned):
            if (batch := self._reader.next_batch_nowait()) is not None:
                return self._begin_records(batch)
        raise trio.WouldBlock

    def _begin_records(self, batch: RecordBatch) -> Record:
        self._cursor = cursor = self._reader.begin_records(batch)
        self._records.follow(cursor)
        return cursor.take()

    # By batch.

    def batches(self) -> StreamBatches:
        """Iterate over its records by batch (at most ``max_poll_records``), as ``Consumer.batches`` does."""
        return StreamBatches(self)

    def arrow_batches(self, *, max_rows: int = 131_072, max_bytes: int = 16_777_216) -> ArrowBatches:
        """Iterate over :class:`pyarrow.Table` s, as ``Consumer.arrow_batches`` does."""
        return ArrowBatches(self.batches(), max_rows, max_bytes)

    async def _gather(self, max_rows: int, max_bytes: int) -> list[RecordBatch]:
        """The next batch, and what is buffered behind it, up to the wanted size. Empty at the end."""
        batch = await self._next()
        if batch is None:
            return []
        batches = [self._reader.deliver(batch, self._streams.max_poll_records)]
        rows, size, last_yield = len(batches[0]), batches[0].nbytes, trio.current_time()
        self._busy = True
        try:
            with trio.CancelScope(shield=True):  # what has been delivered must not be lost
                while rows < max_rows and size < max_bytes and self._streams.has_records(self._assigned):
                    further = await self._reader.further_batch()
                    if self._left:  # by another task: all of it is for whoever reads the partition next
                        return []
                    if further is not None:
                        batches.append(self._reader.deliver(further, self._streams.max_poll_records))
                        rows, size = rows + len(batches[-1]), size + batches[-1].nbytes
                    if trio.current_time() - last_yield >= TURN:
                        await trio.lowlevel.checkpoint()
                        last_yield = trio.current_time()
                        if self._left:
                            return []
        finally:
            self._busy = False
        return batches

    # Leaving it, and commits.

    async def commit(self, offset: int | OffsetAndMetadata | None = None, *, timeout: float | None = None) -> None:
        """Commit ``offset`` (of the next record to process) of this partition, by default all that the stream has handed out.

        With ``enable_auto_offset_store=False`` the default is what is marked. Raises as ``Consumer.commit``;
        :exc:`CommitFailedError` also when the partition has been taken away. While it is being revoked this still works.
        """
        await self._streams.commit(self._assigned, offset, timeout)

    async def aclose(self) -> None:
        """Leave the stream: it ends. Its partition is handed out by the next iteration over ``partitions()``.

        What was handed out last and not come back from does not count as processed.
        """
        self._leave()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        self._entered = True
        self._task = trio.lowlevel.current_task()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if kind is None:
            self._came_back()
        self._leave()

    # For the tasks of run_tasks.

    @property
    def _owned(self) -> bool:
        """Whether the partition is the consumer's still, whoever reads it."""
        return self._assigned.owned

    @property
    def _gone(self) -> bool:
        """Whether the partition is the consumer's no more. One that is about to be revoked is, until its handler has come back."""
        return self._assigned.state in (PartitionState.LOST, PartitionState.GONE)

    async def _until_ended(self) -> None:
        """Wait until it hands out nothing more."""
        signal = self._streams.signal(self._assigned)
        while not self.ended:
            await signal.wait()

    # For Streams.

    @property
    def _attended(self) -> bool:
        """Whether a task that received from it still lives."""
        if self._task is None:
            return False
        nursery = self._task.parent_nursery
        return nursery is None or self._task in nursery.child_tasks

    @property
    def _attended_elsewhere(self) -> bool:
        """Whether a task other than this one has it in use."""
        return self._attended and self._task is not trio.lowlevel.current_task()

    @property
    def _in_use(self) -> bool:
        """Whether its handler, in another task, still holds records or has said that it is not done."""
        return self._attended_elsewhere and not self._left and (self._entered or self._assigned.progress.in_hand)

    def _do_not_await_me(self) -> None:
        """If this task is its handler: it is not at work on what it holds, and does not count as that until it comes back."""
        if self._task is trio.lowlevel.current_task():
            self._task = None

    def _overdue_at(self, limit: float) -> float | None:
        """When its handler will have held what it has for ``limit`` seconds; ``None``: it holds nothing, or was warned about."""
        if self._warned or self._busy or not self._assigned.progress.in_hand or not self._attended:
            return None
        return self._last_seen + limit

    def _warn(self, limit: float) -> None:
        """Say that the handler is stuck, once."""
        self._warned = True
        _log.warning(
            "the handler of %s has not come back for max_poll_interval_ms (%g ms) from what begins at offset %s; the member stays"
            " in its group, but nothing more of this partition is processed until it does",
            self.partition,
            limit * 1000,
            self._assigned.processed,
        )

    def _taken_over(self) -> None:
        """The partition is read otherwise from now on. The task that says so comes back, if it was this stream's handler."""
        if self._task is trio.lowlevel.current_task():
            self._came_back()
        self._end()

    def _end(self) -> None:
        """Let it hand out nothing more. What was not processed is for whoever reads the partition next."""
        if not self._left:
            self._left, self._entered = True, False
            self._release()
            if self._assigned.owned:
                if self._busy and self.position is not None:  # another task may wait for what is being decoded: that is nobody's
                    self._assigned.refetch(self.position)
                self._assigned.hand_out_again()

    # Inside.

    def _leave(self) -> None:
        self._entered = False
        if not self._left:
            self._end()
            self._streams.left(self)

    def _claim(self) -> None:
        if self._busy:
            raise trio.BusyResourceError(f"another task is receiving from the stream of {self.partition} already")

    def _release(self) -> None:
        if self._cursor is not None:
            self._cursor = None
            self._records.follow(None)
            self._reader.release()

    def _came_back(self) -> None:
        """The handler wants more: what it was handed before is processed."""
        if self._left:
            return
        self._claim()
        self._last_seen, self._warned = trio.current_time(), False
        self._streams.check_session(self._last_seen)
        self._release()
        self._assigned.came_back()

    async def _next(self) -> RecordBatch | None:
        """The next batch that holds a record; ``None`` when the stream has ended. Deliver it at once."""
        self._came_back()
        self._task = trio.lowlevel.current_task()
        streams, assigned = self._streams, self._assigned
        if streams.has_records(assigned) or self.ended:
            await trio.lowlevel.checkpoint()
        else:  # it waits, which gives the others their turn
            await trio.lowlevel.checkpoint_if_cancelled()
        self._records.turn_begun()
        if self.ended:
            streams.check()
            return None
        self._claim()
        self._busy = True
        streams.receive_begun()
        signal = streams.signal(assigned)
        try:
            while True:
                streams.check()
                if self.ended:
                    return None
                if (error := assigned.take_error()) is not None:
                    await trio.lowlevel.cancel_shielded_checkpoint()
                    raise error
                if not streams.has_records(assigned):
                    await signal.wait()
                    self._records.turn_begun()
                elif (batch := await self._reader.next_batch()) is not None:
                    return batch
                elif trio.current_time() - self._last_seen >= TURN:  # there may be much that holds no record
                    self._last_seen = trio.current_time()
                    await trio.lowlevel.checkpoint()
        finally:
            self._busy = False
            self._last_seen = trio.current_time()
            streams.receive_ended()


class StreamBatches:
    """An async iterator of the :class:`RecordBatch` es of one stream. Leave it at any time, nothing is lost."""

    def __init__(self, stream: PartitionStream) -> None:
        self._stream = stream

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordBatch:
        """The next batch; ends with the stream."""
        return (await self.gather(1, 1))[0]

    async def gather(self, max_rows: int, max_bytes: int) -> list[RecordBatch]:
        """As ``__anext__``, with what is buffered behind it."""
        batches = await self._stream._gather(max_rows, max_bytes)
        if not batches:
            raise StopAsyncIteration
        return batches
