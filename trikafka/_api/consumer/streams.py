"""The streams of a consumer: one for each partition, each used by a task of the user's.

``Consumer.partitions`` yields the streams. The task that iterates over ``partitions()`` serves the
rebalances, as a receive does otherwise. While it waits, the member counts as polling
(``max_poll_interval_ms``).

A *handler* is the task that reads a stream. If one handler is stuck in a record while others make
progress, the member stays in its group and the log warns. If all handlers are stuck, the member
leaves: see :meth:`Streams.stuck_at`.

A revocation ends the partition's stream. The consumer then waits until the handler has finished the
records that it holds, so that they can be committed; this wait may take a part of the rebalance
timeout. Then the listeners run and the partition is released. After a loss there is no such wait.
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
    """An async iterator that yields one :class:`PartitionStream` for each assigned partition.

    ``Consumer.partitions`` makes it.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._begun = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PartitionStream[Key, Value]:
        """Wait until a partition is assigned, and return its stream; serve rebalances meanwhile.

        The iteration ends when the consumer unsubscribes or closes, or when another iteration over
        ``partitions()`` replaces this one. Cancelling the wait loses no stream.

        Raises:
            trio.BusyResourceError: Another task iterates over ``partitions()``.
            TrikafkaError: As ``Consumer.receive``. The error of a single partition is raised by its
                stream instead.
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

    def _end_receive(self) -> None:
        """End the receive under way, and return its records to the buffer.

        Raises the error of a receive that is not allowed now.
        """

    def _fatal(self) -> TrikafkaError | None:
        """Return the error that ended the work of the whole consumer, if there is one."""


class Streams:
    """All streams of one consumer, and the task that iterates over ``partitions()``."""

    def __init__(
        self,
        config: ConsumerConfig,
        core: ConsumerCore,
        readers: Readers,
        invoker: RebalanceListenerInvoker,
        check_run: Callable[[], None],
    ) -> None:
        #: Raises in another Trio run than the consumer's.
        self.check_run = check_run
        self.max_poll_records = config.max_poll_records
        self._marked = not config.enable_auto_offset_store  # the user marks what is processed
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
        # The streams that made the member leave, and whose handlers have not returned since.
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
        """End the iteration over ``partitions()``, because the consumer leaves its group."""
        self._iteration = None
        self._new.clear()
        if self._iterating:
            self._core.news()

    def do_not_await_me(self) -> None:
        """Exclude this task's stream from the wait for handlers.

        This task waits until the consumer has left its group. So the leave must not wait for it.
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
                lambda: not any(stream._in_use for stream in chosen), self._core.signals.commit.wait
            )
        if late := [str(stream.partition) for stream in chosen if stream._in_use]:
            _log.warning(
                "the handlers of %s did not return in time: the records that they hold will be "
                "delivered again",
                ", ".join(late),
            )

    # --- for the iteration ---

    def begin(self, iteration: PartitionStreams[Any, Any]) -> None:
        """Begin an iteration over ``partitions()``.

        Streams that other tasks use remain; all other partitions get new ones. Raises
        :exc:`trio.BusyResourceError` if another task iterates already.
        """
        assert self._consumer is not None
        if self._iterating:
            raise trio.BusyResourceError("another task is in partitions() of this consumer already")
        self._consumer._end_receive()
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
                # The tasks of the streams do not get the group's refusal: their partitions are lost,
                # so the streams just end.
                if (refusal := self._core.member.pop_refusal()) is not None:
                    raise refusal
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
        now = trio.current_time()
        limit = self._core.poll_timer.limit
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
    # By KIP-62 a member leaves if it does not poll for max_poll_interval_ms. Otherwise its
    # heartbeats would keep the partitions from members that work. Here the task in partitions()
    # waits all the time, so the handlers' requests for records count as polls instead. The member
    # leaves when every handler has held its records for that long.
    #
    # One stream that waits for records is enough to stay, even if it has been idle for hours. Its
    # handler would process the next record at once, like a consumer inside poll(). If such a stream
    # did not count, one bad record in a quiet topic would make its member leave after each
    # interval, and then the next member that gets the partition. The log and health() name the
    # partition of the stuck handler instead.
    #
    # A stream that no task reads does not count, nor does one that is paused and whose handler
    # holds nothing. If a partition is paused while its handler holds a record, the program expects
    # the handler to take long, so the member stays. After the pause the handler has the whole
    # interval again. Otherwise the member could leave as soon as the pause ends, and get the same
    # record again.

    def stuck_at(self, now: float) -> float:
        """Return when every handler will have held its records for ``max_poll_interval_ms``.

        Infinity if no handler holds records, or while one that could work waits for records.
        """
        since = [
            each for stream in self._open.values() if (each := stream._stuck_since) is not None
        ]
        return max(since, default=math.inf) + self._core.poll_timer.limit

    def left_behind(self) -> str:
        """Record that the member leaves because of stuck handlers; return their partitions."""
        stuck = [stream for stream in self._open.values() if stream._stuck_since is not None]
        # A stream that only waits for the same partition's earlier handler is not waited for: its
        # task ends now, while the earlier handler is still stuck.
        self._stuck.update(stream for stream in stuck if not stream._behind)
        self._back = trio.Event()
        return ", ".join(str(stream.partition) for stream in stuck)

    def handler_returned(self, stream: PartitionStream[Any, Any]) -> None:
        """Record that a stream's handler asks for more, has finished a record, or leaves."""
        if stream in self._stuck:
            self._stuck.discard(stream)
            self._back.set()

    def _user_is_back(self) -> None:
        """Forget the stuck handlers, because the program reads in another way now."""
        self._stuck.clear()
        self._back.set()

    async def returned(self) -> None:
        """Wait until one of the stuck handlers asks for more, or until its task ends."""

        def is_back() -> bool:
            for stream in [stream for stream in self._stuck if not stream._attended]:
                self.handler_returned(stream)
            return not self._stuck or self._back.is_set()

        await _once(is_back, lambda: self._back.wait())  # each call waits for the current event

    def held(self, now: float) -> dict[TopicPartition, str]:
        """Return a sentence for each partition whose handler has held a record for too long."""
        limit = self._core.poll_timer.limit
        return {
            stream.partition: held
            for stream in self._open.values()
            if (held := stream._held_for(now, limit)) is not None
        }

    def resumed(self, assigned: AssignedPartition) -> None:
        """Record that a partition's pause has ended."""
        if (stream := self._open.get(assigned)) is not None:
            stream._resumed()

    def holds(self, assigned: AssignedPartition) -> str | None:
        """Return a sentence about the records that a handler holds; ``None`` if it holds none."""
        stream = self._open.get(assigned)
        return None if stream is None else stream._holds

    def to_commit(self, assigned: AssignedPartition) -> OffsetAndMetadata | None:
        """Return what a commit without explicit offsets commits for a partition.

        That is all that was delivered, or of a stream what its handler has finished.
        """
        stream = self._open.get(assigned)
        if stream is None:
            return assigned.to_commit()
        done = assigned.to_commit(done=True)
        if done is None or self._marked or stream._processed_by is None:
            return done
        # A worker handles records beside the iteration, so that asking for more shows nothing. The
        # position is a bound after a seek back.
        offset, position = stream._unfinished, assigned.position
        if offset is None or position is None:
            return done
        return OffsetAndMetadata(min(offset, position), assigned.leader_epoch)

    # --- for the streams ---

    def check(self) -> None:
        """Raise a copy of the error that ended the work of the whole consumer, if there is one."""
        assert self._consumer is not None
        if (fatal := self._consumer._fatal()) is not None:
            raise again(fatal)

    def left(self, stream: PartitionStream[Any, Any]) -> None:
        """Forget a stream, so that its partition can be read in another way."""
        if self._open.get(stream._assigned) is stream:
            del self._open[stream._assigned]
            self._core.end_stream(stream._assigned)

    async def commit(
        self,
        assigned: AssignedPartition,
        offset: int | OffsetAndMetadata | None,
        timeout: float | None,
    ) -> None:
        """Commit ``offset``, or by default the position after all that the stream delivered.

        Raises :exc:`PartitionNotOwnedError` if the partition is not assigned any more, and as
        ``Consumer.commit``.
        """
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
    """Wait until ``is_so()`` is true; check it after each ``changed()``, and from time to time."""
    # A handler may also end without asking for more, because it is cancelled or raises. Trio has no
    # event for the end of a task that other code started, and an instrument would be called for
    # every task of the whole run. So the check is also repeated after 1 ms, and then after twice as
    # long each time, up to 50 ms.

    pause = _FIRST_LOOK
    while not is_so():
        with trio.move_on_after(pause):
            await changed()
        pause = min(2 * pause, _LAST_LOOK)
