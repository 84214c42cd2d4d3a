"""The connections of one client, one for each broker and purpose.

A connection is dialled once however many callers ask for it, dialled again after a wait, and closed
when idle. A broker answers the requests of one connection in order. So requests that may wait
inside the broker (a fetch, a JoinGroup, a push to the operator's receiver of metrics) get a socket
of their own, by *purpose*, and a heartbeat never waits behind them.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import trio
from trio.abc import Stream

from .. import _version
from .._wire.messages import ApiMessage
from ..config import ClientConfig
from ..config.secrets import holds_secret
from ..errors import AuthenticationError, ConfigurationError, KafkaConnectionError, TrikafkaError
from ..errors.copies import again
from ..errors.cut_off import await_user_call
from ..errors.groups import decisive, members, outlined
from ..types import ConnectionEvent, ConnectionStatistics, Node
from .addresses import parse_bootstrap
from .connection import Connection
from .connection_state import ConnectionState, ConnectionStateMachine
from .in_flight import NO_METER, SILENCE, ConnectionListener, RequestMeter
from .misrouting import MisroutingCheck
from .outages import Outages
from .reasons import waiting_for
from .reconnect import Reconnect
from .refusals import Refusals
from .security import Security
from .session import Ask, CredentialsUnavailableError
from .singleflight import ClientClosed, SingleFlight, StartSoon
from .throttles import Throttles

Purpose = Literal["general", "fetch", "produce", "coordinator", "group", "telemetry"]
_log = logging.getLogger("trikafka.brokers")
#: The exceptions of a bug in the user's ``dial``, which each further attempt would raise.
_BUGS = (AttributeError, NameError, TypeError)


class _Key(NamedTuple):
    """The key of a slot.

    The rack is not part of it: metadata name the rack of a broker, the look-up of a coordinator
    does not.
    """

    node_id: int
    host: str
    port: int
    purpose: Purpose


# A broker in a container often advertises a name or an address that works only inside of it. Then
# the bootstrap address works, and the client fails at an address that its user has never written.
# Once the client has reached one advertised address, errors no longer blame the advertising.
class AdvertisedAddresses:
    """The addresses that only the cluster names, for errors about them."""

    def __init__(self, config: ClientConfig) -> None:
        self._given: set[tuple[str, int]] = set()
        self._proven = False
        for servers in (config.bootstrap_servers, getattr(config, "bootstrap_controllers", "")):
            with contextlib.suppress(ConfigurationError):  # the one that is not given
                self._given.update((node.host, node.port) for node in parse_bootstrap(servers))

    def reached(self, node: Node) -> None:
        """Record a connection to ``node``."""
        self._proven = self._proven or self._is_advertised(node)

    def origin(self, node: Node) -> str:
        """Return a hint that the broker advertises this address; empty if it is not the cause."""
        if self._proven or not self._is_advertised(node):
            return ""
        return (
            f" (broker {node.node_id} advertises this address; if it is a wrong one, correct "
            "advertised.listeners of that broker)"
        )

    def _is_advertised(self, node: Node) -> bool:
        return node.node_id >= 0 and (node.host, node.port) not in self._given


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """The state that all connections to one broker share.

    ``addresses`` are shared by all brokers.
    """

    listener: ConnectionListener
    reconnect: Reconnect
    addresses: AdvertisedAddresses


class ConnectionSlot:
    """The slot of the connection to one broker for one purpose.

    It holds at most one connection, which is dialled when it is asked for.
    """

    def __init__(
        self,
        node: Node,
        config: ClientConfig,
        start_soon: StartSoon,
        outages: Outages,
        security: Security,
        endpoint: BrokerEndpoint,
        watch: Callable[[ConnectionState, ConnectionStateMachine, Exception | None], object],
        refusals: Refusals,
        misrouting: MisroutingCheck,
    ) -> None:
        self._refusals = refusals
        self._misrouting = misrouting
        self._node = node
        self._config = config
        self._start_soon = start_soon
        self._outages = outages
        self._security = security
        self._listener = endpoint.listener
        self._reconnect = endpoint.reconnect
        self._addresses = endpoint.addresses
        self._connection: Connection | None = None
        self._made_at = 0.0
        self._closed = False
        self._why_closed: Exception | None = None
        self._dialling = trio.CancelScope()
        self._dial = SingleFlight(start_soon, self._connect)
        self._watch = watch
        # The state machine of the present connection, of the one being made, or of the last one.
        self.machine: ConnectionStateMachine | None = None

    async def get(self) -> Connection:
        """Return the connection; dial if there is none.

        Raises :exc:`KafkaConnectionError`, or what the negotiation raises.
        """
        if self._connection is not None and not self._connection.broken:
            return self._connection
        return await self._dial()

    @property
    def connection(self) -> Connection | None:
        """The connection, if there is one now."""
        return None if self._connection is None or self._connection.broken else self._connection

    def close(self, why: Exception | None = None) -> None:
        """Close the connection, because of ``why``; stop a dial in progress."""
        self._closed = True
        self._why_closed = why
        self._dialling.cancel()
        if self._connection is not None:
            self._connection.close(why)

    async def _connect(self) -> Connection:
        with trio.CancelScope() as self._dialling:
            return await self._dial_once()
        raise self._unwanted()

    async def _dial_once(self) -> Connection:
        waiting_for(f"a connection to {self._node}", self._reconnect.error)
        # A connection that breaks before the broker has answered anything but the negotiation
        # counts like a failed dial. Otherwise a broker that accepts connections and closes them at
        # once (a proxy without a broker behind it, a broker that goes down) would be dialled again
        # without a wait. The first response to a request of the client resets the back-off. All
        # slots of a broker share it (`BrokerEndpoint`), so that five purposes do not dial in turn.
        if self._connection is not None:
            if self._connection.served:
                self._reconnect.served()
            else:
                self._reconnect.useless(self._made_at)
            self._connection = None
        await self._reconnect.wait()
        self.machine = machine = ConnectionStateMachine(trio.current_time, self._watch)
        try:
            connection = await self._establish(machine)
        except BaseException as error:
            known = error if isinstance(error, TrikafkaError) else None
            machine.enter(ConnectionState.CLOSED, known)
            self._reconnect.failed(known)
            if known is not None and not self._closed:
                self._outages.unreached(self._node, known)
            raise
        self._reconnect.succeeded()
        self._addresses.reached(self._node)
        self._listener.meter.connected()
        self._connection = connection
        self._made_at = trio.current_time()
        self._outages.reached(self._node)
        if self._closed:
            connection.close()
            raise self._unwanted()
        return connection

    async def _authenticate(self, ask: Ask, node: Node) -> float | None:
        """Authenticate, unless the password was refused too often.

        Also called before the end of a session (KIP-368).
        """
        assert self._security.authenticate is not None
        return await self._refusals.attempt(partial(self._security.authenticate, ask, node))

    def _unwanted(self) -> KafkaConnectionError:
        why = "" if self._why_closed is None else f": {self._why_closed}"
        return KafkaConnectionError(f"the connection to {self._node} is not wanted any more{why}")

    async def _run(self, connection: Connection) -> None:
        await connection.run()
        self._listener.ended()
        if connection is self._connection and connection.failure is not None and not self._closed:
            self._outages.connection_lost(self._node)

    async def _open_stream(self, host: str, port: int) -> Stream:
        """Return a stream to an address; most failures of the user's ``dial`` are an ``OSError``.

        A dial function may try several addresses in a nursery, so it may raise a group. Libraries
        for proxies have exceptions of their own. Raised as they are, they would end the client,
        though the next attempt may succeed.

        Raises:
            ConfigurationError: The function has a bug, which no further attempt can mend.
        """
        if self._config.dial is None:
            return await trio.open_tcp_stream(host, port)
        try:
            stream = await await_user_call(
                "dial", partial(self._config.dial, host, port), _log, _shown_of_all
            )
        except (OSError, trio.BrokenResourceError, trio.TooSlowError, UnicodeError, TrikafkaError):
            raise
        except Exception as error:
            raise _failed_dial(error) from error
        methods = ("send_all", "receive_some", "aclose")
        if not all(callable(getattr(stream, name, None)) for name in methods):
            raise ConfigurationError(
                f"dial must return a trio.abc.Stream, not {type(stream).__name__}"
            )
        return stream

    async def _establish(self, machine: ConnectionStateMachine) -> Connection:
        node = self._node
        limit = self._reconnect.setup_limit()
        connection: Connection | None = None
        ready = dialled = False
        # Outside of the limit for the dial: the time that opening a store takes is no fault of the
        # broker.
        await self._security.refresh(limit)

        async def dial(host: str, port: int) -> Stream:
            nonlocal dialled
            stream = await self._open_stream(host, port)
            dialled = True
            return stream

        try:
            with trio.fail_after(limit):
                transport = await self._security.connect(dial, node)
                connection = Connection(transport, node, self._config, self._listener, machine)
                self._start_soon(self._run, connection)
                await connection.negotiate(_version.VERSION, self._misrouting)
                await connection.authenticate(
                    None if self._security.authenticate is None else self._authenticate
                )
                ready = True
                return connection
        except trio.TooSlowError:
            self._reconnect.took_too_long()
            if (
                connection is not None
                and machine.current is ConnectionState.AUTHENTICATING
                and not connection.authenticating
                and not self._refusals.fixed
            ):
                # The broker was not asked yet: the function, endpoint or ticket server hangs.
                raise CredentialsUnavailableError(
                    f"cannot authenticate with {node} ({self._config.sasl_mechanism}): there were "
                    f"no credentials within {limit:.3g} s"
                ) from None
            where = (
                _stuck(connection)
                if dialled
                else f"it takes no connection{self._addresses.origin(node)}"
            )
            raise KafkaConnectionError(
                f"{node} did not answer as a Kafka broker within {limit:.3g} s: {where}"
            ) from None
        except TrikafkaError:
            raise
        except OSError as error:
            raise KafkaConnectionError(
                f"cannot connect to {node}: {_why(error)}{self._addresses.origin(node)}"
            ) from error
        # BrokenResourceError: from a dial function of the user. UnicodeError: the host is not a
        # valid name.
        except (trio.BrokenResourceError, UnicodeError) as error:
            raise KafkaConnectionError(
                f"cannot connect to {node}: {_shown(error) or repr(error)}"
            ) from error
        finally:
            if connection is not None and not ready:
                connection.close()


class Brokers:
    """All connections of one client.

    ``request`` makes one attempt; the caller's deadline decides about retries.
    """

    def __init__(
        self,
        config: ClientConfig,
        start_soon: StartSoon,
        security: Security | None = None,
        meter: RequestMeter = NO_METER,
    ) -> None:
        self._config = config
        self._meter = meter
        self._start_soon = start_soon
        self._security = security or Security(config)
        self._slots: dict[_Key, ConnectionSlot] = {}
        self._endpoints: dict[tuple[int, str, int], BrokerEndpoint] = {}
        self._addresses = AdvertisedAddresses(config)
        self._watch: Callable[[ConnectionEvent], object] | None = None
        self.outages = Outages()
        self.throttles = Throttles()
        self.misrouting = MisroutingCheck(config)
        self._refusals = Refusals(config)
        # True if a Produce whose response is lost may be sent again at once.
        self._repeats = bool(getattr(config, "enable_idempotence", False))
        self._closed = False

    async def connection(self, node: Node, purpose: Purpose = "general") -> Connection:
        """Return a negotiated connection to ``node``.

        Raises :exc:`KafkaConnectionError`, :exc:`ProtocolError`. A broker that has refused a
        password is not dialled again for half a minute: :exc:`AuthenticationError` at once. Once
        closed it raises :exc:`ClientClosed`, which users know as :exc:`trio.ClosedResourceError`.
        """
        if self._closed:
            raise ClientClosed("the client was closed")
        key = _Key(node.node_id, node.host, node.port, purpose)
        slot = self._slots.get(key)
        if slot is None:
            made = BrokerEndpoint(self._listener_of(node), Reconnect(self._config), self._addresses)
            # A connection for metrics that cannot be made, or is lost, is no outage, and delays no
            # dial of another purpose: metrics never harm the client.
            aside = purpose == "telemetry"
            endpoint = made if aside else self._endpoints.setdefault(key[:3], made)
            outages = Outages() if aside else self.outages
            watch = self._watch_of(node, purpose)
            slot = ConnectionSlot(
                node,
                self._config,
                self._start_soon,
                outages,
                self._security,
                endpoint,
                watch,
                self._refusals,
                self.misrouting,
            )
            self._slots[key] = slot
        if slot.connection is None:
            await self._refusals.check(node)
        try:
            return await slot.get()
        except AuthenticationError as error:
            self._refusals.refused(node, error)
            raise

    @property
    def refused_until(self) -> float:
        """The time when this client may authenticate again after a refusal; else a past time."""
        return self._refusals.until

    def pause_after(self, error: AuthenticationError) -> float:
        """Return how long (seconds) to wait after a refusal: see :meth:`Refusals.pause_after`."""
        return self._refusals.pause_after(error)

    def ready(self, node: Node, purpose: Purpose) -> Connection | None:
        """Return the negotiated connection to ``node``, if there is one and the client is open."""
        slot = self._slots.get(_Key(node.node_id, node.host, node.port, purpose))
        return None if slot is None or self._closed else slot.connection

    async def request(
        self,
        node: Node,
        message: ApiMessage,
        *,
        purpose: Purpose = "general",
        response_timeout: float | None = None,
    ) -> Any:
        """Send ``message`` to ``node`` and return the response. See :meth:`Connection.request`."""
        connection = self.ready(node, purpose) or await self.connection(node, purpose)
        return await connection.request(message, response_timeout)

    def _listener_of(self, node: Node) -> ConnectionListener:
        """Return the listener that reports a broker's silence and throttles.

        Silence on one connection is reported only if the broker has been silent on the others too.
        A throttle ends with its connection.
        """

        def connections() -> list[Connection]:
            return [
                slot.connection
                for key, slot in self._slots.items()
                if key.node_id == node.node_id and slot.connection
            ]

        def silent(api: str, since: float) -> float | None:
            self.outages.overdue()
            heard_at = max((connection.heard_at for connection in connections()), default=-math.inf)
            # A response after ``since`` on another connection proves nothing once it is old: the
            # broker may have frozen since.
            if heard_at > trio.current_time() - SILENCE:
                return heard_at + SILENCE
            self.outages.silent(node, api, since)
            return None

        def ended() -> None:
            self.throttles.lifted(
                node, max((connection.throttled_until for connection in connections()), default=0.0)
            )

        def throttled(api: str, seconds: float) -> None:
            self.throttles.throttled(node, api, seconds)
            self._meter.throttled(api, seconds)

        heard = lambda: self.outages.heard(node)  # noqa: E731
        return ConnectionListener(silent, heard, throttled, ended, self._meter)

    def when_changed(self, callback: Callable[[ConnectionEvent], object]) -> None:
        """Call ``callback`` at each change of a connection's state."""
        self._watch = callback

    def _watch_of(
        self, node: Node, purpose: Purpose
    ) -> Callable[[ConnectionState, ConnectionStateMachine, Exception | None], object]:
        def changed(
            before: ConnectionState, machine: ConnectionStateMachine, error: Exception | None
        ) -> None:
            if self._watch is not None:
                spent = machine.times()[before.value]
                self._watch(
                    ConnectionEvent(
                        node, purpose, before.value, machine.current.value, spent, error
                    )
                )

        return changed

    def statistics(self) -> tuple[ConnectionStatistics, ...]:
        """Return the connections with the times of their states.

        Included are connections being made, and the last one of each slot that has none.
        """
        return tuple(
            ConnectionStatistics(
                Node(key.node_id, key.host, key.port),
                key.purpose,
                slot.machine.current.value,
                dict(slot.machine.times()),
                0 if (connection := slot.connection) is None else connection.in_flight,
            )
            for key, slot in self._slots.items()
            if slot.machine is not None
        )

    def connections(self) -> list[Connection]:
        """Return the present connections."""
        return [found for slot in self._slots.values() if (found := slot.connection) is not None]

    def connected(self) -> tuple[Node, ...]:
        """Return the brokers of the cluster that have a connection, by their ids."""
        nodes = {
            connection.node for connection in self.connections() if connection.node.node_id >= 0
        }
        return tuple(sorted(nodes, key=lambda node: node.node_id))

    def keep_only(self, nodes: frozenset[Node]) -> None:
        """Close the connections to brokers that have left the cluster.

        Those to bootstrap addresses stay, and those that are held (:meth:`Connection.hold`).
        """
        self.outages.cluster_is(nodes)
        self.throttles.keep_only(nodes)
        places = {(node.node_id, node.host, node.port) for node in nodes}
        held: set[tuple[int, str, int]] = set()
        for key in [key for key in self._slots if key.node_id >= 0 and key[:3] not in places]:
            connection = self._slots[key].connection
            if connection is not None and connection.held:
                held.add(key[:3])
            else:
                why = ConnectionError(
                    f"the cluster lists no broker {key.node_id} at {key.host}:{key.port} now"
                )
                self._slots.pop(key).close(why)
        self._endpoints = {
            key: endpoint
            for key, endpoint in self._endpoints.items()
            if key[0] < 0 or key in places or key in held
        }

    def leave(self, node: Node, purposes: Container[Purpose], begun_by: float = math.inf) -> None:
        """Close the connections to a silent broker whose work another broker has taken over.

        With ``begun_by`` (Trio's clock), only those whose oldest unanswered request was made by
        then.

        Requests in flight fail as on a lost connection, and go to the other broker, long before
        ``request_timeout_ms``. Records of a producer without idempotence wait for that time: what
        was written before the freeze would be doubled.
        """
        for key in [
            key for key in self._slots if key.node_id == node.node_id and key.purpose in purposes
        ]:
            connection = self._slots[key].connection
            begun = -math.inf if connection is None else connection.waiting_since
            if begun <= begun_by and (key.purpose != "produce" or self._repeats):
                self._slots.pop(key).close(
                    ConnectionError(
                        "it does not respond, and another broker has taken over from it"
                    )
                )

    def disconnect(self) -> None:
        """Close every connection; the next request dials again."""
        slots = self._slots
        self._slots = {}
        self._endpoints = {}
        for slot in slots.values():
            slot.close()

    def close(self) -> None:
        """Close every connection, and make no more."""
        self._closed = True
        for slot in self._slots.values():
            slot.close()


