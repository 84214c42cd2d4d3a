"""A stream a partition: each is used by a task of the user's own. Owned by the consumer; handed out by ``Consumer.partitions``.

The task that iterates over ``partitions()`` serves the rebalances, as a receive does otherwise; its waiting is the user's presence
(``max_poll_interval_ms``). A handler that is stuck in one record does not put the member out of its group, where the other streams
do well: it is warned about instead.

When a partition is revoked its stream ends; what its handler still holds is waited for, for a part of the time that a rebalance may
take, so that it can be committed; then the listeners run, and the partition is given up. On a loss nothing is waited for.

What a stream's handler holds is processed once its task comes back for more, whether it gets some or is cancelled then. A task that
went away without coming back (it was cancelled, or raised) has not processed it: whoever reads the partition next gets it again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol, Self

import trio

from .._managers.listener_invoker import RebalanceListenerInvoker
from .._net.signal import Signal
from .._net.singleflight import again
from .._state.assignment import AssignedPartition
from .._state.progress import Cursor
from .._wire.columns import RecordBatch
from ..config import ConsumerConfig
from ..errors import PartitionNotOwnedError, TrikafkaError
from ..types import OffsetAndMetadata, Record, TopicPartition
from .batches import ArrowBatches
from .consumer_core import ConsumerCore
from .reader import PartitionReader
from .receiving import Readers

_log = logging.getLogger("trikafka.streams")
#: A stream with buffered records lets other tasks run at least this often (seconds).
_FAIRNESS = 0.001


class PartitionStream:
    """The records of one assigned partition, in order. Made by ``Consumer.partitions``; one task at a time receives from it.

    Iterate over it for records. It ends (the iteration, or :exc:`trio.EndOfChannel` from :meth:`receive`) when the partition is
    revoked or lost, and when the consumer unsubscribes or closes. A partition that comes back has a new stream.

    Coming back for more says that what was handed out before is processed, of this partition alone. ``async with stream:`` is not
    needed, but says when its handler is done with it: on a revocation, that is waited for, and leaving the block without an
    exception means that all is processed.
    """

    __slots__ = ("_assigned", "_busy", "_cursor", "_entered", "_last_seen", "_left", "_reader", "_streams", "_task", "_warned")

    def __init__(self, streams: Streams, assigned: AssignedPartition, reader: PartitionReader) -> None:
        self._streams, self._assigned, self._reader = streams, assigned, reader
        self._cursor: Cursor | None = None
        self._last_seen = trio.current_time()  # when somebody asked for more, and others had their turn
        self._task: trio.lowlevel.Task | None = None  # that received last
        self._busy = self._entered = self._left = self._warned = False

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

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        cursor = self._cursor
        if cursor is not None and cursor.live:
            now = trio.current_time()
            try:
                if now - self._last_seen >= _FAIRNESS:
                    self._last_seen, self._warned = now, False
                    self._streams.check_session(now)
                    await trio.lowlevel.checkpoint()
                else:
                    await trio.lowlevel.checkpoint_if_cancelled()
            except trio.Cancelled:
                self._came_back()
                raise
            if cursor.live:
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
            return await self.__anext__()
        except StopAsyncIteration:
            raise trio.EndOfChannel from None

    def receive_nowait(self) -> Record:
        """The next record if it is buffered. Raises :exc:`trio.WouldBlock` otherwise, :exc:`trio.EndOfChannel` at the end."""
        cursor = self._cursor
        if cursor is not None and cursor.live:
            self._last_seen = trio.current_time()
            self._streams.check_session(self._last_seen)
            if cursor.live:
                return cursor.take()
        self._came_back()
        if self.ended:
            raise trio.EndOfChannel
        self._claim()
        while self._streams.has_records(self._assigned):
            if (batch := self._reader.next_batch_nowait()) is not None:
                return self._begin_records(batch)
        raise trio.WouldBlock

    def _begin_records(self, batch: RecordBatch) -> Record:
        self._cursor = cursor = self._reader.begin_records(batch)
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
                    if (further := await self._reader.further_batch()) is not None:
                        batches.append(self._reader.deliver(further, self._streams.max_poll_records))
                        rows, size = rows + len(batches[-1]), size + batches[-1].nbytes
                    if trio.current_time() - last_yield >= _FAIRNESS:
                        await trio.lowlevel.checkpoint()
                        last_yield = trio.current_time()
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

    # For Streams.

    @property
    def attended(self) -> bool:
        """Whether a task that received from it still lives."""
        if self._task is None:
            return False
        nursery = self._task.parent_nursery
        return nursery is None or self._task in nursery.child_tasks

    @property
    def attended_elsewhere(self) -> bool:
        """Whether a task other than this one has it in use."""
        return self.attended and self._task is not trio.lowlevel.current_task()

    @property
    def in_use(self) -> bool:
        """Whether its handler, in another task, still holds records or has said that it is not done."""
        return self.attended_elsewhere and not self._left and (self._entered or self._assigned.progress.in_hand)

    def overdue_at(self, limit: float) -> float | None:
        """When its handler will have held what it has for ``limit`` seconds; ``None``: it holds nothing, or was warned about."""
        if self._warned or self._busy or not self._assigned.progress.in_hand or not self.attended:
            return None
        return self._last_seen + limit

    def warn(self, limit: float) -> None:
        """Say that the handler is stuck, once."""
        self._warned = True
        _log.warning(
            "the handler of %s has not come back for max_poll_interval_ms (%g ms) from what begins at offset %s; the member stays"
            " in its group, but nothing more of this partition is processed until it does",
            self.partition,
            limit * 1000,
            self._assigned.processed,
        )

    def taken_over(self) -> None:
        """The partition is read otherwise from now on. The task that says so comes back, if it was this stream's handler."""
        if self._task is trio.lowlevel.current_task():
            self._came_back()
        self.end()

    def end(self) -> None:
        """Let it hand out nothing more. What was not processed is for whoever reads the partition next."""
        if not self._left:
            self._left, self._entered = True, False
            self._release()
            if self._assigned.owned:
                self._assigned.hand_out_again()

    # Inside.

    def _leave(self) -> None:
        self._entered = False
        if not self._left:
            self.end()
            self._streams.left(self)

    def _claim(self) -> None:
        if self._busy:
            raise trio.BusyResourceError(f"another task is receiving from the stream of {self.partition} already")

    def _release(self) -> None:
        if self._cursor is not None:
            self._cursor = None
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
                elif (batch := await self._reader.next_batch()) is not None:
                    return batch
                elif trio.current_time() - self._last_seen >= _FAIRNESS:  # there may be much that holds no record
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


