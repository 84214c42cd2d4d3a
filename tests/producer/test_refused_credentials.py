"""A producer whose credentials are refused: errors at once, and no storm of dials."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from producing import opened, values
from trio.testing import MockClock as Clock

from trikafka import AuthenticationError, HandshakeError, Producer
from trikafka._net.refusals import REFUSED_FOR
from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster, respond

PLAIN: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "alice",
    "sasl_plain_password": "wonder",
}
Default = Callable[[], Awaitable[Any]]


class Guarded:
    """A cluster that accepts clients while ``welcome`` is true."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.cluster = cluster
        self.welcome = True
        self.asked = 0
        self.session_ms = 0
        cluster.offer("SaslHandshake", (0, 1))
        cluster.offer("SaslAuthenticate", (0, 2))
        cluster.on("SaslHandshake", self._shake)
        cluster.on("SaslAuthenticate", self._authenticate)

    async def _shake(self, request: Any, default: Default) -> Any:
        return respond(request, error_code=0, mechanisms=["PLAIN"])

    async def _authenticate(self, request: Any, default: Default) -> Any:
        self.asked += 1
        code, text = (
            (0, None)
            if self.welcome
            else (ErrorCode.SASL_AUTHENTICATION_FAILED, "Invalid username or password")
        )
        return respond(
            request,
            error_code=code,
            error_message=text,
            auth_bytes=b"",
            session_lifetime_ms=self.session_ms,
        )

    def shut(self) -> None:
        """Refuse all clients and disconnect the present ones."""
        self.welcome = False
        self.asked = 0
        self.cluster.disconnect(0)


@asynccontextmanager
async def guarded(**settings: Any) -> AsyncIterator[tuple[Guarded, Producer]]:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        guard = Guarded(cluster)
        async with opened(cluster, **PLAIN, **settings) as producer:
            await producer.send("t", b"first")
            yield guard, producer


@pytest.mark.parametrize("idempotent", [True, False])
async def test_refused_credentials_are_not_retried_soon(
    idempotent: bool, autojump_clock: Clock
) -> None:
    """Each record fails at once while the refusal is recent."""
    async with guarded(enable_idempotence=idempotent) as (guard, producer):
        guard.shut()
        await trio.sleep(0.1)
        begun = trio.current_time()
        for _ in range(200):
            with pytest.raises(AuthenticationError, match="Invalid username or password"):
                await producer.send("t", b"x")
            await trio.sleep(0.1)
        assert trio.current_time() - begun < REFUSED_FOR
        assert guard.asked <= 2, "once for metadata, once for the records"
        ack = producer.send_nowait("t", b"y")
        await trio.testing.wait_all_tasks_blocked()
        assert ack.done, "not even a moment"


async def test_good_credentials_are_used_again(autojump_clock: Clock) -> None:
    async with guarded() as (guard, producer):
        guard.shut()
        await trio.sleep(0.1)
        with pytest.raises(AuthenticationError):
            await producer.send("t", b"x")
        guard.welcome = True
        await trio.sleep(REFUSED_FOR)
        await producer.send("t", b"y")
        assert values(guard.cluster) == [b"y"]


