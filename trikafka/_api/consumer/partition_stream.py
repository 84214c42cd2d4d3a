"""A stream of one partition's records, in order, for a task of the user's. See ``streams.py``."""

# When the records in a handler's hand count as processed
# -------------------------------------------------------
#
# A handler is a loop: it takes records, works, and asks for more. So asking for more shows that the
# records before are done (unless enable_auto_offset_store=False: then the handler marks them).
#
# 1. The task asks and is cancelled in that call. The work was finished before the call, so the
#    records count (``_came_back`` in ``_record``). Otherwise a cancelled program would repeat them.
# 2. The task is cancelled, or raises, while it works. It never asks, so the records do not count:
#    the partition's next reader receives them.
# 3. The block of ``async with stream`` ends without an exception. The handler has said that it is
#    done, so the records count. With an exception they do not.
#
# The same proof is a sign of life: it resets the warning about a stuck handler, and lets a member
# that left because of that handler join again (``Streams.handler_returned``).

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Generic, Self

import trio

from ..._net.callers import ActingTask, acting_task, is_alive
from ..._net.reminders import REMINDER, Reminder
from ..._state.consumer.assignment import AssignedPartition, Cursor
from ..._wire.columns import RecordBatch
from ...errors import CorruptRecordError, PluginError
from ...types import AnyRecord, Key, OffsetAndMetadata, Record, TopicPartition, Value
from ..client.turns import TURN, TURN_BYTES, record_iterator
from .batches import ArrowBatches
from .reader import PartitionReader

if TYPE_CHECKING:
    from .core import ConsumerCore
    from .streams import Streams

_log = logging.getLogger("trikafka.streams")


class HandledRecord:
    """A record that one of several handlers of a partition has in hand: a block, entered once."""

    __slots__ = ("_handlers", "offset", "since", "warned_at")

    # There is one for each record. A generator with @contextmanager and a Reminder take twice the
    # time.
    def __init__(self, offset: int, handlers: dict[HandledRecord, None]) -> None:
        self.offset = offset
        self.since = trio.current_time()
        self.warned_at: float | None = None  # when a warning about this record was logged last
        self._handlers = handlers

    def __enter__(self) -> None:
        self._handlers[self] = None

    def __exit__(self, *_: object) -> None:
        del self._handlers[self]

    def warned(self, now: float) -> None:
        """Record that a warning about the record was logged."""
        self.warned_at = now

    def restart(self, now: float) -> None:
        """Count the time in hand from ``now`` on."""
        self.since = now
        self.warned_at = None


