"""SASL on a connection: states, conversation, sessions that end (KIP-368), credentials that change.

All times are exact.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import threading
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from netting import NODE, OFFERED, Line, Peer, config, metadata_request
from trio.testing import MockClock, wait_all_tasks_blocked

from trikafka._net.auth import SaslAuthenticator
from trikafka._net.brokers import Brokers
from trikafka._net.connection import Connection
from trikafka._net.connection_state import ConnectionState, ConnectionStateMachine
from trikafka._net.oauth import ClientCredentials
from trikafka._net.transport import transport_of
from trikafka.errors import (
    AuthenticationError,
    HandshakeError,
    KafkaConnectionError,
    from_code,
)
from trikafka.testing.cancellation import assert_all_awaits_cancellable
from trikafka.types import OAuthToken

SECRET = "s3cr3t-5f2c"
PLAIN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "alice",
    "sasl_plain_password": SECRET,
}
SASL_OFFERED = [
    *OFFERED,
    {"api_key": 17, "min_version": 0, "max_version": 1},
    {"api_key": 36, "min_version": 0, "max_version": 2},
]


class Broker(Peer):
    """A peer that authenticates. ``said`` is what the client sent."""

    lifetime_ms = 0
    refuse: str | None = None
    mechanisms = ("PLAIN",)

    def __init__(self, stream: trio.abc.Stream) -> None:
        super().__init__(stream)
        self.said: list[bytes] = []

    async def shake_hands(self) -> None:
        request = await self.request()
        await self.answer(request, error_code=0, api_keys=SASL_OFFERED)
        await self.authenticate()

    async def authenticate(self) -> None:
        request = await self.request()
        assert type(request) is SaslHandshakeRequest
        if request.mechanism not in self.mechanisms:
            await self.answer(request, error_code=33, mechanisms=list(self.mechanisms))
            return
        await self.answer(request, error_code=0, mechanisms=list(self.mechanisms))
        request = await self.request()
        assert type(request) is SaslAuthenticateRequest
        self.said.append(bytes(request.auth_bytes))
        if self.refuse is not None:
            await self.answer(
                request,
                error_code=58,
                error_message=self.refuse,
                auth_bytes=b"",
                session_lifetime_ms=0,
            )
        else:
            await self.answer(
                request,
                error_code=0,
                error_message=None,
                auth_bytes=b"",
                session_lifetime_ms=self.lifetime_ms,
            )


@asynccontextmanager
async def connecting(**settings: Any) -> AsyncIterator[tuple[Line, Broker, SaslAuthenticator]]:
    """Open a connection that runs and has not authenticated yet."""
    given = config(**{**PLAIN, **settings})
    ours, theirs = trio.testing.memory_stream_pair()
    connection, broker = Connection(transport_of(ours), NODE, given), Broker(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        yield Line(connection, broker, nursery), broker, SaslAuthenticator(given)
        connection.close()


@asynccontextmanager
async def ready(lifetime_ms: int = 0, **settings: Any) -> AsyncIterator[tuple[Line, Broker]]:
    async with connecting(**settings) as (line, broker, authenticator):
        broker.lifetime_ms = lifetime_ms
        line.nursery.start_soon(broker.shake_hands)
        await line.connection.negotiate("1")
        await line.connection.authenticate(authenticator)
        yield line, broker


# -- states
# -------------------------------------------------------------------------------------------------------------------


def test_states_admit_their_requests() -> None:
    now = 0.0
    clock = ConnectionStateMachine(lambda: now)
    found = {}
    way = [
        ConnectionState.NEGOTIATING,
        ConnectionState.AUTHENTICATING,
        ConnectionState.READY,
        ConnectionState.REAUTHENTICATING,
        ConnectionState.READY,
        ConnectionState.CLOSED,
    ]
    for state in way:
        now += 1.5
        clock.enter(state)
        found[state] = [key in clock.allowed for key in (18, 17, 36, 3)]
    assert found == {
        ConnectionState.NEGOTIATING: [True, False, False, False],
        ConnectionState.AUTHENTICATING: [False, True, True, False],
        ConnectionState.READY: [True, False, False, True],
        ConnectionState.REAUTHENTICATING: [True, True, True, True],
        ConnectionState.CLOSED: [False, False, False, False],
    }
    assert clock.times() == {
        "new": 1.5,
        "negotiating": 1.5,
        "authenticating": 1.5,
        "ready": 3.0,
        "reauthenticating": 1.5,
        "closed": 0.0,
    }
    with pytest.raises(AssertionError, match="closed cannot become ready"):
        clock.enter(ConnectionState.READY)


async def test_requests_wait_for_authentication(autojump_clock: MockClock) -> None:
    async with connecting() as (line, broker, _):
        line.nursery.start_soon(_negotiate_alone, broker)
        await line.connection.negotiate("1")
        with pytest.raises(
            AssertionError, match="MetadataRequest on a connection that is negotiating"
        ):
            await line.ask().outcome()


# -- the conversation
# ---------------------------------------------------------------------------------------------------------


async def test_plain_is_sent_once(autojump_clock: MockClock) -> None:
    async with ready() as (line, broker):
        assert broker.said == [b"\0alice\0" + SECRET.encode()]
        asked = line.ask()
        await broker.answer(await broker.request())
        await asked.outcome()
        await trio.sleep(1_000)
        assert len(broker.said) == 1  # a session without an end


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"refuse": "invalid credentials"},
            r"refused the credentials of user 'alice' \(PLAIN\): invalid credentials",
        ),
        (
            {"mechanisms": ("GSSAPI", "AWS")},
            r"does not offer PLAIN; it offers: AWS, GSSAPI \(sasl_mechanism\)",
        ),
    ],
)
async def test_refusal_of_the_broker_is_explained(
    autojump_clock: MockClock, change: dict[str, Any], says: str
) -> None:
    async with connecting() as (line, broker, authenticator):
        vars(broker).update(change)
        line.nursery.start_soon(broker.shake_hands)
        await line.connection.negotiate("1")
        with pytest.raises(AuthenticationError, match=says) as caught:
            await line.connection.authenticate(authenticator)
    assert SECRET not in repr(caught.value)
    assert not caught.value.retriable


async def test_port_without_sasl_is_named() -> None:
    async def ask(request: Any) -> Any:
        assert isinstance(request, SaslHandshakeRequest)
        return SimpleNamespace(error_code=34, mechanisms=[])

    with pytest.raises(AuthenticationError, match="security_protocol without SASL_"):
        await SaslAuthenticator(config(**PLAIN))(ask, NODE)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda: "alice", r"sasl_credentials must return \(name, password\)"),
        (lambda: ("alice", None), r"sasl_credentials must return"),
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: ("a\0b", SECRET), "null character"),
    ],
)
async def test_wrong_credentials_function_is_explained(
    autojump_clock: MockClock, given: Any, says: str
) -> None:
    settings = {"sasl_plain_username": None, "sasl_plain_password": None, "sasl_credentials": given}
    async with connecting(**settings) as (line, broker, authenticator):
        line.nursery.start_soon(_negotiate_alone, broker)
        await line.connection.negotiate("1")
        with pytest.raises(Exception, match=says) as caught:
            await line.connection.authenticate(authenticator)
    assert SECRET not in str(caught.value)


async def _negotiate_alone(broker: Broker) -> None:
    await broker.answer(await broker.request(), error_code=0, api_keys=SASL_OFFERED)


# -- sessions
# -----------------------------------------------------------------------------------------------------------------


async def test_session_is_renewed_before_it_ends(autojump_clock: MockClock) -> None:
    """Other requests wait meanwhile."""
    passwords = iter(["first", "second", "third"])
    settings = {
        "sasl_plain_username": None,
        "sasl_plain_password": None,
        "sasl_credentials": lambda: ("alice", next(passwords)),
    }
    async with ready(10_000, **settings) as (line, broker):
        granted = trio.current_time()
        before = line.ask()
        early = await broker.request()  # in flight while the connection reauthenticates
        again = await broker.request()
        assert type(again) is SaslHandshakeRequest
        assert granted + 8.5 <= trio.current_time() <= granted + 9.5
        meanwhile, cancelled = line.ask(), line.ask()
        await wait_all_tasks_blocked()
        cancelled.scope.cancel()
        await broker.answer(early)
        await before.outcome()
        await broker.answer(again, error_code=0, mechanisms=["PLAIN"])
        request = await broker.request()
        assert type(request) is SaslAuthenticateRequest
        assert bytes(request.auth_bytes) == b"\0alice\0second"
        await broker.answer(
            request, error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=10_000
        )
        await broker.answer(await broker.request())
        await meanwhile.outcome()
        renewed = trio.current_time()
        await broker.authenticate()
        assert renewed + 8.5 <= trio.current_time() <= renewed + 9.5
        assert broker.said[-1] == b"\0alice\0third"


async def test_short_session_is_renewed_once_a_second(autojump_clock: MockClock) -> None:
    async with ready(1) as (_, broker):
        for number in range(1, 5):
            await broker.authenticate()
            await wait_all_tasks_blocked()
            assert trio.current_time() == pytest.approx(number)


async def test_reauthentication_alone_counts_as_idle(autojump_clock: MockClock) -> None:
    async with ready(10_000, connections_max_idle_ms=60_000) as (line, broker):

        async def serve() -> None:
            while True:
                await broker.authenticate()

        async def served() -> None:
            with contextlib.suppress(EOFError):
                await serve()

        line.nursery.start_soon(served)
        await trio.sleep(59)
        assert not line.connection.broken
        await trio.sleep(2)
        assert line.connection.broken
        assert len(broker.said) >= 6
        assert line.connection.failure is None


async def test_failed_renewal_ends_the_connection(autojump_clock: MockClock) -> None:
    """The error has the broker's reason; the next connection may have other credentials."""
    async with ready(10_000) as (line, broker):
        broker.refuse = "the password has changed"
        line.nursery.start_soon(broker.authenticate)
        await trio.sleep_until(9.5)
        asked = line.ask()
        with pytest.raises(KafkaConnectionError, match="the password has changed") as caught:
            await asked.outcome()
        assert isinstance(caught.value.__cause__, AuthenticationError)
        assert line.connection.broken
        with pytest.raises(KafkaConnectionError, match="the password has changed"):
            await line.connection.request(metadata_request())


