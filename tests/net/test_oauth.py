"""Tokens of OAuth: endpoints that are slow or lie, assertions, and errors at opening."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import logging
import math
import re
import socket
import ssl
import sys
import threading
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
import trustme
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from netting import NODE, config, open_parts
from test_authentication import Broker, _negotiate_alone
from trio.testing import MockClock

import trikafka
from trikafka._net.oauth import ClientCredentials
from trikafka._net.session import CredentialsUnavailableError
from trikafka.config import AdminConfig, from_properties
from trikafka.errors import (
    AuthenticationError,
    BootstrapError,
    ConfigurationError,
    HandshakeError,
    KafkaConnectionError,
    KafkaTimeoutError,
)
from trikafka.testing import ScriptedCluster
from trikafka.types import OAuthToken

SECRET = "s3cr3t-17b0"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
AUTHORITY = trustme.CA()
Serve = Callable[[socket.socket, "Server"], None]


class Server:
    """An endpoint in a thread.

    ``serve`` has each connection; ``requests`` are the bodies that came.
    """

    def __init__(self, serve: Serve, context: ssl.SSLContext | None = None) -> None:
        self._serve = serve
        self._context = context
        self.requests: list[dict[str, str]] = []
        self.heads: list[str] = []
        self.connections = 0
        self.over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._run, daemon=True)]
        self._threads[0].start()

    def url(self, scheme: str = "http") -> str:
        return f"{scheme}://localhost:{self._listener.getsockname()[1]}/token"

    def _run(self) -> None:
        while True:
            try:
                opened, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._threads.append(threading.Thread(target=self._one, args=(opened,), daemon=True))
            self._threads[-1].start()

    def _one(self, opened: socket.socket) -> None:
        with opened, contextlib.suppress(OSError):
            if self._context is None:
                self._serve(opened, self)
                return
            with self._context.wrap_socket(opened, server_side=True) as secured:
                self._serve(secured, self)

    def read(self, opened: socket.socket) -> None:
        content = b""
        while b"\r\n\r\n" not in content:
            content += opened.recv(65_536)
        head, _, body = content.partition(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.splitlines()
            if line.lower().startswith(b"content-length")
        )
        while len(body) < length:
            body += opened.recv(65_536)
        self.heads.append(head.decode())
        self.requests.append(dict(urllib.parse.parse_qsl(body.decode())))

    def close(self) -> None:
        self.over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(30)


@contextmanager
def serving(serve: Serve, context: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(serve, context)
    try:
        yield server
    finally:
        server.close()


def says(answer: object, text: str | None = None) -> Serve:
    """Return a handler that responds with JSON (or ``text``) and closes."""

    def serve(opened: socket.socket, server: Server) -> None:
        server.read(opened)
        body = (json.dumps(answer) if text is None else text).encode()
        opened.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    return serve


def settings(url: str, **more: Any) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_endpoint_url": url,
        "sasl_oauth_client_id": "me",
        "sasl_oauth_client_secret": SECRET,
        **more,
    }


# -- what an endpoint says
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lifetime",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        '"NaN"',
        '"inf"',
        "1" + "0" * 400,
        "-1",
        '"soon"',
        "[1]",
        "{}1",
    ],
)
async def test_impossible_lifetime_is_refused(lifetime: str) -> None:
    with serving(says(None, f'{{"access_token": "x", "expires_in": {lifetime}}}')) as server:
        with pytest.raises(
            HandshakeError, match=r"an expires_in that is not a number of seconds|gave no token"
        ):
            await ClientCredentials(config(**settings(server.url()))).token()


def jwt(claims: object) -> str:
    parts = [json.dumps(each).encode() for each in ({"alg": "none"}, claims)]
    texts = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts]
    return ".".join([*texts, "x"])


@pytest.mark.parametrize(
    ("token", "kept"),
    [
        (jwt({"exp": 2_000}), 800),
        (jwt({"exp": 999.5}), 0),
        # By the clock of the endpoint, not by that of this machine.
        (jwt({"exp": 10_300, "iat": 10_000}), 240),
        (jwt({"exp": 800, "iat": 700}), 80),
        (jwt({"exp": 2_000, "iat": "now"}), 800),
        (jwt({"exp": 2_000, "iat": math.nan}), 800),
        (jwt({"exp": 100, "iat": 200}), 0),
        (jwt({"exp": "soon"}), 240),
        (jwt({"exp": math.inf}), 240),
        (jwt({"exp": -math.inf}), 240),
        (jwt({"exp": math.nan}), 240),
        (jwt({"exp": 10**400}), 240),
        (jwt([1]), 240),
        ("a.!.b", 240),
        ("opaque", 240),
    ],
)
async def test_life_of_a_token_is_in_its_claims(
    monkeypatch: pytest.MonkeyPatch, token: str, kept: int
) -> None:
    """An endpoint need not say ``expires_in``."""
    now, requests = 1_000.0, []
    monkeypatch.setattr("trikafka._net.oauth.time.monotonic", lambda: now)
    monkeypatch.setattr("trikafka._net.oauth.time.time", lambda: 1_000.0)
    with serving(says({"access_token": token})) as server:
        tokens = ClientCredentials(config(**settings(server.url())))
        for after in (0, kept - 1, kept + 1):
            now = 1_000.0 + max(0, after)
            with contextlib.suppress(AuthenticationError):
                await tokens.token()
            requests.append(len(server.requests))
    assert requests == ([1, 1, 2] if kept else [1, 2, 3])


async def test_life_of_a_token_counts_from_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow endpoint may have made the token long before its response arrives."""
    now = 1_000.0
    monkeypatch.setattr("trikafka._net.oauth.time.monotonic", lambda: now)

    def serve(opened: socket.socket, server: Server) -> None:
        nonlocal now
        if server.requests:
            server.read(opened)
            opened.sendall(b"HTTP/1.0 503 Unavailable\r\nContent-Length: 0\r\n\r\n")
        else:
            now = 1_020.0
            says({"access_token": "x", "expires_in": 50})(opened, server)

    with serving(serve) as server:
        tokens = ClientCredentials(config(**settings(server.url())))
        assert (await tokens.token()).value == "x"
        now = 1_049.0
        assert (await tokens.token()).value == "x"
        now = 1_051.0
        with pytest.raises(CredentialsUnavailableError):
            await tokens.token()


