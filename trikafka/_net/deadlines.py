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
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from ..config import ClientConfig
from ..errors import KafkaTimeoutError, RequestTimedOutError, TrikafkaError

T = TypeVar("T")

#: The least time (seconds) that a step gets, whatever is left of its call: ``timeout=0`` allows one round trip.
GRACE = 0.025

_random = random.Random()


def backoff(failures: int, first_ms: float, most_ms: float) -> float:
    """The wait (seconds) after ``failures`` failures (1, 2 ...): exponential, with a jitter of 20 %, never over ``most_ms``."""
    delay = min(most_ms, first_ms * 2.0 ** min(failures - 1, 30))
    return min(most_ms, delay * _random.uniform(0.8, 1.2)) / 1000


def check_timeout(timeout: float | None, default: float) -> float:
    """Return the limit of a call in seconds. Raises :exc:`ValueError` for a negative one, before any I/O."""
    if timeout is None:
        return default
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or math.isnan(timeout) or timeout < 0:
        raise ValueError(f"timeout must be a number of seconds, at least 0, not {timeout!r}")
    return float(timeout)


class Call:
    """One API call under way: its name, limit, attempts and last error. Made by :func:`run_call` alone."""

    __slots__ = ("_deadline", "_request_timeout", "_same_since", "attempts", "last_error", "limit", "name")

    def __init__(self, name: str, limit: float, request_timeout: float) -> None:
        self.name, self.limit = name, limit
        self.attempts = 0
        self.last_error: TrikafkaError | None = None
        self._request_timeout = request_timeout
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
        with trio.move_on_after(limit):
            return await work()
        raise RequestTimedOutError(f"{what}: no answer within {limit:.3g} s")

    def out_of_patience(self, error: TrikafkaError) -> bool:
        """Whether errors of this kind have come, one after the other, for as long as their ``patience`` lasts."""
        if type(error) is not type(self.last_error):
            self._same_since = trio.current_time()
        return trio.current_time() - self._same_since >= error.patience

    def expired(self) -> KafkaTimeoutError:
        """The error that says that the limit has passed, with the last error as its cause."""
        error = KafkaTimeoutError(self.name, self.limit, self.attempts, self.last_error)
        error.__cause__ = self.last_error
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
    stale what has to be looked up anew. Raises :exc:`KafkaTimeoutError` past the limit, :exc:`ValueError` for a negative
    ``timeout``, and whatever ``attempt`` raises that is not retriable. Cancellation: at once, nothing left behind.
    """
    call = Call(name, check_timeout(timeout, config.default_api_timeout), config.request_timeout)
    await trio.lowlevel.checkpoint()  # also where the answer is known already
    while True:
        call.attempts += 1
        try:
            return await attempt(call)
        except TrikafkaError as error:
            if not error.retriable or call.out_of_patience(error):
                raise
            call.last_error = error
        if recover is not None:
            recover(call.last_error)
        if call.left <= 0:
            raise call.expired()
        delay, left = backoff(call.attempts, config.retry_backoff_ms, config.retry_backoff_max_ms), call.left
        await trio.sleep(min(delay, left))
        if delay >= left:
            raise call.expired()
