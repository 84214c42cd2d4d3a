"""The requests of one connection, from their encoding until their responses have come, or expire.

The connection alone writes here. A request is first queued. Once taken out of the queue, its bytes
are in ``rest`` until the stream has them, and it is in flight, or without a response to come
(``acks=0``). The watch ends a connection whose broker is silent, or that is idle for long. Long
before that end, the silence of a broker is reported, and later that the broker responds again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import trio

from .._wire import messages
from .._wire.messages import EncodedRequest
from ..config import ClientConfig
from ..errors import ProtocolError
from . import bounds
from .transport import Views, without

_WRITE_BYTES = 262_144
#: How long (seconds) a broker may leave a request unanswered, beyond what it was asked to wait,
#: before that is reported.
SILENCE = 5.0
#: After a blocked event loop, the time (seconds) to read first what has arrived meanwhile.
_SECOND_LOOK = 0.25
#: These wait for the other members of a group, or for the operator's receiver of metrics, so their
#: time says nothing of the broker.
_HELD = frozenset(
    {
        "JoinGroupRequest",
        "SyncGroupRequest",
        "GetTelemetrySubscriptionsRequest",
        "PushTelemetryRequest",
    }
)


class InFlightRequest:
    """A request from its encoding until its response has come, or its connection is gone."""

    __slots__ = (
        "abandoned",
        "begins",
        "correlation_id",
        "error",
        "expires",
        "frame",
        "on_end",
        "outgoing",
        "overdue",
        "unsent",
        "waited_for",
    )

    outgoing: EncodedRequest

    def __init__(self, on_end: Callable[[InFlightRequest], object], *, waited_for: bool) -> None:
        self.waited_for = waited_for  # by a task that has waited for room
        self.correlation_id = 0
        # When it may be written, when its silence is reported, and when it expires (Trio's clock).
        self.begins = 0.0
        self.overdue = 0.0
        self.expires = 0.0
        self.on_end = on_end
        self.frame: memoryview | None = None
        self.error: Exception | None = None
        self.abandoned = False
        self.unsent = True  # True while the stream has had no byte of it

    @property
    def size(self) -> int:
        """The bytes of the response; 0 if there is none."""
        return 0 if self.frame is None else len(self.frame)

    def body(self) -> tuple[memoryview, int]:
        """Return the response's undecoded body and version. Raises as ``Connection.request``."""
        if self.error is not None:
            raise self.error
        assert self.frame is not None
        return messages.response_body(self.outgoing, self.frame), self.outgoing.version

    def response(self) -> Any:
        """Return the response; ``None`` where none is sent. Raises as ``Connection.request``."""
        if self.error is not None:
            raise self.error
        return None if self.frame is None else messages.decode_response(self.outgoing, self.frame)

    def encoded(self, outgoing: EncodedRequest, correlation_id: int) -> None:
        """Record the encoded request, which is ready to be written."""
        self.outgoing = outgoing
        self.correlation_id = correlation_id

    def abandon(self) -> None:
        """Record that its caller does not wait any more."""
        self.abandoned = True

    def answered(self, frame: memoryview) -> None:
        """Record the response; drop it if the request was abandoned."""
        if not self.abandoned:
            self.frame = frame

    def lost(self, error: Exception) -> None:
        """Record that no response will come."""
        self.error = error

    def throttle(self, frame: memoryview) -> float:
        """Return the throttle time (seconds) that the undecoded response begins with, or 0."""
        try:
            return messages.read_throttle(self.outgoing, frame)
        except ProtocolError:  # the reader of the response raises it
            return 0.0

    def late_throttle(self, response: Any) -> float:
        """Return the throttle time (seconds) that only the decoded response shows, or 0."""
        return messages.late_throttle(self.outgoing, response)


