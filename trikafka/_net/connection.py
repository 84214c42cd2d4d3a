"""A connection to a broker: a reader task, a writer task, and the requests in flight.

A request is written in the step that makes it, as far as the socket accepts it; the writer task
sends the rest. If the task that waits for a request is cancelled before the request is written, the
request is never sent. If it is cancelled later, the request stays among those in flight until its
response has come, and the response is dropped. The connection ends if the broker accepts no bytes,
or does not respond to the oldest request in time (``request_timeout_ms``, or the limit of the
request). Ctrl-C does not interrupt the steps of writing a request.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import trio

from .._wire import messages
from .._wire.messages import ApiMessage, RawRequest
from ..config import ClientConfig
from ..error_codes import ErrorCode
from ..errors import (
    AuthenticationError,
    DamagedResponseError,
    KafkaConnectionError,
    ProtocolError,
    TrikafkaError,
    from_code,
)
from ..errors.copies import again, without_traces
from ..types import Node
from .clock import clock_of_run
from .connection_state import SASL_REQUESTS, ConnectionState, ConnectionStateMachine
from .decoding import LARGE, decoded
from .in_flight import NO_LISTENER, ConnectionListener, ExpiryWatch, InFlightRequest, RequestQueue
from .misrouting import MisroutingCheck
from .reasons import waiting_for
from .retry import Retry
from .session import AFTER_REFUSAL, Authenticate, CredentialsUnavailableError, Session
from .transport import STREAM_ERRORS, FrameReader, Transport

_MOST_IN_FLIGHT = 100
#: Seconds for the reader to find an alert, or the end, of a connection that cannot be written to.
_ALERT_WITHIN = 1.0
_CLOSED = ConnectionError("it was closed")
_log = logging.getLogger("trikafka.brokers")


class Connection:
    """One connection to one broker, from the negotiation of versions to its end.

    :meth:`run` owns its tasks; :meth:`request` may be called from any task.
    """

    def __init__(
        self,
        transport: Transport,
        node: Node,
        config: ClientConfig,
        listener: ConnectionListener | None = None,
        machine: ConnectionStateMachine | None = None,
    ) -> None:
        self.node = node
        self._peer = str(node)
        #: The versions of each API that the broker supports.
        self.versions: messages.VersionRanges = {}
        #: The cluster's features and their finalized levels (KIP-584).
        self.features: Mapping[str, int] = {}
        # The versions chosen for requests of the record path, by API and by the newest version that
        # the request allows.
        self._chosen: dict[tuple[int, int], int] = {}
        #: The end of the broker's last throttle (Trio's clock); 0 before the first.
        self.throttled_until = 0.0
        self._throttled_for = 0.0  # seconds, including the rest of the current throttle
        self._transport = transport
        self._config = config
        self._now = clock_of_run()
        self._room = trio.CapacityLimiter(_MOST_IN_FLIGHT)
        self._requests = RequestQueue()  # at most _MOST_IN_FLIGHT, and one of SASL
        self._wake = trio.Event()  # wakes the writer
        self._listener = listener or NO_LISTENER
        self._meter = self._listener.meter
        self._expiry = ExpiryWatch(config, self._listener)
        self._scope = trio.CancelScope()
        self._state = machine or ConnectionStateMachine(trio.current_time)
        self._session = Session()
        # Cancelled by the first request of a reauthentication.
        self._unasked = trio.CancelScope()
        #: True after the first request of SASL. Before it, the client may wait for its own
        #: credentials.
        self.authenticating = False
        self._used = False  # it has been READY, so requests of the client may be in flight
        self._next_id = 0
        self._failure: Exception | None = None
        #: True while the connection is kept although the metadata do not list its broker.
        self.held = False
        self._on_end: list[Callable[[Exception], object]] = []

    @property
    def broken(self) -> bool:
        """True if the connection can carry no more requests."""
        return self._state.current is ConnectionState.CLOSED

    @property
    def failure(self) -> Exception | None:
        """The error that ended the connection.

        ``None`` if the connection has not ended, or if this client or the idle limit ended it.
        """
        return None if self._failure is _CLOSED else self._failure

    @property
    def served(self) -> bool:
        """True if the broker has responded to more than the negotiation."""
        return self._requests.served

    @property
    def in_flight(self) -> int:
        """The number of written requests without a response, including abandoned ones."""
        return len(self._requests.in_flight)

    @property
    def backlog(self) -> int:
        """The bytes in the system's send buffer; 0 where that is unknown.

        While there are some, the network or the broker does not accept more.
        """
        return 0 if self.broken else self._transport.backlog

    @property
    def heard_at(self) -> float:
        """The time of the last response (Trio's clock)."""
        return self._expiry.heard_at

    @property
    def waiting(self) -> list[str]:
        """The APIs of the requests that have not ended: queued, in flight, or abandoned."""
        return [
            request.outgoing.api.removesuffix("Request") for request in self._requests.waiting()
        ]

    @property
    def waiting_since(self) -> float:
        """The time when the oldest request that has not ended was made (Trio's clock).

        ``inf`` if there is none.
        """
        return min((request.begins for request in self._requests.waiting()), default=math.inf)

    @property
    def slots_taken(self) -> int:
        """The number of taken slots for requests that a task waits for.

        A slot is taken until the task is done, or until the response of an abandoned request has
        come.
        """
        return self._room.borrowed_tokens

    async def run(self) -> None:
        """Read and write until the connection ends; then fail its requests and close the stream."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, self._transport)
                    nursery.start_soon(self._watch)
                    if self._config.uses_sasl:
                        nursery.start_soon(self._keep_session, nursery)
                    most = self._config.receive_message_max_bytes
                    await self._read(
                        FrameReader(self._transport, most, self._peer, self._requests.excess)
                    )
                    nursery.cancel_scope.cancel()
        finally:
            self._break(_CLOSED)
            # A ``Cancelled`` from here would replace what is being raised, such as a Ctrl-C. The
            # stream is closed without a wait, so the shield holds nothing up.
            with trio.CancelScope(shield=True):
                await self._transport.aclose()

    def close(self, why: Exception | None = None) -> None:
        """End the connection soon, because of ``why``.

        Requests in flight fail with :exc:`KafkaConnectionError`.
        """
        self._failure = self._failure or why
        self._state.enter(ConnectionState.CLOSED)
        self._scope.cancel()

    def hold(self, held: bool) -> None:
        """Keep the connection while the metadata do not list its broker, or no longer keep it.

        For a conversation that ends with its connection, such as a share session.
        """
        self.held = held

    def when_ended(self, callback: Callable[[Exception], object]) -> None:
        """Call ``callback`` with the reason once the connection has ended, even if it was idle.

        The callback runs after the requests in flight have failed. It must be quick and not raise.
        """
        self._on_end.append(callback)

    @property
    def throttled(self) -> float:
        """The seconds so far during which a throttle has kept the client from writing.

        During a throttle the broker does not read requests in flight either.
        """
        if not self._throttled_for:
            return 0.0
        return self._throttled_for - max(0.0, self.throttled_until - trio.current_time())

    def throttle(self, seconds: float, api: str) -> None:
        """Write nothing for ``seconds``, because a quota is exceeded (KIP-219).

        Requests wait in order until the throttle is over or their callers' limits end. A negative
        time is ignored.

        Args:
            seconds: The throttle time in the response.
            api: The API of the response.
        """
        if seconds <= 0:
            return
        # Since KIP-219 a broker responds at once and mutes the connection for the throttle time, so
        # the client has to enforce the pause. A request written meanwhile would stay unread in the
        # broker's socket while its time limit runs. So the time of a request starts at the end of
        # the pause (`_enqueue`). A throttled connection does not count as idle either: if it were
        # closed as idle, the next connection would not be throttled. A throttle has no upper bound.
        # It ends with its connection, because the broker keeps it for a connection, too.
        now = trio.current_time()
        until = max(self.throttled_until, now + seconds)
        longer = until - max(self.throttled_until, now)
        self._throttled_for += longer
        self.throttled_until = until
        self._expiry.paused(until, longer, self._requests.waiting())
        self._listener.throttled(api, seconds)

    async def negotiate(self, software_version: str, check: MisroutingCheck | None = None) -> None:
        """Request the API versions and features that the broker supports.

        A broker that does not know the version of this request responds in version 0 (KIP-511), and
        the request is repeated in a version that it knows.

        Args:
            software_version: The version of trikafka, which the broker counts in its metrics.
            check: Decides which cluster and node the request names (KIP-1242).

        Raises:
            BrokerResponseError: REBOOTSTRAP_REQUIRED: the broker is not the named one.
            DamagedResponseError: The response has another error, or names no versions.
            KafkaConnectionError: The connection was lost.
        """
        self._state.enter(ConnectionState.NEGOTIATING)
        check = check or MisroutingCheck(self._config)
        version, cluster_id, node_id = check.stated(self.node)
        response = await self.request(
            messages.api_versions_request(version, software_version, cluster_id, node_id),
            version=version,
        )
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            check.refused()
            raise from_code(
                response.error_code,
                f"the connection to {self.node}, which is not that broker of cluster {cluster_id}",
            )
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            offered = messages.version_ranges(response).get(
                messages.ApiVersionsRequest.API_KEY, (0, 0)
            )
            version = min(offered[1], 3)
            response = await self.request(
                messages.api_versions_request(version, software_version), version=version
            )
        self.versions = messages.version_ranges(response)
        self.features = messages.finalized_features(response)
        check.negotiated(self.versions)
        if response.error_code != 0 or not self.versions:
            raise DamagedResponseError(
                f"{self.node} did not say which versions it speaks (error code "
                f"{response.error_code})"
            )

    async def authenticate(self, authenticate: Authenticate | None) -> None:
        """Authenticate if there is a SASL mechanism, and admit requests after that.

        The connection authenticates again before the session that the broker grants ends (KIP-368).

        Args:
            authenticate: The exchange of the SASL mechanism; ``None`` without SASL.

        Raises:
            AuthenticationError: The broker refused the credentials.
            KafkaConnectionError: The connection was lost.
        """
        if authenticate is not None:
            self._enter(ConnectionState.AUTHENTICATING)
            self._session.granted(authenticate, await authenticate(self._ask_first, self.node))
        self._enter(ConnectionState.READY)

    async def _keep_session(self, nursery: trio.Nursery) -> None:
        """Authenticate again before each end of the session (KIP-368)."""
        # Reauthentication on the same socket. The broker closes a connection that is used after the
        # end of its session, so the client has to authenticate before. Requests in flight are not
        # affected: the broker still answers them, in order. Other requests must not be written
        # between the SaslHandshake and the last SaslAuthenticate, because the broker accepts only
        # SASL requests there. So the queue holds them back (`RequestQueue.hold`), and SASL requests
        # pass them. It does so from the first SASL request on, and not while a token is being
        # fetched, which may take long (`_ask_again`).
        #
        # While the broker has not been asked, the session goes on: a token endpoint that is away
        # for a moment must not cost the connection and what is in flight on it. So the credentials
        # are asked for again, after a refusal less often. The broker closes a connection that is
        # used after its session, so without credentials the connection ends at that time, even if
        # the function for them hangs. The deadline ends with the first SASL request, which the
        # broker may answer late.
        retry = Retry.to_reconnect(self._config)
        failure: TrikafkaError | None = None
        while True:
            authenticate = await self._session.ends()
            if failure is not None and self._session.over:
                self._break(failure)
                return
            try:
                self._unasked = trio.CancelScope()
                nursery.start_soon(self._end_with_session, self._unasked, failure)
                try:
                    lifetime = await authenticate(self._ask_again, self.node)
                finally:
                    self._unasked.cancel()
                self._session.granted(authenticate, lifetime)
                self._enter(ConnectionState.READY)
            except TrikafkaError as error:
                # The state decides, not the class: a refusal of other brokers is raised without a
                # request to this one (`Refusals`), and the user's function may raise any class.
                if self._state.current is not ConnectionState.READY:
                    self._break(error)
                    return
                failure = error
                wait = retry.delay()
                if not isinstance(error, CredentialsUnavailableError):
                    wait = max(wait, AFTER_REFUSAL)
                self._session.postpone(wait)
                if retry.failures == 1:
                    _log.warning(
                        "the session with %s is not renewed yet, and is used until it ends: %s",
                        self.node,
                        error,
                    )
                continue
            retry.reset()
            failure = None
            self._requests.release()
            self._flush(self._transport)
            self._wake.set()

    async def _end_with_session(
        self, unasked: trio.CancelScope, failure: TrikafkaError | None
    ) -> None:
        """Break the connection at the end of the session, unless ``unasked`` is cancelled before.

        A task of its own: a thread in which a user's function fetches a token cannot be cancelled.
        """
        with unasked:
            await trio.sleep_until(self._session.ends_at)
        if not unasked.cancel_called:
            error = CredentialsUnavailableError(
                f"the session with {self.node} ended before there were credentials to renew it"
            )
            error.__cause__ = failure
            self._break(error)

    def _enter(self, state: ConnectionState) -> None:
        """Enter ``state``; raise if the connection ended in the step of its last response."""
        if self.broken:
            raise self._lost()
        self._state.enter(state)
        self._used = self._used or state is ConnectionState.READY

    async def _ask_first(self, message: ApiMessage) -> Any:
        """Send one request of the first authentication."""
        self.authenticating = True
        return await self.request(message)

    async def _ask_again(self, message: ApiMessage) -> Any:
        """Send one request of a reauthentication; the first one makes other requests wait."""
        if self._state.current is ConnectionState.READY:
            self._unasked.cancel()
            self._state.enter(ConnectionState.REAUTHENTICATING)
            self._requests.hold()
        # The broker answers in order. It may hold a JoinGroup for minutes, and a Fetch for as long
        # as it was asked to: only then does it read this request.
        now = trio.current_time()
        before = max((each.expires for each in self._requests.in_flight.values()), default=now)
        return await self.request(message, self._config.request_timeout + max(0.0, before - now))

    def _newest_common(self, message: ApiMessage | RawRequest) -> int:
        """Return the newest version that both sides support.

        Raises :exc:`UnsupportedVersionError` if there is none.
        """
        # The version of a RawRequest does not depend on its content, so it is chosen once.
        if not isinstance(message, RawRequest):
            return messages.choose_version(message, self.versions, self._peer)
        kind = (message.API_KEY, message.max_version)
        version = self._chosen.get(kind)
        if version is None:
            version = messages.choose_version(message, self.versions, self._peer)
            self._chosen[kind] = version
        return version

    async def request(
        self,
        message: ApiMessage,
        response_timeout: float | None = None,
        *,
        version: int | None = None,
        meanwhile: Callable[[], object] | None = None,
    ) -> Any:
        """Send ``message`` and return its response.

        Args:
            message: The request.
            response_timeout: The seconds after which a connection without the response counts as
                dead; default: ``request_timeout_ms``.
            version: The version of the request; default: the newest common one.
            meanwhile: Called once the request is sent, or waits for a user's stream to take it.

        Returns:
            The decoded response; ``None`` if the broker sends none, as for acks=0.

        Raises:
            KafkaConnectionError: The connection is lost, or cannot be used.
            ProtocolError: The response is damaged.
            UnsupportedVersionError: There is no common version.

        On cancellation the connection stays usable. The request is not sent if no byte of it has
        been written; otherwise its response is dropped.
        """
        if version is None:
            version = self._newest_common(message)
        done = trio.Event()
        # SASL requests take no slot: requests that wait for the authentication may have taken them
        # all.
        request = InFlightRequest(
            lambda _: done.set(), waited_for=message.API_KEY not in SASL_REQUESTS
        )
        try:
            # No checkpoint if a slot is free, so that requests are written in the order in which
            # they were made.
            if request.waited_for:
                self._room.acquire_on_behalf_of_nowait(request)
        except trio.WouldBlock:
            waiting_for(f"its turn behind {_MOST_IN_FLIGHT} requests to {self.node}")
            await self._room.acquire_on_behalf_of(request)
        self._enqueue(request, message, version, response_timeout)
        name = request.outgoing.api.removesuffix("Request")
        throttled = (
            ", which throttles this client" if self.throttled_until > trio.current_time() else ""
        )
        waiting_for(f"{name} to {self._peer}{throttled}")
        try:
            if meanwhile is not None:
                meanwhile()
            await done.wait()
        except BaseException:
            self._abandon(request)
            raise
        large = (isinstance(message, RawRequest) and message.large) or LARGE
        response = request.response() if request.size < large else await decoded(request)
        if throttle := request.late_throttle(response):
            self.throttle(throttle, name)
        return response

    def begin(
        self,
        message: Any,
        on_end: Callable[[InFlightRequest], object],
        response_timeout: float | None = None,
    ) -> None:
        """Send ``message`` without waiting; ``on_end`` is called with its response or error.

        ``on_end`` may be called before this method returns. Otherwise the reader task calls it, so
        it must be quick and not raise. If this method raises, ``on_end`` is not called.

        Args:
            message: The request.
            on_end: Called once with the ended request.
            response_timeout: As in :meth:`request`.

        Raises:
            trio.WouldBlock: Too many requests are in flight.
            KafkaConnectionError: The connection is lost, or cannot be used.
            UnsupportedVersionError: There is no common version.
        """
        # Fetch and Produce use this and not `request`. With a task for each request, a response
        # would wake the task through an event, and the task would run in the next turn of Trio's
        # loop and then wake its own caller: two turns that every record pays. Here the reader calls
        # `on_end` in the step that has read the response. The price is that `on_end` may not wait
        # or raise: an exception in it would end the reader, and with it the connection of every
        # other request.
        # As in `request`, the one request of a reauthentication takes no slot. A producer without
        # idempotence may use all slots, and would fail as a whole at a refusal here.
        extra = self._state.current is ConnectionState.REAUTHENTICATING
        if len(self._requests) >= _MOST_IN_FLIGHT + extra:
            raise trio.WouldBlock
        version = self._newest_common(message)
        self._enqueue(InFlightRequest(on_end, waited_for=False), message, version, response_timeout)

    @trio.lowlevel.enable_ki_protection
    def _enqueue(
        self,
        request: InFlightRequest,
        message: ApiMessage,
        version: int,
        response_timeout: float | None,
    ) -> None:
        try:
            if self.broken:
                raise self._lost()
            assert message.API_KEY in self._state.allowed, (
                f"{message.name} on a connection that is {self._state.current.value}"
            )
            self._next_id = (self._next_id + 1) & 0x7FFFFFFF
            outgoing = messages.encode_request(
                message, version, self._next_id, self._config.client_id
            )
        except BaseException:
            self._give_room(request)
            raise
        request.encoded(outgoing, self._next_id)
        self._expiry.expect(request, max(self._now(), self.throttled_until), response_timeout)
        self._requests.enqueue(request, first=message.API_KEY in SASL_REQUESTS)
        if self._transport.prompt:
            self._flush(self._transport)
        else:
            self._wake.set()

    @trio.lowlevel.enable_ki_protection
    def _abandon(self, request: InFlightRequest) -> None:
        if self._requests.remove_queued(request):
            self._settle(request)
        # A request in flight keeps its place, because the broker answers in order and its response
        # must be read before the next one. Closing the connection instead would fail the requests
        # of other tasks. Only the response is dropped.
        request.abandon()

    def _settle(self, request: InFlightRequest) -> None:
        if (
            self._state.current is not ConnectionState.REAUTHENTICATING
            or not request.outgoing.api.startswith("Sasl")
        ):
            # Reauthentication is no use of the connection, so it does not postpone the idle limit.
            self._expiry.used()
        self._give_room(request)
        request.on_end(request)

    def _give_room(self, request: InFlightRequest) -> None:
        if request.waited_for:
            self._room.release_on_behalf_of(request)

    def _flush(self, transport: Transport) -> None:
        """Write queued requests as far as the socket accepts them; wake the writer for the rest."""
        requests = self._requests
        if self.throttled_until and self.throttled_until > trio.current_time():
            self._wake.set()
            return
        try:
            while requests.queued and not requests.rest:
                frames = requests.pop_frames()
                for sent in requests.gave(frames, transport.send_now(frames)):
                    self._settle(sent)
        except OSError as error:
            # While an alert may come, the writer meets the same error, and waits for the alert.
            if not self._awaits_alert:
                self._break(without_traces(error))
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
                    if self.throttled_until > trio.current_time():
                        await trio.sleep_until(self.throttled_until)
                        continue
                    requests.gave(requests.pop_frames(), 0)
                mine = requests.rest
                await transport.send_all(mine)
                # If `mine` was empty, only ciphertext of earlier requests was sent. Then anything
                # in `requests.rest` came during the send and is still to be written.
                for sent in requests.gave(() if mine else requests.rest, 0):
                    self._settle(sent)
        except (*STREAM_ERRORS, TrikafkaError) as error:
            if self._awaits_alert:
                await trio.sleep(_ALERT_WITHIN)
            self._break(without_traces(error))

    @property
    def _awaits_alert(self) -> bool:
        """True while the reader may find a TLS alert that says why nothing can be written.

        With TLS 1.3 a broker checks the client's certificate after the handshake. It sends its
        alert and closes. A request that comes later cannot be written, and the alert is unread yet.
        """
        return self._config.uses_tls and not self.versions

    @trio.lowlevel.enable_ki_protection
    async def _read(self, reader: FrameReader) -> None:
        patience = self._expiry.patience
        try:
            with patience:
                while (frame := await reader.read()) is not None:
                    self._handle_frame(frame)
            if not patience.cancelled_caught:
                self._break(ConnectionError(self._closed_by_broker()))
        except (*STREAM_ERRORS, TrikafkaError) as error:
            # The frames have the memory of a response that was half received.
            self._break(without_traces(error))
        if patience.cancelled_caught and (waiting := self._requests.waiting()):
            oldest = min(waiting, key=lambda request: request.expires)
            self._break(
                TimeoutError(f"the broker did not respond to {oldest.outgoing.api} in time")
            )

    def _closed_by_broker(self) -> str:
        if self._requests.served or self._config.uses_sasl:
            return "the broker closed it"
        return (
            "the broker closed it before its first response: it may want SASL "
            "(security_protocol), or is shutting down"
        )

    def _handle_frame(self, frame: memoryview) -> None:
        request = self._requests.responded(messages.read_correlation_id(frame))
        if request is None:
            raise DamagedResponseError(
                f"{self.node} sent a response that does not belong to the oldest request in flight"
            )
        self._expiry.heard()
        if self._meter.recording:
            self._meter.responded(
                self.node.node_id,
                request.outgoing.api.removesuffix("Request"),
                self._expiry.heard_at - request.begins,
            )
        if throttle := request.throttle(frame):
            self.throttle(throttle, request.outgoing.api.removesuffix("Request"))
        request.answered(frame)
        self._settle(request)

    @trio.lowlevel.enable_ki_protection
    async def _watch(self) -> None:
        """End the reader at the first expiry, or after the idle time."""
        await self._expiry.wait_until_expired(self._requests.waiting)
        self._state.enter(ConnectionState.CLOSED)

    def _break(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            self._state.enter(ConnectionState.CLOSED, self.failure)
            self._scope.cancel()
        for request in self._requests.clear():
            request.lost(self._lost())
            self._settle(request)
        callbacks = self._on_end
        self._on_end = []
        for callback in callbacks:
            callback(self._lost())

    def _lost(self) -> Exception:
        """Return a fresh error for one caller: why the connection is gone.

        When a connection that was in use ends, the broker may have carried out a request whose
        response is missing, whatever the cause. So the error is a retriable
        :exc:`KafkaConnectionError`, and the next connection shows whether the cause persists: it
        may get another token or password. A refusal of the credentials is raised itself only while
        the connection is being made.
        """
        cause = self._failure
        if isinstance(cause, DamagedResponseError):
            return again(cause)
        if isinstance(cause, AuthenticationError | ProtocolError) and not self._used:
            return again(cause)
        why = f": {cause}" if cause is not None and str(cause) else ""
        if (
            isinstance(cause, ConnectionError | trio.BrokenResourceError)
            and cause is not _CLOSED
            and self._awaits_alert
        ):
            # There was no alert. Some systems drop it when the peer resets the connection.
            why += (
                "; a broker also ends connections like this if it does not accept the client's "
                "certificate, or wants one (ssl_certfile)"
            )
        error = KafkaConnectionError(f"lost the connection to {self.node}{why}")
        error.__cause__ = cause
        return error
