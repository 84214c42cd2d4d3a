"""Resumed TLS sessions: which ticket is offered where, what is not shared, and failures."""

from __future__ import annotations

import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from netting import config
from test_tls import AUTHORITY, PEM, connect, echo, receive, server_context, serving

from trikafka._net import tls_context
from trikafka._net.security import Security
from trikafka._net.tickets import Tickets
from trikafka._net.tls import TlsTransport
from trikafka._net.tls_context import TlsContexts
from trikafka.errors import HandshakeError, KafkaConnectionError
from trikafka.types import Node


@pytest.fixture(autouse=True)
def no_earlier_tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the tickets of other tests, whose servers may have had the same port by chance."""
    monkeypatch.setattr(tls_context, "_shared", tls_context._SharedContexts())


class Session:
    """The attributes that are read of an ``ssl.SSLSession``, which cannot be made by hand."""

    def __init__(self, thread: object, lifetime: int = 86_400) -> None:
        self.thread = thread
        self.ticket_lifetime_hint = lifetime
        self.has_ticket = True


class Listener:
    """A broker's listener.

    Connections go to its network threads in turn, and a ticket works on its own thread alone.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._next = 0
        self._keys = object()

    def restart(self) -> None:
        """Start again, with other keys."""
        self._keys = object()

    def skip(self) -> None:
        """Let another client connect."""
        self._next += 1

    def accept(self, tickets: Tickets, host: str = "a") -> bool:
        """Connect; return whether a session was resumed."""
        thread = self._next % self._threads, self._keys
        self._next += 1
        part = tickets.begin(host, 9093)
        offered: Any = part.session
        resumed = offered is not None and offered.thread == thread
        part.succeeded(resumed=resumed)
        made: Any = Session(thread)
        part.store(made)
        return resumed


@pytest.mark.parametrize("threads", range(1, 13))
def test_number_of_threads_is_learned(threads: int) -> None:
    listener, tickets = Listener(threads), Tickets()
    resumed = [listener.accept(tickets) for _ in range(200)]
    if threads == 3:  # Kafka's default
        assert all(resumed[3:])
    assert all(resumed[-100:])


def test_other_clients_cost_only_luck() -> None:
    listener, tickets, chance = Listener(3), Tickets(), random.Random(7)
    resumed = 0
    for _ in range(600):
        for _ in range(chance.randrange(5)):
            listener.skip()
        resumed += listener.accept(tickets)
    assert resumed > 150  # a third of them would be 200


def test_reconfigured_broker_is_learned_again() -> None:
    tickets = Tickets()
    for threads in (3, 8, 1):
        listener = Listener(threads)
        assert all([listener.accept(tickets) for _ in range(200)][-50:])


def test_restart_keeps_what_was_learned() -> None:
    listener, tickets = Listener(3), Tickets()
    for _ in range(3):
        assert all([listener.accept(tickets) for _ in range(20)][4:])
        listener.restart()


def test_kept_tickets_are_bounded() -> None:
    tickets = Tickets()
    for number in range(300):
        for _ in range(30):
            Listener(50).accept(tickets, host=f"broker-{number}")
    addresses = tickets._addresses
    assert len(addresses) == 64
    assert max(len(address.tickets) for address in addresses.values()) <= 12


def test_tickets_expire() -> None:
    for lifetime, lasts in ((100, 100), (86_400, 3_600), (0, 0)):
        now = 0.0
        tickets = Tickets(clock=lambda: now)  # noqa: B023
        made: Any = Session(0, lifetime)
        tickets.begin("a", 9093).store(made)
        if lasts:
            now = lasts - 0.1
            assert tickets.begin("a", 9093).session is made
        now = float(lasts)
        assert tickets.begin("a", 9093).session is None


def test_chain_of_sessions_lasts_an_hour() -> None:
    now = 0.0
    tickets, listener = Tickets(clock=lambda: now), Listener(1)
    resumed = []
    while now < 7_200:
        resumed.append(listener.accept(tickets))
        now += 600
    assert resumed == 2 * [False, True, True, True, True, True]


