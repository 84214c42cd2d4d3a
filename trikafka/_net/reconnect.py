"""When a broker may be dialled again: one for all connections to it, so that they do not knock in turn (KIP-144, KIP-580)."""

from __future__ import annotations

import math

import trio

from ..config import ClientConfig
from .retry import Retry, backoff


class Reconnect:
    """The waits between the dials of one broker. Written by its slots, which tell how a dial has ended."""

    __slots__ = ("_failed_at", "_first_ms", "_most_ms", "_not_before", "_retry", "_too_slow", "error")

    def __init__(self, config: ClientConfig) -> None:
        self.error: Exception | None = None  # of dialling, until it succeeds
        self._retry = Retry.to_reconnect(config)
        self._not_before = 0.0
        self._failed_at = -math.inf
        self._too_slow = 0  # dials in a row that ran out of time
        self._first_ms = config.socket_connection_setup_timeout_ms
        self._most_ms = config.socket_connection_setup_timeout_max_ms

    async def wait(self) -> float:
        """Wait until it may be dialled; return when that is, which the dial's end is told with."""
        await trio.sleep_until(self._not_before)
        return trio.current_time()

    def setup_limit(self) -> float:
        """Seconds that dialling and negotiating may take: longer after each time that was not enough (KIP-601)."""
        if not self._too_slow:
            return self._first_ms / 1000
        return backoff(self._too_slow + 1, self._first_ms, max(self._first_ms, self._most_ms))

    def took_too_long(self, began: float) -> None:
        """The limit was not enough for a dial that began then. Told before :meth:`failed` is."""
        if began > self._failed_at:
            self._too_slow += 1

    def failed(self, began: float, error: Exception | None) -> None:
        """A dial that began then has failed. Of several at the same time one counts: the wait after it is not over."""
        self.error = error
        if began > self._failed_at or self._not_before <= trio.current_time():
            self._put_off()

    def succeeded(self) -> None:
        """A dial succeeded: whether the connection is of any use will be seen."""
        self.error, self._too_slow = None, 0

    def useless(self, made_at: float) -> None:
        """A connection made then has broken before it was of use: as bad as a dial that failed."""
        if made_at > self._failed_at:
            self._put_off(since=made_at)

    def served(self) -> None:
        """A connection was of use."""
        self._retry.reset()
        self._not_before = 0.0

    def _put_off(self, since: float | None = None) -> None:
        self._failed_at = trio.current_time()
        self._not_before = (self._failed_at if since is None else since) + self._retry.delay()
