"""A TCP proxy before brokers that does to single requests and responses what a bad network does. Owns its sockets.

It knows only as much of Kafka's protocol as it needs to see where a frame ends, which API a request calls and which
response is whose: bytes 4 to 6 of a request are its API's key, 8 to 12 its correlation id, which the response has, too.

A client is led to it by its own means to dial: `open_producer(..., dial=proxy.dial)`. The brokers know nothing of it.
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
    """What may become of one request. The connection lives on after what is lost or damaged, and else does not."""

    LOSE_REQUEST = "request lost"  #: the broker never sees it, and does see the next one
    LOSE_RESPONSE = "response lost"  #: the broker has carried it out; the client sees the next response
    DAMAGE_REQUEST = "request damaged"  #: the last byte is another
    DAMAGE_RESPONSE = "response damaged"  #: a whole frame whose message ends in its middle
    CUT_REQUEST = "cut within a request"  #: the broker gets a half of it
    CUT_BEFORE_RESPONSE = "cut before a response"  #: the broker has carried it out
    CUT_RESPONSE = "cut within a response"  #: the client gets a half of it
    LATE_REQUEST = (
        "request of a closed connection"  #: the client is cut off; the broker reads what came up to then later
    )


@dataclass(eq=False)
class Rule:
    """The next `times` requests of an API (to one broker, if `port` names it) meet a fault. `times` falls to 0."""

    fault: Fault
    times: int = 1
    api: int = PRODUCE
    port: int | None = None
    after: int = 0  #: so many requests that it would concern are let through first
    seconds: float = 0.0  #: after so long a late request is read,
    until: trio.Event | None = None  #: and not before this

    def concerns(self, api: int, port: int) -> bool:
        """Whether it is this request's turn."""
        if self.api != api or self.port not in (None, port) or self.times <= 0:
            return False
        if self.after:
            self.after -= 1
            return False
        self.times -= 1
        return True


class FaultProxy:
    """Proxies before the brokers of a cluster. `async with FaultProxy.open(["127.0.0.1:9092"]) as proxy`.

    Without rules it hands everything on unchanged. `counts` says how often each fault has happened; what `cut` has cut
    counts once a connection, under "cut".
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.counts: Counter[str] = Counter()
        self.passed: Counter[int] = Counter()  #: requests that a broker got whole, by their API
        self.delay = 0.0  #: seconds that each frame waits, in both directions and one after the other
        self._nursery = nursery
        self._listeners: dict[tuple[str, int], int] = {}
        self._rules: list[Rule] = []
        self._links: set[_Link] = set()
        self._held: dict[int, trio.Event] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, addresses: Iterable[str]) -> AsyncIterator[Self]:
        """Listen on a port of its own for each address (`host:port`). All connections end with the block."""
        async with trio.open_nursery() as nursery:
            proxy = cls(nursery)
            for address in addresses:
                await proxy._listen(address)
            try:
                yield proxy
            finally:
                nursery.cancel_scope.cancel()

    async def dial(self, host: str, port: int) -> trio.SocketStream:
        """Open a connection to a broker through the proxy, or a direct one if it does not stand before that address."""
        own = self._listeners.get((host, port))
        return await (trio.open_tcp_stream(host, port) if own is None else trio.open_tcp_stream(HOST, own))

    # --- what goes wrong

    def add(self, rule: Rule) -> Rule:
        """From now on `rule` holds; those that are older come first."""
        self._rules = [each for each in self._rules if each.times > 0]
        self._rules.append(rule)
        return rule

    def forget(self) -> None:
        """Drop all rules."""
        self._rules.clear()

    def cut(self, port: int | None = None) -> int:
        """Reset the connections to the broker at `port` (default: all) at once. Returns how many there were."""
        chosen = [link for link in self._links if port in (None, link.port)]
        for link in chosen:
            link.cut()
        self.counts["cut"] += len(chosen)
        return len(chosen)

    def hold(self, port: int) -> None:
        """Hand nothing on to the broker at `port` or from it until `release`: connections are made, and stay silent."""
        self._held.setdefault(port, trio.Event())

    def release(self, port: int) -> None:
        """Go on where `hold` has stopped."""
        if port in self._held:
            self._held.pop(port).set()

    # --- for the links

    def fault_for(self, api: int, port: int) -> Rule | None:
        """The rule that the next request of an API meets; asking uses it up."""
        rule = next((rule for rule in self._rules if rule.concerns(api, port)), None)
        if rule is not None:
            self.counts[rule.fault.value] += 1
        return rule

    async def passage(self, port: int) -> None:
        """Wait as long as frames to or from a broker have to."""
        if self.delay:
            await trio.sleep(self.delay)
        while port in self._held:
            await self._held[port].wait()

    def later(self, broker: trio.SocketStream, rule: Rule, frames: bytearray) -> None:
        """Hand the bytes of a closed connection to the broker when it is time."""
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
        self._nursery.start_soon(partial(trio.serve_listeners, serve, [listener], handler_nursery=self._nursery))


class _Link:
    """One client's connection and the one to the broker that belongs to it."""

    def __init__(self, proxy: FaultProxy, port: int, client: trio.SocketStream, broker: trio.SocketStream) -> None:
        self.port = port
        self._proxy, self._client, self._broker = proxy, client, broker
        self._scope = trio.CancelScope()
        #: What the response to a request is to meet, by the correlation id.
        self._doomed: dict[bytes, Fault] = {}
        #: What the broker gets when the client is gone.
        self._late: tuple[Rule, bytearray] | None = None

    def cut(self) -> None:
        """End both connections at once."""
        self._scope.cancel()

    async def run(self) -> None:
        """Hand frames on until either side closes, or a fault ends it."""
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
        """What the broker gets for a request, and whether the connection lives on."""
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
        """What the client gets for a response, and whether the connection lives on."""
        match self._doomed.pop(frame[4:8], None):
            case Fault.LOSE_RESPONSE:
                return b"", True
            case Fault.DAMAGE_RESPONSE:
                half = frame[4 : 8 + (len(frame) - 8) // 2]
                return struct.pack(">i", len(half)) + half, True
            case Fault.CUT_BEFORE_RESPONSE:
                return b"", False
            case Fault.CUT_RESPONSE:
                return frame[: len(frame) // 2], False
            case _:
                return frame, True


class _Frames:
    """Reads a stream frame by frame, each with its length before it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def take(self) -> bytes | None:
        """The next frame; `None` at the end."""
        while len(self._buffer) < 4 or len(self._buffer) < (size := 4 + int.from_bytes(self._buffer[:4], "big")):
            data = await self._stream.receive_some(_CHUNK)
            if not data:
                return None
            self._buffer += data
        frame = bytes(self._buffer[:size])
        del self._buffer[:size]
        return frame

    async def rest(self) -> bytes:
        """What has come so far and belongs to no frame that was taken."""
        with contextlib.suppress(*_GONE), trio.move_on_after(0.01):
            while data := await self._stream.receive_some(_CHUNK):
                self._buffer += data
        return bytes(self._buffer)


#: What becomes of a frame: the bytes that go on, and whether the connection lives.
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
    """Close so that the other side sees it at once, as when a machine in between has forgotten the connection."""
    with contextlib.suppress(OSError):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()
