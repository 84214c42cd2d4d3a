"""What a review of secured connections found: each was a fault once."""

from __future__ import annotations

import ssl

import pytest
import trio
import trio.testing
from kafka.protocol.metadata import MetadataRequest
from netting import NODE, OFFERED, Asked, Peer, config
from test_net_auth import ready
from test_net_tls import AUTHORITY, connect, server_context, serving
from trio.testing import MockClock, wait_all_tasks_blocked

from trikafka._net.connection import Connection
from trikafka._net.session import Authenticate
from trikafka._net.transport import transport_of
from trikafka.errors import KafkaConnectionError


def _large() -> MetadataRequest:
    topics = [MetadataRequest.MetadataRequestTopic(name="x" * 200) for _ in range(1_000)]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


async def test_a_request_that_is_made_while_ciphertext_waits_is_sent() -> None:
    """The socket is full, all that was asked for is encrypted and waits for it; what is asked then was forgotten."""
    begin = trio.Event()
    served = 0

    async def serve(stream: trio.SSLStream[trio.SocketStream]) -> None:
        nonlocal served
        peer = Peer(stream)
        await peer.shake_hands()
        await begin.wait()
        while True:
            await peer.answer(await peer.request())
            served += 1

    def full() -> bool:
        return bool(transport.pending and not connection._requests.rest and not connection._requests.queued)

    async with serving(server_context(AUTHORITY.issue_cert("localhost")), serve) as node:
        transport = await connect(node)
        connection = Connection(transport, NODE, config(security_protocol="SSL"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            await connection.negotiate("1")
            await connection.authenticate(None)
            asked = 0
            with trio.fail_after(20):
                while not full():
                    nursery.start_soon(connection.request, _large())
                    asked += 1
                    await wait_all_tasks_blocked(0.01)
                nursery.start_soon(connection.request, _large())  # while the writer waits for the socket
                await wait_all_tasks_blocked(0.01)
                begin.set()
                while served < asked + 1:
                    await trio.sleep(0.01)
            await wait_all_tasks_blocked(0.05)
            connection.close()


async def _nothing(ask: object, node: object) -> None:
    """Authenticates by saying nothing."""


@pytest.mark.parametrize("authenticate", [None, _nothing])
async def test_a_broker_that_closes_behind_its_first_response(authenticate: Authenticate | None, autojump_clock: MockClock) -> None:
    """The reader may see the end before the task that asked sees the response: a lost connection, and no fault of ours."""
    ours, theirs = trio.testing.memory_stream_pair()
    connection, peer = Connection(transport_of(ours), NODE, config()), Peer(theirs)

    async def connect() -> None:
        await connection.negotiate("1")
        await connection.authenticate(authenticate)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        asked = Asked(nursery, connect)
        request = await peer.request()
        await wait_all_tasks_blocked()
        connection._take(memoryview(peer.frame(request, error_code=0, api_keys=OFFERED))[4:])
        connection._break(ConnectionError("the broker closed it"))
        with pytest.raises(KafkaConnectionError, match="the broker closed it"):
            await asked.outcome()


async def test_a_connection_that_is_closed_in_the_step_that_authenticates_it_anew(autojump_clock: MockClock) -> None:
    async with ready(10_000) as (line, broker):
        request = await broker.request()
        await broker.answer(request, error_code=0, mechanisms=["PLAIN"])
        request = await broker.request()
        answer = broker.frame(request, error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=10_000)
        await wait_all_tasks_blocked()
        line.connection._take(memoryview(answer)[4:])
        line.connection.close()
        await wait_all_tasks_blocked()
        assert line.connection.broken


async def test_requests_that_take_all_the_room_do_not_keep_the_session_from_being_renewed(autojump_clock: MockClock) -> None:
    async with ready(10_000) as (line, broker):
        request = await broker.request()  # it authenticates anew
        asked = [line.ask() for _ in range(250)]
        await wait_all_tasks_blocked()
        await broker.answer(request, error_code=0, mechanisms=["PLAIN"])
        with trio.fail_after(5):
            request = await broker.request()
            await broker.answer(request, error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=0)
            for _ in asked:
                await broker.answer(await broker.request())
            for one in asked:
                await one.outcome()
