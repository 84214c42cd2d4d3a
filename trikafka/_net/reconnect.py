"""The time when a broker may be dialled again (KIP-144, KIP-580).

All connections to a broker share one wait, so that they do not dial in turn.
"""

from __future__ import annotations

import trio

from ..config import ClientConfig
from .retry import Retry, backoff


class Reconnect:
    """The waits between the dials of one broker.

    The broker's connection slots write it, by reporting how each dial ended.
    """

    __slots__ = ("_first_ms", "_most_ms", "_not_before", "_retry", "_too_slow", "error")

    def __init__(self, config: ClientConfig) -> None:
        self.error: Exception | None = None  # the error of the last dial, until one succeeds
        self._retry = Retry.to_reconnect(config)
        self._not_before = 0.0
        self._too_slow = 0  # dials in a row that ran out of time
        self._first_ms = config.socket_connection_setup_timeout_ms
        self._most_ms = config.socket_connection_setup_timeout_max_ms

    async def wait(self) -> None:
        """Wait until the broker may be dialled."""
        await trio.sleep_until(self._not_before)

    def setup_limit(self) -> float:
        """Return the seconds that dialling and negotiating may take.

        The limit grows after each time that was not enough (KIP-601).
        """
        if not self._too_slow:
            return self._first_ms / 1000
        return backoff(self._too_slow + 1, self._first_ms, max(self._first_ms, self._most_ms))

    def took_too_long(self) -> None:
        """Record that the limit was not enough for a dial. Called before :meth:`failed`."""
        if not self._waiting:
            self._too_slow += 1

    def failed(self, error: Exception | None) -> None:
        """Record a failed dial.

        Of several failures at the same time only the first counts: the wait has begun with it.
        """
        self.error = error
        if not self._waiting:
            self._back_off(trio.current_time())

    def succeeded(self) -> None:
        """Record a successful dial. The backoff stays until a request is answered."""
        self.error = None
        self._too_slow = 0

    # The wait counts from the dial and not from the break: a connection that lasted longer than the
    # wait has made up for it. `ConnectionSlot._dial_once` says why a successful dial is not enough.
    def useless(self, made_at: float) -> None:
        """Record that a connection has broken before it answered a request of the client."""
        if not self._waiting:
            self._back_off(made_at)

    def served(self) -> None:
        """Record that a connection has answered a request of the client."""
        self._retry.reset()
        self._not_before = 0.0

    @property
    def _waiting(self) -> bool:
        return self._not_before > trio.current_time()

    def _back_off(self, since: float) -> None:
        self._not_before = since + self._retry.delay()
