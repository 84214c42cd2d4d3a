"""When a connection is given up because its broker says nothing, or because nobody has used it for long.

Long before it is given up, a broker that says nothing is told of: once, and once more when it goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import trio

from ..config import ClientConfig
from .in_flight import InFlightRequest

#: So long (seconds) a broker may leave a request without a response, beyond what it was asked to wait, until that is told.
SILENCE = 5.0
#: A loop that was blocked reads first what has come meanwhile: so long (seconds) it is given for that.
_SECOND_LOOK = 0.25
#: These wait for the other members of a group: how long that takes tells nothing of the broker.
_HELD = frozenset({"JoinGroupRequest", "SyncGroupRequest"})


@dataclass(frozen=True, slots=True)
class Voice:
    """Who is told that the broker of a connection says nothing (of which request, since when), and that it goes on.

    And that it throttles the client: in its response to which API, for how many seconds.
    """

    silent: Callable[[str, float], object]
    heard: Callable[[], object]
    throttled: Callable[[str, float], object] = lambda api, seconds: None


NOBODY = Voice(lambda api, since: None, lambda: None)


class ExpiryWatch:
    """Cancels :attr:`patience`, the scope of the connection's reader, when a request has waited too long.

    It sleeps until the first moment that it has to look at, and only then looks whether that request still waits: so a request
    whose response comes in time costs no change of a deadline.
    """

    def __init__(self, config: ClientConfig, voice: Voice | None = None) -> None:
        self.patience = trio.CancelScope()
        self.heard_at = -math.inf  # when the last response came
        self._idle_since = trio.current_time()
        self._idle_limit, self._request_timeout = config.connections_max_idle_ms / 1000, config.request_timeout
        self._voice = voice or NOBODY
        self._silent = False  # and that was told
        self._sleep = trio.CancelScope()  # its deadline is never after the first moment to look

    def expect(self, request: InFlightRequest, begins: float, timeout: float | None) -> None:
        """A request was made, to be written at ``begins`` and answered within ``timeout`` seconds (``request_timeout_ms``)."""
        if timeout is None:
            timeout = self._request_timeout
        asked = timeout - self._request_timeout if timeout > self._request_timeout else 0.0  # to wait within the broker
        overdue = math.inf if request.outgoing.api in _HELD else begins + min(timeout, asked + SILENCE)
        request.timed(begins, overdue, begins + timeout)
        first = min(overdue, request.expires)
        if first < self._sleep.deadline:
            self._sleep.deadline = first

    def used(self) -> None:
        """A request ended."""
        self._idle_since = trio.current_time()

    def heard(self) -> None:
        """A response came."""
        self.heard_at = trio.current_time()
        if self._silent:
            self._silent = False
            self._voice.heard()

    async def run(self, waiting: Callable[[], list[InFlightRequest]]) -> None:
        """Return once the patience is over. ``waiting`` are the requests that have not ended."""
        while True:
            now, requests = trio.current_time(), waiting()
            deadline = min((request.expires for request in requests), default=self._idle_since + self._idle_limit)
            if deadline <= now:
                break
            overdue = min(requests, key=lambda request: request.overdue, default=None)
            if overdue is not None and not self._silent:
                if overdue.overdue <= now:
                    await trio.sleep_until(min(now + _SECOND_LOOK, deadline))
                    self._tell_silence(overdue, waiting)
                    continue
                deadline = min(deadline, overdue.overdue)
            with trio.CancelScope(deadline=deadline) as self._sleep:
                await trio.sleep_forever()
        self.patience.cancel()

    def _tell_silence(self, request: InFlightRequest, waiting: Callable[[], list[InFlightRequest]]) -> None:
        if request in waiting():
            self._silent = True
            self._voice.silent(request.outgoing.api.removesuffix("Request"), request.begins)
