"""Connections to brokers: one dial for all callers, one connection a purpose, backoff, and closing."""

from __future__ import annotations

import itertools
import ssl
from typing import Any

import pytest
import trio
from netting import NODE, Asked, Parts, metadata_request, open_parts
from trio.testing import MockClock as Clock
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

import trikafka
from trikafka.errors import (
    BootstrapError,
    ConfigurationError,
    KafkaConnectionError,
    ProtocolError,
    TrikafkaError,
)
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable
from trikafka.types import Node


async def ask(parts: Parts, node: Node = NODE, **options: Any) -> Any:
    return await parts.brokers.request(node, metadata_request(), **options)


async def test_all_callers_share_one_dial(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster() as cluster,
        open_parts(cluster, bootstrap=False) as parts,
        trio.open_nursery() as nursery,
    ):
        cluster.dial_delay = 2
        asked = [Asked(nursery, lambda: ask(parts)) for _ in range(50)]
        await trio.sleep(1)
        asked[0].scope.cancel()
        asked += [Asked(nursery, lambda: ask(parts)) for _ in range(50)]
        for each in asked[1:]:
            await each.outcome()
        assert asked[0].cancelled
        assert [what for _, _, what in cluster.dials] == ["connected"]
        assert len(cluster.requests("ApiVersions")) == 1
        assert len(cluster.requests("Metadata")) == 99


