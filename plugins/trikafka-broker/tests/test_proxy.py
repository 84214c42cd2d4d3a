"""The fault proxy in front of a server with a broker's framing.

The tests check the effect of each fault on both sides.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trikafka_broker.proxy import Fault, FaultProxy, Rule

pytestmark = pytest.mark.trio
METADATA = 3


def request(number: int, api: int = 0, body: bytes = b"body") -> bytes:
    head = struct.pack(">hhi", api, 9, number)
    return struct.pack(">i", len(head + body)) + head + body


def response(number: int, body: bytes = b"some answer") -> bytes:
    return struct.pack(">ii", 4 + len(body), number) + body


class Server:
    """A server that records its complete requests, and responds to each."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.news = trio.Event()

    async def serve(self, stream: trio.SocketStream) -> None:
        data = b""
        try:
            async for chunk in stream:
                data += chunk
                while len(data) >= 4 and len(data) >= (size := 4 + int.from_bytes(data[:4], "big")):
                    self.seen.append(data[:size])
                    await stream.send_all(response(int.from_bytes(data[8:12], "big")))
                    data = data[size:]
                self.news.set()
                self.news = trio.Event()
        except trio.BrokenResourceError:
            pass

    async def has(self, *expected: bytes) -> None:
        while self.seen != list(expected):
            await self.news.wait()


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Server, FaultProxy, trio.SocketStream, int]]:
    """Open a server, a proxy before it, and a connection through the proxy.

    Yields all three, and the server's port.
    """
    server = Server()
    with trio.fail_after(240):
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            port = listener.socket.getsockname()[1]
            nursery.start_soon(partial(trio.serve_listeners, server.serve, [listener]))
            async with FaultProxy.open([f"127.0.0.1:{port}"]) as proxy:
                stream = await proxy.dial("127.0.0.1", port)
                yield server, proxy, stream, port
                await stream.aclose()
            nursery.cancel_scope.cancel()


async def read(stream: trio.SocketStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = await stream.receive_some(count - len(data))
        assert chunk, f"the connection ended after {data!r}"
        data += chunk
    return data


async def ended(stream: trio.SocketStream) -> bytes:
    """Return the bytes before the reset."""
    data = b""
    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012
        while True:
            chunk = await stream.receive_some()
            assert chunk, "it was closed and not reset"
            data += chunk
    return data


async def test_proxy_without_rules_changes_nothing() -> None:
    async with opened() as (server, proxy, stream, _):
        for number in range(3):
            await stream.send_all(request(number, body=b"x" * 200_000 * number))
            assert await read(stream, len(response(number))) == response(number)
        assert [len(each) for each in server.seen] == [
            len(request(0, body=b"x" * 200_000 * n)) for n in range(3)
        ]
        assert not proxy.counts


async def test_lost_request_leaves_the_others() -> None:
    async with opened() as (server, proxy, stream, _):
        proxy.add(Rule(Fault.LOSE_REQUEST, after=1))
        await stream.send_all(request(0, METADATA) + request(1) + request(2) + request(3))
        assert await read(stream, 3 * len(response(0))) == response(0) + response(1) + response(3)
        assert server.seen == [request(0, METADATA), request(1), request(3)]
        assert proxy.counts == {"request lost": 1}


async def test_lost_response_leaves_the_others() -> None:
    async with opened() as (server, proxy, stream, _):
        proxy.add(Rule(Fault.LOSE_RESPONSE, times=2))
        await stream.send_all(request(1) + request(2) + request(3))
        assert await read(stream, len(response(0))) == response(3)
        assert server.seen == [request(1), request(2), request(3)]


async def test_damaged_request_has_a_changed_byte() -> None:
    async with opened() as (server, proxy, stream, _):
        proxy.add(Rule(Fault.DAMAGE_REQUEST))
        await stream.send_all(request(1) + request(2))
        assert await read(stream, 2 * len(response(1))) == response(1) + response(2)
        assert server.seen == [request(1)[:-1] + bytes([request(1)[-1] ^ 0xFF]), request(2)]


async def test_damaged_response_is_a_shorter_frame() -> None:
    """A damaged response is a complete frame with half of the message."""
    async with opened() as (_, proxy, stream, _):
        proxy.add(Rule(Fault.DAMAGE_RESPONSE))
        await stream.send_all(request(1) + request(2))
        half = response(1)[4 : 8 + 11 // 2]
        expected = struct.pack(">i", len(half)) + half + response(2)
        assert await read(stream, len(expected)) == expected


async def test_cuts_end_both_sides() -> None:
    async with opened() as (server, proxy, stream, port):
        rows = {
            Fault.CUT_REQUEST: (b"", []),
            Fault.CUT_BEFORE_RESPONSE: (b"", [request(1)]),
            Fault.CUT_RESPONSE: (response(1)[: len(response(1)) // 2], [request(1)]),
        }
        for fault, (got, seen) in rows.items():
            server.seen.clear()
            proxy.add(Rule(fault))
            other = await proxy.dial("127.0.0.1", port)
            await other.send_all(request(1))
            assert await ended(other) in (got, b"")  # a reset may discard received bytes
            assert server.seen == seen
            await other.aclose()
        assert proxy.cut(port + 1) == 0
        await stream.send_all(request(5))
        await read(stream, len(response(5)))
        assert proxy.cut(port) == 1
        assert await ended(stream) == b""
        assert proxy.counts["cut"] == 1


async def test_late_bytes_arrive_after_the_close() -> None:
    """The bytes of a closed connection arrive at the broker later."""
    async with opened() as (server, proxy, stream, port):
        arrive = trio.Event()
        proxy.add(Rule(Fault.LATE_REQUEST, until=arrive))
        await stream.send_all(request(1) + request(2))
        assert await ended(stream) == b""
        other = await proxy.dial("127.0.0.1", port)
        await other.send_all(request(3))
        await read(other, len(response(3)))
        assert server.seen == [request(3)]
        arrive.set()
        await server.has(request(3), request(1), request(2))
        await other.aclose()


async def test_held_broker_is_silent_until_released() -> None:
    async with opened() as (server, proxy, stream, port):
        proxy.hold(port)
        await stream.send_all(request(1))
        with trio.move_on_after(0.1) as scope:
            await stream.receive_some()
        assert scope.cancelled_caught
        assert server.seen == []
        proxy.release(port)
        assert await read(stream, len(response(1))) == response(1)


async def test_unreachable_broker_ends_the_connection() -> None:
    """A connection to an unreachable broker ends, and a dial to an unknown address fails."""
    async with FaultProxy.open(["127.0.0.1:1"]) as proxy:
        stream = await proxy.dial("127.0.0.1", 1)
        with trio.fail_after(240):
            assert await ended(stream) == b""
        await stream.aclose()
        with pytest.raises(OSError, match=r"."):
            await proxy.dial("127.0.0.1", 2)
