"""The deadline of an API call: the one place that counts time and tries again (seed 000).

In the Java client a reaper walks a list of futures and expires those whose time is up. Here a call is a task, its limit is
a cancel scope around each step, and there is nothing to reap. The rules, all of seed 000:

* *Attempt, then check.* The limit is looked at only after an attempt has failed, so every call is attempted at least once.
* A step (find the coordinator, then commit) may take ``max(GRACE, min(what is left, request_timeout_ms))``.
* A series of steps that succeed quickly is never cut in the middle; a step that is stuck overshoots by ``GRACE`` at most.
* The caller's own cancel scopes cut in at once and raise only ``Cancelled``.

No other module retries an API call or counts its time.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from ..config import ClientConfig
from ..errors import ConfigurationError, KafkaTimeoutError, RequestTimedOutError, TrikafkaError
from . import reasons
from .retry import Retry

T = TypeVar("T")

#: The least time (seconds) that a step gets, whatever is left of its call: ``timeout=0`` allows one round trip.
GRACE = 0.025


async def within(what: str, limit: float, work: Callable[[], Awaitable[T]], before: Exception | None = None) -> T:
    """Run ``work`` for at most ``limit`` seconds. Past them: :exc:`RequestTimedOutError`, with the root cause chained.

    That is what the work was waiting for failed with last, or else the error that was there ``before``.
    """
    with reasons.reasoning() as reason, trio.move_on_after(limit):
        return await work()
    waiting_for, error = reason.told()
    reason.clear()
    if error is None:
        error = before.__cause__ if isinstance(before, RequestTimedOutError) else before  # type: ignore[assignment]
    text = f"{what}: no response within {limit:.3g} s"
    if waiting_for and waiting_for not in what:
        text += f" while waiting for {waiting_for}"
    timed_out = RequestTimedOutError(text + (f"; before that: {error}" if error is not None else ""))
    timed_out.__cause__ = error
    raise timed_out


def check_timeout(timeout: float | None, default: float) -> float:
    """Return the limit of a call in seconds. Raises :exc:`ConfigurationError` (a ``ValueError``) before any I/O."""
    if timeout is None:
        return default
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or math.isnan(timeout) or timeout < 0:
        raise ConfigurationError(f"timeout must be a number of seconds, at least 0, not {timeout!r}")
    return float(timeout)


class Call:
    """One API call under way: its name, limit, attempts and last error. Made by :func:`run_call` alone."""

    __slots__ = ("_deadline", "_reason", "_request_timeout", "_same_since", "attempts", "last_error", "limit", "name")

    def __init__(self, name: str, limit: float, request_timeout: float, reason: reasons.Reason | None = None) -> None:
        self.name, self.limit = name, limit
        self.attempts = 0
        self.last_error: TrikafkaError | None = None
        self._request_timeout, self._reason = request_timeout, reason
        self._deadline = trio.current_time() + limit
        self._same_since = -math.inf

    @property
    def left(self) -> float:
        """Seconds until the limit; 0 past it."""
        return max(0.0, self._deadline - trio.current_time())

    @property
    def step_limit(self) -> float:
        """What the next step may take, in seconds."""
        return max(GRACE, min(self.left, self._request_timeout))

    async def step(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run one step within its limit. Raises :exc:`RequestTimedOutError` past it; a cancelled step leaves nothing behind."""
        limit = self.step_limit
        # A step that had its full time is itself what is wrong; one that was cut short by the call's limit, the attempt before it.
        before = self.last_error if limit < self._request_timeout else None
        return await within(what, limit, work, before)

    async def wait(self, work: Callable[[], Awaitable[T]]) -> T:
        """Wait for what ends by itself or not at all, for all that is left of the call. Raises :exc:`KafkaTimeoutError` past it."""
        with reasons.reasoning() as reason, trio.move_on_after(max(GRACE, self.left)):
            return await work()
        raise self.expired(reason.told())

    def blame(self, error: TrikafkaError) -> None:
        """What is wrong with the attempt under way: the cause, should its time be up before it has failed."""
        self.last_error = error

    def out_of_patience(self, error: TrikafkaError) -> bool:
        """Whether errors of this kind have come, one after the other, for as long as their ``patience`` lasts."""
        if type(error) is not type(self.last_error):
            self._same_since = trio.current_time()
        return trio.current_time() - self._same_since >= error.patience

    def expired(self, inside: reasons.Told | None = None) -> KafkaTimeoutError:
        """The error that says that the limit has passed, with the last error as its cause, or what the call was waiting for.

        ``inside`` tells where the call was cut off, in spite of what its last error was.
        """
        last_error: Exception | None = self.last_error
        if inside is not None:
            last_error = inside.error or last_error
            if inside.waiting_for:
                before = "no response" if last_error is None else f"{last_error},"
                cut_off = RequestTimedOutError(f"{before} while waiting for {inside.waiting_for}")
                cut_off.__cause__, last_error = last_error, cut_off
        if last_error is None and self._reason is not None:
            last_error = self._reason.error()
        error = KafkaTimeoutError(self.name, self.limit, self.attempts, last_error)
        error.__cause__ = last_error
        return error


async def run_call(
    name: str,
    attempt: Callable[[Call], Awaitable[T]],
    *,
    config: ClientConfig,
    timeout: float | None = None,
    recover: Callable[[TrikafkaError], None] | None = None,
) -> T:
    """Run ``attempt`` until it succeeds, fails for good, or the limit has passed.

    ``timeout`` is in seconds (default: ``default_api_timeout_ms``). ``recover`` is told of each retriable error, to mark as
    stale what has to be looked up anew. Raises :exc:`KafkaTimeoutError` past the limit, :exc:`ConfigurationError` for a wrong
    ``timeout``, whatever ``attempt`` raises that is not retriable, and what is, once ``config.call_retries`` are used up.
    Cancellation: at once, nothing left behind.
    """
    limit = check_timeout(timeout, config.default_api_timeout)
    with reasons.reasoning() as reason:
        return await _run(Call(name, limit, config.request_timeout, reason), attempt, Retry(config), recover, config.call_retries)


async def _run(
    call: Call,
    attempt: Callable[[Call], Awaitable[T]],
    retry: Retry,
    recover: Callable[[TrikafkaError], None] | None,
    retries: float,
) -> T:
    await trio.lowlevel.checkpoint()  # also where the result is known already
    while True:
        call.attempts += 1
        try:
            return await attempt(call)
        except TrikafkaError as error:
            if not error.retriable or call.out_of_patience(error):
                raise
            call.last_error = error
            reasons.failed(error)  # to who waits for this call
        if recover is not None:
            recover(call.last_error)
        if call.left <= 0:
            raise call.expired()
        if call.attempts > retries:
            raise call.last_error
        delay, left = retry.delay(), call.left
        await trio.sleep(min(delay, left))
        if delay >= left:
            raise call.expired()