async def test_purposes_have_their_own_sockets(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        for purpose in ("general", "fetch", "produce", "coordinator", "group", "general", "group"):
            await ask(parts, purpose=purpose)
        assert cluster.connections() == 5


async def test_refused_dial_is_named_with_its_cause(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        cluster.stop(0)
        with pytest.raises(
            KafkaConnectionError, match="cannot connect to broker-0:9092: "
        ) as caught:
            await ask(parts)
        assert isinstance(caught.value.__cause__, ConnectionRefusedError)
        with pytest.raises(
            KafkaConnectionError, match="cannot connect to nowhere:1: there is no host nowhere:1"
        ):
            await ask(parts, Node(7, "nowhere", 1))


async def test_waits_between_dials_grow_in_bounds(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster:
        cluster.stop(0)
        settings = {"reconnect_backoff_ms": 50, "reconnect_backoff_max_ms": 1000}
        async with open_parts(cluster, bootstrap=False, **settings) as parts:
            for _ in range(9):
                with pytest.raises(KafkaConnectionError):
                    await ask(parts)
            times = [when for when, _, _ in cluster.dials]
            waits = [later - earlier for earlier, later in itertools.pairwise(times)]
            for number, wait in enumerate(waits):
                base = min(1.0, 0.05 * 2**number)
                assert 0.8 * base <= wait + 1e-9
                assert wait <= min(1.0, 1.2 * base) + 1e-9
            cluster.start(0)
            await ask(parts)
            cluster.disconnect()
            await wait_all_tasks_blocked()
            before = trio.current_time()
            await ask(parts)  # a connection that was good is reopened at once
            assert trio.current_time() == before


@pytest.mark.parametrize("most", [0, 1, 1000])
async def test_dials_without_backoff_have_a_least_wait(autojump_clock: Clock, most: int) -> None:
    """A refused dial takes no time: 1,400 of them were made each second."""
    settings = {"reconnect_backoff_ms": 0, "reconnect_backoff_max_ms": most, "retry_backoff_ms": 0}
    async with ScriptedCluster() as cluster:
        cluster.stop(0)
        async with open_parts(cluster, bootstrap=False, **settings) as parts:
            for _ in range(5):
                with pytest.raises(KafkaConnectionError):
                    await ask(parts)
        times = [when for when, _, _ in cluster.dials]
        waits = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert min(waits) >= 0.008 - 1e-9
        assert waits[-1] >= (0.064 if most == 1000 else 0) - 1e-9


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("lose", "it takes no connection"),
        ("freeze", "it takes connections, and says nothing on them"),
    ],
)
async def test_hanging_dial_ends_at_the_setup_time(
    autojump_clock: Clock, how: str, says: str
) -> None:
    """The error says which step hangs: a firewall and a frozen broker need different people."""
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        getattr(cluster, how)(0)
        with pytest.raises(KafkaConnectionError) as caught:
            await ask(parts)
        assert (
            str(caught.value)
            == f"broker-0:9092 did not answer as a Kafka broker within 10 s: {says}"
        )
        assert trio.current_time() == 10
        await wait_all_tasks_blocked()
        assert cluster.connections() == 0


async def test_hanging_tls_handshake_is_named(autojump_clock: Clock) -> None:
    peers: list[trio.abc.Stream] = []

    async def dial(host: str, port: int) -> trio.abc.Stream:
        ours, theirs = memory_stream_pair()
        peers.append(theirs)
        return ours

    async with (
        ScriptedCluster() as cluster,
        open_parts(cluster, bootstrap=False, security_protocol="SSL", dial=dial) as parts,
    ):
        with pytest.raises(KafkaConnectionError) as caught:
            await ask(parts)
        says = "it takes connections, and says nothing in the TLS handshake"
        assert (
            str(caught.value)
            == f"broker-0:9092 did not answer as a Kafka broker within 10 s: {says}"
        )


async def test_leaving_caller_does_not_stop_the_dial(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        cluster.dial_delay = 2
        with trio.move_on_after(1):
            await ask(parts)
        await trio.sleep(1)
        await wait_all_tasks_blocked()
        assert cluster.connections() == 1
        await ask(parts)
        assert len(cluster.dials) == 1


async def test_other_protocol_or_lost_port_is_named(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        cluster.garbage("ApiVersions", b"HTTP/1.1 400 Bad Request\r\n")
        with pytest.raises(
            ProtocolError,
            match=r"broker-0:9092 does not speak Kafka's protocol \(its first bytes are b'HTTP/1.1'",
        ):
            await ask(parts)
        await wait_all_tasks_blocked()
        assert cluster.connections() == 0
        cluster.drop("ApiVersions")
        with pytest.raises(
            KafkaConnectionError, match="lost the connection to broker-0:9092: the broker closed it"
        ):
            await ask(parts)


@pytest.mark.parametrize(
    "error",
    [
        OSError("all attempts failed"),
        trio.BrokenResourceError("tunnel"),
        UnicodeError("label too long"),
        TimeoutError("slow"),
    ],
)
async def test_failures_of_a_dial_are_named(autojump_clock: Clock, error: Exception) -> None:
    async def dial(host: str, port: int) -> trio.abc.Stream:
        raise error

    async with (
        ScriptedCluster() as cluster,
        open_parts(cluster, bootstrap=False, dial=dial) as parts,
    ):
        with pytest.raises(
            KafkaConnectionError, match=f"cannot connect to broker-0:9092: {error}"
        ) as caught:
            await ask(parts)
        assert caught.value.__cause__ is error


async def test_dial_that_raises_a_group_is_named(autojump_clock: Clock) -> None:
    async def dial(host: str, port: int) -> trio.abc.Stream:
        raise ExceptionGroup("happy eyeballs", [ConnectionRefusedError("IPv6"), OSError("IPv4")])

    async with (
        ScriptedCluster() as cluster,
        open_parts(cluster, bootstrap=False, dial=dial) as parts,
    ):
        with pytest.raises(
            KafkaConnectionError, match="cannot connect to broker-0:9092: IPv6, IPv4"
        ):
            await ask(parts)


async def test_unknown_failure_of_a_dial_is_named(autojump_clock: Clock) -> None:
    async def dial(host: str, port: int) -> trio.abc.Stream:
        raise ZeroDivisionError("bug")

    with pytest.raises(BootstrapError, match="dial failed: ZeroDivisionError: bug") as caught:
        async with ScriptedCluster() as cluster, open_parts(cluster, dial=dial):
            pass
    error: BaseException | None = caught.value
    while error is not None and not isinstance(error, ZeroDivisionError):
        error = error.__cause__
    assert error is not None


@pytest.mark.parametrize("bug", [NameError("typo"), TypeError("typo"), AttributeError("typo")])
@pytest.mark.parametrize("grouped", [False, True])
async def test_bug_in_the_users_dial_is_raised(
    autojump_clock: Clock, bug: Exception, grouped: bool
) -> None:
    raised = ExceptionGroup("tries", [OSError("IPv6"), bug]) if grouped else bug

    async def dial(host: str, port: int) -> trio.abc.Stream:
        raise raised

    async with ScriptedCluster() as cluster:
        began = trio.current_time()
        with pytest.raises(
            ConfigurationError, match=f"dial failed: {type(bug).__name__}: typo"
        ) as caught:
            async with trikafka.open_producer(
                bootstrap_servers=cluster.bootstrap_servers, dial=dial
            ):
                pass
        assert caught.value.__cause__ is raised
        assert trio.current_time() - began < 0.1


async def test_wrong_result_of_a_dial_is_raised(autojump_clock: Clock) -> None:
    async def dial(host: str, port: int) -> Any:
        return None

    said = "dial must return a trio.abc.Stream, not NoneType"
    async with ScriptedCluster() as cluster:
        began = trio.current_time()
        with pytest.raises(ConfigurationError, match=said):
            async with trikafka.open_producer(
                bootstrap_servers=cluster.bootstrap_servers, dial=dial
            ):
                pass
        assert trio.current_time() - began < 0.1


async def test_typed_error_in_a_dials_group_is_raised(autojump_clock: Clock) -> None:
    """Alone or in a group, it is the same error, and the group stays whole as its cause."""
    group = ExceptionGroup(
        "tries",
        [OSError("IPv6"), KafkaConnectionError("away"), ConfigurationError("no proxy is set")],
    )
    bad = False

    async with ScriptedCluster(topics={"t": 1}) as cluster:

        async def dial(host: str, port: int) -> trio.abc.Stream:
            if bad:
                raise group
            return await cluster.dial(host, port)

        async with trikafka.open_producer(
            bootstrap_servers=cluster.bootstrap_servers, dial=dial
        ) as producer:
            await producer.send("t", b"1")
            bad = True
            cluster.disconnect()
            began = trio.current_time()
            with pytest.raises(ConfigurationError, match="no proxy is set") as caught:
                await producer.send("t", b"2")
            assert trio.current_time() - began < 0.1
    cause = caught.value.__cause__
    while cause is not None and cause is not group:
        cause = cause.__cause__
    assert cause is group
    assert len(group.exceptions) == 3


_LEAK = "proxy http://user:hunter2@proxy:80 said 407"


@pytest.mark.parametrize(
    "failure",
    [
        RuntimeError(_LEAK),
        OSError(_LEAK),
        OSError(-1, _LEAK),
        trio.BrokenResourceError(_LEAK),
        TypeError(_LEAK),
        ExceptionGroup("tries", [RuntimeError(_LEAK), OSError(_LEAK)]),
    ],
)
async def test_password_of_a_proxy_is_not_shown(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    async def dial(host: str, port: int) -> trio.abc.Stream:
        raise failure

    async with ScriptedCluster() as cluster:
        with pytest.raises(TrikafkaError) as caught:
            async with open_parts(cluster, dial=dial):
                pass
    assert "hunter2" not in f"{caught.value} {caplog.text}"
    kind = OSError if isinstance(failure, ExceptionGroup) else type(failure)
    assert kind.__name__ in str(caught.value)


async def test_proxys_own_error_ends_no_client(autojump_clock: Clock) -> None:
    """Libraries for proxies have exceptions of their own, for a broker that is away."""

    class ProxyError(Exception):
        pass

    async with ScriptedCluster(topics={"t": 1}) as cluster:

        async def dial(host: str, port: int) -> trio.abc.Stream:
            try:
                return await cluster.dial(host, port)
            except OSError:
                raise ProxyError("host unreachable") from None

        async with trikafka.open_producer(
            bootstrap_servers=cluster.bootstrap_servers, dial=dial
        ) as producer:
            await producer.send("t", b"1")
            async with trio.open_nursery() as nursery:
                cluster.stop(0)
                nursery.start_soon(producer.send, "t", b"2")
                await trio.sleep(10)
                cluster.start(0)
        assert [record.value for record in cluster.records("t", 0)] == [b"1", b"2"]


class _Tunnel(trio.abc.Stream):
    """A stream of a library for tunnels, with exceptions of its own."""

    def __init__(self, inner: trio.abc.Stream) -> None:
        self.inner = inner
        self.error: Exception | None = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self.error is not None:
            raise self.error
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """No-op."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self.error is not None:
            raise self.error
        return await self.inner.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self.inner.aclose()
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(_LEAK),
        trio.ClosedResourceError(),
        EOFError(),
        ssl.SSLError("x"),
        ssl.SSLCertVerificationError("x"),
        trikafka.ProtocolError("x"),
    ],
    ids=lambda e: f"{e!r}"[:5],
)
@pytest.mark.parametrize("met_by", ["handshake", "reader", "writer"])
async def test_tunnels_own_error_is_a_lost_connection(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, error: Exception, met_by: str
) -> None:
    tls = met_by == "handshake"
    tunnels: list[_Tunnel] = []

    async with ScriptedCluster(topics={"t": 1}) as cluster:

        async def dial(host: str, port: int) -> trio.abc.Stream:
            tunnels.append(_Tunnel(await cluster.dial(host, port)))
            if tls:
                tunnels[-1].error = error
            return tunnels[-1]

        settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, "dial": dial}
        if tls:
            with pytest.raises(trikafka.BootstrapError):
                async with trikafka.open_producer(security_protocol="SSL", **settings):
                    raise AssertionError("it was opened")
            return
        async with trikafka.open_producer(**settings) as producer:
            await producer.send("t", b"1")
            for tunnel in tunnels:
                tunnel.error = error
                if met_by == "reader":
                    await tunnel.inner.aclose()
            await producer.send("t", b"2")
        assert [record.value for record in cluster.records("t", 0)] == [b"1", b"2"]
    assert "hunter2" not in caplog.text


async def test_rack_makes_no_other_connection(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        plain, racked = Node(0, "broker-0", 9092), Node(0, "broker-0", 9092, "rack-1")
        await ask(parts, plain)
        await ask(parts, racked)
        assert cluster.connections() == 1
        parts.brokers.keep_only(frozenset({racked}))
        await wait_all_tasks_blocked()
        assert cluster.connections() == 1
        parts.brokers.keep_only(frozenset())
        await wait_all_tasks_blocked()
        assert cluster.connections() == 0


async def test_bootstrap_connection_outlives_brokers(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster) as parts:
        parts.brokers.keep_only(frozenset())
        await wait_all_tasks_blocked()
        assert cluster.connections() == 1


async def test_a_stopped_dial_names_the_lost_broker(autojump_clock: Clock) -> None:
    """A broker that is fenced for a moment is not listed; its heartbeat's error said no cause."""
    async with (
        ScriptedCluster() as cluster,
        open_parts(cluster) as parts,
        trio.open_nursery() as nursery,
    ):
        cluster.dial_delay = 5
        dialling = Asked(nursery, lambda: ask(parts, purpose="fetch"))
        await trio.sleep(1)
        parts.brokers.keep_only(frozenset())
        with pytest.raises(TrikafkaError, match="any more: the cluster lists no broker 0 at"):
            await dialling.outcome()


async def test_closed_client_dials_nothing(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster() as cluster,
        open_parts(cluster, bootstrap=False) as parts,
        trio.open_nursery() as nursery,
    ):
        await ask(parts)
        cluster.dial_delay = 5
        other = Asked(nursery, lambda: ask(parts, purpose="fetch"))
        await trio.sleep(1)
        parts.brokers.close()
        with pytest.raises(trio.ClosedResourceError):
            await ask(parts)
        with pytest.raises(TrikafkaError, match="not wanted any more"):
            await other.outcome()
        await wait_all_tasks_blocked()
        assert cluster.connections() == 0
        assert parts.service.failure is None


async def test_requests_may_be_cancelled_anywhere(autojump_clock: Clock) -> None:
    from collections.abc import AsyncIterator
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def setup() -> AsyncIterator[tuple[ScriptedCluster, Parts]]:
        async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
            cluster.dial_delay = 1
            cluster.delay("ApiVersions", 1)
            cluster.delay("Metadata", 1)
            yield cluster, parts

    async def scenario(given: tuple[ScriptedCluster, Parts]) -> None:
        await ask(given[1])

    async def check(given: tuple[ScriptedCluster, Parts]) -> None:
        cluster, parts = given
        await trio.sleep(5)
        assert cluster.connections() == 1
        await ask(parts)
        assert len(cluster.dials) == 1
        connection = await parts.brokers.connection(NODE)
        assert connection.in_flight == 0

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) == 2
