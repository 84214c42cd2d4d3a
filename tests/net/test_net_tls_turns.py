"""At full speed, encrypting and decrypting leave others their turns: no step of the loop has 50 ms of work in it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
import trio
from test_net_tls import AUTHORITY, connect, server_context

from trikafka.types import Node

SIZE = 100_000_000
MOST = 0.05  #: seconds that the loop's thread may work (not: wait for the processor) between two turns of another task


@pytest.mark.parametrize("direction", ["sent", "received"])
async def test_a_hundred_megabytes_at_once(direction: str) -> None:
    data = bytes(SIZE)
    context = server_context(AUTHORITY.issue_cert("localhost"))
    longest = 0.0

    def peer() -> None:
        plain, _ = server.accept()
        with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as secured:
            left, memory = SIZE, bytearray(262_144)
            while direction == "sent" and left:
                left -= secured.recv_into(memory)
            secured.sendall(data if direction == "received" else b"all of it")

    async def others() -> None:
        nonlocal longest
        before = time.thread_time()
        while True:
            await trio.lowlevel.checkpoint()
            now = time.thread_time()
            longest, before = max(longest, now - before), now

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=peer, daemon=True)  # no failure here is to hang on it
        thread.start()
        transport = await connect(Node(0, "localhost", server.getsockname()[1]))
        memory = memoryview(bytearray(SIZE if direction == "received" else 9))
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(others)
                await trio.lowlevel.checkpoint()  # from now on they count
                if direction == "sent":
                    await transport.send_all([memoryview(data)])
                while memory:
                    memory = memory[await transport.receive_into(memory) :]
                nursery.cancel_scope.cancel()
        await transport.aclose()
        await trio.to_thread.run_sync(thread.join)
    assert longest < MOST
