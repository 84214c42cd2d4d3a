"""The end of a connection whose broker is silent, or that is idle for long.

Long before that end, the silence of a broker is reported, and later that the broker responds again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import trio

from ..config import ClientConfig
from .in_flight import InFlightRequest

#: How long (seconds) a broker may leave a request unanswered, beyond what it was asked to wait,
#: before that is reported.
SILENCE = 5.0
#: After a blocked event loop, the time (seconds) to read first what has arrived meanwhile.
_SECOND_LOOK = 0.25
#: These wait for the other members of a group, so their time says nothing of the broker.
_HELD = frozenset({"JoinGroupRequest", "SyncGroupRequest"})


@dataclass(frozen=True, slots=True)
class ConnectionListener:
    """The functions that are called when the broker of a connection is silent, and responds again.

    ``silent`` gets the request and its start. It returns when to look again, if the broker has
    responded on another connection, or ``None`` if the silence is known now. ``throttled`` gets the
    API whose response throttles the client, and the seconds. ``ended`` is called when the
    connection has ended.
    """

    silent: Callable[[str, float], float | None]
    heard: Callable[[], object]
    throttled: Callable[[str, float], object] = lambda api, seconds: None
    ended: Callable[[], object] = lambda: None


NO_LISTENER = ConnectionListener(lambda api, since: None, lambda: None)


class ExpiryWatch:
    """The watch that cancels :attr:`patience`, the scope of the connection's reader.

    It does so when a request has waited too long. The watch sleeps until the first moment that
    matters, and only then looks whether that request still waits. So a request whose response comes
    in time changes no deadline.
    """

    def __init__(self, config: ClientConfig, listener: ConnectionListener | None = None) -> None:
        self.patience = trio.CancelScope()
        self.heard_at = -math.inf  # when the last response came
        self._idle_since = trio.current_time()
        self._idle_limit = config.connections_max_idle_ms / 1000
        self._request_timeout = config.request_timeout
        self._listener = listener or NO_LISTENER
        self._silent = False  # the silence was reported
        self._look_at = -math.inf  # when to look next for silence
        # Its deadline is never after the first moment that matters.
        self._sleep = trio.CancelScope()

    def expect(self, request: InFlightRequest, begins: float, timeout: float | None) -> None:
        """Watch a request that will be written at ``begins``.

        It has to be answered within ``timeout`` seconds (default: ``request_timeout_ms``).
        """
        if timeout is None:
            timeout = self._request_timeout
        # The part of the time that the request may wait inside the broker.
        asked = timeout - self._request_timeout if timeout > self._request_timeout else 0.0
        overdue = (
            math.inf if request.outgoing.api in _HELD else begins + min(timeout, asked + SILENCE)
        )
        request.timed(begins, overdue, begins + timeout)
        first = min(overdue, request.expires)
        if first < self._sleep.deadline:
            self._sleep.deadline = first

    def used(self) -> None:
        """Record that a request ended."""
        self._idle_since = max(self._idle_since, trio.current_time())

    def paused(self, until: float) -> None:
        """Record that nothing is written before ``until``.

        Closed as idle, the connection would end its throttle.
        """
        self._idle_since = max(self._idle_since, until)

    def heard(self) -> None:
        """Record a response."""
        self.heard_at = trio.current_time()
        if self._silent:
            self._silent = False
            self._listener.heard()

    async def wait_until_expired(self, waiting: Callable[[], list[InFlightRequest]]) -> None:
        """Return once the patience is over.

        ``waiting`` returns the requests that have not ended.
        """
        while True:
            now, requests = trio.current_time(), waiting()
            deadline = min(
                (request.expires for request in requests),
                default=self._idle_since + self._idle_limit,
            )
            if deadline <= now:
                break
            overdue = min(requests, key=lambda request: request.overdue, default=None)
            if overdue is not None and not self._silent:
                # Two looks before a silence is reported. After a blocked event loop, a task whose
                # deadline has passed may run before the reader has read what arrived meanwhile.
                # Without the second look, each pause of the program longer than five seconds could
                # report all brokers as silent. So the watch sleeps a quarter of a second, in which
                # the reader takes the responses in, and reports only a request that is still
                # waiting.
                look_at = max(overdue.overdue, self._look_at)
                if look_at <= now:
                    await trio.sleep_until(min(now + _SECOND_LOOK, deadline))
                    self._report_silence(overdue, waiting)
                    continue
                deadline = min(deadline, look_at)
            with trio.CancelScope(deadline=deadline) as self._sleep:
                await trio.sleep_forever()
        self.patience.cancel()

    def _report_silence(
        self, request: InFlightRequest, waiting: Callable[[], list[InFlightRequest]]
    ) -> None:
        if request in waiting():
            again = self._listener.silent(
                request.outgoing.api.removesuffix("Request"), request.begins
            )
            if again is None:
                self._silent = True
            else:
                self._look_at = again
