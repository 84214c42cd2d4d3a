"""Options of a connection's socket."""

from __future__ import annotations

import socket
import sys

import pytest
import trio
import trio.testing

from trikafka._net.transport import transport_of


@pytest.mark.skipif(
    not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="this system has no such option"
)
async def test_system_takes_a_whole_buffer() -> None:
    """A busy broker would be sent 16 KiB at a time, and the program would wake up for each."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        stream = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        async with stream:
            transport = transport_of(stream)
            assert (
                int.from_bytes(
                    stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 4), "little"
                )
                == 0
            )
            await transport.aclose()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
async def test_backlog_is_what_the_peer_has_not_read() -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with (
        listener,
        await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1]) as stream,
    ):
        transport = transport_of(stream)
        async with await listener.accept() as peer:
            assert transport.backlog == 0
            sent = 0
            while count := transport.send_now([memoryview(bytes(65_536))]):
                sent += count
            assert 0 < transport.backlog <= sent
            while sent:
                sent -= len(await peer.receive_some(65_536))
            with trio.fail_after(240):
                while transport.backlog:  # noqa: ASYNC110
                    await trio.sleep(0.01)
        await transport.aclose()
        assert transport.backlog == 0


async def test_memory_stream_has_no_backlog() -> None:
    left, _ = trio.testing.memory_stream_pair()
    assert transport_of(left).backlog == 0
