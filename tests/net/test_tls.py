"""TLS: what passes through it, and the name of each fault.

The peer is OpenSSL's own server side, over real sockets.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
import trustme
from netting import NODE, config

from trikafka._net.security import Security
from trikafka._net.tls import TlsTransport
from trikafka._net.tls_context import TlsContexts, make_context
from trikafka._net.transport import Transport
from trikafka.errors import ConfigurationError, HandshakeError, KafkaConnectionError
from trikafka.types import Node

AUTHORITY = trustme.CA()
OTHER = trustme.CA()
PEM = AUTHORITY.cert_pem.bytes().decode()
Serve = Callable[[trio.SSLStream[trio.SocketStream]], Any]


def server_context(certificate: trustme.LeafCert, **attributes: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)
    for name, value in attributes.items():
        setattr(context, name, value)
    return context


async def echo(stream: trio.SSLStream[trio.SocketStream]) -> None:
    async for data in stream:
        await stream.send_all(data)


@asynccontextmanager
async def serving(context: ssl.SSLContext | None, serve: Serve = echo) -> AsyncIterator[Node]:
    """Run a server on a free port; without ``context`` it speaks HTTP."""

    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            if context is None:
                await stream.receive_some()
                await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                return
            with contextlib.suppress(trio.BrokenResourceError, ssl.SSLError):
                await serve(trio.SSLStream(stream, context, server_side=True))

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        yield Node(0, "localhost", listener.socket.getsockname()[1])
        nursery.cancel_scope.cancel()


@contextmanager
def blocking_server(context: ssl.SSLContext) -> Iterator[Node]:
    """Run a server in a thread, on OpenSSL's own sockets.

    Unlike Trio's streams these send the peer the reason of a failed handshake.
    """

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            with (
                plain,
                contextlib.suppress(OSError),
                context.wrap_socket(plain, server_side=True) as secured,
            ):
                while data := secured.recv(1000):
                    secured.sendall(data)

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Node(0, "localhost", listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


async def dial(host: str, port: int) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", port)


async def connect(node: Node, **settings: Any) -> Transport:
    given = config(**{"security_protocol": "SSL", "ssl_cafile": PEM, **settings})
    with trio.fail_after(240):
        return await Security(given).connect(dial, node)


async def receive(transport: Transport, size: int) -> bytes:
    memory = bytearray(size)
    view = memoryview(memory)
    while view:
        count = await transport.receive_into(view)
        assert count, "the end came too early"
        view = view[count:]
    return bytes(memory)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_sent_bytes_arrive(version: ssl.TLSVersion) -> None:
    context = server_context(
        AUTHORITY.issue_cert("localhost"), minimum_version=version, maximum_version=version
    )
    pieces = [b"a", b"", b"b" * 5_000, b"c" * 16_384, b"d" * 3_000_000, b"e" * 10]
    async with serving(context) as node:
        transport = await connect(node)
        assert isinstance(transport, TlsTransport)
        assert transport._tls.version() == version.name.replace("_", ".")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.send_all, [memoryview(piece) for piece in pieces])
            with trio.fail_after(240):
                assert await receive(transport, sum(map(len, pieces))) == b"".join(pieces)
        sent = transport.send_now([memoryview(b"x" * 100), memoryview(b"y" * 40_000)])
        assert sent == 40_100
        await transport.send_all([])
        assert await receive(transport, sent) == b"x" * 100 + b"y" * 40_000
        await transport.aclose()


async def test_encrypted_backlog_keeps_its_order() -> None:
    """The peer reads nothing for a while, so encrypted data waits here."""
    begin = trio.Event()

    async def read_late(stream: trio.SSLStream[trio.SocketStream]) -> None:
        await stream.do_handshake()
        await begin.wait()
        await echo(stream)

    async with serving(server_context(AUTHORITY.issue_cert("localhost")), read_late) as node:
        transport = await connect(node)
        sent, number, idle = [], 0, 0
        while idle < 10:  # a busy system accepts some more after it has reported a full buffer
            piece = number.to_bytes(4, "big") * 60_000
            if taken := transport.send_now([memoryview(piece)]):
                assert taken == len(piece)
                sent.append(piece)
                number, idle = number + 1, 0
            else:
                await trio.testing.wait_all_tasks_blocked(0.02)
                idle += 1
        assert transport.pending
        assert transport.send_now([memoryview(b"no room")]) == 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.send_all, [memoryview(b"the end")])
            await trio.testing.wait_all_tasks_blocked()
            assert transport.send_now([memoryview(b"not beside another")]) == 0
            begin.set()
            with trio.fail_after(240):
                assert (
                    await receive(transport, sum(map(len, sent)) + 7) == b"".join(sent) + b"the end"
                )
        await transport.aclose()


async def test_end_with_and_without_close_notify() -> None:
    async def polite(stream: trio.SSLStream[trio.SocketStream]) -> None:
        await stream.send_all(b"bye")
        await stream.aclose()

    async def rude(stream: trio.SSLStream[trio.SocketStream]) -> None:
        await stream.send_all(b"bye")
        await trio.aclose_forcefully(stream)

    for serve in (polite, rude):
        async with serving(server_context(AUTHORITY.issue_cert("localhost")), serve) as node:
            transport = await connect(node)
            assert await receive(transport, 3) == b"bye"
            assert await transport.receive_into(memoryview(bytearray(10))) == 0
            await transport.aclose()


PAST = datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)
FUTURE = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("certificate", "settings", "says"),
    [
        (
            lambda: AUTHORITY.issue_cert(
                "localhost", not_before=PAST, not_after=PAST.replace(year=2002)
            ),
            {},
            "has expired",
        ),
        (
            lambda: AUTHORITY.issue_cert(
                "localhost", not_before=FUTURE, not_after=FUTURE.replace(year=2101)
            ),
            {},
            "not valid yet: is the clock",
        ),
        (
            lambda: AUTHORITY.issue_cert("kafka.test", "10.0.0.1"),
            {},
            r"is for 'kafka.test', '10.0.0.1', not for 'localhost'",
        ),
        (
            lambda: OTHER.issue_cert("localhost"),
            {},
            r"authority that is not trusted .*set ssl_cafile",
        ),
    ],
    ids=["expired", "early", "name", "authority"],
)
async def test_bad_certificates_are_explained(
    certificate: Any, settings: dict[str, Any], says: str
) -> None:
    async with serving(server_context(certificate())) as node:
        with pytest.raises(HandshakeError, match=says) as caught:
            await connect(node, **settings)
    assert not caught.value.retriable
    assert f"{node.host}:{node.port}" in str(caught.value)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_wrong_name_gets_no_client_certificate(version: ssl.TLSVersion) -> None:
    """The names of the broker's certificate, for the error, come from a second connection."""
    shown: list[object] = []
    done = trio.Event()

    async def serve(stream: trio.SSLStream[trio.SocketStream]) -> None:
        await stream.do_handshake()
        shown.append(stream.getpeercert(binary_form=True))
        done.set()

    context = server_context(AUTHORITY.issue_cert("other.test"), maximum_version=version)
    AUTHORITY.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.num_tickets = 0  # the server's handshake ends with the client's last message
    own = AUTHORITY.issue_cert("client@test")
    async with serving(context, serve) as node:
        with pytest.raises(HandshakeError, match=r"is for 'other\.test', not for 'localhost'"):
            await connect(
                node,
                ssl_certfile="".join(each.bytes().decode() for each in own.cert_chain_pems),
                ssl_keyfile=own.private_key_pem.bytes().decode(),
            )
        with trio.fail_after(240):
            await done.wait()
    assert shown == [None]