class PartitionStream(Generic[Key, Value]):
    """The records of one assigned partition, in order; made by ``Consumer.partitions``.

    One task at a time receives from it; iterate over it for records. The stream ends when the
    partition is revoked or lost, and when the consumer unsubscribes or closes: the iteration stops,
    and :meth:`receive` raises :exc:`trio.EndOfChannel`. A partition that is assigned again has a
    new stream.

    Asking for more marks the records delivered before as processed, for this partition alone.

    ``async with stream:`` is optional. A revocation waits until that block ends, and leaving the
    block without an exception marks all delivered records as processed.
    """

    __slots__ = (
        "_assigned",
        "_behind",
        "_busy",
        "_core",
        "_cursor",
        "_entered",
        "_handlers",
        "_last_seen",
        "_left",
        "_processed_by",
        "_reader",
        "_records",
        "_resting",
        "_streams",
        "_task",
        "_warned",
    )

    def __init__(
        self,
        streams: Streams,
        core: ConsumerCore,
        assigned: AssignedPartition,
        reader: PartitionReader,
    ) -> None:
        self._streams = streams
        self._core = core
        self._assigned = assigned
        self._reader = reader
        self._cursor: Cursor | None = None
        # When the handler last asked for more, or let other tasks run.
        self._last_seen = trio.current_time()
        self._task: ActingTask | None = None  # the task that received last
        self._busy = False
        self._entered = False
        self._left = False
        self._behind = False  # an earlier task still handles records of the partition
        self._warned = Reminder()
        self._resting = 0  # attempts that the worker will make later
        # Returns the offset before which a worker has finished everything.
        self._processed_by: Callable[[], int | None] | None = None
        # The records that handlers of a worker have in hand now, in the order of their begin.
        self._handlers: dict[HandledRecord, None] = {}
        self._records = record_iterator(self._record)

    def __repr__(self) -> str:
        return f"<trikafka.PartitionStream {self.partition}{' ended' if self.ended else ''}>"

    @property
    def partition(self) -> TopicPartition:
        """The partition of this stream."""
        return self._assigned.tp

    @property
    def position(self) -> int | None:
        """The offset of the next record to deliver; ``None`` while it is looked up."""
        return self._assigned.position

    @property
    def ended(self) -> bool:
        """True once the stream delivers nothing more.

        The partition was revoked or lost, or the stream was closed.
        """
        return self._left or not self._assigned.owned

    # --- record by record ---

    def __aiter__(self) -> AsyncIterator[Record[Key, Value]]:
        return self._records

    async def __anext__(self) -> Record[Key, Value]:
        return await self._records.__anext__()

    async def _record(self) -> AnyRecord:
        """Return the next record by the full path; ``_records`` is the short one."""
        self._streams.check_run()
        cursor = self._cursor
        if cursor is not None and cursor.live:
            now = trio.current_time()
            try:
                if now - self._last_seen >= TURN:
                    self._last_seen = now
                    self._warned.forget()
                    self._core.poll_timer.check_session(now)
                    await trio.lowlevel.checkpoint()
                    self._records.turn_begun()
                else:
                    await trio.lowlevel.checkpoint_if_cancelled()
            except trio.Cancelled:
                # Otherwise another task has gone on from the records in hand. That task's error
                # must not hide the cancellation.
                if not self._busy:
                    self._came_back()
                raise
            if cursor.live:
                self._records.follow(cursor)
                return cursor.take()
        batch = await self._next()
        if batch is None:
            raise StopAsyncIteration
        return self._begin_records(batch)

    async def receive(self) -> Record[Key, Value]:
        """Return the next record; wait until there is one.

        Raises:
            trio.EndOfChannel: The stream has ended.
            trio.BusyResourceError: Another task receives from this stream.
            CorruptRecordError: The records at the position are damaged; seek past them to go on.
            TrikafkaError: The partition (no valid offset) or the whole consumer (no authorization)
                cannot go on.

        When cancelled, no record is lost.
        """
        try:
            return await self._records.__anext__()
        except StopAsyncIteration:
            raise trio.EndOfChannel from None

    def receive_nowait(self) -> Record[Key, Value]:
        """Return the next record if one is buffered.

        Raises:
            trio.WouldBlock: Nothing is buffered.
            TrikafkaError: As :meth:`receive`.
        """
        cursor = self._cursor
        if cursor is not None and cursor.live:
            now = trio.current_time()
            # Once a turn, not for each record. The clock of another Trio run differs, so a call
            # from there is outside of the turn and checked too.
            if not 0.0 <= now - self._last_seen < TURN:
                self._streams.check_run()
                self._last_seen = now
                self._core.poll_timer.check_session(now)
            if cursor.live:
                return cursor.take()
        return self._begin_records(self._next_nowait())

    def receive_batch_nowait(self) -> RecordBatch[Key, Value]:
        """Return the next batch if one is buffered, of at most ``max_poll_records``.

        Raises as :meth:`receive_nowait`.
        """
        batch: RecordBatch[Any, Any] = self._next_nowait()
        return self._reader.deliver(batch, self._streams.max_poll_records)

    def _next_nowait(self, *, raw: bool = False) -> RecordBatch[Any, Any]:
        """Return the next buffered batch; the caller delivers it in the same step."""
        self._came_back()
        self._task = acting_task()
        self._streams.check()
        if self.ended:
            raise trio.EndOfChannel
        self._claim()
        if (error := self._assigned.pop_error()) is not None:
            raise error
        while self._core.buffer.has(self._assigned):
            if (batch := self._reader.next_batch_nowait(raw=raw)) is not None:
                return batch
        self._core.buffer.ask(self._assigned, waits=False)
        raise trio.WouldBlock

    async def wait_receivable(self, *, raw: bool = False) -> bool:
        """Wait until :meth:`receive_nowait` has something to return; deliver nothing.

        The records of the receive before it count as processed.

        Args:
            raw: Wait for the bytes of records: async deserializers are not called.

        Returns:
            False once the stream has ended.

        Raises:
            TrikafkaError: As :meth:`receive`.

        When cancelled, no record is lost.
        """
        batch = await self._next(raw=raw)
        if batch is None:
            return False
        self._core.buffer.put_back(self._assigned, batch)  # decoded, and the first to be delivered
        return True

    def _begin_records(self, batch: RecordBatch) -> AnyRecord:
        self._cursor = cursor = self._reader.begin_records(batch)
        self._records.follow(cursor)
        return cursor.take()

    # --- batch by batch ---

    def batches(self) -> StreamBatches[Key, Value]:
        """Iterate over the records by batch, each of at most ``max_poll_records``."""
        return StreamBatches(self)

    def arrow_batches(
        self, *, max_rows: int = 131_072, max_bytes: int = 16_777_216
    ) -> ArrowBatches:
        """Iterate over :class:`pyarrow.Table` s, as ``Consumer.arrow_batches`` does.

        Args:
            max_rows: A table grows until it has this many rows.
            max_bytes: A table grows until it has this many bytes. The last batch may exceed either
                bound.

        Raises:
            ImportError: pyarrow is missing.
            ConfigurationError: ``max_rows`` or ``max_bytes`` is less than 1.
        """
        return ArrowBatches(self.batches(), max_rows, max_bytes)

    async def _batch(self) -> RecordBatch[Any, Any]:
        """Return the next batch. Raises :exc:`StopAsyncIteration` at the end."""
        batch = await self._next()
        if batch is None:
            raise StopAsyncIteration
        return self._reader.deliver(batch, self._streams.max_poll_records)

    async def _gather(self, max_rows: int, max_bytes: int) -> list[RecordBatch[Any, Any]]:
        """Return the bytes of the next batch and of what else is buffered.

        The list is empty at the end.
        """
        batch = await self._next(raw=True)
        if batch is None:
            return []
        batches = [self._reader.deliver(batch, self._streams.max_poll_records)]
        rows = len(batches[0])
        size = batches[0].nbytes
        last_yield = trio.current_time()
        since = size  # bytes since other tasks ran last
        self._busy = True
        try:
            with trio.CancelScope(shield=True):  # what has been delivered must not be lost
                while (
                    rows < max_rows and size < max_bytes and self._core.buffer.has(self._assigned)
                ):
                    try:
                        further = await self._reader.further_batch()
                    except (CorruptRecordError, PluginError):  # the next receive raises it
                        break
                    # Another task left the stream: the partition's next reader gets all of this.
                    if self._left:
                        return []
                    if further is not None:
                        batches.append(
                            self._reader.deliver(further, self._streams.max_poll_records)
                        )
                        rows += len(batches[-1])
                        size += batches[-1].nbytes
                        since += batches[-1].nbytes
                    if since >= TURN_BYTES or trio.current_time() - last_yield >= TURN:
                        await trio.lowlevel.checkpoint()
                        last_yield = trio.current_time()
                        since = 0
                        if self._left:
                            return []
        finally:
            self._busy = False
        return batches

    def _gather_nowait(self, max_rows: int, max_bytes: int) -> list[RecordBatch[Any, Any]]:
        """Return what is buffered, up to the given size. Raises as :meth:`receive_nowait`."""
        first: RecordBatch[Any, Any] = self._next_nowait(raw=True)
        batches = [self._reader.deliver(first, self._streams.max_poll_records)]
        rows = len(batches[0])
        size = batches[0].nbytes
        while rows < max_rows and size < max_bytes and self._core.buffer.has(self._assigned):
            try:
                further = self._reader.next_batch_nowait(raw=True)
            except (CorruptRecordError, PluginError):  # the next receive raises it
                break
            if further is not None:
                batches.append(self._reader.deliver(further, self._streams.max_poll_records))
                rows += len(batches[-1])
                size += batches[-1].nbytes
        return batches

    # --- leaving, commits ---

    async def commit(
        self, offset: int | OffsetAndMetadata | None = None, *, timeout: float | None = None
    ) -> None:
        """Commit an offset of this partition, by default after all that the stream delivered.

        With ``enable_auto_offset_store=False`` the default is what is marked. The call still works
        while the partition is being revoked.

        Args:
            offset: The offset of the next record to process.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            CommitFailedError: The partition was taken away, or the group has removed the member.
            TrikafkaError: As ``Consumer.commit``.

        When cancelled while the request is in flight, the commit may or may not have happened.
        """
        await self._streams.commit(self._assigned, offset, timeout)

    async def aclose(self) -> None:
        """Leave the stream.

        The next iteration over ``partitions()`` yields a new stream for the partition. Records
        delivered last do not count as processed if the handler has not asked for more since.

        When cancelled, the stream has ended all the same.
        """
        self._leave()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        self._entered = True
        self._task = acting_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: object
    ) -> None:
        if kind is None:
            self._came_back()
        self._leave()

    # --- for a worker that handles records beside the iteration ---

    @property
    def owned(self) -> bool:
        """True while the consumer owns the partition and is not releasing it.

        Also after the stream was left, and while another stream reads the partition: then this
        handler may still seek and commit.
        """
        return self._assigned.owned

    async def wait_ended(self) -> None:
        """Wait until the stream has ended (:attr:`ended`).

        Any number of tasks may wait. When cancelled, nothing has changed.
        """
        # Only a stream that has not ended may have a signal: a partition with a signal wakes no
        # receive (ConsumerCore.stream_signal).
        if self.ended:
            await trio.lowlevel.checkpoint()
            return
        signal = self._core.stream_signal(self._assigned)
        while not self.ended:
            await signal.wait()

    def report_progress(self) -> None:
        """Show that the handler is not stuck.

        Asking for the next record shows it, too. A worker that has several records in hand, or
        tries one again, calls this after each attempt. Otherwise the handler is stuck after
        ``max_poll_interval_ms`` (see ``Consumer.partitions``).
        """
        self._last_seen = trio.current_time()
        self._warned.forget()
        self._streams.handler_returned(self)

    @contextmanager
    def backing_off(self) -> Iterator[None]:
        """Mark a wait for the next attempt at a record: the handler is not stuck meanwhile.

        Blocks of several records may overlap.
        """
        self._resting += 1
        try:
            yield
        finally:
            self._resting -= 1
            self.report_progress()

    def processed_by(self, processed: Callable[[], int | None]) -> None:
        """Let a worker say how far it has finished the records.

        A worker with several handlers asks for more while records are in hand. ``Consumer.commit``
        without offsets then goes by ``processed``, and not by what the iteration has passed.

        Args:
            processed: Returns the offset before which every record is done. ``None`` before the
                first record.
        """
        self._processed_by = processed

    def handling_beside(self, offset: int) -> AbstractContextManager[None]:
        """Mark the time in which one of several handlers has the record at ``offset`` in hand.

        While other handlers make progress, or the worker waits for more, the stream alone cannot
        tell that this one is stuck. The log and ``health()`` name its record after
        ``max_poll_interval_ms``.
        """
        return HandledRecord(offset, self._handlers)

    @contextmanager
    def awaiting_predecessor(self) -> Iterator[None]:
        """Mark a wait for the handler of an earlier stream of this partition.

        A partition that is assigned again has a new stream while the handler of the one before may
        still have a record in hand. If all handlers are stuck and the member leaves its group, the
        return of that earlier handler counts, and not this one.
        """
        self._behind = True
        try:
            yield
        finally:
            self._behind = False

    # --- for Streams ---

    @property
    def _attended(self) -> bool:
        """True while a task that received from the stream lives."""
        return self._task is not None and is_alive(self._task)

    @property
    def _attended_elsewhere(self) -> bool:
        """True while a task other than this one uses the stream."""
        return self._attended and self._task is not acting_task()

    @property
    def _in_use(self) -> bool:
        """True while a handler in another task holds records, or the stream's block is open."""
        return (
            self._attended_elsewhere
            and not self._left
            and (self._entered or self._assigned.in_hand)
        )

    def _do_not_await_me(self) -> None:
        """Exclude this task as the stream's handler, until it asks for more."""
        if self._task is acting_task():
            self._task = None

    @property
    def _held_since(self) -> float | None:
        """The time at which the handler last asked for more, or at which a pause ended.

        ``None`` while the handler waits for records, or has none to work on. With several records
        in hand (``concurrency=`` of run_tasks), a record that is finished, or will be retried,
        shows that the handler is not stuck: see :meth:`report_progress`.
        """
        if self._busy or self._resting or self._assigned.paused or not self._attended:
            return None
        if not self._assigned.in_hand and not self._core.buffer.has(self._assigned):
            return None
        return self._last_seen

    @property
    def _longest(self) -> HandledRecord | None:
        """The record of :meth:`handling_beside` that has been in hand for the longest time."""
        return None if self._assigned.paused else next(iter(self._handlers), None)

    @property
    def _unfinished(self) -> int | None:
        """The first offset that is not done, as far as it is known."""
        worker = None if self._processed_by is None else self._processed_by()
        return self._assigned.processed if worker is None else worker

    def _held_for(self, now: float, limit: float) -> str | None:
        """Return a sentence about a record that is in hand for too long; ``None`` if none is."""
        if (longest := self._longest) is not None:
            since = longest.since
            what = f"its handler has held the record at offset {longest.offset}"
        elif (held_since := self._held_since) is not None:
            since = held_since
            what = f"its handler has held the records from offset {self._unfinished}"
        else:
            return None
        return f"{what} for {now - since:.0f} s" if now - since >= limit else None

    @property
    def _stuck_since(self) -> float | None:
        """The time of ``_held_since``, as a vote on whether the member is stuck.

        Infinity where this stream shows that the member is not stuck. ``None`` where the stream
        shows neither: no task reads it, it has no records, or it is paused and holds none.
        """
        if self._assigned.paused and not self._assigned.in_hand:
            return None
        if self._busy or self._resting or (self._attended and self._assigned.paused):
            return math.inf
        return self._held_since

    @property
    def _holds(self) -> str | None:
        """A sentence about the records in the handler's hand; ``None`` if it holds none."""
        if not self._attended or not self._assigned.in_hand:
            return None
        if self._resting:
            return (
                f"an attempt at the record at offset {self._unfinished} failed, and the "
                "next one follows later"
            )
        return f"its handler holds the records from offset {self._unfinished}"

    def _resumed(self) -> None:
        """Restart the handler's time: a pause does not count."""
        self._last_seen = trio.current_time()
        self._warned.forget()
        for handled in self._handlers:
            handled.restart(self._last_seen)

    def _due_for_warning(self, limit: float) -> float | None:
        """Return when to warn about the handler; ``None`` while it is not stuck."""
        if (longest := self._longest) is not None:
            since: float | None = longest.since
            warned_at = longest.warned_at
        else:
            since = self._held_since
            warned_at = self._warned.logged_at
        if since is None:
            return None
        return since + limit if warned_at is None else warned_at + REMINDER

    def _warn(self, now: float, limit: float) -> None:
        """Log that the handler is stuck."""
        if (longest := self._longest) is not None:
            longest.warned(now)
            _log.warning(
                "the handler of %s has not returned for max_poll_interval_ms (%g ms): it has held "
                "the record at offset %s for %.0f s; no later offset can be committed",
                self.partition,
                limit * 1000,
                longest.offset,
                now - longest.since,
            )
            return
        self._warned.logged(now)
        _log.warning(
            "the handler of %s has not returned for max_poll_interval_ms (%g ms): it has held the "
            "records from offset %s for %.0f s; the partition's next records wait for it",
            self.partition,
            limit * 1000,
            self._unfinished,
            now - self._last_seen,
        )

    def _end_for_other_reader(self) -> None:
        """End the stream: the partition is read in another way from now on.

        If this task was the stream's handler, its records count as processed.
        """
        if self._task is acting_task():
            self._came_back()
        self._end()

    def _end(self) -> None:
        """Deliver nothing more; the next reader receives what was not processed."""
        if not self._left:
            self._left = True
            self._entered = False
            self._release()
            if self._assigned.owned:
                # Another task may wait for what is being decoded; no reader would get that.
                if self._busy and self.position is not None:
                    self._assigned.refetch(self.position)
                self._assigned.redeliver()

    # --- inside ---

    def _leave(self) -> None:
        self._entered = False
        self._streams.handler_returned(self)
        if not self._left:
            self._end()
            self._streams.left(self)

    def _claim(self) -> None:
        if self._busy:
            raise trio.BusyResourceError(
                f"another task is receiving from the stream of {self.partition} already"
            )

    def _release(self) -> None:
        if self._cursor is not None:
            self._cursor = None
            self._records.follow(None)
            self._reader.release()

    def _came_back(self) -> None:
        """Mark the records delivered before as processed: the handler asks for more."""
        self._streams.check_run()
        self._streams.handler_returned(self)
        if self._left:
            return
        self._claim()
        self._last_seen = trio.current_time()
        self._warned.forget()
        self._core.poll_timer.check_session(self._last_seen)
        self._release()
        self._assigned.mark_all_processed()

    async def _next(self, *, raw: bool = False) -> RecordBatch | None:
        """Return the next batch that holds a record; ``None`` when the stream has ended.

        The caller delivers it in the same step.
        """
        self._came_back()
        self._task = acting_task()
        streams = self._streams
        core = self._core
        assigned = self._assigned
        if core.buffer.has(assigned) or self.ended:
            await trio.lowlevel.checkpoint()
        else:  # a wait lets other tasks run
            await trio.lowlevel.checkpoint_if_cancelled()
        self._records.turn_begun()
        if self.ended:
            streams.check()
            return None
        self._claim()
        self._busy = True
        core.assignment.receive_begun()
        signal = core.stream_signal(assigned)
        try:
            while True:
                streams.check()
                if self.ended:
                    return None
                if (error := assigned.pop_error()) is not None:
                    await trio.lowlevel.cancel_shielded_checkpoint()
                    raise error
                if not core.buffer.has(assigned):
                    core.buffer.ask(assigned, waits=True)
                    await signal.wait()
                    self._records.turn_begun()
                elif (batch := await self._reader.next_batch(raw=raw)) is not None:
                    return batch
                # Fetches may hold much without a record.
                elif trio.current_time() - self._last_seen >= TURN:
                    self._last_seen = trio.current_time()
                    await trio.lowlevel.checkpoint()
        finally:
            self._busy = False
            self._last_seen = trio.current_time()
            core.buffer.stop_waiting(assigned)
            core.assignment.receive_ended()


class StreamBatches(Generic[Key, Value]):
    """An async iterator of the :class:`RecordBatch` es of one stream.

    A loop may leave it at any time; no record is lost.
    """

    def __init__(self, stream: PartitionStream[Key, Value]) -> None:
        self._stream = stream

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordBatch[Key, Value]:
        """Return the next batch; end with the stream."""
        return await self._stream._batch()

    async def gather(self, max_rows: int, max_bytes: int) -> list[RecordBatch[Any, Any]]:
        """Return the next batch and what else is buffered, up to the given size."""
        batches = await self._stream._gather(max_rows, max_bytes)
        if not batches:
            raise StopAsyncIteration
        return batches

    def gather_nowait(self, max_rows: int, max_bytes: int) -> list[RecordBatch[Any, Any]]:
        """Return what is buffered, up to the given size.

        Raises as :meth:`PartitionStream.receive_nowait`.
        """
        return self._stream._gather_nowait(max_rows, max_bytes)
