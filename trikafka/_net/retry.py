"""The waits between attempts, for the calls and for every manager."""

from __future__ import annotations

import random
import sys

import trio

from ..config import ClientConfig

#: The shortest wait (ms) before a broker is dialled again, whatever the settings say. A refused
#: dial ends at once, so with a wait of 0 the program would do nothing else.
_LEAST_RECONNECT_MS = 10.0
_random = random.Random()


def backoff(failures: int, first_ms: float, most_ms: float) -> float:
    """Return the seconds to wait after a number of failures in a row (KIP-580).

    The wait doubles with each failure and has a jitter of 20 %.

    Args:
        failures: The number of failures, from 1.
        first_ms: The wait after the first failure, in milliseconds.
        most_ms: The longest wait, in milliseconds.
    """
    # An integer may be larger than any float.
    first = min(first_ms, sys.float_info.max)
    most = min(most_ms, sys.float_info.max)
    delay = min(most, first * 2.0 ** min(failures - 1, 30))
    return min(most, delay * _random.uniform(0.8, 1.2)) / 1000


class Retry:
    """A count of failures in a row, with a longer wait after each.

    The waits grow from ``retry_backoff_ms`` to ``retry_backoff_max_ms`` (KIP-580).
    """

    __slots__ = ("_first_ms", "_most_ms", "failures")

    def __init__(self, config: ClientConfig) -> None:
        """Start with no failure.

        Args:
            config: The settings of a client, such as ``consumer.config``.
        """
        self.failures = 0  # since the last success
        self._first_ms = config.retry_backoff_ms
        self._most_ms = config.retry_backoff_max_ms

    @classmethod
    def to_reconnect(cls, config: ClientConfig) -> Retry:
        """Return a count for dialling: ``reconnect_backoff_ms`` to ``reconnect_backoff_max_ms``.

        The waits have a lower bound, some 10 ms.
        """
        retry = cls(config)
        retry._first_ms = max(_LEAST_RECONNECT_MS, config.reconnect_backoff_ms)
        retry._most_ms = max(_LEAST_RECONNECT_MS, config.reconnect_backoff_max_ms)
        return retry

    def reset(self) -> None:
        """Record a success: the next failure is the first again."""
        self.failures = 0

    def delay(self) -> float:
        """Count one more failure; return the seconds to wait after it."""
        self.failures += 1
        return backoff(self.failures, self._first_ms, self._most_ms)

    async def wait(self) -> None:
        """Count one more failure and wait. The failure counts even if the wait is cancelled."""
        await trio.sleep(self.delay())
