"""The plan of a run, and how timeouts are retried for ``task_timeout_ms`` (KIP-572)."""

from __future__ import annotations

import logging
import signal
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from .. import Consumer, NewTopic
from ..config.whole import is_number
from ..errors import ConfigurationError
from ..errors.cut_off import await_user_call
from ..errors.groups import outlined
from ..toolkit import Retry
from ..types import TopicPartition
from .callbacks import called
from .handling import Handling, RecordAttempt
from .key_order import KeyOrder
from .timer import TaskTimer, timeout_in

_log = logging.getLogger("trikafka.tasks")
Prepare = Callable[[TopicPartition], Awaitable[object]]
Warn = Callable[[str, float, Exception], object]


@dataclass(frozen=True)
class TaskPlan:
    """The settings that all kinds of runs share: how a run begins and ends."""

    task_timeout_ms: float
    topics: Mapping[str, NewTopic]
    stop_on: Collection[signal.Signals]

    def timer(self) -> TaskTimer:
        """Return a new timer for one task."""
        return TaskTimer(self.task_timeout_ms)


@dataclass(frozen=True)
class HandlingPlan(TaskPlan):
    """The plan of a run that calls a handler; see :func:`trikafka.run_tasks`."""

    handling: Handling
    concurrency: int
    prepare: Prepare | None
    #: The records in hand of each partition that the run works on.
    orders: set[KeyOrder[RecordAttempt]] = field(default_factory=set)

    async def prepared(self, tp: TopicPartition) -> None:
        """Call the user's ``prepare`` for a partition."""
        assert self.prepare is not None
        await await_user_call(f"prepare of {tp}", partial(self._prepare, tp), _log)

    async def _prepare(self, tp: TopicPartition) -> None:
        assert self.prepare is not None
        await called("prepare", self.prepare, tp)


def most_beside_buffer(consumer: Consumer[Any, Any]) -> int:
    """Return how many bytes of records a run may keep: a quarter of the consumer's bound."""
    config = consumer.config
    bound = config.fetch_buffer_bytes
    if config.memory_budget is not None:
        bound = min(bound, config.memory_budget.share)
    return max(1, bound // 4)


def check_task_timeout(task_timeout_ms: object) -> None:
    """Raise :exc:`ConfigurationError` unless the value is a number of milliseconds from 0."""
    if not is_number(task_timeout_ms) or not task_timeout_ms >= 0:
        raise ConfigurationError(
            f"task_timeout_ms must be a number of milliseconds, at least 0, not {task_timeout_ms!r}"
        )


class InterruptibleWaits:
    """Waits that can be cut short; after :meth:`end` each ends at once."""

    __slots__ = ("_scopes", "over")

    def __init__(self) -> None:
        self._scopes: set[trio.CancelScope] = set()
        self.over = False

    @contextmanager
    def scope(self) -> Iterator[trio.CancelScope]:
        """Return the scope around one wait."""
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
        """End the waits that are under way."""
        for scope in self._scopes:
            scope.cancel()

    def end(self) -> None:
        """End the waits that are under way, and all later ones."""
        self.over = True
        self.cut()


class RunShutdown:
    """The end of a run and its reason; the first reason counts."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.waits = InterruptibleWaits()  # waits that the end of the run cuts short
        self.stopped = trio.Event()

    @property
    def stopping(self) -> bool:
        """True once the run takes no more records."""
        return self.stopped.is_set()

    def stop(self) -> None:
        """Take no more records."""
        self.stopped.set()
        self.waits.end()

    def fail(self, error: Exception) -> None:
        """End the run with ``error``; the first error counts."""
        if self.error is None:
            self.error = error
        elif outlined(error) != outlined(self.error):
            _log.warning("while the tasks were ending: %r", error)
        self.stop()


def warn_skipped(who: str, delay: float, error: Exception) -> None:
    """Log that a task waits and that another attempt follows."""
    _log.warning("%s is skipped for now and tried again in %.3g s: %s", who, delay, outlined(error))


class TimeoutBudget:
    """The attempts of one task, or of several tasks that share a call.

    Holds their timers and the wait before the next attempt. ``warn(who, delay, error)`` logs that
    another attempt follows.
    """

    __slots__ = ("_retry", "_timers", "_warn", "_who")

    def __init__(
        self, who: str, timers: Iterable[TaskTimer], retry: Retry, warn: Warn = warn_skipped
    ) -> None:
        self._who = who
        self._timers = tuple(timers)
        self._retry = retry
        self._warn = warn

    def failed(self, error: Exception) -> float:
        """Return the seconds to wait after a failed attempt.

        Raises ``error`` if it is not a timeout, or if it was the last attempt of a task.
        """
        timed_out = timeout_in(error)
        if timed_out is None:
            raise error
        now = trio.current_time()
        if over := [timer for timer in self._timers if timer.timed_out(timed_out, now)]:
            last = over[0].final_error(timed_out)
            if isinstance(error, BaseExceptionGroup):
                last.add_note(f"raised by a nursery, in a group of {outlined(error)}")
            raise last
        delay = self.next_delay()
        self._warn(self._who, delay, error)
        return delay

    def next_delay(self) -> float:
        """Return the seconds until the next attempt; they grow with each failure in a row."""
        return self._retry.delay()

    def succeeded(self) -> None:
        """Reset the wait and the timers: the tasks have made progress."""
        self._retry.reset()
        for timer in self._timers:
            timer.progressed()

    async def until_done(self, work: Callable[[], Awaitable[object]]) -> None:
        """Repeat ``work`` after each timeout until it succeeds.

        Raises the last timeout once the time of a task is up.
        """
        while True:
            try:
                await work()
            except Exception as error:
                delay = self.failed(error)
            else:
                self.succeeded()
                return
            await trio.sleep(delay)
