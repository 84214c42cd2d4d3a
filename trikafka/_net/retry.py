"""How long to wait before something that failed is tried again: the one place for it, used by the calls and by every manager."""

from __future__ import annotations

import random

import trio

from ..config import ClientConfig

_random = random.Random()


def backoff(failures: int, first_ms: float, most_ms: float) -> float:
    """The wait (seconds) after ``failures`` failures (1, 2 ...): exponential, with a jitter of 20 %, never over ``most_ms``."""
    delay = min(most_ms, first_ms * 2.0 ** min(failures - 1, 30))
    return min(most_ms, delay * _random.uniform(0.8, 1.2)) / 1000


class Retry:
    """Counts failures in a row and waits longer after each: from ``retry_backoff_ms`` to ``retry_backoff_max_ms`` (KIP-580)."""

    __slots__ = ("_first_ms", "_most_ms", "failures")

    def __init__(self, config: ClientConfig) -> None:
        self.failures = 0  # since the last success
        self._first_ms, self._most_ms = config.retry_backoff_ms, config.retry_backoff_max_ms

    @classmethod
    def to_reconnect(cls, config: ClientConfig) -> Retry:
        """One for dialling: from ``reconnect_backoff_ms`` to ``reconnect_backoff_max_ms``."""
        retry = cls(config)
        retry._first_ms, retry._most_ms = config.reconnect_backoff_ms, config.reconnect_backoff_max_ms
        return retry

    def reset(self) -> None:
        """It succeeded: the next failure is the first again."""
        self.failures = 0

    def delay(self) -> float:
        """Count one more failure; return the seconds to wait after it."""
        self.failures += 1
        return backoff(self.failures, self._first_ms, self._most_ms)

    async def wait(self) -> None:
        """Count one more failure and wait. Cancelled: it counts nevertheless."""
        await trio.sleep(self.delay())
