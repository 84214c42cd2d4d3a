"""The deadlines of API calls: the only module that retries a call and counts its time.

In the Java client a reaper walks a list of futures and expires those whose time is up. Here a call
is a task, its limit is a cancel scope around each step, and there is nothing to reap. The rules
are those of Kafka's wiki page "Java client Consumer Timeouts":

* *Attempt, then check.* The limit is checked only after an attempt has failed, so every call is
  attempted at least once.
* A step (find the coordinator, then commit) may take ``max(GRACE, min(what is left,
  request_timeout_ms))``.
* A series of steps that succeed quickly is never cut in the middle; a step that is stuck overshoots
  by ``GRACE`` at most.
* The caller's own cancel scopes take effect at once and raise only ``Cancelled``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from ..config import ClientConfig
from ..config.whole import whole
from ..errors import ConfigurationError, KafkaTimeoutError, RequestTimedOutError, TrikafkaError
from . import reasons
from .retry import Retry
from .run_local import RunLocal

T = TypeVar("T")

#: The least time (seconds) that a step gets, whatever is left of its call: ``timeout=0`` allows one
#: round trip.
GRACE = 0.025


#: The calls in progress, by the id() of their client's configuration. A call keeps that
#: configuration alive, so no other client's has the same id meanwhile.
_under_way: RunLocal[dict[int, list[RunningCall]]] = RunLocal("trikafka_calls", dict)


async def within(
    what: str, limit: float, work: Callable[[], Awaitable[T]], before: Exception | None = None
) -> T:
    """Run ``work`` for at most ``limit`` seconds.

    Past them this raises :exc:`RequestTimedOutError`. The root cause is chained: the last failure
    of what the work was waiting for, or else the error ``before`` this attempt.
    """
    with reasons.reasoning() as reason, trio.move_on_after(limit):
        return await work()
    waiting_for, error = reason.blame()
    reason.clear()
    if error is None:
        error = before.__cause__ if isinstance(before, RequestTimedOutError) else before  # type: ignore[assignment]
    if waiting_for.startswith(what):  # it says also which broker is silent
        what = waiting_for
    text = f"{what}: no response within {limit:.3g} s"
    if waiting_for and waiting_for not in what:
        text += f" while waiting for {waiting_for}"
    timed_out = RequestTimedOutError(
        text + (f"; before that: {error}" if error is not None else "")
    )
    timed_out.__cause__ = error
    raise timed_out


def check_timeout(timeout: float | None, default: float) -> float:
    """Return the limit of a call in seconds.

    Args:
        timeout: The argument ``timeout=`` of the call; ``None``: not given.
        default: The limit of a call without ``timeout=``.

    Raises:
        ConfigurationError: ``timeout`` is not a number from 0. (It is a ``ValueError``, too.)
    """
    if timeout is None:
        return default
    timeout = whole(timeout)
    # An integer may be larger than any float, and is then compared without a conversion.
    if (
        not isinstance(timeout, int | float)
        or isinstance(timeout, bool)
        or timeout != timeout
        or timeout < 0
    ):
        raise ConfigurationError(
            f"timeout must be a number of seconds, at least 0, not {timeout!r}"
        )
    return math.inf if timeout > sys.float_info.max else float(timeout)


def _says_so(error: Exception | None, waiting_for: str) -> bool:
    """Return whether the error is a timeout that names this wait."""
    return isinstance(error, RequestTimedOutError) and str(error).endswith(
        f" while waiting for {waiting_for}"
    )


class RunningCall:
    """An API call in progress: its name, limit, attempts and last error.

    Made by :func:`run_call` alone.
    """

    __slots__ = (
        "_deadline",
        "_reason",
        "_request_timeout",
        "_same_since",
        "_waiting",
        "attempts",
        "began",
        "last_error",
        "limit",
        "name",
    )

    def __init__(
        self,
        name: str,
        limit: float,
        request_timeout: float,
        reason: reasons.WaitContext | None = None,
    ) -> None:
        self.name = name
        self.limit = limit
        self.attempts = 0
        self.last_error: TrikafkaError | None = None
        self._request_timeout = request_timeout
        self._reason = reason
        self.began = trio.current_time()
        self._deadline = self.began + limit
        self._waiting = 0
        self._same_since = -math.inf

    @property
    def left(self) -> float:
        """The seconds until the limit; 0 past it."""
        return max(0.0, self._deadline - trio.current_time())

    @property
    def waits(self) -> bool:
        """True while the call waits for something with a watch of its own, such as a delivery."""
        return self._waiting > 0

    def obstacle(self) -> str:
        """Return what the call waits for, and how that failed."""
        error = self.last_error or (None if self._reason is None else self._reason.error())
        return "no response yet" if error is None else str(error)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark a wait for something that proceeds without the call and has its own watch."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    @property
    def step_limit(self) -> float:
        """The seconds that the next step may take."""
        return max(GRACE, min(self.left, self._request_timeout))

    async def step(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run one step within its limit.

        Raises :exc:`RequestTimedOutError` past the limit. A cancelled step leaves nothing behind.
        """
        # Why a scope for each step, and not one for the whole call. The call has one deadline,
        # which spans all of its attempts and back-offs, so retries never extend it. But a cancel
        # scope at that deadline would cut a call with `timeout=0` before its first request, and a
        # series of steps that each succeed quickly in its middle. So the deadline bounds the time
        # of the next step, with at least GRACE, and `_run` compares the clock only after an attempt
        # has failed. `request_timeout` bounds a step as well: a silent broker must not use up the
        # whole call when another broker could answer the next attempt.
        limit = self.step_limit
        # A step that had its full time is itself the cause. If the call's limit cut the step short,
        # the attempt before is.
        before = self.last_error if limit < self._request_timeout else None
        return await within(what, limit, work, before)

    async def wait(self, work: Callable[[], Awaitable[T]], least: float = GRACE) -> T:
        """Wait, for all that is left of the call, for work that proceeds without the call.

        Raises :exc:`KafkaTimeoutError` past the limit. ``least``: seconds that the work gets in any
        case.
        """
        with (
            self.waiting(),
            reasons.reasoning() as reason,
            trio.move_on_after(max(least, self.left)),
        ):
            return await work()
        raise self.expired(reason.blame())

    def blame(self, error: TrikafkaError) -> None:
        """Set the cause to report if the call's time is over before the current attempt fails."""
        self.last_error = error

    def out_of_patience(self, error: TrikafkaError) -> bool:
        """Return whether errors of this kind have come in a row for their whole ``patience``."""
        if type(error) is not type(self.last_error):
            self._same_since = trio.current_time()
        return trio.current_time() - self._same_since >= error.patience

    def repeats(self, error: TrikafkaError) -> bool:
        """Record the error of a request, and begin another attempt within this one.

        For work that repeats a request sooner than the usual wait would. Returns whether it may:
        false if errors of this kind have come for their whole ``patience``.
        """
        if self.out_of_patience(error):
            return False
        self.last_error = error
        self.attempts += 1
        return True

    def expired(self, inside: reasons.Blame | None = None) -> KafkaTimeoutError:
        """Return the error for a passed limit, with its cause.

        The cause is the last error, or what the call was waiting for. ``inside`` describes where
        the call was cut off, in spite of its last error.
        """
        last_error: Exception | None = self.last_error
        if inside is not None:
            last_error = inside.error or last_error
            # The failure of shared work may be that of another call which was cut off there, too.
            # It names this wait already. With one more error around it for each of a thousand
            # calls, chain and message would grow without end.
            if inside.waiting_for and not _says_so(last_error, inside.waiting_for):
                before = "no response" if last_error is None else f"{last_error},"
                cut_off = RequestTimedOutError(f"{before} while waiting for {inside.waiting_for}")
                cut_off.__cause__ = last_error
                last_error = cut_off
        if last_error is None and self._reason is not None:
            last_error = self._reason.error()
        error = KafkaTimeoutError(self.name, self.limit, self.attempts, last_error)
        error.__cause__ = last_error
        return error