async def test_cut_response_is_retriable() -> None:
    def serve(opened: socket.socket, server: Server) -> None:
        server.read(opened)
        opened.sendall(b'HTTP/1.0 200 OK\r\nContent-Length: 40\r\n\r\n{"access_to')

    with serving(serve) as server:
        with pytest.raises(CredentialsUnavailableError, match="within its response"):
            await ClientCredentials(config(**settings(server.url()))).token()


async def test_proxy_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is perhaps the proxy's, whose address may hold a password."""
    monkeypatch.setenv("http_proxy", f"http://me:{SECRET}@localhost:1")
    monkeypatch.setenv("no_proxy", "direct.test")
    for host, says in (("id.test", r"through the proxy .*\(http_proxy\): .*"), ("direct.test", "")):
        wanted = f"http://{host}/token cannot be reached{' ' if says else ': '}{says}"
        with pytest.raises(CredentialsUnavailableError, match=wanted) as caught:
            await ClientCredentials(config(**settings(f"http://{host}/token"))).token()
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize("token", ["", "a b", "a\n", "\xfc"])
async def test_impossible_token_is_not_kept(token: str) -> None:
    with serving(says(None, json.dumps({"access_token": token}))) as server:
        with pytest.raises(HandshakeError, match="an access_token that is empty, not ASCII"):
            await ClientCredentials(config(**settings(server.url()))).token()