class PartitionStreams:
    """An async iterator of :class:`PartitionStream` s, one an assigned partition; made by ``Consumer.partitions``."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._begun = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PartitionStream:
        """The stream of the next partition; waits for one to be assigned, and serves the rebalances meanwhile.

        Ends when the consumer unsubscribes or closes, or when another iteration over ``partitions()`` takes its place. Raises as
        ``Consumer.receive``, but what stops one partition is raised by its stream.
        """
        await trio.lowlevel.checkpoint()
        if not self._begun:
            self._streams.begin(self)
            self._begun = True
        stream = await self._streams.next_of(self)
        if stream is None:
            raise StopAsyncIteration
        return stream


class StreamedConsumer(Protocol):
    """What the streams ask of their consumer."""

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], *, timeout: float | None = None) -> None:
        """Commit."""

    def _give_up_receives(self) -> None:
        """Raise what forbids to receive now; put back what a receive has under way."""

    def _fatal(self) -> TrikafkaError | None:
        """Why nothing can be received any more of any partition."""


class Streams:
    """All streams of one consumer, and the task that iterates over ``partitions()``."""

    def __init__(self, config: ConsumerConfig, core: ConsumerCore, readers: Readers, invoker: RebalanceListenerInvoker) -> None:
        self.max_poll_records = config.max_poll_records
        self._core, self._readers, self._invoker = core, readers, invoker
        self._open: dict[AssignedPartition, PartitionStream] = {}
        self._new: deque[PartitionStream] = deque()  # to be handed out
        self._iteration: PartitionStreams | None = None
        self._iterating = False  # some task waits in partitions()
        self._consumer: StreamedConsumer | None = None
        self.check_session = core.poll_timer.check_session
        core.on_assigned(lambda assignment: self._keep(set(assignment)))

    def serve(self, consumer: StreamedConsumer) -> None:
        """Take the consumer whose streams these are."""
        self._consumer = consumer

    # For receives and leaving.

    @property
    def partitions(self) -> Collection[AssignedPartition]:
        """What is read as streams."""
        return self._open.keys()

    def give_way(self) -> None:
        """A receive, or a new iteration, begins. Raises :exc:`trio.BusyResourceError` while streams are in use in other tasks."""
        if self._iterating:
            raise trio.BusyResourceError("another task is in partitions() of this consumer already")
        for stream in self._open.values():
            if stream.attended_elsewhere:
                raise trio.BusyResourceError(f"another task reads {stream.partition} as a stream: receive from that")
        self.end_iteration()
        for stream in list(self._open.values()):
            stream.taken_over()
            self.left(stream)
        self._core.buffer.read_by_stream(False)

    def end_iteration(self) -> None:
        """The consumer leaves: no stream is handed out any more."""
        self._iteration = None
        self._new.clear()
        if self._iterating:
            self._core.news()

    async def drained(self, partitions: Iterable[TopicPartition], until: float) -> None:
        """Return when the handlers of these partitions have come back from what they hold, or at ``until``."""
        going = set(partitions)
        chosen = [stream for stream in self._open.values() if stream.partition in going]
        if not any(stream.in_use for stream in chosen):
            return
        exits = _TaskExits(self._core.wake.commit)
        trio.lowlevel.add_instrument(exits)
        try:
            with trio.move_on_at(until):
                while any(stream.in_use for stream in chosen):
                    await self._core.signals.commit.wait()
        finally:
            trio.lowlevel.remove_instrument(exits)
        if late := [str(stream.partition) for stream in chosen if stream.in_use]:
            _log.warning("the handlers of %s did not come back in time: what they hold will be seen again", ", ".join(late))

    # For the iteration.

    def begin(self, iteration: PartitionStreams) -> None:
        """A new iteration: streams that are in use in other tasks stay; of the other partitions it hands out new ones."""
        assert self._consumer is not None
        if self._iterating:
            raise trio.BusyResourceError("another task is in partitions() of this consumer already")
        self._consumer._give_up_receives()
        for stream in [stream for stream in self._open.values() if not stream.attended_elsewhere]:
            stream.taken_over()
            self.left(stream)
        self._new.clear()
        self._iteration = iteration
        self._core.assignment.limit(None)
        self._core.buffer.read_by_stream(True)

    async def next_of(self, iteration: PartitionStreams) -> PartitionStream | None:
        """The next stream to hand out; ``None`` when the iteration is over."""
        if self._iterating:
            raise trio.BusyResourceError("another task is in partitions() of this consumer already")
        self._iterating = True
        self._core.poll_timer.polled(trio.current_time())
        self._core.assignment.receive_begun()
        try:
            while self._iteration is iteration:
                await self._invoker.invoke(float("inf"))
                if self._iteration is not iteration:
                    break
                self.check()
                if (stream := self._next_new()) is not None:
                    return stream
                with self._core.poll_timer.waiting(), trio.move_on_at(self._warn_overdue()):
                    await self._core.signals.deliver.wait()
            return None
        finally:
            self._iterating = False
            self._core.assignment.receive_ended()
            self._core.poll_timer.polled(trio.current_time())

    def _next_new(self) -> PartitionStream | None:
        if not self._new:
            for assigned in self._core.assignment:
                if assigned not in self._open and assigned.owned and not assigned.awaits_callback:
                    self._core.stream_signal(assigned)
                    stream = self._open[assigned] = PartitionStream(self, assigned, self._readers.of(assigned))
                    self._new.append(stream)
        while self._new:
            stream = self._new.popleft()
            if not stream.ended:
                return stream
        return None

    def _warn_overdue(self) -> float:
        """Warn about handlers that hold a record for too long; returns when to look again."""
        now, limit = trio.current_time(), self._core.poll_timer.limit
        again_at = now + limit
        for stream in self._open.values():
            if (overdue_at := stream.overdue_at(limit)) is not None:
                if overdue_at <= now:
                    stream.warn(limit)
                else:
                    again_at = min(again_at, overdue_at)
        return again_at

    # For the streams.

    def check(self) -> None:
        """Raise what concerns the whole consumer. Each task gets an error of its own."""
        assert self._consumer is not None
        if (fatal := self._consumer._fatal()) is not None:
            raise again(fatal)

    def has_records(self, assigned: AssignedPartition) -> bool:
        """Whether something of a partition may be handed out now."""
        return self._core.buffer.has(assigned)

    def signal(self, assigned: AssignedPartition) -> Signal:
        """What wakes the stream of a partition."""
        return self._core.stream_signal(assigned)

    def receive_begun(self) -> None:
        """Somebody waits for records."""
        self._core.assignment.receive_begun()

    def receive_ended(self) -> None:
        """He does not any more."""
        self._core.assignment.receive_ended()

    def left(self, stream: PartitionStream) -> None:
        """A stream was left: its partition may be read otherwise."""
        if self._open.get(stream._assigned) is stream:
            del self._open[stream._assigned]
            self._core.end_stream(stream._assigned)

    async def commit(self, assigned: AssignedPartition, offset: int | OffsetAndMetadata | None, timeout: float | None) -> None:
        """Commit for one stream."""
        assert self._consumer is not None
        if self._core.assignment.partitions.get(assigned.tp) is not assigned:
            raise PartitionNotOwnedError([assigned.tp])
        position = assigned.to_commit() if offset is None else offset
        await self._consumer.commit({} if position is None else {assigned.tp: position}, timeout=timeout)

    def _keep(self, mine: set[AssignedPartition]) -> None:
        """Partitions came or went."""
        for assigned in [assigned for assigned in self._open if assigned not in mine]:
            del self._open[assigned]
            self._core.end_stream(assigned)


class _TaskExits(trio.abc.Instrument):
    """Tells of every task that ends: a handler may go away without coming back."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        self._tell()
