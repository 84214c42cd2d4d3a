"""What is set on the socket of a connection."""

from __future__ import annotations

import socket

import pytest
import trio

from trikafka._net.transport import transport_of


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="this system has no such option")
async def test_the_system_takes_as_much_as_its_buffer_holds() -> None:
    """Else a broker that is busy is sent 16 KiB at a time, and each time this program has to wake up."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        stream = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        async with stream:
            transport = transport_of(stream)
            assert int.from_bytes(stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 4), "little") == 0
            await transport.aclose()