@pytest.mark.parametrize("text", ["[" * 100_000, "", "\xff", '{"access_token": 5}'])
async def test_response_without_a_token_is_refused(text: str) -> None:
    with serving(says(None, text)) as server:
        with pytest.raises(HandshakeError, match=r"gave no token|without an access_token"):
            await ClientCredentials(config(**settings(server.url()))).token()


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("http://id.test/token", True),
        ("HTTP://10.0.0.1:80/token", True),
        ("https://id.test/token", False),
        ("http://localhost:8080/token", False),
        ("http://127.0.0.2/token", False),
        ("http://[::1]:80/token", False),
    ],
)
def test_endpoint_without_tls_is_a_warning(
    url: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ClientCredentials(config(**settings(url + f"?key={SECRET}")))
    assert [
        f"the token endpoint {url.lower()} is" in record.getMessage() for record in caplog.records
    ] == [True] * warned
    assert SECRET not in caplog.text


# -- endpoints that are slow
# --------------------------------------------------------------------------------------------------


def drip(first: bytes, piece: bytes) -> Serve:
    """Send a byte now and then, each well within a limit for one wait."""

    def serve(opened: socket.socket, server: Server) -> None:
        opened.sendall(first)
        while not server.over.wait(0.02):
            opened.sendall(piece)

    return serve


SLOW: Mapping[str, Serve] = {
    "says nothing": lambda opened, server: [server.over.wait(60), None][1],
    "drips headers": drip(b"HTTP/1.0 200 OK\r\nX-A: ", b"a"),
    "drips header lines": drip(b"HTTP/1.0 200 OK\r\n", b"X: a\r\n"),
    "drips the body": drip(b"HTTP/1.0 200 OK\r\n\r\n", b" "),
    "drips chunks": drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
}


@contextmanager
def no_thread_is_left() -> Iterator[None]:
    """Check that no thread is in a request. Trio keeps idle threads."""
    yield
    ends = time.monotonic() + 55
    while any(b"_ask" in _stack_of(thread) for thread in threading.enumerate()):
        assert time.monotonic() < ends, "a thread is still in a request"
        threading.Event().wait(0.01)


def _stack_of(thread: threading.Thread) -> bytes:
    frame = sys._current_frames().get(thread.ident or 0)
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return " ".join(names).encode()


@pytest.mark.parametrize("how", SLOW)
async def test_whole_request_has_one_limit(how: str) -> None:
    with serving(SLOW[how]) as server, no_thread_is_left():
        tokens = ClientCredentials(
            config(**settings(server.url(), socket_connection_setup_timeout_ms=500))
        )
        begun = trio.current_time()
        with pytest.raises(
            CredentialsUnavailableError,
            match=r"token endpoint http://.* did not respond within 0\.4 s",
        ) as caught:
            await tokens.token()
        assert trio.current_time() - begun < 45
    assert caught.value.retriable
    assert SECRET not in str(caught.value)


async def test_slow_tls_handshake_is_limited() -> None:
    with serving(SLOW["says nothing"]) as server, no_thread_is_left():
        tokens = ClientCredentials(
            config(**settings(server.url("https"), socket_connection_setup_timeout_ms=500))
        )
        with pytest.raises(CredentialsUnavailableError, match="did not respond within"):
            await tokens.token()


async def test_slow_endpoint_uses_no_trio_thread() -> None:
    limiter = trio.to_thread.current_default_thread_limiter()
    with serving(SLOW["says nothing"]) as server, no_thread_is_left():
        async with trio.open_nursery() as nursery:
            for _ in range(60):  # each a client of its own
                given = settings(server.url(), socket_connection_setup_timeout_ms=240_000)
                nursery.start_soon(ClientCredentials(config(**given)).token)
            while server.connections < 60:  # noqa: ASYNC110 - they come in threads
                await trio.sleep(0.01)
            assert limiter.borrowed_tokens == 0
            with trio.fail_after(240):
                assert await trio.to_thread.run_sync(lambda: 5) == 5
            nursery.cancel_scope.cancel()


async def test_waiting_tasks_share_a_failure() -> None:
    with serving(SLOW["drips the body"]) as server:
        tokens = ClientCredentials(
            config(**settings(server.url(), socket_connection_setup_timeout_ms=500))
        )
        failures: list[KafkaConnectionError] = []

        async def ask() -> None:
            with pytest.raises(CredentialsUnavailableError) as caught:
                await tokens.token()
            failures.append(caught.value)

        with trio.fail_after(240):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(ask)
            assert tokens._requests == 1
            assert len({id(failure) for failure in failures}) == 20
            await ask()
        assert tokens._requests == 2


async def test_refusing_endpoint_is_asked_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each dial asks for a token, in vain: an endpoint is not asked for each of them."""
    now = 1_000.0
    monkeypatch.setattr("trikafka._net.oauth.time.monotonic", lambda: now)
    good = False
    asked_at: list[float] = []

    def serve(opened: socket.socket, server: Server) -> None:
        if good:
            says({"access_token": "x", "expires_in": 50})(opened, server)
        else:
            asked_at.append(now)
            server.read(opened)
            opened.sendall(b"HTTP/1.0 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")

    with serving(serve) as server:
        tokens = ClientCredentials(
            config(**settings(server.url(), socket_connection_setup_timeout_ms=240_000))
        )
        for _ in range(600):
            with pytest.raises(HandshakeError, match="refused"):
                await tokens.token()
            now += 0.1
        pauses = [after - before for before, after in itertools.pairwise(asked_at)]
        assert 0.8 <= pauses[0] <= 1.4
        assert all(8 <= pause <= 10.2 for pause in pauses[4:])
        good = True
        now += 10
        assert (await tokens.token()).value == "x"
        # An early renewal that is refused: the token is used until it expires.
        good = False
        asked_at.clear()
        now += 45
        for _ in range(3):
            assert (await tokens.token()).value == "x"
        assert asked_at == [now]
        now += 5
        with pytest.raises(HandshakeError, match="refused"):
            await tokens.token()
        assert asked_at == [now - 5, now]


@pytest.mark.parametrize("how", SLOW)
async def test_cancelled_request_ends_its_thread(how: str) -> None:
    with serving(SLOW[how]) as server, no_thread_is_left():
        tokens = ClientCredentials(config(**settings(server.url())))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tokens.token)
            while not server.connections:  # noqa: ASYNC110
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


# -- the endpoint's authority
# -------------------------------------------------------------------------------------------------


async def test_authority_of_the_endpoint_is_checked(tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert("localhost").configure_cert(context)
    AUTHORITY.cert_pem.write_to_path(tmp_path / "ca.pem")
    with serving(says({"access_token": "x"}), context) as server:
        for given in (AUTHORITY.cert_pem.bytes().decode(), str(tmp_path / "ca.pem")):
            tokens = ClientCredentials(
                config(**settings(server.url("https"), sasl_oauth_cafile=given))
            )
            await tokens.check()
            assert (await tokens.token()).value == "x"
        with pytest.raises(HandshakeError, match=r"is not accepted: .* \(sasl_oauth_cafile names"):
            await ClientCredentials(config(**settings(server.url("https")))).token()
    with pytest.raises(ConfigurationError, match="sasl_oauth_cafile: cannot read '/no/such'"):
        async with trikafka.open_admin(
            bootstrap_servers="a:1", **settings("https://id.test", sasl_oauth_cafile="/no/such")
        ):
            raise AssertionError("it was opened")


# -- assertions
# --------------------------------------------------------------------------------------------------


def pem(key: Any, password: str | None = None) -> str:
    lock: Any = serialization.NoEncryption()
    if password is not None:
        lock = serialization.BestAvailableEncryption(password.encode())
    return str(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock
        ).decode()
    )


RSA_KEY = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
JWT_BEARER = {
    "sasl_oauth_client_id": None,
    "sasl_oauth_client_secret": None,
    "sasl_oauth_grant_type": "jwt-bearer",
}


def verified(assertion: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the claims, as a server reads them."""
    signed, _, signature = assertion.rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    header, claims = (
        json.loads(base64.urlsafe_b64decode(part + "==")) for part in signed.split(".")
    )
    if header["alg"] == "RS256":
        RSA_KEY.public_key().verify(raw, signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    else:
        assert len(raw) == 64
        r, s = int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
        EC_KEY.public_key().verify(
            encode_dss_signature(r, s), signed.encode(), ec.ECDSA(hashes.SHA256())
        )
    return header, claims


@pytest.mark.parametrize(("algorithm", "key"), [("RS256", RSA_KEY), ("ES256", EC_KEY)])
@pytest.mark.parametrize("locked", [True, False])
async def test_assertion_equals_javas(
    algorithm: str, key: Any, locked: bool, tmp_path: Path
) -> None:
    (tmp_path / "me.key").write_text(pem(key, SECRET if locked else None))
    (tmp_path / "more.json").write_text(
        '{"header": {"kid": "k1"}, "payload": {"sub": "old", "role": "r"}}'
    )
    with serving(says({"access_token": "x"})) as server:
        found = from_properties(
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
                ";",
                "sasl.oauthbearer.jwt.retriever.class": "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever",
                "sasl.oauthbearer.token.endpoint.url": server.url(),
                "sasl.oauthbearer.scope": "kafka",
                "sasl.oauthbearer.assertion.algorithm": algorithm,
                "sasl.oauthbearer.assertion.private.key.file": str(tmp_path / "me.key"),
                "sasl.oauthbearer.assertion.claim.iss": "me",
                "sasl.oauthbearer.assertion.claim.sub": "me too",
                "sasl.oauthbearer.assertion.claim.aud": "them",
                "sasl.oauthbearer.assertion.claim.exp.seconds": "600",
                "sasl.oauthbearer.assertion.claim.jti.include": "true",
                "sasl.oauthbearer.assertion.template.file": str(tmp_path / "more.json"),
                **({"sasl.oauthbearer.assertion.private.key.passphrase": SECRET} if locked else {}),
            }
        )
        before = int(time.time())
        assert (await ClientCredentials(config(**found)).token()).value == "x"
    [request] = server.requests
    assertion = request.pop("assertion")
    assert request == {"grant_type": GRANT, "scope": "kafka"}
    assert "authorization" not in server.heads[0].lower()
    header, claims = verified(assertion)
    assert header == {"typ": "JWT", "kid": "k1", "alg": algorithm}
    issued = claims.pop("iat")
    assert before <= issued <= time.time()
    assert len(claims.pop("jti")) == 36
    assert claims == {
        "sub": "me too",
        "role": "r",
        "aud": "them",
        "iss": "me",
        "exp": issued + 600,
        "nbf": issued - 60,
    }
    with pytest.raises(InvalidSignature):
        verified(assertion[:-8] + "AAAAAAAA")


async def test_assertion_file_is_read_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "assertion.jwt"
    with serving(says({"access_token": "x", "expires_in": 1e-9})) as server:
        tokens = ClientCredentials(
            config(**settings(server.url(), **JWT_BEARER, sasl_oauth_assertion_file=str(file)))
        )
        with pytest.raises(
            ConfigurationError, match="sasl_oauth_assertion_file: cannot read the file"
        ):
            await tokens.check()
        for text in ("a.b.c", "d.e.f"):
            file.write_text(f"{text}\n")
            await tokens.token()
        file.write_text(SECRET)
        with pytest.raises(
            HandshakeError, match=r"was not asked: sasl_oauth_assertion_file: .* no JSON web token"
        ) as caught:
            await tokens.token()
    assert [request["assertion"] for request in server.requests] == ["a.b.c", "d.e.f"]
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"sasl_oauth_assertion_private_key_file": pem(EC_KEY)}, "RS256 needs a key of RSA"),
        (
            {
                "sasl_oauth_assertion_private_key_file": pem(RSA_KEY),
                "sasl_oauth_assertion_algorithm": "ES256",
            },
            "ES256 needs a key of the curve P-256",
        ),
        (
            {"sasl_oauth_assertion_private_key_file": pem(RSA_KEY, "other")},
            "passphrase is wrong, or missing",
        ),
        (
            {
                "sasl_oauth_assertion_private_key_file": pem(RSA_KEY, "other"),
                "sasl_oauth_assertion_private_key_passphrase": SECRET,
            },
            "passphrase is wrong, or missing",
        ),
        (
            {
                "sasl_oauth_assertion_private_key_file": pem(RSA_KEY),
                "sasl_oauth_assertion_private_key_passphrase": SECRET,
            },
            "or it is not encrypted, and needs no sasl_oauth_assertion_private_key_passphrase",
        ),
        (
            {"sasl_oauth_assertion_private_key_file": f"/no/{SECRET}"},
            "cannot read the file: No such file",
        ),
        (
            {"sasl_oauth_assertion_private_key_file": f"-----BEGIN X\n{SECRET}"},
            "not a private key in PEM",
        ),
        (
            {
                "sasl_oauth_assertion_private_key_file": pem(RSA_KEY),
                "sasl_oauth_assertion_template_file": __file__,
            },
            "sasl_oauth_assertion_template_file must be JSON such as",
        ),
    ],
)
async def test_impossible_assertions_are_explained(more: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        async with trikafka.open_admin(
            bootstrap_servers="a:1", **settings("https://id.test", **JWT_BEARER, **more)
        ):
            raise AssertionError("it was opened")
    assert SECRET not in str(caught.value)


async def test_missing_package_for_signing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    more = {**JWT_BEARER, "sasl_oauth_assertion_private_key_file": pem(RSA_KEY)}
    with pytest.raises(
        ConfigurationError,
        match=r"needs the package cryptography to sign: pip install 'trikafka\[crypto\]'",
    ):
        await ClientCredentials(config(**settings("https://id.test", **more))).check()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {**JWT_BEARER},
            "needs sasl_oauth_assertion_private_key_file, or sasl_oauth_assertion_file",
        ),
        (
            {"sasl_oauth_assertion_claim_iss": "me"},
            "sasl_oauth_assertion_claim_iss needs sasl_oauth_grant_type='jwt-bearer'",
        ),
        (
            {
                **JWT_BEARER,
                "sasl_oauth_assertion_file": "f",
                "sasl_oauth_assertion_claim_iss": "me",
            },
            "sasl_oauth_assertion_file is sent as it is: sasl_oauth_assertion_claim_iss cannot be "
            "given beside it",
        ),
        (
            {**JWT_BEARER, "sasl_oauth_assertion_file": "f", "sasl_oauth_token_endpoint_url": None},
            "needs sasl_oauth_token_endpoint_url",
        ),
        (
            {**JWT_BEARER, "sasl_oauth_assertion_file": "f", "sasl_oauth_client_id": "me"},
            "need each other",
        ),
        (
            {"sasl_oauth_client_id": "a:b", "sasl_oauth_header_urlencode": False},
            "sasl_oauth_client_id must not contain ':'",
        ),
        (
            {"sasl_oauth_token_provider": trio.sleep, "sasl_oauth_cafile": "ca.pem"},
            "a token provider has its own",
        ),
    ],
)
def test_contradictory_oauth_settings_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        AdminConfig.build(settings("https://id.test", **more))


