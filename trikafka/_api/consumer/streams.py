"""Streams, one for each partition, each used by a task of the user's.

Owned by the consumer; ``Consumer.partitions`` yields the streams.

The task that iterates over ``partitions()`` serves the rebalances, as a receive does otherwise. Its
waiting counts as polling (``max_poll_interval_ms``). A handler that is stuck in one record does not
remove the member from its group while other streams make progress: the log warns about it. When all
handlers are stuck, the member leaves: see :meth:`Streams.stuck_at`.

A revocation ends the partition's stream. The consumer waits for the records that the handler holds,
for a part of the rebalance's time, so that they can be committed. Then the listeners run and the
partition is released. After a loss nothing is waited for.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Generic, Protocol, Self

import trio

from ..._managers.group.listener_invoker import RebalanceListenerInvoker
from ..._state.consumer.assignment import AssignedPartition
from ...config import ConsumerConfig
from ...errors import PartitionNotOwnedError, TrikafkaError
from ...errors.copies import again
from ...types import Key, OffsetAndMetadata, TopicPartition, Value
from .core import ConsumerCore
from .partition_stream import PartitionStream
from .reader import Readers

_log = logging.getLogger("trikafka.streams")
_FIRST_LOOK, _LAST_LOOK = 0.001, 0.05  # seconds


class PartitionStreams(Generic[Key, Value]):
    """An async iterator of :class:`PartitionStream` s; made by ``Consumer.partitions``.

    One stream for each assigned partition.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._begun = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PartitionStream[Key, Value]:
        """Return the next stream; wait until a partition is assigned, and serve rebalances.

        Ends when the consumer unsubscribes or closes, or when another iteration over
        ``partitions()`` replaces this one. Raises as ``Consumer.receive``; the error of a single
        partition is raised by its stream.
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
    """The consumer, as far as its streams need it."""

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        timeout: float | None = None,
    ) -> None:
        """Commit these offsets."""

    def _give_up_receives(self) -> None:
        """Raise what forbids a receive now; return what a receive has under way to the buffer."""

    def _fatal(self) -> TrikafkaError | None:
        """Return the error that stopped the whole group's work, if there is one."""


