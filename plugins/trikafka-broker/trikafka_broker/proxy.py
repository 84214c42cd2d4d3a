"""A TCP proxy in front of brokers that injects the faults of a bad network.

Faults hit single requests and responses. The proxy owns its sockets. It reads only as much of
Kafka's protocol as it needs: the length of a frame, the API key of a request (bytes 4 to 6), and
the correlation id of requests (bytes 8 to 12) and responses.

A client connects through the proxy by the setting `dial`: `open_producer(..., dial=proxy.dial)`.
The brokers do not know about the proxy.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Self

import trio

from .ports import HOST

PRODUCE = 0
_CHUNK = 65_536
#: Seconds that a broker may take to read the bytes of a closed connection.
_LATE_LIMIT = 10
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


class Fault(Enum):
    """A fault of one request or response.

    The connection continues after a lost or damaged frame, and ends with every other fault.
    """

    LOSE_REQUEST = "request lost"  #: The broker never sees the request, but sees the next one.
    #: The broker executes the request. The client sees only the next response.
    LOSE_RESPONSE = "response lost"
    DAMAGE_REQUEST = "request damaged"  #: The last byte is inverted.
    DAMAGE_RESPONSE = "response damaged"  #: A complete frame whose message is cut in the middle.
    #: The length of the frame is -1, which no frame has.
    IMPOSSIBLE_LENGTH = "response of an impossible length"
    #: The length of the frame is 200,000,000, more than clients accept.
    EXCESSIVE_LENGTH = "response of an excessive length"
    CUT_REQUEST = "cut within a request"  #: The broker gets half of the request.
    CUT_BEFORE_RESPONSE = "cut before a response"  #: The broker executes the request.
    CUT_RESPONSE = "cut within a response"  #: The client gets half of the response.
    # On real networks a killed connection has this effect, and tests of idempotence need it: the
    # client has reconnected and sent the batch again, and then the broker reads the first one.
    LATE_REQUEST = (
        #: The client's connection ends; the broker reads the bytes sent so far later.
        "request of a closed connection"
    )


@dataclass(eq=False)
class Rule:
    """A fault for the next `times` requests of an API, optionally to one broker (`port`).

    `times` decreases to 0.
    """

    fault: Fault
    times: int = 1
    api: int = PRODUCE
    port: int | None = None
    after: int = 0  #: The number of matching requests that pass before the first fault.
    seconds: float = 0.0  #: The delay of a late request.
    until: trio.Event | None = None  #: An event that a late request waits for, after the delay.

    def concerns(self, api: int, port: int) -> bool:
        """Return whether the rule applies to this request; count the request."""
        if self.api != api or self.port not in (None, port) or self.times <= 0:
            return False
        if self.after:
            self.after -= 1
            return False
        self.times -= 1
        return True


class FaultProxy:
    """Proxies in front of the brokers of a cluster.

    `async with FaultProxy.open(["127.0.0.1:9092"]) as proxy`. Without rules all bytes pass
    unchanged. `counts` is the number of faults by kind; connections ended by `cut` count under
    "cut".
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.counts: Counter[str] = Counter()
        self.passed: Counter[int] = Counter()  #: Requests that a broker got unchanged, by API.
        #: Seconds that each frame waits, in both directions, one frame after the other.
        self.delay = 0.0
        self._nursery = nursery
        self._listeners: dict[tuple[str, int], int] = {}
        self._rules: list[Rule] = []
        self._links: set[_Link] = set()
        self._held: dict[int, trio.Event] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, addresses: Iterable[str]) -> AsyncIterator[Self]:
        """Open a proxy with one port for each address (`host:port`).

        All connections end with the block.
        """
        async with trio.open_nursery() as nursery:
            proxy = cls(nursery)
            for address in addresses:
                await proxy._listen(address)
            try:
                yield proxy
            finally:
                nursery.cancel_scope.cancel()

    async def dial(self, host: str, port: int) -> trio.SocketStream:
        """Open a connection to a broker through the proxy.

        An address without a proxy is connected directly.
        """
        own = self._listeners.get((host, port))
        if own is None:
            return await trio.open_tcp_stream(host, port)
        return await trio.open_tcp_stream(HOST, own)

    @property
    def ports(self) -> dict[tuple[str, int], int]:
        """The proxy's own port of each broker, for clients in other processes."""
        return dict(self._listeners)

    # --- faults

    def add(self, rule: Rule) -> Rule:
        """Add a rule; older rules come first."""
        self._rules = [each for each in self._rules if each.times > 0]
        self._rules.append(rule)
        return rule

    def forget(self) -> None:
        """Remove all rules."""
        self._rules.clear()

    def cut(self, port: int | None = None) -> int:
        """Reset the connections to the broker at `port` (default: all); return their number."""
        chosen = [link for link in self._links if port in (None, link.port)]
        for link in chosen:
            link.cut()
        self.counts["cut"] += len(chosen)
        return len(chosen)

    def hold(self, port: int) -> None:
        """Pass nothing to or from the broker at `port` until `release`.

        Connections are accepted and stay silent.
        """
        self._held.setdefault(port, trio.Event())

    def release(self, port: int) -> None:
        """Resume after `hold`."""
        if port in self._held:
            self._held.pop(port).set()

    # --- called by the links

    def fault_for(self, api: int, port: int) -> Rule | None:
        """Return the rule for the next request of an API, and count its use; None without one."""
        rule = next((rule for rule in self._rules if rule.concerns(api, port)), None)
        if rule is not None:
            self.counts[rule.fault.value] += 1
        return rule

    async def passage(self, port: int) -> None:
        """Wait until a frame to or from a broker may pass."""
        if self.delay:
            await trio.sleep(self.delay)
        while port in self._held:
            await self._held[port].wait()

    def later(self, broker: trio.SocketStream, rule: Rule, frames: bytearray) -> None:
        """Schedule the delivery of a closed connection's bytes to the broker."""
        self._nursery.start_soon(_deliver_late, broker, rule, frames)

    async def _listen(self, address: str) -> None:
        host, _, text = address.rpartition(":")
        port = int(text)

        async def serve(client: trio.SocketStream) -> None:
            try:
                broker = await trio.open_tcp_stream(host, port)
            except OSError:
                _reset(client)
                return
            link = _Link(self, port, client, broker)
            self._links.add(link)
            try:
                await link.run()
            finally:
                self._links.discard(link)

        (listener,) = await trio.open_tcp_listeners(0, host=HOST)
        self._listeners[host, port] = int(listener.socket.getsockname()[1])
        self._nursery.start_soon(
            partial(trio.serve_listeners, serve, [listener], handler_nursery=self._nursery)
        )