def test_names_of_java_and_librdkafka_are_read() -> None:
    retriever = "org.apache.kafka.common.security.oauthbearer.{}JwtRetriever"
    name = "sasl.oauthbearer.jwt.retriever.class"
    assert from_properties({name: retriever.format("Default")}) == {}
    assert from_properties({name: retriever.format("ClientCredentials")}) == {
        "sasl_oauth_grant_type": "client_credentials"
    }
    assert from_properties(
        {"sasl.oauthbearer.grant.type": GRANT, "https.ca.location": "ca.pem"}
    ) == {
        "sasl_oauth_grant_type": "jwt-bearer",
        "sasl_oauth_cafile": "ca.pem",
    }
    with pytest.raises(
        ConfigurationError, match=r"must be one of .*; a token from elsewhere comes from a function"
    ):
        from_properties({name: retriever.format("File")})


# -- opening
# --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def brokers() -> AsyncIterator[Callable[[str, int], Any]]:
    """Run brokers that negotiate and wait for authentication."""

    async def dial(host: str, port: int) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(negotiate, Broker(theirs))
        return ours

    async def negotiate(broker: Broker) -> None:
        with contextlib.suppress(
            EOFError, trio.BrokenResourceError
        ):  # of a client with little time
            await _negotiate_alone(broker)

    async with trio.open_nursery() as nursery:
        yield dial
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "failure",
    [
        RuntimeError("no"),
        OSError("no"),
        trio.TooSlowError("no"),
        KafkaConnectionError("no"),
        KafkaTimeoutError("get", 1.0),
        ConfigurationError("no"),
        HandshakeError("no"),
        ExceptionGroup("no", [OSError("no")]),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_failing_provider_is_the_cause_at_opening(
    autojump_clock: MockClock, failure: Exception
) -> None:
    async def provider() -> str:
        await trio.sleep(0.01)
        raise failure

    given = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": provider,
    }
    async with brokers() as dial:
        with pytest.raises(AuthenticationError, match=r"no|get did not finish") as caught:
            async with trikafka.open_admin(bootstrap_servers="a:1,b:1", dial=dial, **given):
                raise AssertionError("it was opened")
    causes = []
    error: BaseException | None = caught.value
    while error is not None:
        causes.append(error)
        error = error.__cause__
    assert (type(failure), str(failure)) in [(type(one), str(one)) for one in causes]