@pytest.mark.parametrize("error", [trio.TooSlowError(), KafkaConnectionError("no")])
async def test_wrong_name_is_named_if_no_names_come(error: Exception) -> None:
    dialled = 0

    async def once(host: str, port: int) -> trio.SocketStream:
        nonlocal dialled
        dialled += 1
        if dialled > 1:
            raise error
        return await dial(host, port)

    given = config(security_protocol="SSL", ssl_cafile=PEM)
    async with serving(server_context(AUTHORITY.issue_cert("other.test"))) as node:
        with pytest.raises(HandshakeError, match="is for another name, not for 'localhost'"):
            await Security(given).connect(once, node)


async def test_host_name_check_can_be_switched_off() -> None:
    async with serving(server_context(AUTHORITY.issue_cert("kafka.test"))) as node:
        await (await connect(node, ssl_check_hostname=False)).aclose()


async def test_trailing_dot_is_not_in_the_name() -> None:
    """It makes a name absolute in DNS; no certificate has it, and TLS forbids it."""
    asked: list[str | None] = []
    context = server_context(AUTHORITY.issue_cert("localhost"))
    context.sni_callback = lambda connection, name, context: asked.append(name)
    async with serving(context) as node:
        transport = await connect(Node(0, "localhost.", node.port))
        await transport.send_all([memoryview(b"x")])
        assert await receive(transport, 1) == b"x"
        await transport.aclose()
    assert asked == ["localhost"]