def test_no_ticket_is_offered_after_a_failure() -> None:
    now = 0.0
    tickets = Tickets(clock=lambda: now)
    made: Any = Session(0)
    for cancelled, pause in ((False, 600.0), (True, 0.0)):
        tickets.begin("a", 9093).store(made)
        offering = tickets.begin("a", 9093)
        assert offering.session is made
        offering.failed(cancelled=cancelled)
        following = tickets.begin("a", 9093)
        assert following.session is None
        following.store(made)
        now += pause
        assert tickets.begin("a", 9093).session is made
        tickets = Tickets(clock=lambda: now)  # noqa: B023


async def used(node: Node, **settings: Any) -> TlsTransport:
    """Return a connection that has received something and is closed."""
    transport = await connect(node, **settings)
    assert isinstance(transport, TlsTransport)
    await transport.send_all([memoryview(b"hello")])
    assert await receive(transport, 5) == b"hello"
    with trio.move_on_after(0.001):
        await transport.receive_into(memoryview(bytearray(1)))
    await transport.aclose()
    return transport


async def test_clients_with_the_same_settings_resume() -> None:
    async with serving(server_context(AUTHORITY.issue_cert("localhost"))) as node:
        assert [(await used(node)).resumed for _ in range(4)] == [False, True, True, True]


async def test_tls_12_is_not_resumed() -> None:
    context = server_context(
        AUTHORITY.issue_cert("localhost"), maximum_version=ssl.TLSVersion.TLSv1_2
    )
    async with serving(context) as node:
        assert [(await used(node)).resumed for _ in range(3)] == [False, False, False]


async def test_another_name_is_not_offered_a_ticket() -> None:
    async with serving(server_context(AUTHORITY.issue_cert("localhost"))) as node:
        await used(node)
        with pytest.raises(HandshakeError, match="not for 'elsewhere'"):
            await used(Node(0, "elsewhere", node.port))
        assert (await used(node)).resumed


