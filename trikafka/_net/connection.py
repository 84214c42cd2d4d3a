"""One connection to one broker: a reader and a writer task, requests in flight, and when to give up on it.

A request is written in the step that makes it, as far as the socket takes it; what is left over is the writer's. One that a task
waits for belongs to that task: if it is cancelled before it is written, it is never sent; if after, it keeps its place among those
in flight until its answer has come, and the answer is dropped. A broker that takes no bytes, or leaves the oldest request
unanswered for its time (``request_timeout_ms``, or what the request allows), loses the connection. Ctrl-C does not come in between
the steps of writing a request.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

import trio
from trio.abc import Stream

from .._wire import messages
from .._wire.messages import ApiMessage, Outgoing
from ..config import ClientConfig
from ..errors import KafkaConnectionError, ProtocolError
from ..types import Node
from .frames import FrameReader
from .reasons import waiting_for
from .transport import SocketTransport, Transport, Views, transport_of, without

_MOST_IN_FLIGHT = 100
_WRITE_BYTES = 262_144
_STREAM_ERRORS = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


class Exchange:
    """A request from when it is encoded until its answer has come (or its connection is gone)."""

    __slots__ = ("abandoned", "correlation_id", "error", "expires", "frame", "on_end", "outgoing", "waited_for")

    outgoing: Outgoing

    def __init__(self, on_end: Callable[[Exchange], object], *, waited_for: bool) -> None:
        self.waited_for = waited_for  # by a task that has waited for room
        self.correlation_id = 0
        self.expires = 0.0
        self.on_end = on_end
        self.frame: memoryview | None = None
        self.error: Exception | None = None
        self.abandoned = False

    def body(self) -> tuple[memoryview, int]:
        """The answer's undecoded body and its version. Raises as :meth:`Connection.request`."""
        if self.error is not None:
            raise self.error
        assert self.frame is not None
        return messages.response_body(self.outgoing, self.frame), self.outgoing.version

    def answer(self) -> Any:
        """The answer; ``None`` where none is sent. Raises as :meth:`Connection.request`."""
        if self.error is not None:
            raise self.error
        return None if self.frame is None else messages.decode_response(self.outgoing, self.frame)


