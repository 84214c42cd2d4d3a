"""The connections of one client: which broker, for which purpose, dialled once, again after a wait, closed when idle.

A broker responds to the requests of one connection one after the other. So requests that may wait inside the broker (a fetch, a
JoinGroup) get a socket of their own, by *purpose*, and a heartbeat never stands behind them.
"""

from __future__ import annotations

import os
from typing import Any, Literal, NamedTuple

import trio
from trio.abc import Stream

from .. import _version
from .._wire.messages import ApiMessage
from ..config import ClientConfig
from ..errors import AuthenticationError, KafkaConnectionError, TrikafkaError
from ..types import Node
from .connection import Connection
from .expiry import Voice
from .outages import Outages
from .reasons import waiting_for
from .refusals import Refusals
from .retry import Retry, backoff
from .security import Security
from .singleflight import ClientClosed, SingleFlight, StartSoon

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


class ConnectionSlot:
    """The place of the connection to one broker for one purpose: at most one connection, dialled when asked for."""

    def __init__(
        self, node: Node, config: ClientConfig, start_soon: StartSoon, outages: Outages, security: Security, voice: Voice
    ) -> None:
        self._node, self._config, self._start_soon, self._outages = node, config, start_soon, outages
        self._security, self._voice = security, voice
        self._connection: Connection | None = None
        self._closed = False
        self._retry = Retry.to_reconnect(config)
        self._last_error: Exception | None = None  # of dialling, until it succeeds
        self._too_slow = 0  # dials in a row that ran out of time
        self._not_before = 0.0
        self._dialling = trio.CancelScope()
        self._dial = SingleFlight(start_soon, self._connect)

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
        waiting_for(f"a connection to {self._node}", self._last_error)
        if self._connection is not None and self._connection.served:
            self._retry.reset()
            self._connection, self._not_before = None, 0.0
        await trio.sleep_until(self._not_before)
        try:
            connection = await self._establish()
        except BaseException as error:
            self._not_before = trio.current_time() + self._retry.delay()
            self._last_error = error if isinstance(error, TrikafkaError) else None
            if self._last_error is not None and not self._closed:
                self._outages.unreached(self._node, self._last_error)
            raise
        self._not_before = trio.current_time() + self._retry.delay()  # if it breaks before it is of use
        self._last_error = None
        self._connection = connection
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

    def _setup_limit(self) -> float:
        """Seconds that dialling and negotiating may take: longer after each time that was not enough (KIP-601)."""
        first, most = self._config.socket_connection_setup_timeout_ms, self._config.socket_connection_setup_timeout_max_ms
        return backoff(self._too_slow + 1, first, max(first, most)) if self._too_slow else first / 1000

    async def _establish(self) -> Connection:
        node, limit = self._node, self._setup_limit()
        connection: Connection | None = None
        ready = False
        try:
            with trio.fail_after(limit):
                transport = await self._security.connect(self._config.dial or dial_tcp, node)
                connection = Connection(transport, node, self._config, self._voice)
                self._start_soon(self._run, connection)
                await connection.negotiate(_version.VERSION)
                await connection.authenticate(self._security.authenticate)
                ready, self._too_slow = True, 0
                return connection
        except trio.TooSlowError:
            self._too_slow += 1
            raise KafkaConnectionError(f"{node} did not answer as a Kafka broker within {limit:.3g} s") from None
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
        self.outages = Outages()
        self._refusals = Refusals()
        self._closed = False

    async def connection(self, node: Node, purpose: Purpose = "general") -> Connection:
        """A negotiated connection to ``node``. Raises :exc:`KafkaConnectionError`, :exc:`ProtocolError`.

        A broker that has refused the credentials is not dialled again for half a minute: :exc:`AuthenticationError` at once.
        Once closed it raises :exc:`ClientClosed`, which users know as :exc:`trio.ClosedResourceError`.
        """
        if self._closed:
            raise ClientClosed("the client was closed")
        key = _Key(node.node_id, node.host, node.port, purpose)
        slot = self._slots.get(key)
        if slot is None:
            voice = self._voice_of(node)
            slot = ConnectionSlot(node, self._config, self._start_soon, self.outages, self._security, voice)
            self._slots[key] = slot
        if slot.connection is None:
            await self._refusals.check(node)
        try:
            return await slot.get()
        except AuthenticationError as error:
            self._refusals.refused(node, error)
            raise

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
        """Tells the outages that a broker says nothing, unless it has said something since on another connection."""

        def silent(api: str, since: float) -> None:
            heard = [slot.connection for key, slot in self._slots.items() if key.node_id == node.node_id and slot.connection]
            if all(connection.heard_at <= since for connection in heard):
                self.outages.silent(node, api, since)

        return Voice(silent, lambda: self.outages.reached(node))

    def connections(self) -> list[Connection]:
        """The connections that there are now."""
        return [found for slot in self._slots.values() if (found := slot.connection) is not None]

    def keep_only(self, nodes: frozenset[Node]) -> None:
        """Close the connections to brokers that are not in the cluster any more (bootstrap addresses stay)."""
        self.outages.cluster_is(nodes)
        places = {(node.node_id, node.host, node.port) for node in nodes}
        for key in [key for key in self._slots if key.node_id >= 0 and key[:3] not in places]:
            self._slots.pop(key).close()

    def disconnect(self) -> None:
        """Close every connection; who needs one has it made anew."""
        slots, self._slots = self._slots, {}
        for slot in slots.values():
            slot.close()

    def close(self) -> None:
        """Close every connection, and make no more."""
        self._closed = True
        for slot in self._slots.values():
            slot.close()


def _why(error: OSError) -> str:
    """What the operating system said, of each address that was tried."""
    inner = error.__cause__.exceptions if isinstance(error.__cause__, BaseExceptionGroup) else ()
    causes = [
        os.strerror(each.errno) if each.errno and each.errno > 0 else each.strerror or str(each)
        for each in (*inner, error)
        if isinstance(each, OSError)
    ]
    return ", ".join(dict.fromkeys(causes[:-1] or causes))