async def test_other_settings_have_their_own_tickets(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(PEM)
    cert = AUTHORITY.issue_cert("me@test").private_key_and_cert_chain_pem.bytes().decode()
    others: list[dict[str, Any]] = [
        {"ssl_cafile": str(file)},
        {"ssl_check_hostname": False},
        {"ssl_minimum_version": "TLSv1.3"},
        {"ssl_certfile": cert},
        {"ssl_certfile": cert, "ssl_password": "one"},
        {"ssl_certfile": cert, "ssl_password": "another"},
        {"ssl_ciphers": "HIGH"},
    ]

    async def contexts(**settings: Any) -> TlsContexts:
        made = TlsContexts(config(**{"security_protocol": "SSL", "ssl_cafile": PEM, **settings}))
        await made.refresh()
        return made

    first = await contexts()
    assert (await contexts()).tickets is first.tickets
    found = [first.tickets, *[(await contexts(**settings)).tickets for settings in others]]
    assert len({id(each) for each in found}) == len(others) + 1
    before = await contexts(ssl_cafile=str(file))
    file.write_text(PEM + trustme.CA().cert_pem.bytes().decode())
    assert (await contexts(ssl_cafile=str(file))).tickets is not before.tickets
    old = before.tickets
    await before.refresh()
    assert before.tickets is not old


async def test_context_of_the_user_is_not_resumed() -> None:
    mine = ssl.create_default_context(cadata=PEM)
    async with serving(server_context(AUTHORITY.issue_cert("localhost"))) as node:
        for _ in range(3):
            assert not (await used(node, ssl_cafile=None, ssl_context=mine)).resumed


@asynccontextmanager
async def serving_by(handle: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[Node]:
    """Run a server whose handler may change meanwhile, on a free port."""
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        yield Node(0, "localhost", listener.socket.getsockname()[1])
        nursery.cancel_scope.cancel()


async def test_server_with_other_keys_resumes_later() -> None:
    context, other = (server_context(AUTHORITY.issue_cert("localhost")) for _ in range(2))

    async def handle(stream: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            await echo(trio.SSLStream(stream, context, server_side=True))

    async with serving_by(handle) as node:
        await used(node)
        context = other
        resumed = [(await used(node)).resumed for _ in range(8)]
    assert not resumed[0]
    assert all(resumed[3:])


#: RFC 8446, 4.2.11: the extension that offers a ticket.
PRE_SHARED_KEY = 41


def extensions_of(hello: bytes | bytearray) -> list[int]:
    """Return the types of the extensions in a record with a ClientHello (RFC 8446, 4.1.2)."""
    # The headers of record and message, the version, and 32 random bytes.
    position = 5 + 4 + 2 + 32
    for size in (1, 2, 1):  # session id, cipher suites, compression methods
        position += size + int.from_bytes(hello[position : position + size])
    position += 2
    found = []
    while position < len(hello):
        found.append(int.from_bytes(hello[position : position + 2]))
        position += 4 + int.from_bytes(hello[position + 2 : position + 4])
    return found


async def test_server_that_fails_on_tickets_is_reached() -> None:
    """The server closes each connection that offers a ticket; later attempts do without."""
    context = server_context(AUTHORITY.issue_cert("localhost"))
    offers = []

    async def handle(stream: trio.SocketStream) -> None:
        hello = await stream.receive_some()
        offers.append(PRE_SHARED_KEY in extensions_of(hello))
        if offers[-1]:
            await stream.aclose()
            return
        with contextlib.suppress(trio.BrokenResourceError):
            await echo(
                trio.SSLStream(
                    trio.StapledStream(stream, Again(stream, hello)), context, server_side=True
                )
            )

    async with serving_by(handle) as node:
        await used(node)
        with pytest.raises(
            KafkaConnectionError, match="closed the connection during the TLS handshake"
        ):
            await used(node)
        assert [(await used(node)).resumed for _ in range(3)] == [False, False, False]
    assert offers == [False, True, False, False, False]


class Again(trio.abc.ReceiveStream):
    """A stream whose first bytes were read already."""

    def __init__(self, stream: trio.SocketStream, head: bytes) -> None:
        self._stream = stream
        self._head = head

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        head = self._head
        self._head = b""
        return head or await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()


@pytest.mark.parametrize("steps", range(6))
async def test_cancelled_reader_keeps_ticket_and_bytes(steps: int) -> None:
    """The reader is cancelled at each step of a wait, also while it takes the ticket."""
    async with serving(server_context(AUTHORITY.issue_cert("localhost"))) as node:
        transport = await connect(node)
        assert isinstance(transport, TlsTransport)
        scope = trio.CancelScope()

        async def cancel() -> None:
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            scope.cancel()

        with trio.fail_after(240):
            for _ in range(2):
                await transport.send_all([memoryview(b"x")])
                assert await receive(transport, 1) == b"x"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel)
                with scope:
                    await transport.receive_into(memoryview(bytearray(1)))
            assert scope.cancelled_caught
            await transport.send_all([memoryview(b"y")])
            assert await receive(transport, 1) == b"y"
            await transport.aclose()
            assert (await used(node)).resumed


async def test_cancelled_handshake_forgets_the_ticket() -> None:
    given = config(security_protocol="SSL", ssl_cafile=PEM)
    async with serving(server_context(AUTHORITY.issue_cert("localhost"))) as node:
        await used(node)
        mine, theirs = trio.socket.socketpair()
        with theirs, trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    Security(given).connect, partial(give, trio.SocketStream(mine)), node
                )
                assert await theirs.recv(10)
                scope.cancel()
        assert scope.cancelled_caught
        assert [(await used(node)).resumed for _ in range(2)] == [False, True]


async def give(stream: trio.SocketStream, host: str, port: int) -> trio.SocketStream:
    return stream
