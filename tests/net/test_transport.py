"""A connection over real sockets: written in the step of the request, the rest later and in order."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from netting import NODE, Line, Peer, config, metadata_request

from trikafka._net.connection import Connection
from trikafka._net.in_flight import InFlightRequest
from trikafka._net.transport import SocketTransport, StreamTransport, transport_of
from trikafka._wire.produce import ProduceMessage, ProduceResponse
from trikafka.errors import KafkaConnectionError, ProtocolError, TrikafkaError


@asynccontextmanager
async def connected(*, buffers: int | None = None, **settings: Any) -> AsyncIterator[Line]:
    """Open a running connection over TCP.

    With ``buffers`` both sides' buffers are as small as the system makes them.
    """
    listener = socket.socket()
    if buffers is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    ours = await trio.open_tcp_stream(*listener.getsockname())
    theirs = trio.SocketStream(trio.socket.from_stdlib_socket(listener.accept()[0]))
    listener.close()
    if buffers is not None:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers)
    connection, peer = Connection(transport_of(ours), NODE, config(**settings)), Peer(theirs)
    with trio.fail_after(240):
        async with theirs, trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            nursery.start_soon(peer.shake_hands)
            await connection.negotiate("1")
            await connection.authenticate(None)
            yield Line(connection, peer, nursery)
            connection.close()
    assert connection.in_flight == 0
    assert ours.socket.fileno() == -1, "the stream was closed"


def produce(size: int, acks: int = -1) -> ProduceMessage:
    return ProduceMessage({"t": [(0, [bytes(size)])]}, records=1, acks=acks, timeout_ms=1000)


async def test_stream_selects_its_transport() -> None:
    ours, _ = trio.testing.memory_stream_pair()
    assert isinstance(transport_of(ours), StreamTransport)
    left, right = (trio.SocketStream(end) for end in trio.socket.socketpair())
    transport = transport_of(left)
    assert isinstance(transport, SocketTransport)
    await transport.aclose()
    async with right:
        assert await right.receive_some(1) == b""  # the stream is closed, and its descriptor once


async def test_request_is_written_in_its_step() -> None:
    async with connected() as line:
        ended: list[InFlightRequest] = []
        line.connection.begin(metadata_request(), ended.append)
        assert line.connection.in_flight == 1
        with trio.fail_after(240):
            request = await line.peer.request()
            assert not ended
            await line.peer.answer(request, brokers=[], topics=[])
            while not ended:
                await trio.lowlevel.checkpoint()
        assert ended[0].response().brokers == []


async def test_rest_of_a_full_socket_follows_in_order() -> None:
    async with connected(buffers=4096) as line:
        ended: list[int] = []
        for number in range(5):
            line.connection.begin(
                produce(3_000_000), lambda exchange, number=number: ended.append(number)
            )  # type: ignore[misc]
        last = line.ask()
        for _ in range(5):
            request = await line.peer.request()
            assert len(request.topic_data[0].partition_data[0].records) == 3_000_000
            assert len(ended) < 5
            await line.peer.answer(request, responses=[], throttle_time_ms=0)
        await line.peer.answer(await line.peer.request(), brokers=[], topics=[])
        await last.outcome()
        assert ended == [0, 1, 2, 3, 4]


async def test_unwritten_cancelled_request_is_not_sent() -> None:
    async with connected(buffers=4096) as line:
        line.connection.begin(produce(3_000_000), lambda exchange: None)
        never, last = line.ask(), line.ask()
        await trio.testing.wait_all_tasks_blocked()
        never.scope.cancel()
        await never.done.wait()
        assert never.cancelled
        await line.peer.answer(await line.peer.request(), responses=[], throttle_time_ms=0)
        await line.peer.answer(await line.peer.request(), brokers=[], topics=[])
        await last.outcome()
        assert line.connection.in_flight == 0


async def test_request_without_acks_ends_when_written() -> None:
    async with connected(buffers=4096) as line:
        ended: list[InFlightRequest] = []
        line.connection.begin(produce(100, acks=0), ended.append)
        assert [exchange.response() for exchange in ended] == [None], "it went at once"
        line.connection.begin(produce(3_000_000, acks=0), ended.append)
        line.connection.begin(produce(100, acks=0), ended.append)
        assert len(ended) == 1
        for size in (100, 3_000_000, 100):
            request = await line.peer.request()
            assert len(request.topic_data[0].partition_data[0].records) == size
        while len(ended) < 3:
            await trio.lowlevel.checkpoint()


async def test_peer_that_reads_nothing_loses_connection() -> None:
    async with connected(buffers=4096) as line:
        big = line.ask(produce(3_000_000), 0.1)
        with pytest.raises(KafkaConnectionError, match="did not respond to"):
            await big.outcome()


@pytest.mark.parametrize("size", [100, 3_000_000])
async def test_lost_peer_ends_each_waiter_once(size: int) -> None:
    async with connected(buffers=4096) as line:
        ended: list[InFlightRequest] = []
        for _ in range(3):
            line.connection.begin(produce(size), ended.append)
        await trio.aclose_forcefully(line.peer.stream)
        while len(ended) < 3:
            await trio.lowlevel.checkpoint()
        for exchange in ended:
            with pytest.raises(KafkaConnectionError, match="lost the connection"):
                exchange.response()
        for _ in range(100):
            await trio.lowlevel.checkpoint()
        assert len(ended) == 3
        with pytest.raises(KafkaConnectionError):
            line.connection.begin(produce(1), ended.append)
        assert len(ended) == 3, "a refused request has no second outcome"


async def test_unreadable_response_is_the_callers_alone() -> None:
    async with connected() as line:
        ended: list[InFlightRequest] = []
        line.connection.begin(produce(10), ended.append)
        request = await line.peer.request()
        body = Peer.frame(request, responses=[], throttle_time_ms=0)
        broken = body[4:-1]
        await line.peer.stream.send_all(len(broken).to_bytes(4, "big") + broken)
        while not ended:
            await trio.lowlevel.checkpoint()
        with pytest.raises(ProtocolError, match="Produce"):
            ended[0].response()
        assert not line.connection.broken


async def test_begin_does_not_wait_for_room() -> None:
    async with connected() as line:
        ended: list[InFlightRequest] = []
        for _ in range(100):
            line.connection.begin(metadata_request(), ended.append)
        with pytest.raises(trio.WouldBlock):
            line.connection.begin(metadata_request(), ended.append)


async def test_many_tasks_write_to_a_full_socket() -> None:
    async with connected(buffers=4096) as line:
        asked = [line.ask(produce(40_000 + number)) for number in range(60)]

        async def serve() -> None:
            for _ in range(60):
                request = await line.peer.request()
                await line.peer.answer(request, responses=[], throttle_time_ms=0)

        line.nursery.start_soon(serve)
        for each in asked:
            assert isinstance(await each.outcome(), ProduceResponse)
        assert not isinstance(line.connection._failure, TrikafkaError)


async def test_closed_stream_is_a_lost_connection() -> None:
    ours, theirs = (trio.SocketStream(end) for end in trio.socket.socketpair())
    await ours.aclose()
    connection = Connection(transport_of(ours), NODE, config())
    async with theirs, trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        with pytest.raises(KafkaConnectionError):
            await connection.negotiate("1")


async def test_throttled_socket_writes_in_order_later() -> None:
    async with connected() as line:
        line.connection.throttle(0.05, "Metadata")
        before = trio.current_time()
        ended: list[InFlightRequest] = []
        line.connection.begin(metadata_request(), ended.append)
        assert line.connection.in_flight == 0
        asked = line.ask()
        for _ in range(2):
            await line.peer.answer(await line.peer.request(), brokers=[], topics=[])
        await asked.outcome()
        assert trio.current_time() - before >= 0.05
        assert ended[0].response().brokers == []
