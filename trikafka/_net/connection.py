"""One connection to one broker: a reader and a writer task, requests in flight, and when to give up on it.

A request belongs to the task that waits for it. A request whose task was cancelled before it was written is never sent; one
that was written keeps its place among those in flight until its answer has come, and the answer is dropped. A broker that
takes no bytes, or leaves the oldest request unanswered for its time (``request_timeout_ms``, or what the request allows), loses
the connection.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

import trio
from trio.abc import Stream

from .._wire import messages
from .._wire.messages import ApiMessage, Outgoing
from ..config import ClientConfig
from ..errors import KafkaConnectionError, ProtocolError
from ..types import Node
from .frames import FrameReader

_MOST_IN_FLIGHT = 100
_WRITE_BYTES = 262_144
_STREAM_ERRORS = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


class _Slot:
    """A request from when it is encoded until its answer has come (or its connection is gone)."""

    __slots__ = ("abandoned", "correlation_id", "done", "error", "expires", "frame", "outgoing")

    outgoing: Outgoing

    def __init__(self) -> None:
        self.correlation_id = 0
        self.expires = 0.0
        self.done = trio.Event()
        self.frame: memoryview | None = None
        self.error: Exception | None = None
        self.abandoned = False


class Connection:
    """A negotiated connection. :meth:`run` owns its tasks; :meth:`request` may be called from any task."""

    def __init__(self, stream: Stream, node: Node, config: ClientConfig) -> None:
        self.node = node
        self.ranges: dict[int, tuple[int, int]] = {}
        self._stream, self._config = stream, config
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._reader = FrameReader(stream, config.receive_message_max_bytes, str(node))
        self._room = trio.CapacityLimiter(_MOST_IN_FLIGHT)
        self._queue: deque[_Slot] = deque()  # encoded, not written; at most _MOST_IN_FLIGHT
        self._in_flight: dict[int, _Slot] = {}  # given to the stream, in order of writing, until they are answered
        self._unanswered: list[_Slot] = []  # being given to the stream, and without an answer to come (acks=0)
        self._wake = trio.Event()
        self._patience = trio.CancelScope()  # ends the reader when a request, or an idle connection, is too old
        self._watch_scope = trio.CancelScope()  # of the watch's sleep; its deadline is never after the first expiry
        self._idle_since = trio.current_time()
        self._scope = trio.CancelScope()
        self._next_id = 0
        self._failure: Exception | None = None

    @property
    def broken(self) -> bool:
        """Whether the connection can carry no more requests."""
        return self._failure is not None or self._scope.cancel_called or self._patience.cancel_called

    @property
    def in_flight(self) -> int:
        """Requests written and not answered yet, those that nobody waits for included."""
        return len(self._in_flight)

    async def run(self) -> None:
        """Read and write until the connection ends, for whatever reason; then fail what waits and close the stream."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._watch)
                    await self._read()
                    nursery.cancel_scope.cancel()
        finally:
            self._break(ConnectionError("it was closed"))
            with contextlib.suppress(*_STREAM_ERRORS):
                await trio.aclose_forcefully(self._stream)

    def close(self) -> None:
        """End the connection soon; requests in flight fail with :exc:`KafkaConnectionError`."""
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
        return await self._ask(message, messages.choose_version(message, self.ranges, str(self.node)), allowance)

    async def request_body(self, message: Any, allowance: float | None = None) -> tuple[memoryview, int]:
        """As :meth:`request`, but return the answer's undecoded body and its version."""
        version = messages.choose_version(message, self.ranges, str(self.node))
        slot = await self._exchange(message, version, allowance)
        assert slot.frame is not None
        return messages.response_body(slot.outgoing, slot.frame), version

    async def _ask(self, message: ApiMessage, version: int, allowance: float | None) -> Any:
        slot = await self._exchange(message, version, allowance)
        return None if slot.frame is None else messages.decode_response(slot.outgoing, slot.frame)

    async def _exchange(self, message: ApiMessage, version: int, allowance: float | None) -> _Slot:
        slot = _Slot()
        try:
            # With room there is no checkpoint before the queue: requests are written in the order in which they were made.
            self._room.acquire_on_behalf_of_nowait(slot)
        except trio.WouldBlock:
            await self._room.acquire_on_behalf_of(slot)
        try:
            if self.broken:
                raise self._lost()
            self._next_id = (self._next_id + 1) & 0x7FFFFFFF
            slot.outgoing = messages.encode_request(message, version, self._next_id, self._config.client_id)
        except BaseException:
            self._room.release_on_behalf_of(slot)
            raise
        slot.correlation_id = self._next_id
        slot.expires = trio.current_time() + (self._config.request_timeout if allowance is None else allowance)
        self._queue.append(slot)
        if slot.expires < self._watch_scope.deadline:
            self._watch_scope.deadline = slot.expires
        self._wake.set()
        try:
            await slot.done.wait()
        except BaseException:
            self._abandon(slot)
            raise
        if slot.error is not None:
            raise self._lost()
        return slot

    def _abandon(self, slot: _Slot) -> None:
        if slot in self._queue:
            self._queue.remove(slot)
            self._settle(slot)
        # One that is in flight stays there, for its answer is to come; nobody holds its frame then.
        slot.abandoned = True

    def _settle(self, slot: _Slot) -> None:
        self._idle_since = trio.current_time()
        self._room.release_on_behalf_of(slot)
        slot.done.set()

    async def _write(self) -> None:
        try:
            while True:
                while not self._queue:
                    self._wake = trio.Event()
                    await self._wake.wait()
                frames: list[bytes] = []
                size = 0
                while self._queue and (not frames or size < _WRITE_BYTES):
                    slot = self._queue.popleft()
                    frames.append(slot.outgoing.frame)
                    size += len(slot.outgoing.frame)
                    if slot.outgoing.expects_response:
                        self._in_flight[slot.correlation_id] = slot
                    else:
                        self._unanswered.append(slot)
                await self._send(frames[0] if len(frames) == 1 else b"".join(frames))
                sent, self._unanswered = self._unanswered, []
                for slot in sent:
                    self._settle(slot)
        except _STREAM_ERRORS as error:
            self._break(error)

    async def _send(self, data: bytes) -> None:
        """As ``send_all``, which costs twice as much where the socket takes everything at once."""
        if self._socket is None:
            await self._stream.send_all(data)
            return
        view = memoryview(data)
        while view:
            view = view[await self._socket.send(view) :]

    async def _read(self) -> None:
        try:
            with self._patience:
                while (frame := await self._reader.read()) is not None:
                    self._take(frame)
            if not self._patience.cancelled_caught:
                self._break(ConnectionError("the broker closed it"))
        except (*_STREAM_ERRORS, ProtocolError) as error:
            self._break(error)
        if self._patience.cancelled_caught and (waiting := self._waiting()):
            oldest = min(waiting, key=lambda slot: slot.expires)
            self._break(TimeoutError(f"it left {oldest.outgoing.api} unanswered for too long"))

    def _take(self, frame: memoryview) -> None:
        slot = self._in_flight.pop(messages.read_correlation_id(frame), None)
        if slot is None:
            raise ProtocolError(f"{self.node} answered a request that was not asked")
        if not slot.abandoned:
            slot.frame = frame
        self._settle(slot)

    async def _watch(self) -> None:
        """End the reader at the first expiry, or after the idle time.

        It sleeps until the first expiry that it knows of, and only then looks whether that request still waits: so a request
        that is answered in time costs no change of a deadline.
        """
        while (deadline := self._first_expiry()) > trio.current_time():
            with trio.CancelScope(deadline=deadline) as self._watch_scope:
                await trio.sleep_forever()
        self._patience.cancel()

    def _first_expiry(self) -> float:
        idle = self._idle_since + self._config.connections_max_idle_ms / 1000
        return min((slot.expires for slot in self._waiting()), default=idle)

    def _waiting(self) -> list[_Slot]:
        return [*self._in_flight.values(), *self._unanswered, *self._queue]

    def _break(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            self._scope.cancel()
        waiting = self._waiting()
        self._in_flight.clear()
        self._unanswered.clear()
        self._queue.clear()
        for slot in waiting:
            slot.error = error
            self._settle(slot)

    def _lost(self) -> Exception:
        """A fresh error for one caller: why the connection is gone."""
        cause = self._failure
        if isinstance(cause, ProtocolError):
            return ProtocolError(str(cause))
        why = f": {cause}" if cause is not None and str(cause) else ""
        error = KafkaConnectionError(f"lost the connection to {self.node}{why}")
        error.__cause__ = cause
        return error