def _stuck(connection: Connection | None) -> str:
    """Return the unfinished steps of a dialled connection."""
    if connection is None:
        return "it takes connections, and says nothing in the TLS handshake"
    return (
        "authenticating did not end"
        if connection.versions
        else "it takes connections, and says nothing on them"
    )


def _failed_dial(error: Exception) -> Exception:
    """Return the error to raise for an exception or group that the user's ``dial`` has raised."""
    raised = members(error)
    ours = [each for each in raised if isinstance(each, TrikafkaError)]
    if ours:
        # A copy: the group becomes its cause, and has the original as a member.
        return again(decisive(ours))
    bug = next((each for each in raised if isinstance(each, _BUGS)), None)
    if bug is not None:
        return ConfigurationError(f"dial failed: {type(bug).__name__}: {_shown(bug)}")
    if isinstance(error, ExceptionGroup):
        return OSError(outlined(error, _shown))
    return OSError(f"dial failed: {type(error).__name__}: {_shown(error)}")


def _shown_of_all(error: BaseException) -> str:
    return "; ".join(f"{type(each).__name__}: {_shown(each)}" for each in members(error))


def _shown(error: BaseException) -> str:
    """Return the text of an exception, or only its class if the text may hold a password.

    The errors of libraries for proxies may have the proxy's whole URL.
    """
    text = str(getattr(error, "strerror", None) or error)
    return type(error).__name__ if holds_secret(text) else text


def _why(error: OSError) -> str:
    """Return the operating system's error for each address that was tried."""
    inner = members(error.__cause__) if isinstance(error.__cause__, BaseExceptionGroup) else ()
    causes = [
        os.strerror(each.errno) if each.errno and each.errno > 0 else _shown(each)
        for each in (*inner, error)
        if isinstance(each, OSError)
    ]
    return ", ".join(dict.fromkeys(causes[:-1] or causes))