class Streams:
    """All streams of one consumer, and the task that iterates over ``partitions()``."""

    def __init__(
        self,
        config: ConsumerConfig,
        core: ConsumerCore,
        readers: Readers,
        invoker: RebalanceListenerInvoker,
    ) -> None:
        self.max_poll_records = config.max_poll_records
        self._core = core
        self._readers = readers
        self._invoker = invoker
        self._open: dict[AssignedPartition, PartitionStream[Any, Any]] = {}
        #: The partitions that are read as streams: a view.
        self.partitions: Collection[AssignedPartition] = self._open.keys()
        self._new: deque[PartitionStream[Any, Any]] = deque()  # not yet yielded
        self._iteration: PartitionStreams[Any, Any] | None = None
        self._iterating = False  # a task waits in partitions()
        self._consumer: StreamedConsumer | None = None
        # The streams that made the member leave, and whose handlers have not asked for more since.
        self._stuck: set[PartitionStream[Any, Any]] = set()
        self._back = trio.Event()
        if config.leave_when_stuck:
            core.poll_timer.watch_streams(self)
        core.on_assigned(lambda assignment: self._forget_others(set(assignment)))

    def serve(self, consumer: StreamedConsumer) -> None:
        """Set the consumer of these streams."""
        self._consumer = consumer

    # --- for receives and for leaving ---

    def give_way(self) -> None:
        """End all streams for a receive or a new iteration.

        Raises :exc:`trio.BusyResourceError` while other tasks use streams.
        """
        if self._iterating:
            raise trio.BusyResourceError("another task is in partitions() of this consumer already")
        for stream in self._open.values():
            if stream._attended_elsewhere:
                raise trio.BusyResourceError(
                    f"another task reads {stream.partition} as a stream: receive from that"
                )
        self.end_iteration()
        self._user_is_back()
        for stream in list(self._open.values()):
            stream._end_for_other_reader()
            self.left(stream)
        self._core.buffer.read_by_stream(False)

    def end_iteration(self) -> None:
        """Yield no further stream: the consumer leaves."""
        self._iteration = None
        self._new.clear()
        if self._iterating:
            self._core.news()

    def do_not_await_me(self) -> None:
        """Exclude this task's stream from the wait for handlers.

        The task itself waits until the consumer has left, so the leave must not wait for the task.
        """
        for stream in self._open.values():
            stream._do_not_await_me()
        self._core.wake.commit()

    async def drained(self, partitions: Iterable[TopicPartition], until: float) -> None:
        """Wait until the handlers of these partitions hold no record, at most until ``until``."""
        going = set(partitions)
        chosen = [stream for stream in self._open.values() if stream.partition in going]
        if not any(stream._in_use for stream in chosen):
            return
        with trio.move_on_at(until):
            await _once(
                lambda: not any(stream._in_use for stream in chosen),
                self._core.signals.commit.wait,
            )
        if late := [str(stream.partition) for stream in chosen if stream._in_use]:
            _log.warning(
                "the handlers of %s did not return in time: what they hold will be seen again",
                ", ".join(late),
            )

    # --- for the iteration ---

    def begin(self, iteration: PartitionStreams[Any, Any]) -> None:
        """Begin an iteration over ``partitions()``.

        Streams that other tasks use remain; all other partitions get new ones.
        """
        assert self._consumer is not None
        if self._iterating:
            raise trio.BusyResourceError("another task is in partitions() of this consumer already")
        self._consumer._give_up_receives()
        self._user_is_back()
        for stream in [stream for stream in self._open.values() if not stream._attended_elsewhere]:
            stream._end_for_other_reader()
            self.left(stream)
        self._new.clear()
        self._iteration = iteration
        self._core.assignment.limit(None)
        self._core.buffer.read_by_stream(True)

    async def next_of(
        self, iteration: PartitionStreams[Any, Any]
    ) -> PartitionStream[Any, Any] | None:
        """Return the next stream to yield; ``None`` when the iteration is over."""
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
                self._check_refusal()
                if (stream := self._next_new()) is not None:
                    return stream
                with self._core.poll_timer.waiting(), trio.move_on_at(self._warn_overdue()):
                    await self._core.signals.deliver.wait()
            return None
        finally:
            self._iterating = False
            self._core.assignment.receive_ended()
            self._core.poll_timer.polled(trio.current_time())

    def _next_new(self) -> PartitionStream[Any, Any] | None:
        if not self._new:
            for assigned in self._core.assignment:
                if assigned not in self._open and assigned.owned and not assigned.awaits_callback:
                    self._core.stream_signal(assigned)
                    stream = self._open[assigned] = PartitionStream(
                        self, self._core, assigned, self._readers.of(assigned)
                    )
                    self._new.append(stream)
        while self._new:
            stream = self._new.popleft()
            if not stream.ended:
                return stream
        return None

    def _warn_overdue(self) -> float:
        """Log the handlers that hold a record for too long; return when to look again."""
        now, limit = trio.current_time(), self._core.poll_timer.limit
        again_at = now + limit
        for stream in self._open.values():
            if (due := stream._due_for_warning(limit)) is not None and due <= now:
                stream._warn(now, limit)
                due = stream._due_for_warning(limit)
            if due is not None:
                again_at = min(again_at, due)
        return again_at

    # --- handlers that are stuck ---
    #
    # KIP-62 makes a member leave that does not poll for max_poll_interval_ms: its heartbeats would
    # keep the partitions from members that work. Here the task in partitions() always waits, so the
    # handlers must poll instead. The member leaves when every stream has held its records for that
    # long.
    #
    # One stream that waits for records is enough to stay, even if it has been idle for hours: it
    # would handle the next record at once, as a consumer inside poll() would for KIP-62. If it did
    # not count, one bad record would make the whole member of a quiet topic leave, once in each
    # interval, on one member after the other. Such a partition is named by the log and by health()
    # instead.
    #
    # Streams that no task reads count neither way, nor do those that are paused and hold nothing. A
    # partition that is paused while its record is in hand says that the handler is meant to take
    # long, so the member stays. After the pause the handler has the whole interval again. Otherwise
    # a member that looked in that moment would leave, and meet the same record once more.

    def stuck_at(self, now: float) -> float:
        """Return when every stream will have held a record for the limit.

        Infinity while one of them is not stuck.
        """
        since = [
            each for stream in self._open.values() if (each := stream._stuck_since) is not None
        ]
        return max(since, default=math.inf) + self._core.poll_timer.limit

    def left_behind(self) -> str:
        """Note that the member leaves because of stuck streams; return their partitions."""
        stuck = [stream for stream in self._open.values() if stream._stuck_since is not None]
        # A task of run_tasks that waits for its predecessor ends with its stream, while the handler
        # of the predecessor is still stuck.
        self._stuck.update(stream for stream in stuck if not stream._behind)
        self._back = trio.Event()
        return ", ".join(str(stream.partition) for stream in stuck)

    def came_back(self, stream: PartitionStream[Any, Any]) -> None:
        """Note that a stream's handler asks for more, has finished a record, or leaves."""
        if stream in self._stuck:
            self._stuck.discard(stream)
            self._back.set()

    def _user_is_back(self) -> None:
        """Forget the stuck handlers: the program reads on by a receive or a new iteration."""
        self._stuck.clear()
        self._back.set()

    async def returned(self) -> None:
        """Wait until one of the stuck handlers asks for more, or until its task ends."""

        def is_back() -> bool:
            for stream in [stream for stream in self._stuck if not stream._attended]:
                self.came_back(stream)
            return not self._stuck or self._back.is_set()

        await _once(is_back, lambda: self._back.wait())  # the event of this moment

    def held(self, now: float) -> dict[TopicPartition, str]:
        """Return the partitions whose handlers hold a record for too long, with a sentence each."""
        limit = self._core.poll_timer.limit
        return {
            stream.partition: (
                f"its handler has held the records from offset {stream._assigned.processed} for "
                f"{now - since:.0f} s"
            )
            for stream in self._open.values()
            if (since := stream._held_since) is not None and now - since >= limit
        }

    def resumed(self, assigned: AssignedPartition) -> None:
        """Note that a partition's pause ends."""
        if (stream := self._open.get(assigned)) is not None:
            stream._resumed()

    def holds(self, assigned: AssignedPartition) -> str | None:
        """Return a sentence about the records in a handler's hand; ``None`` if it holds none."""
        stream = self._open.get(assigned)
        return None if stream is None else stream._holds

    # --- for the streams ---

    def check(self) -> None:
        """Raise the error that concerns the whole consumer: a copy for each task."""
        assert self._consumer is not None
        if (fatal := self._consumer._fatal()) is not None:
            raise again(fatal)

    def _check_refusal(self) -> None:
        """Raise a refusal of the group in the task that waits for partitions.

        The streams end without it: their partitions are lost.
        """
        if (refusal := self._core.member.pop_refusal()) is not None:
            raise refusal

    def left(self, stream: PartitionStream[Any, Any]) -> None:
        """Forget a stream: its partition may be read in another way."""
        if self._open.get(stream._assigned) is stream:
            del self._open[stream._assigned]
            self._core.end_stream(stream._assigned)

    async def commit(
        self,
        assigned: AssignedPartition,
        offset: int | OffsetAndMetadata | None,
        timeout: float | None,
    ) -> None:
        """Commit for one stream."""
        assert self._consumer is not None
        if self._core.assignment.partitions.get(assigned.tp) is not assigned:
            raise PartitionNotOwnedError([assigned.tp])
        position = assigned.to_commit() if offset is None else offset
        await self._consumer.commit(
            {} if position is None else {assigned.tp: position}, timeout=timeout
        )

    def _forget_others(self, mine: set[AssignedPartition]) -> None:
        """Drop the streams of partitions that are no longer assigned."""
        for assigned in [assigned for assigned in self._open if assigned not in mine]:
            del self._open[assigned]
            self._core.end_stream(assigned)


async def _once(is_so: Callable[[], bool], changed: Callable[[], Awaitable[object]]) -> None:
    """Wait until ``is_so()`` is true; check it after each ``changed()``, and from time to time.

    A handler may end without asking for more: it is cancelled, or raises. Trio has no event for the
    end of a task that other code started, and an instrument would be called for every task of the
    whole run. So the check is repeated after 1 ms, and then after twice as long each time, up to
    50 ms.
    """
    pause = _FIRST_LOOK
    while not is_so():
        with trio.move_on_after(pause):
            await changed()
        pause = min(2 * pause, _LAST_LOOK)