async def fail_in_a_nursery(*errors: Exception) -> None:
    """Raise the errors as an async function of the user does that opens a nursery."""
    everyone_fails = trio.Event()

    async def fail(error: Exception) -> None:
        try:
            await everyone_fails.wait()
        finally:
            raise error

    async with trio.open_nursery() as nursery:
        for error in errors:
            nursery.start_soon(fail, error)
        everyone_fails.set()


@pytest.mark.parametrize(
    ("errors", "kind", "says"),
    [
        ([KafkaConnectionError("away")], CredentialsUnavailableError, "KafkaConnectionError: away"),
        (
            [KafkaConnectionError("away"), KafkaConnectionError("gone")],
            CredentialsUnavailableError,
            "KafkaConnectionError: gone",
        ),
        ([CredentialsUnavailableError("away")], CredentialsUnavailableError, "away"),
        ([ValueError("odd")], HandshakeError, "ValueError: odd"),
        ([ValueError("odd"), KafkaConnectionError("gone")], HandshakeError, "ValueError: odd"),
    ],
)
async def test_nursery_of_a_provider_changes_no_failure(
    errors: list[Exception], kind: type[Exception], says: str, autojump_clock: MockClock
) -> None:
    async def provider() -> str:
        await fail_in_a_nursery(*errors)
        return ""

    given: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": provider,
    }
    async with brokers() as dial, ScriptedCluster() as cluster:
        async with open_parts(cluster, bootstrap=False, **given, dial=dial) as parts:
            with pytest.raises(kind, match=says):
                await parts.brokers.connection(NODE)


