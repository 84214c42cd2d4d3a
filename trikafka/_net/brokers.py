"""The connections of one client: which broker, for which purpose, dialled once, again after a wait, closed when idle.

A broker responds to the requests of one connection one after the other. So requests that may wait inside the broker (a fetch, a
JoinGroup) get a socket of their own, by *purpose*, and a heartbeat never stands behind them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import trio
from trio.abc import Stream

from .. import _version
from .._wire.messages import ApiMessage
from ..config import ClientConfig
from ..errors import AuthenticationError, KafkaConnectionError, TrikafkaError
from ..types import ConnectionEvent, ConnectionStatistics, Node
from .connection import Connection
from .connection_state import ConnectionState, StateClock
from .expiry import Voice
from .outages import Outages
from .reasons import waiting_for
from .reconnect import Reconnect
from .refusals import Refusals
from .security import Security
from .singleflight import ClientClosed, SingleFlight, StartSoon
from .throttles import Throttles

Purpose = Literal["general", "fetch", "produce", "coordinator", "group"]


class _Key(NamedTuple):
    """What makes a slot: not the rack, which metadata tells of a broker and the look-up of a coordinator does not."""

    node_id: int
    host: str
    port: int
    purpose: Purpose


async def dial_tcp(host: str, port: int) -> Stream:
    """Open a TCP stream, trying all addresses of ``host`` (RFC 8305)."""
    return await trio.open_tcp_stream(host, port)


@dataclass(frozen=True, slots=True)
class Place:
    """What all connections to one broker have in common."""

    voice: Voice
    reconnect: Reconnect


class ConnectionSlot:
    """The place of the connection to one broker for one purpose: at most one connection, dialled when asked for."""

    def __init__(
        self,
        node: Node,
        config: ClientConfig,
        start_soon: StartSoon,
        outages: Outages,
        security: Security,
        place: Place,
        watch: Callable[[ConnectionState, StateClock, Exception | None], object],
    ) -> None:
        self._node, self._config, self._start_soon, self._outages = node, config, start_soon, outages
        self._security, self._voice, self._reconnect = security, place.voice, place.reconnect
        self._connection: Connection | None = None
        self._made_at = 0.0
        self._closed = False
        self._dialling = trio.CancelScope()
        self._dial = SingleFlight(start_soon, self._connect)
        self._watch = watch
        self.clock: StateClock | None = None  # of the connection that is there, or is being made, or was there last

    async def get(self) -> Connection:
        """The connection, dialled if need be. Raises :exc:`KafkaConnectionError` or what the negotiation raises."""
        if self._connection is not None and not self._connection.broken:
            return self._connection
        return await self._dial()

    @property
    def connection(self) -> Connection | None:
        """The connection, if there is one now."""
        return None if self._connection is None or self._connection.broken else self._connection

    def close(self) -> None:
        """Close the connection; one that is being made is given up."""
        self._closed = True
        self._dialling.cancel()
        if self._connection is not None:
            self._connection.close()

    async def _connect(self) -> Connection:
        with trio.CancelScope() as self._dialling:
            return await self._dial_once()
        raise self._unwanted()

    async def _dial_once(self) -> Connection:
        waiting_for(f"a connection to {self._node}", self._reconnect.error)
        if self._connection is not None:
            if self._connection.served:
                self._reconnect.served()
            else:
                self._reconnect.useless(self._made_at)
            self._connection = None
        await self._reconnect.wait()
        self.clock = clock = StateClock(trio.current_time, self._watch)
        try:
            connection = await self._establish(clock)
        except BaseException as error:
            known = error if isinstance(error, TrikafkaError) else None
            clock.enter(ConnectionState.CLOSED, known)
            self._reconnect.failed(known)
            if known is not None and not self._closed:
                self._outages.unreached(self._node, known)
            raise
        self._reconnect.succeeded()
        self._connection, self._made_at = connection, trio.current_time()
        self._outages.reached(self._node)
        if self._closed:
            connection.close()
            raise self._unwanted()
        return connection

    def _unwanted(self) -> KafkaConnectionError:
        return KafkaConnectionError(f"the connection to {self._node} is not wanted any more")

    async def _run(self, connection: Connection) -> None:
        await connection.run()
        if connection is self._connection and connection.failure is not None and not self._closed:
            self._outages.connection_lost(self._node)

    async def _establish(self, clock: StateClock) -> Connection:
        node, limit = self._node, self._reconnect.setup_limit()
        connection: Connection | None = None
        ready = dialled = False

        async def dial(host: str, port: int) -> Stream:
            nonlocal dialled
            stream = await (self._config.dial or dial_tcp)(host, port)
            dialled = True
            return stream

        try:
            with trio.fail_after(limit):
                transport = await self._security.connect(dial, node)
                connection = Connection(transport, node, self._config, self._voice, clock)
                self._start_soon(self._run, connection)
                await connection.negotiate(_version.VERSION)
                await connection.authenticate(self._security.authenticate)
                ready = True
                return connection
        except trio.TooSlowError:
            self._reconnect.took_too_long()
            where = _stuck(connection) if dialled else "it takes no connection"
            raise KafkaConnectionError(f"{node} did not answer as a Kafka broker within {limit:.3g} s: {where}") from None
        except TrikafkaError:
            raise
        except OSError as error:
            raise KafkaConnectionError(f"cannot connect to {node}: {_why(error)}") from error
        except (trio.BrokenResourceError, UnicodeError) as error:  # of a dial that is not ours; of a host that is no name
            raise KafkaConnectionError(f"cannot connect to {node}: {str(error) or repr(error)}") from error
        finally:
            if connection is not None and not ready:
                connection.close()


class Brokers:
    """All connections of one client. ``request`` makes one attempt; trying again is the caller's deadline's business."""

    def __init__(self, config: ClientConfig, start_soon: StartSoon, security: Security | None = None) -> None:
        self._config, self._start_soon = config, start_soon
        self._security = security or Security(config)
        self._slots: dict[_Key, ConnectionSlot] = {}
        self._places: dict[tuple[int, str, int], Place] = {}
        self._watch: Callable[[ConnectionEvent], object] | None = None
        self.outages = Outages()
        self.throttles = Throttles()
        self._refusals = Refusals(config)
        self._closed = False

    async def connection(self, node: Node, purpose: Purpose = "general") -> Connection:
        """A negotiated connection to ``node``. Raises :exc:`KafkaConnectionError`, :exc:`ProtocolError`.

        A broker that has refused a password is not dialled again for half a minute: :exc:`AuthenticationError` at once.
        Once closed it raises :exc:`ClientClosed`, which users know as :exc:`trio.ClosedResourceError`.
        """
        if self._closed:
            raise ClientClosed("the client was closed")
        key = _Key(node.node_id, node.host, node.port, purpose)
        slot = self._slots.get(key)
        if slot is None:
            place = self._places.setdefault(key[:3], Place(self._voice_of(node), Reconnect(self._config)))
            watch = self._watch_of(node, purpose)
            slot = ConnectionSlot(node, self._config, self._start_soon, self.outages, self._security, place, watch)
            self._slots[key] = slot
        if slot.connection is None:
            await self._refusals.check(node)
        try:
            return await slot.get()
        except AuthenticationError as error:
            self._refusals.refused(node, error)
            raise

    def ready(self, node: Node, purpose: Purpose) -> Connection | None:
        """The negotiated connection to ``node``, if there is one now and the client is not closed."""
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
        connection = await self.connection(node, purpose)
        return await connection.request(message, response_timeout)

    def _voice_of(self, node: Node) -> Voice:
        """Tells the outages that a broker says nothing, unless it has said something since on another connection.

        And the throttles that it has the client wait.
        """

        def silent(api: str, since: float) -> None:
            heard = [slot.connection for key, slot in self._slots.items() if key.node_id == node.node_id and slot.connection]
            if all(connection.heard_at <= since for connection in heard):
                self.outages.silent(node, api, since)

        throttled = lambda api, seconds: self.throttles.throttled(node, api, seconds)  # noqa: E731
        return Voice(silent, lambda: self.outages.heard(node), throttled)

    def when_changed(self, tell: Callable[[ConnectionEvent], object]) -> None:
        """Call ``tell`` at each change of a connection's state."""
        self._watch = tell

    def _watch_of(self, node: Node, purpose: Purpose) -> Callable[[ConnectionState, StateClock, Exception | None], object]:
        def changed(before: ConnectionState, clock: StateClock, error: Exception | None) -> None:
            if self._watch is not None:
                spent = clock.times()[before.value]
                self._watch(ConnectionEvent(node, purpose, before.value, clock.current.value, spent, error))

        return changed

    def statistics(self) -> tuple[ConnectionStatistics, ...]:
        """The connections that there are, that are being made, or that were there last, with the times of their states."""
        return tuple(
            ConnectionStatistics(
                Node(key.node_id, key.host, key.port),
                key.purpose,
                slot.clock.current.value,
                MappingProxyType(slot.clock.times()),
                0 if (connection := slot.connection) is None else connection.in_flight,
            )
            for key, slot in self._slots.items()
            if slot.clock is not None
        )

    def connections(self) -> list[Connection]:
        """The connections that there are now."""
        return [found for slot in self._slots.values() if (found := slot.connection) is not None]

    def connected(self) -> tuple[Node, ...]:
        """The brokers of the cluster that there are connections to, by their ids."""
        nodes = {connection.node for connection in self.connections() if connection.node.node_id >= 0}
        return tuple(sorted(nodes, key=lambda node: node.node_id))

    def keep_only(self, nodes: frozenset[Node]) -> None:
        """Close the connections to brokers that are not in the cluster any more (bootstrap addresses stay)."""
        self.outages.cluster_is(nodes)
        self.throttles.keep_only(nodes)
        places = {(node.node_id, node.host, node.port) for node in nodes}
        for key in [key for key in self._slots if key.node_id >= 0 and key[:3] not in places]:
            self._slots.pop(key).close()
        self._places = {place: known for place, known in self._places.items() if place[0] < 0 or place in places}

    def disconnect(self) -> None:
        """Close every connection; who needs one has it made anew."""
        slots, self._slots, self._places = self._slots, {}, {}
        for slot in slots.values():
            slot.close()

    def close(self) -> None:
        """Close every connection, and make no more."""
        self._closed = True
        for slot in self._slots.values():
            slot.close()


def _stuck(connection: Connection | None) -> str:
    """What is not done yet of a connection that was dialled."""
    if connection is None:
        return "it takes connections, and says nothing in the TLS handshake"
    return "authenticating did not end" if connection.versions.ranges else "it takes connections, and says nothing on them"


def _why(error: OSError) -> str:
    """What the operating system said, of each address that was tried."""
    inner = error.__cause__.exceptions if isinstance(error.__cause__, BaseExceptionGroup) else ()
    causes = [
        os.strerror(each.errno) if each.errno and each.errno > 0 else each.strerror or str(each)
        for each in (*inner, error)
        if isinstance(each, OSError)
    ]
    return ", ".join(dict.fromkeys(causes[:-1] or causes))