class RequestQueue:
    """The requests that wait to be written, and those that wait for responses."""

    __slots__ = ("_held", "_unanswered", "in_flight", "queued", "rest", "served")

    def __init__(self) -> None:
        # Encoded and not written. The connection bounds its length.
        self.queued: deque[InFlightRequest] = deque()
        # While the connection authenticates again: all other requests.
        self._held: deque[InFlightRequest] | None = None
        # Given to the stream, in the order of writing, until the response comes.
        self.in_flight: dict[int, InFlightRequest] = {}
        # Being given to the stream, and without a response to come.
        self._unanswered: list[InFlightRequest] = []
        self.rest: Views = ()  # of what was taken out of the queue
        self.served = False  # a response has come beyond the negotiation

    def __len__(self) -> int:
        return len(self.in_flight) + len(self.queued) + len(self._held or ())

    def enqueue(self, request: InFlightRequest, *, first: bool = False) -> None:
        """Queue a request; with ``first`` also while others are held."""
        (self.queued if self._held is None or first else self._held).append(request)

    def hold(self) -> None:
        """Hold back the requests that are not written yet, and new ones."""
        self._held = self.queued
        self.queued = deque()

    def release(self) -> None:
        """Queue the requests that were held."""
        held = self._held or deque()
        self._held = None
        self.queued.extend(held)

    def pop_frames(self) -> Views:
        """Take as many requests out of the queue as are written at a time; return their bytes."""
        frames: list[memoryview] = []
        size = 0
        while self.queued and (not frames or size < _WRITE_BYTES):
            request = self.queued.popleft()
            request.unsent = False
            frames += map(memoryview, request.outgoing.pieces)
            size += sum(map(len, request.outgoing.pieces))
            if request.outgoing.expects_response:
                self.in_flight[request.correlation_id] = request
            else:
                self._unanswered.append(request)
        return frames

    def gave(self, views: Views, count: int) -> Sequence[InFlightRequest]:
        """Record that the stream took ``count`` bytes of ``views``; the rest is left over.

        Returns the requests that end with being written, once nothing is left over.
        """
        self.rest = without(views, count)
        if not self._unanswered or self.rest:
            return ()
        sent = self._unanswered
        self._unanswered = []
        return sent

    def excess(self, size: int) -> str | None:
        """Return what is wrong with a response of ``size`` bytes now; ``None``: nothing.

        The response belongs to the oldest request in flight.
        """
        oldest = next(iter(self.in_flight.values()), None)
        return (
            f"sent {size:,} bytes and was not asked for anything"
            if oldest is None
            else bounds.excess(oldest.outgoing, size)
        )

    def responded(self, correlation_id: int) -> InFlightRequest | None:
        """Take out the request whose response has come.

        ``None`` if it was not made, or is not the oldest one in flight. Brokers respond in order. A
        response that overtakes another means that the other one is lost. Behind a producer's batch
        whose response is lost nothing may be acknowledged, because the broker remembers only five
        batches.
        """
        if next(iter(self.in_flight), None) != correlation_id:
            return None
        request = self.in_flight.pop(correlation_id)
        if not self.served:
            self.served = request.outgoing.api != "ApiVersionsRequest"
        return request

    def remove_queued(self, request: InFlightRequest) -> bool:
        """Take back a request that is not being written yet; return whether that was possible."""
        for waiting in (self.queued, self._held or ()):
            if request in waiting:
                waiting.remove(request)  # type: ignore[union-attr]  # the empty tuple has none
                return True
        return False

    def waiting(self) -> list[InFlightRequest]:
        """Return all requests that have not ended."""
        return [*self.in_flight.values(), *self._unanswered, *self.queued, *(self._held or ())]

    def clear(self) -> list[InFlightRequest]:
        """Forget all requests; return them."""
        waiting = self.waiting()
        self.in_flight.clear()
        self._unanswered.clear()
        self.queued.clear()
        self._held = None
        return waiting


class RequestMeter(Protocol):
    """The metrics of a client, as far as its connections report to them."""

    @property
    def recording(self) -> bool:
        """True while responses are measured."""

    def connected(self) -> None:
        """Record that a connection was made."""

    def responded(self, node_id: int, api: str, seconds: float) -> None:
        """Record the response of a broker to a request made ``seconds`` ago."""

    def throttled(self, api: str, seconds: float) -> None:
        """Record the delay that a response demands."""


class _NoMeter:
    """The meter of connections without metrics."""

    recording = False

    def connected(self) -> None: ...

    def responded(self, node_id: int, api: str, seconds: float) -> None: ...

    def throttled(self, api: str, seconds: float) -> None: ...


NO_METER = _NoMeter()


@dataclass(frozen=True, slots=True)
class ConnectionListener:
    """The functions that are called when the broker of a connection is silent, and responds again.

    ``silent`` gets the request and its start. It returns when to look again, if the broker has
    responded on another connection, or ``None`` if the silence is known now. ``throttled`` gets the
    API whose response throttles the client, and the seconds. ``ended`` is called when the
    connection has ended. ``meter`` measures the responses.
    """

    silent: Callable[[str, float], float | None]
    heard: Callable[[], object]
    throttled: Callable[[str, float], object] = lambda api, seconds: None
    ended: Callable[[], object] = lambda: None
    meter: RequestMeter = NO_METER


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
        request.begins = begins
        request.expires = begins + timeout
        request.overdue = (
            math.inf if request.outgoing.api in _HELD else begins + min(timeout, asked + SILENCE)
        )
        first = min(request.overdue, request.expires)
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