@pytest.mark.parametrize("nursery", [True, False])
@pytest.mark.parametrize("part", ["provider", "dial"])
async def test_cut_functions_failure_is_ignored(
    part: str, nursery: bool, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It hung, the client cut it off, and it failed in its clean-up."""

    async def hang() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise AttributeError("in the clean-up")

    async def cut() -> None:
        if not nursery:
            await hang()
        async with trio.open_nursery() as tasks:
            tasks.start_soon(hang)
            tasks.start_soon(trio.sleep_forever)

    async def provider() -> str:
        await cut()
        return ""

    async def stuck(host: str, port: int) -> trio.abc.Stream:
        await cut()
        raise AssertionError

    given: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": provider,
    }
    async with brokers() as dial, ScriptedCluster() as cluster:
        given["dial"] = dial if part == "provider" else stuck
        async with open_parts(cluster, bootstrap=False, **given) as parts:
            with pytest.raises(KafkaConnectionError, match="within 10 s"):
                await parts.brokers.connection(NODE)
            with trio.move_on_after(1) as scope:
                await parts.brokers.connection(NODE)
            assert scope.cancelled_caught
    said = [line for line in caplog.messages if "was cut off, and failed in that" in line]
    assert all("AttributeError" in line for line in said)
    assert [("in the clean-up" in line) for line in said] == [part == "dial"] * 2


@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "PLAIN", "SCRAM-SHA-256"])
async def test_hanging_provider_is_the_cause_at_opening(
    autojump_clock: MockClock, mechanism: str
) -> None:
    """The error said that the broker did not answer."""
    name = "sasl_oauth_token_provider" if mechanism == "OAUTHBEARER" else "sasl_credentials"
    given = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        name: trio.sleep_forever,
    }
    async with brokers() as dial:
        with pytest.raises(
            AuthenticationError,
            match=rf"cannot authenticate with a:1 \({mechanism}\): there were no credentials "
            "within 10 s",
        ):
            async with trikafka.open_admin(bootstrap_servers="a:1", dial=dial, **given):
                raise AssertionError("it was opened")
        assert trio.current_time() == 10


async def test_slow_provider_gets_more_time_later(autojump_clock: MockClock) -> None:
    """KIP-601: only a broker that took too long got a longer limit."""

    async def provider() -> str:
        await trio.sleep(12)
        return "token"

    async def dial(host: str, port: int) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        broker = Broker(theirs)
        broker.mechanisms = ("OAUTHBEARER",)
        nursery.start_soon(_authenticated, broker)
        return ours

    given = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": provider,
        "dial": dial,
    }
    async with (
        trio.open_nursery() as nursery,
        ScriptedCluster() as cluster,
        open_parts(cluster, bootstrap=False, **given) as parts,
    ):
        with pytest.raises(CredentialsUnavailableError, match="within 10 s"):
            await parts.brokers.connection(NODE)
        await parts.brokers.connection(NODE)


async def _authenticated(broker: Broker) -> None:
    with contextlib.suppress(EOFError):
        await broker.shake_hands()


async def test_broker_that_hangs_in_sasl_is_the_cause(autojump_clock: MockClock) -> None:
    given = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": lambda: "token",
    }
    async with brokers() as dial:
        with pytest.raises(trikafka.BootstrapError, match="authenticating did not end"):
            async with trikafka.open_admin(bootstrap_servers="a:1", dial=dial, **given):
                raise AssertionError("it was opened")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (5, "sasl_oauth_token_provider must return text or an OAuthToken, not int"),
        (OAuthToken(5), "sasl_oauth_token_provider must return text or an OAuthToken, not int"),
        (OAuthToken("t", None), "extensions must be a mapping of names and values, not NoneType"),
        (OAuthToken("t", {"a": 5}), "value of extension 'a' must be text of ASCII, and not empty"),
        (OAuthToken("t", {"a": "s\1"}), "value of extension 'a' must be text of ASCII"),
        (OAuthToken("t", {"auth": "s"}), "an extension's name must be of the letters A to Z"),
        (OAuthToken("t", {"a=b": "s"}), "an extension's name must be of the letters A to Z"),
    ],
)
async def test_wrong_result_of_a_provider_is_explained(
    autojump_clock: MockClock, given: Any, says: str
) -> None:
    async def provider() -> Any:
        return given

    settings: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": provider,
    }
    async with brokers() as dial:
        with pytest.raises(AuthenticationError, match=says):
            async with trikafka.open_admin(bootstrap_servers="a:1", dial=dial, **settings):
                raise AssertionError("it was opened")


async def test_missing_endpoint_at_opening_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    with serving(SLOW["says nothing"]) as server:
        for url in ("http://localhost:1/token", server.url()):
            given = settings(
                url, security_protocol="SASL_PLAINTEXT", socket_connection_setup_timeout_ms=500
            )
            said, until = "", trio.current_time() + 240
            async with brokers() as dial:
                while not said and trio.current_time() < until:
                    try:
                        async with trikafka.open_admin(bootstrap_servers="a:1", dial=dial, **given):
                            raise AssertionError("it was opened")
                    except AuthenticationError as error:
                        said = str(error)
                    except BootstrapError:
                        pass  # half a second is short for a busy machine, which had not asked yet
            assert re.search(rf"the token endpoint {url} (cannot be reached|did not respond)", said)