async def test_refused_producer_id_is_not_asked_often(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        guard = Guarded(cluster)
        async with opened(cluster, **PLAIN) as producer:
            await producer.partitions_for("t")
            guard.shut()
            await trio.sleep(0.1)
            for _ in range(50):
                with pytest.raises(AuthenticationError):
                    await producer.send("t", b"x")
                await trio.sleep(0.1)
            assert guard.asked <= 2


async def test_changed_password_is_tried_soon(autojump_clock: Clock) -> None:
    """Each dial calls ``sasl_credentials``, which may return good ones by then."""
    rotating = {name: value for name, value in PLAIN.items() if not name.startswith("sasl_plain")}
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        guard = Guarded(cluster)
        async with opened(
            cluster, **rotating, sasl_credentials=lambda: ("alice", "wonder")
        ) as producer:
            await producer.send("t", b"x")
            guard.shut()
            await trio.sleep(0.1)
            with pytest.raises(AuthenticationError):
                await producer.send("t", b"lost")
            guard.welcome = True
            await trio.sleep(2)
            await producer.send("t", b"y")
        assert values(cluster) == [b"x", b"y"]


@pytest.mark.parametrize("refused_by", ["the broker", "TLS"])
async def test_waiting_record_follows_new_credentials_soon(
    refused_by: str, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The record waits for a leader, so only the refresh of metadata dials."""
    rotating = {name: value for name, value in PLAIN.items() if not name.startswith("sasl_plain")}
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        guard = Guarded(cluster)

        async def dial(host: str, port: int) -> trio.abc.Stream:
            if refused_by == "TLS" and not guard.welcome:
                raise HandshakeError("the certificate has expired") from ssl.SSLError()
            return await cluster.dial(host, port)

        async with opened(
            cluster, **rotating, sasl_credentials=lambda: ("alice", "wonder"), dial=dial
        ) as producer:
            await producer.send("t", b"x")
            cluster.move_leader("t", 0, None)
            ack = producer.send_nowait("t", b"y")
            await trio.sleep(1)
            guard.shut()
            await trio.sleep(10)
            assert not ack.done
            guard.welcome = True
            cluster.move_leader("t", 0, 0)
            with trio.fail_after(10):
                await ack.wait()
        said = [record.message for record in caplog.records if record.levelname == "ERROR"]
        assert len(said) == 1
        assert said[0].endswith("; it asks again after 1 s")


async def test_new_token_is_tried_soon(autojump_clock: Clock) -> None:
    """Each dial asks for a token, which is not the one that was refused."""
    token, good = "old", "old"

    async def shake(request: Any, default: Default) -> Any:
        return respond(request, error_code=0, mechanisms=["OAUTHBEARER"])

    async def authenticate(request: Any, default: Default) -> Any:
        code = (
            0
            if good.encode() in bytes(request.auth_bytes)
            else ErrorCode.SASL_AUTHENTICATION_FAILED
        )
        return respond(
            request,
            error_code=code,
            error_message="expired" if code else None,
            auth_bytes=b"",
            session_lifetime_ms=0,
        )

    async def provider() -> str:
        return token

    oauth: dict[str, Any] = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": provider}
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.offer("SaslHandshake", (0, 1))
        cluster.offer("SaslAuthenticate", (0, 2))
        cluster.on("SaslHandshake", shake)
        cluster.on("SaslAuthenticate", authenticate)
        async with opened(cluster, security_protocol="SASL_PLAINTEXT", **oauth) as producer:
            await producer.send("t", b"x")
            good = "new"
            cluster.disconnect(0)
            await trio.sleep(0.1)
            with pytest.raises(AuthenticationError, match="expired"):
                await producer.send("t", b"lost")
            token = "new"
            await trio.sleep(2)
            await producer.send("t", b"y")
        assert values(cluster) == [b"x", b"y"]


@pytest.mark.parametrize("good_later", [True, False])
async def test_refused_renewal_costs_no_record(autojump_clock: Clock, good_later: bool) -> None:
    """The next connection asks for a token of its own. Only that one's refusal is an error."""
    tokens = 0

    async def shake(request: Any, default: Default) -> Any:
        return respond(request, error_code=0, mechanisms=["OAUTHBEARER"])

    async def authenticate(request: Any, default: Default) -> Any:
        refused = renewing and not (good_later and b"Bearer new" in bytes(request.auth_bytes))
        if refused:
            renewals.append(trio.current_time())
            await trio.sleep(2)  # meanwhile other requests wait
        return respond(
            request,
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED if refused else 0,
            error_message="revoked" if refused else None,
            auth_bytes=b"",
            session_lifetime_ms=100_000,
        )

    async def provider() -> str:
        nonlocal tokens
        tokens += 1
        return "new" if renewals else "old"

    renewing, renewals = False, list[float]()
    oauth: dict[str, Any] = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": provider}
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.offer("SaslHandshake", (0, 1))
        cluster.offer("SaslAuthenticate", (0, 2))
        cluster.on("SaslHandshake", shake)
        cluster.on("SaslAuthenticate", authenticate)
        async with opened(cluster, security_protocol="SASL_PLAINTEXT", **oauth) as producer:
            await producer.send("t", b"x")
            renewing, sent = True, 0

            async def send_on() -> None:
                nonlocal sent
                while trio.current_time() < 110:
                    await producer.send("t", b"y")
                    sent += 1
                    await trio.sleep(0.5)

            if not good_later:
                with pytest.raises(AuthenticationError, match="revoked"):
                    await send_on()
                return
            await send_on()
            assert 85 < renewals[0] < 95
        assert values(cluster) == [b"x", *[b"y"] * sent]


async def test_reauthentication_takes_no_place(autojump_clock: Clock) -> None:
    """Otherwise the hundredth request in flight ended the producer."""
    most = 100
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        guard = Guarded(cluster)
        guard.session_ms = 10_000
        settings = {"enable_idempotence": False, "acks": 1, "batch_size": 1} | PLAIN
        async with opened(
            cluster, **settings, max_in_flight_requests_per_connection=most
        ) as producer:
            await producer.send("t", b"first")
            cluster.delay("Produce", 15, times=1)
            for _ in range(most - 1):
                await producer.enqueue("t", b"x")
                await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(12)
            assert producer.statistics().requests_in_flight == most - 1
            await producer.enqueue("t", b"x")
            await producer.flush()
            assert len(values(cluster)) == most
