"""One connection to one broker: a reader and a writer task, requests in flight, and when to give up on it.

A request is written in the step that makes it, as far as the socket takes it; what is left over is the writer's. One that a task
waits for belongs to that task: if it is cancelled before it is written, it is never sent; if after, it keeps its place among those
in flight until its response has come, and that is dropped. A broker that takes no bytes, or leaves the oldest request
unanswered for its time (``request_timeout_ms``, or what the request allows), loses the connection. Ctrl-C does not come in between
the steps of writing a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import trio

from .._wire import messages
from .._wire.messages import ApiMessage
from ..config import ClientConfig
from ..error_codes import ErrorCode
from ..errors import AuthenticationError, DamagedResponseError, KafkaConnectionError, ProtocolError, TrikafkaError
from ..errors.copies import again
from ..types import Node
from .connection_state import SASL_REQUESTS, ConnectionState, StateClock
from .decoding import decoded
from .expiry import NOBODY, ExpiryWatch, Voice
from .frames import FrameReader
from .in_flight import InFlightRequest, RequestQueue
from .reasons import waiting_for
from .session import Authenticate, Session
from .throttles import Pause
from .transport import STREAM_ERRORS, Transport
from .versions import BrokerVersions

_MOST_IN_FLIGHT = 100
_CLOSED = ConnectionError("it was closed")


class Connection:
    """A negotiated connection. :meth:`run` owns its tasks; :meth:`request` may be called from any task."""

    def __init__(
        self, transport: Transport, node: Node, config: ClientConfig, voice: Voice | None = None, clock: StateClock | None = None
    ) -> None:
        self.node = node
        self.versions = BrokerVersions({}, {})
        self._transport, self._config = transport, config
        self._room = trio.CapacityLimiter(_MOST_IN_FLIGHT)
        self._requests = RequestQueue()  # at most _MOST_IN_FLIGHT
        self._wake = trio.Event()  # of the writer
        self._voice = voice or NOBODY
        self._expiry = ExpiryWatch(config, self._voice)
        self._pause = Pause()
        self._scope = trio.CancelScope()
        self._state = clock or StateClock(trio.current_time)
        self._session = Session()
        self._next_id = 0
        self._failure: Exception | None = None

    @property
    def features(self) -> Mapping[str, int]:
        """The cluster's features and their finalized levels (KIP-584)."""
        return self.versions.features

    @property
    def broken(self) -> bool:
        """Whether the connection can carry no more requests."""
        return self._state.current is ConnectionState.CLOSED

    @property
    def failure(self) -> Exception | None:
        """Why it ended, if neither this client nor its idleness has ended it."""
        return None if self._failure is _CLOSED else self._failure

    @property
    def served(self) -> bool:
        """Whether the broker has responded to more than the negotiation."""
        return self._requests.served

    @property
    def in_flight(self) -> int:
        """Requests written and without their response so far, those that nobody waits for included."""
        return len(self._requests.in_flight)

    @property
    def backlog(self) -> int:
        """How many bytes the system has taken and not sent: nobody takes more just now. 0 where it does not tell."""
        return 0 if self.broken else self._transport.backlog

    @property
    def heard_at(self) -> float:
        """When the last response came (Trio's clock)."""
        return self._expiry.heard_at

    @property
    def waiting(self) -> list[str]:
        """The APIs of the requests that have not ended: queued, in flight, those that nobody waits for included."""
        return [request.outgoing.api.removesuffix("Request") for request in self._requests.waiting()]

    @property
    def slots_taken(self) -> int:
        """How many of the slots for requests that a task waits for are taken: by those tasks, or until the response comes."""
        return self._room.borrowed_tokens

    async def run(self) -> None:
        """Read and write until the connection ends, for whatever reason; then fail what waits and close the stream."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, self._transport)
                    nursery.start_soon(self._watch)
                    if self._config.uses_sasl:
                        nursery.start_soon(self._keep_session)
                    most = self._config.receive_message_max_bytes
                    await self._read(FrameReader(self._transport, most, str(self.node), self._requests.excess))
                    nursery.cancel_scope.cancel()
        finally:
            self._break(_CLOSED)
            await self._transport.aclose()

    def close(self) -> None:
        """End the connection soon; requests in flight fail with :exc:`KafkaConnectionError`."""
        self._state.enter(ConnectionState.CLOSED)
        self._scope.cancel()

    @property
    def throttled(self) -> float:
        """For how many seconds so far nothing was to be written to it: also what is in flight then the broker leaves unread."""
        return self._pause.spent

    def throttle(self, seconds: float, api: str) -> None:
        """Begin to write nothing more for so long: a quota of the broker asks for it in its response to ``api`` (KIP-219).

        What was begun waits, in order.

        No longer than a minute: a quota counts by windows of a second, of which a broker keeps eleven, so more is a mistake or a
        damaged response. A broker that means it does not read meanwhile, whatever the client does.
        """
        self._pause.ask(seconds)
        self._voice.throttled(api, seconds)

    async def negotiate(self, software_version: str) -> None:
        """Ask for the versions that the broker speaks; an old broker responds in version 0 (KIP-511). Raises as :meth:`request`."""
        self._state.enter(ConnectionState.NEGOTIATING)
        response = await self._ask(messages.api_versions_request(4, software_version), 4, None)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            offered = messages.version_ranges(response).get(messages.ApiVersionsRequest.API_KEY, (0, 0))
            version = min(offered[1], 3)
            response = await self._ask(messages.api_versions_request(version, software_version), version, None)
        self.versions = BrokerVersions(messages.version_ranges(response), messages.finalized_features(response))
        if response.error_code != 0 or not self.versions.ranges:
            raise ProtocolError(f"{self.node} did not tell which versions it speaks (error code {response.error_code})")

    async def authenticate(self, authenticate: Authenticate | None) -> None:
        """Say who this client is, if it is to; requests may be made after that. Raises :exc:`AuthenticationError`, and as them.

        Before the session that the broker grants ends, the connection authenticates anew by itself (KIP-368).
        """
        if authenticate is not None:
            self._enter(ConnectionState.AUTHENTICATING)
            self._session.granted(authenticate, await authenticate(self._ask_in_newest, self.node))
        self._enter(ConnectionState.READY)

    async def _keep_session(self) -> None:
        """Authenticate anew before each end of the session. Requests made meanwhile wait; those in flight go on."""
        while True:
            authenticate = await self._session.ends()
            try:
                self._session.granted(authenticate, await authenticate(self._ask_anew, self.node))
                self._enter(ConnectionState.READY)
            except TrikafkaError as error:
                self._break(error)
                return
            self._requests.release()
            self._flush(self._transport)
            self._wake.set()

    def _enter(self, state: ConnectionState) -> None:
        """Go on; a connection may have ended in the very step in which its last response came."""
        if self.broken:
            raise self._lost()
        self._state.enter(state)

    async def _ask_anew(self, message: ApiMessage) -> Any:
        if self._state.current is ConnectionState.READY:  # the credentials are there: from now on others wait
            self._state.enter(ConnectionState.REAUTHENTICATING)
            self._requests.hold()
        return await self._ask_in_newest(message)

    async def _ask_in_newest(self, message: ApiMessage) -> Any:
        return await self._ask(message, self.versions.newest_common(message, self.node), None)

    async def request(self, message: ApiMessage, response_timeout: float | None = None) -> Any:
        """Send ``message`` in the newest common version and return its response (``None`` where none is sent, as for acks=0).

        ``response_timeout`` (seconds) is how long the broker may take before the connection counts as dead; default
        ``request_timeout_ms``. Raises :exc:`KafkaConnectionError`, :exc:`ProtocolError`, :exc:`UnsupportedVersionError`.
        Cancellation: see the module; the connection stays usable.
        """
        return await self._ask(message, self.versions.newest_common(message, self.node), response_timeout)

    def begin(self, message: Any, on_end: Callable[[InFlightRequest], object], response_timeout: float | None = None) -> None:
        """As :meth:`request`, but wait for nothing: ``on_end`` is called with the request once it has a response or an error.

        That may be before this returns, and is within the reader's step else: it must be quick and not raise. If this raises,
        it is not called. Raises :exc:`trio.WouldBlock` if too many requests are in flight.
        """
        if len(self._requests) >= _MOST_IN_FLIGHT:
            raise trio.WouldBlock
        version = self.versions.newest_common(message, self.node)
        self._enqueue(InFlightRequest(on_end, waited_for=False), message, version, response_timeout)

    async def _ask(self, message: ApiMessage, version: int, response_timeout: float | None) -> Any:
        return await decoded(await self._send(message, version, response_timeout))

    async def _send(self, message: ApiMessage, version: int, response_timeout: float | None) -> InFlightRequest:
        done = trio.Event()
        # What others wait for needs no room: the requests that are held meanwhile may have it all.
        request = InFlightRequest(lambda _: done.set(), waited_for=message.API_KEY not in SASL_REQUESTS)
        try:
            # With room there is no checkpoint before the queue: requests are written in the order in which they were made.
            if request.waited_for:
                self._room.acquire_on_behalf_of_nowait(request)
        except trio.WouldBlock:
            waiting_for(f"its turn behind {_MOST_IN_FLIGHT} requests to {self.node}")
            await self._room.acquire_on_behalf_of(request)
        self._enqueue(request, message, version, response_timeout)
        name = request.outgoing.api.removesuffix("Request")
        throttled = ", which throttles this client" if self._pause.until > trio.current_time() else ""
        waiting_for(f"{name} to {self.node}{throttled}")
        try:
            await done.wait()
        except BaseException:
            self._abandon(request)
            raise
        return request

    @trio.lowlevel.enable_ki_protection
    def _enqueue(self, request: InFlightRequest, message: ApiMessage, version: int, response_timeout: float | None) -> None:
        try:
            if self.broken:
                raise self._lost()
            assert self._state.admits(message.API_KEY), f"{message.name} on a connection that is {self._state.current.value}"
            self._next_id = (self._next_id + 1) & 0x7FFFFFFF
            outgoing = messages.encode_request(message, version, self._next_id, self._config.client_id)
        except BaseException:
            self._give_room(request)
            raise
        request.encoded(outgoing, self._next_id)
        self._expiry.expect(request, max(trio.current_time(), self._pause.until), response_timeout)
        self._requests.enqueue(request, first=message.API_KEY in SASL_REQUESTS)
        if self._transport.prompt:
            self._flush(self._transport)
        else:
            self._wake.set()

    @trio.lowlevel.enable_ki_protection
    def _abandon(self, request: InFlightRequest) -> None:
        if self._requests.remove_queued(request):
            self._settle(request)
        # One that is in flight stays there, for its response is to come; nobody holds its frame then.
        request.abandon()

    def _settle(self, request: InFlightRequest) -> None:
        if self._state.current is not ConnectionState.REAUTHENTICATING or not request.outgoing.api.startswith("Sasl"):
            self._expiry.used()  # to say again who one is, is no use of a connection
        self._give_room(request)
        request.on_end(request)

    def _give_room(self, request: InFlightRequest) -> None:
        if request.waited_for:
            self._room.release_on_behalf_of(request)

    def _flush(self, transport: Transport) -> None:
        """Write what is queued as far as it goes at once; wake the writer for the rest."""
        requests = self._requests
        if self._pause.until and self._pause.until > trio.current_time():
            self._wake.set()
            return
        try:
            while requests.queued and not requests.rest:
                frames = requests.take()
                for sent in requests.gave(frames, transport.send_now(frames)):
                    self._settle(sent)
        except OSError as error:
            self._break(error)
        if requests.rest or transport.pending:
            self._wake.set()

    @trio.lowlevel.enable_ki_protection
    async def _write(self, transport: Transport) -> None:
        requests = self._requests
        try:
            while True:
                while not requests.rest and not requests.queued and not transport.pending:
                    self._wake = trio.Event()
                    await self._wake.wait()
                if not requests.rest and requests.queued:
                    if self._pause.until > trio.current_time():
                        await trio.sleep_until(self._pause.until)
                        continue
                    requests.gave(requests.take(), 0)
                mine = requests.rest
                await transport.send_all(mine)
                # If there was nothing, it was ciphertext of before, and what is left over now came meanwhile.
                for sent in requests.gave(() if mine else requests.rest, 0):
                    self._settle(sent)
        except STREAM_ERRORS as error:
            self._break(error)

    @trio.lowlevel.enable_ki_protection
    async def _read(self, reader: FrameReader) -> None:
        patience = self._expiry.patience
        try:
            with patience:
                while (frame := await reader.read()) is not None:
                    self._take(frame)
            if not patience.cancelled_caught:
                self._break(ConnectionError(self._closed_by_broker()))
        except (*STREAM_ERRORS, TrikafkaError) as error:
            self._break(error)
        if patience.cancelled_caught and (waiting := self._requests.waiting()):
            oldest = min(waiting, key=lambda request: request.expires)
            self._break(TimeoutError(f"it left {oldest.outgoing.api} unanswered for too long"))

    def _closed_by_broker(self) -> str:
        if self._requests.served or self._config.uses_sasl:
            return "the broker closed it"
        return "the broker closed it before it responded to anything: it may want SASL (security_protocol) or be going down"

    def _take(self, frame: memoryview) -> None:
        request = self._requests.responded(messages.read_correlation_id(frame))
        if request is None:
            raise DamagedResponseError(f"{self.node} sent a response to a request that was not made, or left an earlier one out")
        self._expiry.heard()
        if throttle := request.throttle(frame):
            self.throttle(throttle, request.outgoing.api.removesuffix("Request"))
        request.answered(frame)
        self._settle(request)

    @trio.lowlevel.enable_ki_protection
    async def _watch(self) -> None:
        """End the reader at the first expiry, or after the idle time."""
        await self._expiry.run(self._requests.waiting)
        self._state.enter(ConnectionState.CLOSED)

    def _break(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            self._state.enter(ConnectionState.CLOSED, self.failure)
            self._scope.cancel()
        for request in self._requests.clear():
            request.lost(self._lost())
            self._settle(request)

    def _lost(self) -> Exception:
        """A fresh error for one caller: why the connection is gone."""
        cause = self._failure
        if isinstance(cause, AuthenticationError):
            return again(cause)
        if isinstance(cause, ProtocolError):
            return type(cause)(str(cause))
        why = f": {cause}" if cause is not None and str(cause) else ""
        error = KafkaConnectionError(f"lost the connection to {self.node}{why}")
        error.__cause__ = cause
        return error