@pytest.mark.parametrize("host", ["", ".", ".local", "a\0b", "127.0.0.1\0.local", "a" * 64])
async def test_impossible_name_is_a_lost_connection(host: str) -> None:
    """A dial function, such as a proxy's, may reach any name; a broker may advertise any."""
    ours, theirs = trio.testing.memory_stream_pair()

    async def dial(host: str, port: int) -> Any:
        return ours

    security = Security(config(security_protocol="SSL", ssl_cafile=PEM))
    with pytest.raises(KafkaConnectionError, match="TLS cannot check a certificate for"):
        await security.connect(dial, Node(0, host, 9093))
    assert await theirs.receive_some() == b""  # our end is closed


async def test_port_without_tls_is_named() -> None:
    async with serving(None) as node:
        with pytest.raises(HandshakeError, match="does not speak TLS at this port"):
            await connect(node)


@pytest.mark.parametrize("reads", [True, False])
async def test_port_that_closes_is_a_lost_connection(reads: bool) -> None:
    """A proxy without a broker behind it closes before it reads."""

    async def handle(stream: trio.SocketStream) -> None:
        if reads:
            await stream.receive_some()
        else:
            # Closing this socket sends a reset.
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        with pytest.raises(
            KafkaConnectionError, match="closed the connection during the TLS handshake"
        ) as caught:
            await connect(Node(0, "localhost", listener.socket.getsockname()[1]))
        nursery.cancel_scope.cancel()
    assert caught.value.retriable


async def test_missing_common_version_is_named() -> None:
    context = server_context(
        AUTHORITY.issue_cert("localhost"), minimum_version=ssl.TLSVersion.TLSv1_3
    )
    ours = make_context(config(security_protocol="SSL", ssl_cafile=PEM))
    ours.maximum_version = ssl.TLSVersion.TLSv1_2
    with blocking_server(context) as node:
        with pytest.raises(HandshakeError, match="no TLS version or cipher in common"):
            await connect(node, ssl_cafile=None, ssl_context=ours)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_client_certificate_is_sent(version: ssl.TLSVersion, tmp_path: Path) -> None:
    context = server_context(
        AUTHORITY.issue_cert("localhost"), maximum_version=version, verify_mode=ssl.CERT_REQUIRED
    )
    AUTHORITY.configure_trust(context)
    good, bad = (
        authority.issue_cert("me@test").private_key_and_cert_chain_pem
        for authority in (AUTHORITY, OTHER)
    )

    refused: list[dict[str, str]] = [{}, {"ssl_certfile": bad.bytes().decode()}]

    async def try_it(**settings: Any) -> None:
        transport = await connect(node, **settings)
        try:
            if settings in refused:
                await receive(transport, 1)
            await transport.send_all([memoryview(b"hello")])
            assert await receive(transport, 5) == b"hello"
        finally:
            await transport.aclose()

    with blocking_server(context) as node:
        await try_it(ssl_certfile=good.bytes().decode())
        good.write_to_path(tmp_path / "me.pem")
        await try_it(ssl_certfile=str(tmp_path / "me.pem"))
        for settings in refused:
            with pytest.raises(HandshakeError, match="ssl_certfile"):
                await try_it(**settings)


async def test_cancelled_handshake_leaves_nothing() -> None:
    closed, scope = trio.Event(), trio.CancelScope()

    async def handle(stream: trio.SocketStream) -> None:
        async for _ in stream:
            scope.cancel()  # the client waits for bytes that this server never sends
        closed.set()

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        node = Node(0, "localhost", listener.socket.getsockname()[1])
        given = config(security_protocol="SSL", ssl_cafile=PEM)
        with trio.fail_after(240):
            with scope:
                await Security(given).connect(dial, node)
            assert scope.cancelled_caught
            await closed.wait()
        nursery.cancel_scope.cancel()


# -- files
# --------------------------------------------------------------------------------------------------------------------


async def test_changed_files_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    AUTHORITY.cert_pem.write_to_path(file)
    contexts = TlsContexts(config(security_protocol="SSL", ssl_cafile=str(file)))
    first = await contexts.context()
    await contexts.refresh()
    assert await contexts.context() is first
    OTHER.cert_pem.write_to_path(file)
    file.write_bytes(file.read_bytes() + b"\n")
    await contexts.refresh()
    second = await contexts.context()
    assert second is not first
    file.write_text("half a file")
    await contexts.refresh()
    assert await contexts.context() is second


