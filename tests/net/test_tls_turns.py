"""Turns during TLS at full speed: at most a slice or two of bytes between turns of other tasks."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest
import trio
from test_tls import AUTHORITY, PEM, config, server_context

from trikafka._net.tls import TlsTransport
from trikafka._net.tls_context import make_context
from trikafka._net.transport import Transport, Views, transport_of
from trikafka.types import Node

SIZE = 20_000_000
#: The bytes that may pass between two turns of another task: the work of ten milliseconds in Trio's
#: worst order.
MOST = 1_000_000


class Counting:
    """A transport that counts the bytes between two turns.

    Milliseconds would depend on what else the machine does.
    """

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.prompt = False
        self.pending = False
        self.now = 0
        self.most = 0
        self.turns = 0

    def turn(self) -> None:
        """Note that another task has its turn."""
        self.now = 0
        self.turns = self.turns + 1

    def _count(self, size: int) -> None:
        self.now += size
        self.most = max(self.most, self.now)

    async def receive_into(self, view: memoryview) -> int:
        count = await self._inner.receive_into(view)
        self._count(count)
        return count

    async def send_all(self, views: Views) -> None:
        self._count(sum(len(view) for view in views))
        await self._inner.send_all(views)

    def send_now(self, views: Views) -> int:
        return 0

    async def aclose(self) -> None:
        await self._inner.aclose()


@pytest.mark.parametrize("direction", ["sent", "received"])
async def test_megabytes_at_once_leave_turns(direction: str) -> None:
    data = bytes(SIZE)
    servers = server_context(AUTHORITY.issue_cert("localhost"))

    def peer() -> None:
        plain, _ = server.accept()
        with contextlib.suppress(OSError), servers.wrap_socket(plain, server_side=True) as secured:
            left, memory = SIZE, bytearray(262_144)
            while direction == "sent" and left:
                left -= secured.recv_into(memory)
            secured.sendall(data if direction == "received" else b"all of it")

    async def others() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            counting.turn()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=peer, daemon=True)  # a failure here must not hang
        thread.start()
        port = server.getsockname()[1]
        counting = Counting(transport_of(await trio.open_tcp_stream("127.0.0.1", port)))
        context = make_context(config(security_protocol="SSL", ssl_cafile=PEM))
        transport = TlsTransport(counting, context, Node(0, "localhost", port))
        memory = memoryview(bytearray(SIZE if direction == "received" else 9))
        with trio.fail_after(240):
            await transport.handshake()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(others)
                if direction == "sent":
                    await transport.send_all([memoryview(data)])
                while memory:
                    memory = memory[await transport.receive_into(memory) :]
                nursery.cancel_scope.cancel()
        await transport.aclose()
        await trio.to_thread.run_sync(thread.join)
    assert 0 < counting.most < MOST
    assert counting.turns >= SIZE / MOST
