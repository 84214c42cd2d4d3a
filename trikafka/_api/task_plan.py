"""What a run of tasks was asked for, and how what timed out is tried again until ``task_timeout_ms`` has run out (seed 004)."""

from __future__ import annotations

import logging
import signal
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from .._net.retry import Retry
from .._state.task_timer import TaskTimer, timeout_in
from ..errors import ConfigurationError
from ..types import TopicPartition
from .admin_types import NewTopic
from .callbacks import awaitable
from .handling import Handling

_log = logging.getLogger("trikafka.tasks")
Prepare = Callable[[TopicPartition], Awaitable[object]]
Warn = Callable[[str, float, Exception], object]


@dataclass(frozen=True)
class TaskPlan:
    """How a run of tasks begins and ends, whatever its tasks do."""

    task_timeout_ms: float
    topics: Mapping[str, NewTopic]
    stop_on: Collection[signal.Signals]

    def timer(self) -> TaskTimer:
        """The timer of one task."""
        return TaskTimer(self.task_timeout_ms)


@dataclass(frozen=True)
class HandlingPlan(TaskPlan):
    """How tasks work that have records handled. See :func:`trikafka.run_tasks`."""

    handling: Handling
    concurrency: int
    prepare: Prepare | None

    async def prepared(self, tp: TopicPartition) -> None:
        """What precedes the first record of a partition."""
        assert self.prepare is not None
        await awaitable("prepare", self.prepare, self.prepare(tp))


def check_task_timeout(task_timeout_ms: object) -> None:
    """Raise :exc:`ConfigurationError` if that is no limit."""
    if isinstance(task_timeout_ms, bool) or not isinstance(task_timeout_ms, int | float) or not task_timeout_ms >= 0:
        raise ConfigurationError(f"task_timeout_ms must be a number of milliseconds, at least 0, not {task_timeout_ms!r}")


class Waits:
    """Waits that may be cut short, and that are over at once when :meth:`end` was called."""

    __slots__ = ("_scopes", "over")

    def __init__(self) -> None:
        self._scopes: set[trio.CancelScope] = set()
        self.over = False

    @contextmanager
    def scope(self) -> Iterator[trio.CancelScope]:
        """Around one of them."""
        scope = trio.CancelScope()
        if self.over:
            scope.cancel()
        self._scopes.add(scope)
        try:
            with scope:
                yield scope
        finally:
            self._scopes.discard(scope)

    def cut(self) -> None:
        """End those that are under way."""
        for scope in self._scopes:
            scope.cancel()

    def end(self) -> None:
        """End these, and those to come."""
        self.over = True
        self.cut()


class Ending:
    """Why a run ends, told by whoever knows first."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.waits = Waits()  # for what is not needed any more
        self.stopped = trio.Event()

    @property
    def stopping(self) -> bool:
        """Whether nothing more is to be taken."""
        return self.stopped.is_set()

    def stop(self) -> None:
        """Take nothing more."""
        self.stopped.set()
        self.waits.end()

    def fail(self, error: Exception) -> None:
        """The run is to raise ``error``; the first counts."""
        if self.error is None:
            self.error = error
        elif str(error) != str(self.error):
            _log.warning("while the tasks were ending: %r", error)
        self.stop()

    async def on_signals(self, numbers: tuple[signal.Signals, ...]) -> None:
        """Stop in order on one of these. A second one does what it does in this program otherwise."""
        with trio.open_signal_receiver(*numbers) as received:
            async for number in received:
                _log.info("stopping in order on %s", signal.Signals(number).name)
                self.stop()
                return


def _skipped(who: str, delay: float, error: Exception) -> None:
    _log.warning("%s is skipped for now and tried again in %.3g s: %s", who, delay, error)


class Trials:
    """The attempts of one task, or of several tasks by one call: their timers, and how long to wait before the next attempt.

    ``warn(who, delay, error)`` tells the log of one that is to follow.
    """

    __slots__ = ("_retry", "_timers", "_warn", "_who")

    def __init__(self, who: str, timers: Iterable[TaskTimer], retry: Retry, warn: Warn = _skipped) -> None:
        self._who, self._timers, self._retry, self._warn = who, tuple(timers), retry, warn

    def failed(self, error: Exception) -> float:
        """An attempt failed; returns the seconds to wait. Raises ``error`` if it is no time-out, and the last one of a task."""
        timed_out = timeout_in(error)
        if timed_out is None:
            raise error
        now = trio.current_time()
        if over := [timer for timer in self._timers if timer.timed_out(timed_out, now)]:
            raise over[0].last_word(timed_out)
        delay = self.wait()
        self._warn(self._who, delay, timed_out)
        return delay

    def wait(self) -> float:
        """The seconds to wait before the next attempt: longer after each failure in a row."""
        return self._retry.delay()

    def succeeded(self) -> None:
        """That is progress."""
        self._retry.reset()
        for timer in self._timers:
            timer.progressed()

    async def until_done(self, work: Callable[[], Awaitable[object]]) -> None:
        """Try ``work`` again after each time-out of a call in it, until it succeeds or the time is up. Then that comes out."""
        while True:
            try:
                await work()
            except Exception as error:
                delay = self.failed(error)
            else:
                self.succeeded()
                return
            await trio.sleep(delay)