async def run_call(
    name: str,
    attempt: Callable[[RunningCall], Awaitable[T]],
    *,
    config: ClientConfig,
    timeout: float | None = None,
    recover: Callable[[TrikafkaError], None] | None = None,
) -> T:
    """Run ``attempt`` until it succeeds, fails permanently, or the limit has passed.

    On cancellation the call ends at once and leaves nothing behind.

    Args:
        name: The name of the call, for errors.
        attempt: Makes one attempt.
        config: The client's settings.
        timeout: The limit in seconds; default: ``default_api_timeout_ms``.
        recover: Called with each retriable error, to mark what has to be looked up again.

    Raises:
        KafkaTimeoutError: The limit has passed.
        ConfigurationError: ``timeout`` is wrong.
        TrikafkaError: Any error of ``attempt`` that is not retriable, and a retriable one once
            ``config.call_retries`` are used up.
    """
    limit = check_timeout(timeout, config.default_api_timeout_ms / 1000)
    reason = reasons.WaitContext()
    call = RunningCall(name, limit, config.request_timeout_ms / 1000, reason)
    try:
        with reasons.reasoning(reason):
            all_calls = _under_way.get()
            mine = all_calls.setdefault(id(config), [])
            mine.append(call)
            try:
                return await _run(call, attempt, config, recover)
            finally:
                mine.remove(call)
                if not mine:
                    del all_calls[id(config)]
    finally:
        # An error's traceback has the frames of this call, which hold the call. With the error in
        # the call that is a cycle: a record that could not be sent would wait for the collector.
        call.last_error = None
        reason.clear()


def calls_under_way(config: ClientConfig) -> list[RunningCall]:
    """Return the API calls in progress of the client that has this ``config``."""
    return list(_under_way.get().get(id(config), ()))


async def _run(
    call: RunningCall,
    attempt: Callable[[RunningCall], Awaitable[T]],
    config: ClientConfig,
    recover: Callable[[TrikafkaError], None] | None,
) -> T:
    retry: Retry | None = None
    await trio.lowlevel.checkpoint()  # also where the result is known already
    while True:
        call.attempts += 1
        try:
            return await attempt(call)
        except TrikafkaError as error:
            if not error.retriable or call.out_of_patience(error):
                raise
            call.last_error = error
            reasons.failed(error)  # for a caller that waits for this call
        if recover is not None:
            recover(call.last_error)
        if call.left <= 0:
            raise call.expired()
        if call.attempts > config.call_retries:
            raise call.last_error
        retry = retry or Retry(config)
        delay = retry.delay()
        left = call.left
        await trio.sleep(min(delay, left))
        if delay >= left:
            raise call.expired()