async def test_directory_of_authorities_is_searched(tmp_path: Path) -> None:
    """As with ssl.ca.location of librdkafka, whose users often give /etc/ssl/certs."""
    file = tmp_path / "ca.pem"
    file.write_text(PEM)
    with pytest.raises(
        ConfigurationError, match=r"no file that is named by a hash.*openssl rehash"
    ):
        make_context(config(security_protocol="SSL", ssl_cafile=str(tmp_path)))
    hashed = await trio.run_process(
        ["openssl", "x509", "-hash", "-noout", "-in", str(file)], capture_stdout=True
    )
    file.rename(tmp_path / f"{hashed.stdout.decode().strip()}.0")
    async with serving(server_context(AUTHORITY.issue_cert("localhost"))) as node:
        transport = await connect(node, ssl_cafile=str(tmp_path))
        await transport.send_all([memoryview(b"hello")])
        assert await receive(transport, 5) == b"hello"
        await transport.aclose()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"ssl_cafile": "/no/such/file"},
            "ssl_cafile: cannot read '/no/such/file': No such file or directory",
        ),
        (
            {"ssl_cafile": "-----BEGIN CERTIFICATE-----\nx\n"},
            r"ssl_cafile: \(PEM text\) holds no certificates",
        ),
        ({"ssl_ciphers": "NONE-OF-THEM"}, "knows no cipher of 'NONE-OF-THEM'"),
        ({"ssl_ciphers": "AES\0"}, "knows no cipher of 'AES"),
        ({"ssl_ciphers": "TLS_AES_256_GCM_SHA384"}, r"those of TLS 1\.3 cannot be chosen"),
        ({"ssl_certfile": "/no/such"}, "ssl_certfile '/no/such': No such file"),
        ({"ssl_certfile": PEM}, r"ssl_certfile \(PEM text\): OpenSSL cannot read it"),
    ],
)
def test_unusable_files_are_explained(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make_context(config(**{"security_protocol": "SSL", "ssl_cafile": PEM, **settings}))


def test_key_given_as_a_path_is_hidden() -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_context(
            config(
                security_protocol="SSL",
                ssl_cafile=PEM,
                ssl_certfile=PEM,
                ssl_keyfile="TOPSECRETKEY",
            )
        )
    assert "ssl_keyfile" in str(caught.value)
    assert "TOPSECRETKEY" not in str(caught.value)


def test_chain_in_a_wrong_order_is_explained() -> None:
    one = AUTHORITY.issue_cert("a@test")
    chain = [each.bytes().decode() for each in (*one.cert_chain_pems, AUTHORITY.cert_pem)]
    given = {
        "security_protocol": "SSL",
        "ssl_cafile": PEM,
        "ssl_keyfile": one.private_key_pem.bytes().decode(),
    }
    make_context(config(**given, ssl_certfile="".join(chain)))
    with pytest.raises(ConfigurationError, match="the client's own must be the first"):
        make_context(config(**given, ssl_certfile="".join(reversed(chain))))


def test_wrong_or_locked_keys_are_explained() -> None:
    one, two = AUTHORITY.issue_cert("a@test"), AUTHORITY.issue_cert("b@test")
    chain = one.cert_chain_pems[0].bytes().decode()
    with pytest.raises(ConfigurationError, match="the private key is not that of the certificate"):
        make_context(
            config(
                security_protocol="SSL",
                ssl_cafile=PEM,
                ssl_certfile=chain,
                ssl_keyfile=two.private_key_pem.bytes().decode(),
            )
        )
    from cryptography.hazmat.primitives import serialization as s

    loaded = s.load_pem_private_key(one.private_key_pem.bytes(), None)
    locked = loaded.private_bytes(
        s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"sesame")
    ).decode()
    given = {
        "security_protocol": "SSL",
        "ssl_cafile": PEM,
        "ssl_certfile": chain,
        "ssl_keyfile": locked,
    }
    make_context(config(**given, ssl_password="sesame"))
    for wrong in ({}, {"ssl_password": "no"}):
        with pytest.raises(ConfigurationError, match="ssl_password is wrong, or missing"):
            make_context(config(**given, **wrong))


def test_context_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        make_context(config(security_protocol="SSL", ssl_cafile=PEM))
    assert not caplog.records
    assert NODE.port
