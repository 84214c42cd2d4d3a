"""The requests of one connection, from their encoding until their responses have come or expired.

Only the connection changes this state. A request is queued first. When it leaves the queue, it is
in flight, unless it has no response (``acks=0``). Its bytes are in ``rest`` until the stream has
accepted them. The watch ends a connection that is idle for long, or whose broker does not respond.
Long before that it reports the broker as silent, and later that the broker responds again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import trio

from .._wire import messages
from .._wire.messages import EncodedRequest
from ..config import ClientConfig
from ..errors import ProtocolError
from ..errors.copies import again
from . import bounds
from .clock import clock_of_run
from .transport import Views, without

_WRITE_BYTES = 262_144
#: Seconds without a response after which a broker is reported as silent. The time for which the
#: request asks the broker to wait comes on top.
SILENCE = 5.0
#: Usual throttles are shorter than this (seconds). During a longer one a producer makes no requests,
#: and those that were made before expire, so that their batches can go elsewhere.
LONG_THROTTLE = 60.0
#: Seconds that the reader gets, before a silence is reported, to read responses that have arrived
#: while the event loop was blocked.
_SECOND_LOOK = 0.25
#: These requests wait for other members of a group, or for the operator's receiver of metrics. So
#: the time that they take does not show whether the broker is silent.
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
        self.waited_for = waited_for  # True if a task waits for it, which has taken a slot
        self.correlation_id = 0
        # When it may be written, when the broker counts as silent, and when the connection counts
        # as dead (Trio's clock).
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
            raise again(self.error)  # with a traceback, this object's error would hold this object
        assert self.frame is not None
        return messages.response_body(self.outgoing, self.frame), self.outgoing.version

    def response(self) -> Any:
        """Return the response; ``None`` where none is sent. Raises as ``Connection.request``."""
        if self.error is not None:
            raise again(self.error)  # with a traceback, this object's error would hold this object
        return None if self.frame is None else messages.decode_response(self.outgoing, self.frame)

    def encoded(self, outgoing: EncodedRequest, correlation_id: int) -> None:
        """Record the encoded request, which is ready to be written."""
        self.outgoing = outgoing
        self.correlation_id = correlation_id

    def abandon(self) -> None:
        """Record that its caller no longer waits for the response."""
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
        # Encoded, and not written yet. The connection bounds the length.
        self.queued: deque[InFlightRequest] = deque()
        # The requests that are held back while the connection authenticates again, or None.
        self._held: deque[InFlightRequest] | None = None
        # Passed to the stream, and without a response yet, in the order of writing.
        self.in_flight: dict[int, InFlightRequest] = {}
        # Being passed to the stream. The broker sends no response to these.
        self._unanswered: list[InFlightRequest] = []
        self.rest: Views = ()  # the bytes that the stream has not accepted yet
        self.served = False  # a response has come beyond the negotiation

    def __len__(self) -> int:
        return len(self.in_flight) + len(self.queued) + len(self._held or ())

    def enqueue(self, request: InFlightRequest, *, first: bool = False) -> None:
        """Queue a request; with ``first``, queue it even while others are held back."""
        (self.queued if self._held is None or first else self._held).append(request)

    def hold(self) -> None:
        """Hold back all requests that are not written yet, and new ones."""
        self._held = self.queued
        self.queued = deque()

    def release(self) -> None:
        """Queue the requests that were held back."""
        held = self._held or deque()
        self._held = None
        self.queued.extend(held)

    def pop_frames(self) -> Views:
        """Take requests out of the queue, up to the size of one write; return their bytes."""
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
        """Record that the stream has accepted ``count`` bytes of ``views``.

        Returns the requests without a response that have been written completely. They end now.
        """
        self.rest = without(views, count)
        if not self._unanswered or self.rest:
            return ()
        sent = self._unanswered
        self._unanswered = []
        return sent

    def excess(self, size: int) -> str | None:
        """Return why the next response cannot have ``size`` bytes; ``None`` if it can.

        It must be the response to the oldest request in flight.
        """
        oldest = next(iter(self.in_flight.values()), None)
        return (
            f"sent {size:,} bytes, although no request was waiting for a response"
            if oldest is None
            else bounds.excess(oldest.outgoing, size)
        )

    def responded(self, correlation_id: int) -> InFlightRequest | None:
        """Remove the request of a response; return ``None`` if it is not the oldest in flight."""
        # Brokers respond in order, so if a response comes too early, an earlier one is lost. The
        # connection must not go on then. A producer relies on it that no batch is acknowledged
        # after one whose response is lost, because brokers remember only the last five batches.

        if next(iter(self.in_flight), None) != correlation_id:
            return None
        request = self.in_flight.pop(correlation_id)
        if not self.served:
            self.served = request.outgoing.api != "ApiVersionsRequest"
        return request

    def remove_queued(self, request: InFlightRequest) -> bool:
        """Remove a request that is not being written yet; return whether that was possible."""
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
    """The functions that a connection calls to report events.

    Attributes:
        silent: The broker does not respond; called with the API and the start of a request. Returns
            ``None`` if the silence has been recorded. If the broker has responded on another
            connection, returns when to check again.
        heard: The broker has responded after a silence.
        throttled: A response throttles the client; called with its API and the seconds.
        ended: The connection has ended.
        meter: The metrics of the responses.
    """

    silent: Callable[[str, float], float | None]
    heard: Callable[[], object]
    throttled: Callable[[str, float], object] = lambda api, seconds: None
    ended: Callable[[], object] = lambda: None
    meter: RequestMeter = NO_METER


NO_LISTENER = ConnectionListener(lambda api, since: None, lambda: None)


class ExpiryWatch:
    """The watch over the time limits of a connection.

    When a request has waited too long, it cancels :attr:`patience`, the scope of the connection's
    reader. The watch sleeps until the first limit of any request, and only then checks whether that
    request still waits. So a response that comes in time changes no deadline.
    """

    def __init__(self, config: ClientConfig, listener: ConnectionListener) -> None:
        self.patience = trio.CancelScope()
        self.heard_at = -math.inf  # when the last response came
        self._now = clock_of_run()
        self._idle_since = self._now()
        self._idle_limit = config.connections_max_idle_ms / 1000
        self._request_timeout = config.request_timeout
        self._listener = listener
        self._silent = False  # True once a silence has been reported
        self._look_at = -math.inf  # when to check for a silence again
        # Its deadline is never after the first limit of any request.
        self._sleep = trio.CancelScope()

    def expect(self, request: InFlightRequest, begins: float, timeout: float | None) -> None:
        """Watch a request that will be written at ``begins``.

        It has to be answered within ``timeout`` seconds (default: ``request_timeout_ms``).
        """
        if timeout is None:
            timeout = self._request_timeout
        # The time for which the request asks the broker to wait.
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
        self._idle_since = max(self._idle_since, self._now())

    # A broker that throttles reads nothing more from the connection. So requests in flight, and
    # those in the queue, wait for as much longer. Without that, a quota looked like a frozen
    # broker, and its requests were made again on another connection, which no throttle slows.
    def paused(self, until: float, longer: float, waiting: Iterable[InFlightRequest]) -> None:
        """Record a throttle: the broker reads nothing before ``until``.

        Args:
            until: When the throttle ends. The time before does not count as idle: if the connection
                was closed as idle, the throttle would end with it.
            longer: The seconds by which it ends later than the throttle before it.
            waiting: The requests that have not ended. They have as many seconds more, but are not
                held for a throttle of more than ``LONG_THROTTLE``.
        """
        self._idle_since = max(self._idle_since, until)
        is_long = until > trio.current_time() + LONG_THROTTLE
        for request in waiting:
            request.overdue += longer
            if not is_long:
                request.expires += longer

    def heard(self) -> None:
        """Record a response."""
        self.heard_at = self._now()
        if self._silent:
            self._silent = False
            self._listener.heard()

    async def wait_until_expired(self, waiting: Callable[[], list[InFlightRequest]]) -> None:
        """Wait until a request has expired or the idle limit has passed; cancel the patience then.

        ``waiting`` returns the requests that have not ended.
        """
        while True:
            now = trio.current_time()
            requests = waiting()
            deadline = min(
                (request.expires for request in requests),
                default=self._idle_since + self._idle_limit,
            )
            if deadline <= now:
                break
            overdue = min(requests, key=lambda request: request.overdue, default=None)
            if overdue is not None and not self._silent:
                # A request is checked twice before a silence is reported. After the event loop was
                # blocked, this task may run before the reader has read the responses that arrived
                # meanwhile. With one check, each block of more than five seconds could report all
                # brokers as silent. So the watch sleeps a quarter of a second, in which the reader
                # handles these responses. It reports the request only if that still waits.
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
        if request in waiting() and request.overdue <= trio.current_time():
            again = self._listener.silent(
                request.outgoing.api.removesuffix("Request"), request.begins
            )
            if again is None:
                self._silent = True
            else:
                self._look_at = again