async def test_failed_renewal_loses_what_is_in_flight(autojump_clock: MockClock) -> None:
    """The broker may have carried it out.

    The next connection shows whether the client may go on.
    """
    given = iter([("alice", SECRET)])
    settings = {
        "sasl_plain_username": None,
        "sasl_plain_password": None,
        "sasl_credentials": lambda: next(given),
    }
    async with ready(10_000, **settings) as (line, broker):
        asked = line.ask()
        await broker.request()
        with pytest.raises(KafkaConnectionError, match="StopIteration") as caught:
            await asked.outcome()
        assert trio.current_time() == pytest.approx(10)  # no credentials until the session's end
        assert caught.value.retriable
        assert isinstance(caught.value.__cause__, AuthenticationError)


async def test_session_outlives_missing_credentials(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A token endpoint that is away for a moment costs no connection, and no request."""
    asked, failed = 0, trio.Event()

    async def credentials() -> tuple[str, str]:
        nonlocal asked
        asked += 1
        if asked == 5:
            failed.set()
        if 1 < asked < 6:
            raise KafkaConnectionError("away")
        return "alice", SECRET

    settings = {
        "sasl_plain_username": None,
        "sasl_plain_password": None,
        "sasl_credentials": credentials,
    }
    async with ready(100_000, **settings) as (line, broker):
        waiting = line.ask(response_timeout=200)
        request = await broker.request()
        with trio.fail_after(100):
            await failed.wait()
        await broker.answer(request)
        await waiting.outcome()
        await broker.authenticate()
        assert asked == 6
        assert 85 < trio.current_time() < 100
        assert not line.connection.broken
    (warning,) = caplog.records
    assert "is used until it ends: cannot authenticate" in warning.getMessage()
    assert "away" in warning.getMessage()


def _asks(credentials: Any) -> dict[str, Any]:
    return {
        "sasl_plain_username": None,
        "sasl_plain_password": None,
        "sasl_credentials": credentials,
    }


@pytest.fixture
def earliest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew each session after 85 %."""
    monkeypatch.setattr("trikafka._net.session.random.uniform", lambda least, most: least)


@pytest.mark.parametrize(
    ("failure", "times"),
    [
        # An outage: soon, also with reconnect_backoff_ms=0.
        (KafkaConnectionError("away"), [0, *range(85, 100)]),
        # A refusal, as of a token endpoint: not soon. So is one that other brokers have made.
        (ValueError("disabled"), [0, 85]),
        (from_code(58, "disabled"), [0, 85]),
    ],
)
@pytest.mark.usefixtures("earliest")
async def test_missing_credentials_are_asked_rarely(
    autojump_clock: MockClock, failure: Exception, times: list[float]
) -> None:
    """The connection is not used after its session."""
    asked: list[float] = []

    async def credentials() -> tuple[str, str]:
        asked.append(trio.current_time())
        if len(asked) > 1:
            raise failure
        return "alice", SECRET

    nothing = {"reconnect_backoff_ms": 0, "reconnect_backoff_max_ms": 0}
    async with ready(100_000, **nothing, **_asks(credentials)) as (line, broker):
        waiting = line.ask(response_timeout=200)
        await broker.request()
        with pytest.raises(KafkaConnectionError, match=r"away|disabled"):
            await waiting.outcome()
        assert trio.current_time() == pytest.approx(100)
        assert asked == pytest.approx(times)
        assert len(broker.said) == 1
        assert line.connection.broken


@pytest.mark.usefixtures("earliest")
async def test_refused_credentials_wait_half_a_minute(autojump_clock: MockClock) -> None:
    asked: list[float] = []

    async def credentials() -> tuple[str, str]:
        asked.append(trio.current_time())
        if 1 < len(asked) < 4:
            raise OSError("HTTP 401")
        return "alice", SECRET

    async with ready(500_000, **_asks(credentials)) as (line, broker):
        await broker.authenticate()
        await wait_all_tasks_blocked()
        assert asked == pytest.approx([0, 425, 455, 485])
        assert not line.connection.broken


# A function that ignores its cancellation is like one that waits for a thread.
@pytest.mark.parametrize("longer", [math.inf, 120.0])
@pytest.mark.usefixtures("earliest")
async def test_hanging_credentials_end_with_the_session(
    autojump_clock: MockClock, longer: float
) -> None:
    """The broker closes a connection that is used after its session."""
    asked = 0

    async def credentials() -> tuple[str, str]:
        nonlocal asked
        asked += 1
        if asked > 1:
            with trio.CancelScope(shield=longer < math.inf):
                await trio.sleep_until(longer)
        return "alice", SECRET

    async with ready(100_000, **_asks(credentials)) as (line, broker):
        waiting = line.ask(response_timeout=200)
        await broker.request()
        with pytest.raises(KafkaConnectionError, match="before there were credentials to renew it"):
            await waiting.outcome()
        assert trio.current_time() == pytest.approx(100)
        assert line.connection.broken
        assert await broker.closed()  # nothing was written


@pytest.mark.usefixtures("earliest")
async def test_late_answer_to_sasl_keeps_the_session(autojump_clock: MockClock) -> None:
    """The deadline for the credentials is none for the broker."""
    async with ready(100_000) as (line, broker):
        request = await broker.request()
        await trio.sleep_until(110)
        await broker.answer(request, error_code=0, mechanisms=["PLAIN"])
        request = await broker.request()
        await broker.answer(
            request, error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=0
        )
        await wait_all_tasks_blocked()
        assert line.connection.broken is False


async def test_renewal_waits_behind_a_long_request(autojump_clock: MockClock) -> None:
    """Brokers answer in order, and hold a JoinGroup for longer than ``request_timeout_ms``."""
    async with ready(10_000, request_timeout_ms=30_000) as (line, broker):
        long = line.ask(response_timeout=300)
        request = await broker.request()
        await trio.sleep(299)
        await broker.answer(request)
        await long.outcome()
        await broker.authenticate()
        await wait_all_tasks_blocked()
        assert not line.connection.broken


async def test_connection_lost_while_reauthenticating(autojump_clock: MockClock) -> None:
    async with ready(10_000) as (line, broker):
        await broker.request()
        waiting = line.ask()
        await wait_all_tasks_blocked()
        await broker.stream.aclose()
        with pytest.raises(KafkaConnectionError, match="the broker closed it"):
            await waiting.outcome()


# -- tokens
# -------------------------------------------------------------------------------------------------------------------


@contextmanager
def endpoint(*answers: tuple[int, object]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Run a token endpoint with these responses, the last one repeated.

    Yield its URL and the requests.
    """
    asked: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            who = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
            asked.append({"who": who, **dict(urllib.parse.parse_qsl(body))})
            status, answer = answers[min(len(asked), len(answers)) - 1]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def oauth(url: str, **more: Any) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_endpoint_url": url,
        "sasl_oauth_client_id": "me & you",
        "sasl_oauth_client_secret": SECRET,
        **more,
    }


async def test_token_is_kept_until_it_almost_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("trikafka._net.oauth.time.monotonic", lambda: now)
    answers = [(200, {"access_token": f"token-{number}", "expires_in": 100}) for number in range(3)]
    with endpoint(*answers) as (url, asked):
        tokens = ClientCredentials(config(**oauth(url, sasl_oauth_scope="kafka")))
        seen: list[OAuthToken] = []

        async def ask() -> None:
            seen.append(await tokens.token())

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
        now += 79
        await ask()
        now += 2
        await ask()
    assert [token.value for token in seen] == ["token-0"] * 6 + ["token-1"]
    assert (
        asked
        == [{"who": f"me+%26+you:{SECRET}", "grant_type": "client_credentials", "scope": "kafka"}]
        * 2
    )
    assert "token-0" not in repr(seen[0])


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            (401, {"error": "invalid_client", "error_description": "no such"}),
            r"refused: HTTP 401 \(invalid_client\) \(no such\)",
        ),
        ((200, {"token": "x"}), "answered without an access_token"),
        ((200, [1]), "answered without an access_token"),
    ],
)
async def test_endpoint_without_a_token_is_explained(answer: tuple[int, object], says: str) -> None:
    with endpoint(answer) as (url, _):
        with pytest.raises(HandshakeError, match=says) as caught:
            await ClientCredentials(config(**oauth(url))).token()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_endpoint_in_trouble_is_retriable(status: int) -> None:
    with endpoint((status, "what"), (200, {"access_token": "x"})) as (url, _):
        tokens = ClientCredentials(config(**oauth(url)))
        with pytest.raises(KafkaConnectionError, match=f"refused: HTTP {status}") as caught:
            await tokens.token()
        assert caught.value.retriable
        assert (await tokens.token()).value == "x"


async def test_refused_token_is_not_offered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been revoked long before the end of its life.

    A broker may also refuse all tokens, so a new one costs a request at most every half minute.
    """
    now = 1_000.0
    monkeypatch.setattr("trikafka._net.oauth.time.monotonic", lambda: now)
    said: list[bytes] = []
    refuses = False

    async def ask(request: Any) -> Any:
        if isinstance(request, SaslHandshakeRequest):
            return SimpleNamespace(error_code=0)
        said.append(bytes(request.auth_bytes).split(b"\1")[1].removeprefix(b"auth=Bearer token-"))
        code = 58 if refuses else 0
        return SimpleNamespace(error_code=code, error_message="revoked", auth_bytes=b"")

    answers = [(200, {"access_token": f"token-{at}", "expires_in": 3600}) for at in range(3)]
    with endpoint(*answers) as (url, asked):
        authenticate = SaslAuthenticator(config(**oauth(url)))
        await authenticate(ask, NODE)
        refuses = True
        for at in (1_000, 1_029.9, 1_030, 1_031, 1_060.9, 1_061):
            now = at
            with pytest.raises(AuthenticationError, match="revoked"):
                await authenticate(ask, NODE)
        refuses = False
        await authenticate(ask, NODE)
    assert said == [b"0", b"0", b"0", b"0", b"1", b"1", b"1", b"2"]
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("more", "who", "hint"),
    [
        ({}, "me+%26+you", "sent URL-encoded .*=False sends them as they are"),
        ({"sasl_oauth_header_urlencode": False}, "me & you", "sent as they are: .*=True"),
        ({"sasl_oauth_client_id": "me"}, "me", None),
    ],
)
async def test_encoding_of_the_client_is_a_setting(
    more: dict[str, Any], who: str, hint: str | None
) -> None:
    """Endpoints do not agree on it (KIP-1025), which matters for some secrets."""
    with endpoint((401, {"error": "invalid_client"})) as (url, asked):
        with pytest.raises(HandshakeError, match=hint) as caught:
            await ClientCredentials(config(**oauth(url, **more))).token()
    assert asked[0]["who"] == f"{who}:{SECRET}"
    assert ("sasl_oauth_header_urlencode" in str(caught.value)) is (hint is not None)
    assert SECRET not in str(caught.value)


async def test_missing_endpoint_is_named() -> None:
    with endpoint((200, {})) as (url, _):
        pass
    secret = url + f"?key={SECRET}"
    with pytest.raises(
        (HandshakeError, KafkaConnectionError), match=r"the token endpoint http://127\.0\.0\.1"
    ) as caught:
        await ClientCredentials(config(**oauth(secret))).token()
    assert SECRET not in str(caught.value)


# -- cancelled
# ----------------------------------------------------------------------------------------------------------------


async def test_authentication_may_be_cancelled_anywhere(autojump_clock: MockClock) -> None:
    """The caller cancels it, or the client that closes.

    No socket and no task is left, and the next call has its connection.
    """

    async def credentials() -> tuple[str, str]:
        await trio.sleep(0.01)
        return "alice", SECRET

    @asynccontextmanager
    async def brokers() -> AsyncIterator[tuple[Brokers, list[Broker]]]:
        peers: list[Broker] = []

        async def dial(host: str, port: int) -> trio.abc.Stream:
            ours, theirs = trio.testing.memory_stream_pair()
            peers.append(Broker(theirs))
            nursery.start_soon(serve, peers[-1])
            return ours

        async def serve(peer: Broker) -> None:
            with contextlib.suppress(EOFError, trio.BrokenResourceError, trio.ClosedResourceError):
                await peer.shake_hands()
                while True:
                    await peer.answer(await peer.request())

        given = config(
            **{
                **PLAIN,
                "sasl_plain_username": None,
                "sasl_plain_password": None,
                "sasl_credentials": credentials,
                "dial": dial,
            }
        )
        async with trio.open_nursery() as nursery:
            made = Brokers(given, nursery.start_soon)
            yield made, peers
            made.close()

    async def dial_and_ask(made: Brokers, peers: list[Broker]) -> None:
        await made.request(NODE, metadata_request())

    async def next_call_works(made: Brokers, peers: list[Broker]) -> None:
        with trio.fail_after(5):
            await made.request(NODE, metadata_request())
        [connection] = made.connections()
        assert peers
        assert not connection.waiting
        assert not connection.slots_taken

    async def close_meanwhile(made: Brokers, peers: list[Broker]) -> None:
        try:
            await made.request(NODE, metadata_request())
        finally:
            made.close()

    with trio.fail_after(60):
        assert (
            await assert_all_awaits_cancellable(
                _spread(dial_and_ask), _spread(next_call_works), setup=brokers
            )
            >= 2
        )
        assert await assert_all_awaits_cancellable(_spread(close_meanwhile), setup=brokers) >= 2


async def test_conversation_may_be_cancelled_anywhere(autojump_clock: MockClock) -> None:
    async def credentials() -> tuple[str, str]:
        await trio.sleep(0.01)
        return "alice", SECRET

    @asynccontextmanager
    async def fresh() -> AsyncIterator[tuple[Line, SaslAuthenticator]]:
        async def serve(broker: Broker) -> None:
            with contextlib.suppress(EOFError, trio.BrokenResourceError, trio.ClosedResourceError):
                await broker.shake_hands()

        settings = {
            "sasl_plain_username": None,
            "sasl_plain_password": None,
            "sasl_credentials": credentials,
        }
        async with connecting(**settings) as (line, broker, authenticator):
            line.nursery.start_soon(serve, broker)
            yield line, authenticator

    async def scenario(line: Line, authenticator: SaslAuthenticator) -> None:
        await line.connection.negotiate("1")
        await line.connection.authenticate(authenticator)

    async def nothing_is_held(line: Line, authenticator: SaslAuthenticator) -> None:
        line.connection.close()
        await wait_all_tasks_blocked()
        assert not line.connection.waiting
        assert not line.connection.slots_taken

    with trio.fail_after(60):
        assert (
            await assert_all_awaits_cancellable(
                _spread(scenario), _spread(nothing_is_held), setup=fresh
            )
            >= 4
        )


def _spread(function: Any) -> Any:
    async def call(pair: tuple[Any, ...]) -> Any:
        return await function(*pair)

    return call