class _Link:
    """A client's connection and its connection to the broker."""

    def __init__(
        self, proxy: FaultProxy, port: int, client: trio.SocketStream, broker: trio.SocketStream
    ) -> None:
        self.port = port
        self._proxy = proxy
        self._client = client
        self._broker = broker
        self._scope = trio.CancelScope()
        #: The fault of a response, by correlation id.
        self._doomed: dict[bytes, Fault] = {}
        #: The bytes that the broker gets after the client's connection has ended.
        self._late: tuple[Rule, bytearray] | None = None

    def cut(self) -> None:
        """End both connections at once."""
        self._scope.cancel()

    async def run(self) -> None:
        """Pass frames until either side closes, or a fault ends the connection."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pump, self._client, self._broker, self._request)
                    nursery.start_soon(self._pump, self._broker, self._client, self._response)
        finally:
            _reset(self._client)
            if self._late is None:
                self._broker.socket.close()
            else:
                self._proxy.later(self._broker, *self._late)

    async def _pump(self, source: trio.SocketStream, sink: trio.SocketStream, fate: Fate) -> None:
        frames = _Frames(source)
        with contextlib.suppress(*_GONE):
            lives = True
            while lives and (frame := await frames.take()) is not None:
                await self._proxy.passage(self.port)
                data, lives = fate(frame)
                await sink.send_all(data)
        if self._late is not None and source is self._client:
            self._late[1].extend(await frames.rest())
        self._scope.cancel()

    def _request(self, frame: bytes) -> tuple[bytes, bool]:
        """Return the bytes for the broker, and whether the connection continues."""
        api = int.from_bytes(frame[4:6], "big")
        rule = self._proxy.fault_for(api, self.port)
        if rule is None:
            self._proxy.passed[api] += 1
            return frame, True
        match rule.fault:
            case Fault.LOSE_REQUEST:
                return b"", True
            case Fault.DAMAGE_REQUEST:
                return frame[:-1] + bytes([frame[-1] ^ 0xFF]), True
            case Fault.CUT_REQUEST:
                return frame[: len(frame) // 2], False
            case Fault.LATE_REQUEST:
                self._late = rule, bytearray(frame)
                return b"", False
            case fault:
                self._doomed[frame[8:12]] = fault
                self._proxy.passed[api] += 1
                return frame, True

    def _response(self, frame: bytes) -> tuple[bytes, bool]:
        """Return the bytes for the client, and whether the connection continues."""
        match self._doomed.pop(frame[4:8], None):
            case Fault.LOSE_RESPONSE:
                return b"", True
            case Fault.DAMAGE_RESPONSE:
                half = frame[4 : 8 + (len(frame) - 8) // 2]
                return struct.pack(">i", len(half)) + half, True
            case Fault.IMPOSSIBLE_LENGTH:
                return struct.pack(">i", -1) + frame[4:], True
            case Fault.EXCESSIVE_LENGTH:
                return struct.pack(">i", 200_000_000) + frame[4:], True
            case Fault.CUT_BEFORE_RESPONSE:
                return b"", False
            case Fault.CUT_RESPONSE:
                return frame[: len(frame) // 2], False
            case _:
                return frame, True


class _Frames:
    """A reader of frames, each with its length in front."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def take(self) -> bytes | None:
        """Return the next frame; `None` at the end."""
        while len(self._buffer) < 4 or len(self._buffer) < (
            size := 4 + int.from_bytes(self._buffer[:4], "big")
        ):
            data = await self._stream.receive_some(_CHUNK)
            if not data:
                return None
            self._buffer += data
        frame = bytes(self._buffer[:size])
        del self._buffer[:size]
        return frame

    async def rest(self) -> bytes:
        """Return the received bytes that belong to no frame taken so far."""
        with contextlib.suppress(*_GONE), trio.move_on_after(0.01):
            while data := await self._stream.receive_some(_CHUNK):
                self._buffer += data
        return bytes(self._buffer)


#: The bytes to pass for a frame, and whether the connection continues.
Fate = Callable[[bytes], tuple[bytes, bool]]


async def _deliver_late(broker: trio.SocketStream, rule: Rule, frames: bytearray) -> None:
    with contextlib.suppress(*_GONE):
        async with broker:
            await trio.sleep(rule.seconds)
            if rule.until is not None:
                await rule.until.wait()
            await broker.send_all(frames)
            with trio.move_on_after(_LATE_LIMIT):
                while await broker.receive_some(_CHUNK):
                    pass


def _reset(stream: trio.SocketStream) -> None:
    """Close with a TCP reset, so that the other side notices at once.

    A router that has forgotten the connection has the same effect.
    """
    with contextlib.suppress(OSError):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()
