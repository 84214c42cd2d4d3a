"""Secured connections under pressure: full sockets, lost peers, renewals, slow endpoints."""

from __future__ import annotations

import errno
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from kafka.protocol.metadata import MetadataRequest
from netting import NODE, OFFERED, Asked, Peer, config, open_parts
from test_authentication import PLAIN, endpoint, oauth, ready
from test_tls import AUTHORITY, blocking_server, connect, server_context, serving
from trio.testing import MockClock, wait_all_tasks_blocked

from trikafka._net import tls_context
from trikafka._net.auth import SaslAuthenticator
from trikafka._net.connection import Connection
from trikafka._net.oauth import ClientCredentials
from trikafka._net.session import Authenticate
from trikafka._net.tls_context import TlsContexts
from trikafka._net.transport import SocketTransport, StreamTransport, Views, transport_of
from trikafka._wire.sasl import Scram
from trikafka.error_codes import ErrorCode
from trikafka.errors import HandshakeError, KafkaConnectionError
from trikafka.testing import ScriptedCluster


def _large() -> MetadataRequest:
    topics = [MetadataRequest.MetadataRequestTopic(name="x" * 200) for _ in range(1_000)]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


async def test_request_behind_ciphertext_is_sent() -> None:
    """The socket is full and encrypted data waits for it.

    A request that is made then must not be forgotten.
    """
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
        return bool(
            transport.pending and not connection._requests.rest and not connection._requests.queued
        )

    async with serving(server_context(AUTHORITY.issue_cert("localhost")), serve) as node:
        transport = await connect(node)
        connection = Connection(transport, NODE, config(security_protocol="SSL"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            await connection.negotiate("1")
            await connection.authenticate(None)
            asked = 0
            with trio.fail_after(240):
                while not full():
                    nursery.start_soon(connection.request, _large())
                    asked += 1
                    await wait_all_tasks_blocked(0.01)
                # The request is made while the writer waits for the socket.
                nursery.start_soon(connection.request, _large())
                await wait_all_tasks_blocked(0.01)
                begin.set()
                while served < asked + 1:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            await wait_all_tasks_blocked(0.05)
            connection.close()


async def _nothing(ask: object, node: object) -> None:
    """Authenticate without sending anything."""


@pytest.mark.parametrize("authenticate", [None, _nothing])
async def test_peer_may_close_behind_its_first_response(
    authenticate: Authenticate | None, autojump_clock: MockClock
) -> None:
    """The reader may see the end before the caller sees the response.

    That is a lost connection, and no fault of ours.
    """
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
        connection._handle_frame(
            memoryview(peer.frame(request, error_code=0, api_keys=OFFERED))[4:]
        )
        connection._break(ConnectionError("the broker closed it"))
        with pytest.raises(KafkaConnectionError, match="the broker closed it"):
            await asked.outcome()


class _Reset(SocketTransport):
    """A socket whose peer has reset the connection: what it sent before can still be read."""

    def send_now(self, views: Views) -> int:
        raise ConnectionResetError(errno.ECONNRESET, "reset")


async def test_alert_behind_a_failed_write_is_the_cause() -> None:
    """With TLS 1.3 a broker refuses a certificate after the handshake, and closes at once."""
    context = server_context(
        AUTHORITY.issue_cert("localhost"), minimum_version=ssl.TLSVersion.TLSv1_3
    )
    AUTHORITY.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    with blocking_server(context) as node:
        transport: Any = await connect(node)
        transport._inner.__class__ = _Reset
        connection = Connection(transport, node, config(security_protocol="SSL"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            with pytest.raises(HandshakeError, match="asks for a client certificate"):
                await connection.negotiate("1")


class _Unwritable(StreamTransport):
    """A transport that cannot be written to, and whose reader meets an alert after a while."""

    alert_after: float

    async def receive_into(self, view: memoryview) -> int:
        await trio.sleep(self.alert_after)
        raise HandshakeError("the broker asks for a client certificate")

    async def send_all(self, views: Views) -> None:
        raise trio.BrokenResourceError("reset")


@pytest.mark.parametrize(
    ("alert_after", "error"), [(0.5, HandshakeError), (5.0, KafkaConnectionError)]
)
async def test_failed_write_awaits_an_alert(
    autojump_clock: MockClock, alert_after: float, error: type[Exception]
) -> None:
    ours, _ = trio.testing.memory_stream_pair()
    transport = _Unwritable(ours)
    transport.alert_after = alert_after
    connection = Connection(transport, NODE, config(security_protocol="SSL"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        with pytest.raises(error, match="certificate"):
            await connection.negotiate("1")
    assert trio.current_time() == min(alert_after, 1)


async def test_reset_without_an_alert_is_explained(autojump_clock: MockClock) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    connection = Connection(transport_of(ours), NODE, config(security_protocol="SSL"))
    await theirs.aclose()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        with pytest.raises(KafkaConnectionError, match=r"or wants one \(ssl_certfile"):
            await connection.negotiate("1")


async def test_connection_may_close_in_a_renewal(autojump_clock: MockClock) -> None:
    async with ready(10_000) as (line, broker):
        request = await broker.request()
        await broker.answer(request, error_code=0, mechanisms=["PLAIN"])
        request = await broker.request()
        answer = broker.frame(
            request, error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=10_000
        )
        await wait_all_tasks_blocked()
        line.connection._handle_frame(memoryview(answer)[4:])
        line.connection.close()
        await wait_all_tasks_blocked()
        assert line.connection.broken


async def test_full_connection_renews_its_session(autojump_clock: MockClock) -> None:
    """Requests that take all the room do not keep the session from being renewed."""
    async with ready(10_000) as (line, broker):
        request = await broker.request()  # it reauthenticates
        asked = [line.ask() for _ in range(250)]
        await wait_all_tasks_blocked()
        await broker.answer(request, error_code=0, mechanisms=["PLAIN"])
        with trio.fail_after(5):
            request = await broker.request()
            await broker.answer(
                request, error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=0
            )
            for _ in asked:
                await broker.answer(await broker.request())
            for one in asked:
                await one.outcome()


# -- tokens, iterations, files
# ------------------------------------------------------------------------------------------------


async def test_secret_does_not_follow_a_redirect() -> None:
    headers: list[str | None] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"access_token": "x"}')

    class Redirects(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{elsewhere}/")
            self.end_headers()

    with http_server(Elsewhere) as elsewhere, http_server(Redirects) as port:
        with pytest.raises(HandshakeError, match="refused: HTTP 302"):
            await ClientCredentials(config(**oauth(f"http://127.0.0.1:{port}/token"))).token()
    assert not headers


@contextmanager
def http_server(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_token_is_used_while_the_endpoint_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("trikafka._net.oauth.time.monotonic", lambda: now)
    with endpoint((200, {"access_token": "first", "expires_in": 100}), (503, {})) as (url, asked):
        tokens = ClientCredentials(config(**oauth(url)))
        for later in (0, 90, 99):
            now = 1_000.0 + later
            assert (await tokens.token()).value == "first"
        now = 1_101.0
        with pytest.raises(KafkaConnectionError, match="HTTP 503"):
            await tokens.token()
    assert len(asked) == 4


async def test_many_iterations_do_not_block_the_loop() -> None:
    """A broker may ask for a million. Other tasks have their turns meanwhile."""
    given = {**PLAIN, "sasl_mechanism": "SCRAM-SHA-512"}
    threads: list[str] = []

    class Noted(Scram):
        def respond(self, challenge: bytes) -> bytes | None:
            threads.append(threading.current_thread().name)
            return super().respond(challenge)

    authenticator = SaslAuthenticator(config(**given))
    for iterations, elsewhere in (b"4096", False), (b"500000", True):
        threads.clear()
        mechanism = Noted("SCRAM-SHA-512", "alice", "secret", "nonce")
        mechanism.first()
        challenge = b"r=noncemore,s=c2FsdA==,i=" + iterations
        assert await authenticator._respond(NODE, mechanism, challenge)
        assert (threads != [threading.main_thread().name]) is elsewhere


async def test_unusable_changed_files_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "ca.pem"
    AUTHORITY.cert_pem.write_to_path(file)
    contexts = TlsContexts(config(security_protocol="SSL", ssl_cafile=str(file)))
    first = await contexts.context()
    file.write_text("half a file")
    for _ in range(2):
        await contexts.refresh()
        assert await contexts.context() is first
    assert [record.message for record in caplog.records] == [
        "TLS files have changed; until the new ones can be loaded, the previous ones stay in use:"
        f" ssl_cafile: {str(file)!r} holds no certificates in PEM that OpenSSL can read"
    ]


async def test_refused_files_are_tried_again_later(
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The old certificate stayed until the files changed once more."""

    def fail(path: str, size: int = -1) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    file = tmp_path / "ca.pem"
    AUTHORITY.cert_pem.write_to_path(file)
    contexts = TlsContexts(config(security_protocol="SSL", ssl_cafile=str(file)))
    first = await contexts.context()
    file.write_bytes(file.read_bytes() + b"\n")
    with monkeypatch.context() as patch:
        patch.setattr(tls_context, "read_regular", fail)
        for _ in range(2):
            await trio.sleep(10)
            await contexts.refresh()
    await contexts.refresh()
    assert await contexts.context() is first
    await trio.sleep(10)
    await contexts.refresh()
    assert await contexts.context() is not first
    assert [record.message for record in caplog.records] == [
        "TLS files have changed; until the new ones can be loaded, the previous ones stay in use:"
        f" ssl_cafile: cannot read {str(file)!r}: Too many open files"
    ]


async def test_refused_client_retries_slowly(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Many attempts with a wrong password lock an account.

    The background retries twice a minute and logs each attempt.
    """
    async with ScriptedCluster() as cluster, open_parts(cluster, background=True) as parts:
        asked: list[float] = []

        async def refuse(request: Any, default: Any) -> Any:
            asked.append(trio.current_time())
            answer = await default()
            answer.error_code = int(ErrorCode.SASL_AUTHENTICATION_FAILED)
            return answer

        await trio.sleep(1)
        cluster.on("Metadata", refuse)
        parts.metadata.request_update()
        await trio.sleep(100)
        rounds = [
            at for at, before in zip(asked, [-100.0, *asked], strict=False) if at - before > 20
        ]
        assert 3 <= len(rounds) <= 5
        said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert said
        assert all("refuse this client" in line for line in said)
