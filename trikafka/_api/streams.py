"""A stream a partition: each is used by a task of the user's own. Owned by the consumer; handed out by ``Consumer.partitions``.

The task that iterates over ``partitions()`` serves the rebalances, as a receive does otherwise; its waiting is the user's presence
(``max_poll_interval_ms``). A handler that is stuck in one record does not put the member out of its group, where the other streams
do well: it is warned about instead.

When a partition is revoked its stream ends; what its handler still holds is waited for, for a part of the time that a rebalance may
take, so that it can be committed; then the listeners run, and the partition is given up. On a loss nothing is waited for.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol, Self

import trio

from .._managers.listener_invoker import RebalanceListenerInvoker
from .._net.signal import Signal
from .._state.assignment import AssignedPartition
from ..config import ConsumerConfig
from ..errors import PartitionNotOwnedError, TrikafkaError
from ..errors.copies import again
from ..types import OffsetAndMetadata, TopicPartition
from .consumer_core import ConsumerCore
from .partition_stream import PartitionStream
from .receiving import Readers

_log = logging.getLogger("trikafka.streams")


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
            if stream._attended_elsewhere:
                raise trio.BusyResourceError(f"another task reads {stream.partition} as a stream: receive from that")
        self.end_iteration()
        for stream in list(self._open.values()):
            stream._taken_over()
            self.left(stream)
        self._core.buffer.read_by_stream(False)

    def end_iteration(self) -> None:
        """The consumer leaves: no stream is handed out any more."""
        self._iteration = None
        self._new.clear()
        if self._iterating:
            self._core.news()

    def do_not_await_me(self) -> None:
        """This task waits until the consumer has left: leaving must not wait for it, if it handles a stream."""
        for stream in self._open.values():
            stream._do_not_await_me()
        self._core.wake.commit()

    async def drained(self, partitions: Iterable[TopicPartition], until: float) -> None:
        """Return when the handlers of these partitions have come back from what they hold, or at ``until``."""
        going = set(partitions)
        chosen = [stream for stream in self._open.values() if stream.partition in going]
        if not any(stream._in_use for stream in chosen):
            return
        exits = _TaskExits(self._core.wake.commit)
        trio.lowlevel.add_instrument(exits)
        try:
            with trio.move_on_at(until):
                while any(stream._in_use for stream in chosen):
                    await self._core.signals.commit.wait()
        finally:
            trio.lowlevel.remove_instrument(exits)
        if late := [str(stream.partition) for stream in chosen if stream._in_use]:
            _log.warning("the handlers of %s did not come back in time: what they hold will be seen again", ", ".join(late))

    # For the iteration.

    def begin(self, iteration: PartitionStreams) -> None:
        """A new iteration: streams that are in use in other tasks stay; of the other partitions it hands out new ones."""
        assert self._consumer is not None
        if self._iterating:
            raise trio.BusyResourceError("another task is in partitions() of this consumer already")
        self._consumer._give_up_receives()
        for stream in [stream for stream in self._open.values() if not stream._attended_elsewhere]:
            stream._taken_over()
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
            if (overdue_at := stream._overdue_at(limit)) is not None:
                if overdue_at <= now:
                    stream._warn(limit)
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