class Connection:
    """A negotiated connection. :meth:`run` owns its tasks; :meth:`request` may be called from any task."""

    def __init__(self, stream: Stream, node: Node, config: ClientConfig) -> None:
        self.node = node
        self.ranges: dict[int, tuple[int, int]] = {}
        self._versions: dict[int, int] = {}  # the newest common version of what was begun here: always the same classes
        self._stream, self._config = stream, config
        self._transport: Transport | None = None  # once it runs
        self._room = trio.CapacityLimiter(_MOST_IN_FLIGHT)
        self._queue: deque[Exchange] = deque()  # encoded, not written; at most _MOST_IN_FLIGHT
        self._in_flight: dict[int, Exchange] = {}  # given to the stream, in order of writing, until they are answered
        self._unanswered: list[Exchange] = []  # being given to the stream, and without an answer to come (acks=0)
        self._left: Views = ()  # of what was taken out of the queue
        self._wake = trio.Event()  # of the writer
        self._patience = trio.CancelScope()  # ends the reader when a request, or an idle connection, is too old
        self._watch_scope = trio.CancelScope()  # of the watch's sleep; its deadline is never after the first expiry
        self._idle_since = trio.current_time()
        self._scope = trio.CancelScope()
        self._ending = False  # a scope was cancelled; to ask the scopes would take longer
        self._next_id = 0
        self._failure: Exception | None = None

    @property
    def broken(self) -> bool:
        """Whether the connection can carry no more requests."""
        return self._ending or self._failure is not None

    @property
    def in_flight(self) -> int:
        """Requests written and not answered yet, those that nobody waits for included."""
        return len(self._in_flight)

    async def run(self) -> None:
        """Read and write until the connection ends, for whatever reason; then fail what waits and close the stream."""
        self._transport = transport_of(self._stream)
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, self._transport)
                    nursery.start_soon(self._watch)
                    await self._read(FrameReader(self._transport, self._config.receive_message_max_bytes, str(self.node)))
                    nursery.cancel_scope.cancel()
        finally:
            self._transport.let_go()
            self._break(ConnectionError("it was closed"))
            with contextlib.suppress(*_STREAM_ERRORS):
                await trio.aclose_forcefully(self._stream)

    def close(self) -> None:
        """End the connection soon; requests in flight fail with :exc:`KafkaConnectionError`."""
        self._ending = True
        self._scope.cancel()

    async def negotiate(self, software_version: str) -> None:
        """Ask for the versions that the broker speaks; an old broker answers in version 0 (KIP-511). Raises as :meth:`request`."""
        answer = await self._ask(messages.api_versions_request(4, software_version), 4, None)
        if answer.error_code == 35:
            offered = messages.version_ranges(answer).get(messages.ApiVersionsRequest.API_KEY, (0, 0))
            version = min(offered[1], 3)
            answer = await self._ask(messages.api_versions_request(version, software_version), version, None)
        self.ranges = messages.version_ranges(answer)
        if answer.error_code != 0 or not self.ranges:
            raise ProtocolError(f"{self.node} did not tell which versions it speaks (error code {answer.error_code})")

    async def request(self, message: ApiMessage, allowance: float | None = None) -> Any:
        """Send ``message`` in the newest common version and return its answer (``None`` where none is sent, as for acks=0).

        ``allowance`` (seconds) is how long the broker may take before the connection counts as dead; default
        ``request_timeout_ms``. Raises :exc:`KafkaConnectionError`, :exc:`ProtocolError`, :exc:`UnsupportedVersionError`.
        Cancellation: see the module; the connection stays usable.
        """
        return await self._ask(message, self._version(message), allowance)

    def begin(self, message: Any, on_end: Callable[[Exchange], object], allowance: float | None = None) -> None:
        """As :meth:`request`, but wait for nothing: ``on_end`` is called with the exchange once it has an answer or an error.

        That may be before this returns, and is within the reader's step else: it must be quick and not raise. If this raises,
        it is not called. Raises :exc:`trio.WouldBlock` if too many requests are in flight.
        """
        if len(self._in_flight) + len(self._queue) >= _MOST_IN_FLIGHT:
            raise trio.WouldBlock
        version = self._versions.get(message.API_KEY)
        if version is None:
            version = self._versions[message.API_KEY] = self._version(message)
        self._enqueue(Exchange(on_end, waited_for=False), message, version, allowance)

    def _version(self, message: ApiMessage) -> int:
        return messages.choose_version(message, self.ranges, str(self.node))

    async def _ask(self, message: ApiMessage, version: int, allowance: float | None) -> Any:
        return (await self._exchange(message, version, allowance)).answer()

    async def _exchange(self, message: ApiMessage, version: int, allowance: float | None) -> Exchange:
        done = trio.Event()
        exchange = Exchange(lambda _: done.set(), waited_for=True)
        try:
            # With room there is no checkpoint before the queue: requests are written in the order in which they were made.
            self._room.acquire_on_behalf_of_nowait(exchange)
        except trio.WouldBlock:
            await self._room.acquire_on_behalf_of(exchange)
        self._enqueue(exchange, message, version, allowance)
        waiting_for(f"{exchange.outgoing.api.removesuffix('Request')} to {self.node}")
        try:
            await done.wait()
        except BaseException:
            self._abandon(exchange)
            raise
        return exchange

    @trio.lowlevel.enable_ki_protection
    def _enqueue(self, exchange: Exchange, message: ApiMessage, version: int, allowance: float | None) -> None:
        try:
            if self.broken:
                raise self._lost()
            self._next_id = (self._next_id + 1) & 0x7FFFFFFF
            exchange.outgoing = messages.encode_request(message, version, self._next_id, self._config.client_id)
        except BaseException:
            self._give_room(exchange)
            raise
        exchange.correlation_id = self._next_id
        exchange.expires = trio.current_time() + (self._config.request_timeout if allowance is None else allowance)
        self._queue.append(exchange)
        if exchange.expires < self._watch_scope.deadline:
            self._watch_scope.deadline = exchange.expires
        if isinstance(self._transport, SocketTransport):
            self._flush(self._transport)
        else:
            self._wake.set()

    @trio.lowlevel.enable_ki_protection
    def _abandon(self, exchange: Exchange) -> None:
        if exchange in self._queue:
            self._queue.remove(exchange)
            self._settle(exchange)
        # One that is in flight stays there, for its answer is to come; nobody holds its frame then.
        exchange.abandoned = True

    def _settle(self, exchange: Exchange) -> None:
        self._idle_since = trio.current_time()
        self._give_room(exchange)
        exchange.on_end(exchange)

    def _give_room(self, exchange: Exchange) -> None:
        if exchange.waited_for:
            self._room.release_on_behalf_of(exchange)

    def _flush(self, transport: Transport) -> None:
        """Write what is queued as far as it goes at once; wake the writer for the rest."""
        try:
            while self._queue and not self._left:
                frames = self._take_frames()
                self._left = without(frames, transport.send_now(frames))
                self._settle_unanswered()
        except OSError as error:
            self._break(error)
        if self._left:
            self._wake.set()

    async def _write(self, transport: Transport) -> None:
        try:
            while True:
                while not self._left and not self._queue:
                    self._wake = trio.Event()
                    await self._wake.wait()
                self._left = self._left or self._take_frames()
                await transport.send_all(self._left)
                self._left = ()
                self._settle_unanswered()
        except _STREAM_ERRORS as error:
            self._break(error)

    def _take_frames(self) -> Views:
        frames: list[memoryview] = []
        size = 0
        while self._queue and (not frames or size < _WRITE_BYTES):
            exchange = self._queue.popleft()
            frames += map(memoryview, exchange.outgoing.pieces)
            size += sum(map(len, exchange.outgoing.pieces))
            if exchange.outgoing.expects_response:
                self._in_flight[exchange.correlation_id] = exchange
            else:
                self._unanswered.append(exchange)
        return frames

    def _settle_unanswered(self) -> None:
        if self._unanswered and not self._left:
            sent, self._unanswered = self._unanswered, []
            for exchange in sent:
                self._settle(exchange)

    async def _read(self, reader: FrameReader) -> None:
        try:
            with self._patience:
                while (frame := await reader.read()) is not None:
                    self._take(frame)
            if not self._patience.cancelled_caught:
                self._break(ConnectionError("the broker closed it"))
        except (*_STREAM_ERRORS, ProtocolError) as error:
            self._break(error)
        if self._patience.cancelled_caught and (waiting := self._waiting()):
            oldest = min(waiting, key=lambda exchange: exchange.expires)
            self._break(TimeoutError(f"it left {oldest.outgoing.api} unanswered for too long"))

    def _take(self, frame: memoryview) -> None:
        exchange = self._in_flight.pop(messages.read_correlation_id(frame), None)
        if exchange is None:
            raise ProtocolError(f"{self.node} answered a request that was not asked")
        if not exchange.abandoned:
            exchange.frame = frame
        self._settle(exchange)

    async def _watch(self) -> None:
        """End the reader at the first expiry, or after the idle time.

        It sleeps until the first expiry that it knows of, and only then looks whether that request still waits: so a request
        that is answered in time costs no change of a deadline.
        """
        while (deadline := self._first_expiry()) > trio.current_time():
            with trio.CancelScope(deadline=deadline) as self._watch_scope:
                await trio.sleep_forever()
        self._ending = True
        self._patience.cancel()

    def _first_expiry(self) -> float:
        idle = self._idle_since + self._config.connections_max_idle_ms / 1000
        return min((exchange.expires for exchange in self._waiting()), default=idle)

    def _waiting(self) -> list[Exchange]:
        return [*self._in_flight.values(), *self._unanswered, *self._queue]

    def _break(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            self._scope.cancel()
        waiting = self._waiting()
        self._in_flight.clear()
        self._unanswered.clear()
        self._queue.clear()
        for exchange in waiting:
            exchange.error = self._lost()
            self._settle(exchange)

    def _lost(self) -> Exception:
        """A fresh error for one caller: why the connection is gone."""
        cause = self._failure
        if isinstance(cause, ProtocolError):
            return ProtocolError(str(cause))
        why = f": {cause}" if cause is not None and str(cause) else ""
        error = KafkaConnectionError(f"lost the connection to {self.node}{why}")
        error.__cause__ = cause
        return error
