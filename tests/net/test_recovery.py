"""Recovery: a cluster that moved (KIP-899, KIP-1102), longer dials (KIP-601), idle connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from netting import NODE, Parts, config, metadata_request, open_parts
from trio.testing import MockClock as Clock
from trio.testing import wait_all_tasks_blocked

import trikafka
from trikafka.errors import (
    BrokerResponseError,
    ConfigurationError,
    KafkaConnectionError,
    TrikafkaError,
)
from trikafka.testing import ScriptedCluster, respond

T0 = trikafka.TopicPartition("t", 0)


class Names:
    """A resolver: where the name ``boot`` leads, and each dial as (time, host)."""

    def __init__(self, cluster: ScriptedCluster, boot: int) -> None:
        self.cluster = cluster
        self.boot = boot
        self.dialled: list[tuple[float, str]] = []

    async def dial(self, host: str, port: int) -> trio.abc.Stream:
        self.dialled.append((trio.current_time(), host))
        return await self.cluster.dial(f"broker-{self.boot}" if host == "boot" else host, port)


def alone(node: int) -> Callable[[Any, Any], Any]:
    """Return metadata of a cluster that has this node alone."""

    async def handler(request: Any, default: Any) -> Any:
        brokers = [{"node_id": node, "host": f"broker-{node}", "port": 9092, "rack": None}]
        return respond(request, brokers=brokers, cluster_id="c", controller_id=node, topics=[])

    return handler


async def begin_anew(request: Any, default: Any) -> Any:
    """Return metadata of a broker that sends the client back to its bootstrap addresses."""
    return respond(
        request, error_code=129, brokers=[], cluster_id=None, controller_id=-1, topics=[]
    )


async def of_nobody(request: Any, default: Any) -> Any:
    """Return metadata of a broker that has no part in any cluster."""
    return respond(request, brokers=[], cluster_id=None, controller_id=-1, topics=[])


def known(parts: Parts) -> set[int]:
    return set(parts.metadata.snapshot.nodes)


async def test_rebootstrap_order_is_followed(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedCluster(nodes=3) as cluster:
        names = Names(cluster, 0)
        cluster.stop(2)
        async with open_parts(cluster, dial=names.dial, bootstrap_servers="boot:9092") as parts:
            assert known(parts) == {0, 1}
            for node in (0, 1):
                await parts.brokers.request(parts.metadata.snapshot.nodes[node], metadata_request())
                cluster.on("Metadata", begin_anew, node=node)
            cluster.start(2)
            cluster.on("Metadata", alone(2), node=2)
            names.boot = 2
            before = len(cluster.requests("Metadata"))
            await parts.metadata.refresh()
            assert known(parts) == {2}
            # The first broker said so, so the second was not asked.
            assert len(cluster.requests("Metadata")) == before + 2
            await wait_all_tasks_blocked()
            assert [cluster.connections(node) for node in range(3)] == [0, 0, 1]
            assert (
                "looking for the cluster again at the bootstrap addresses: a broker asks for it"
                in caplog.text
            )


async def test_repeated_rebootstrap_is_retriable(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2) as cluster, open_parts(cluster) as parts:
        cluster.on("Metadata", begin_anew)
        with pytest.raises(BrokerResponseError, match="REBOOTSTRAP_REQUIRED") as caught:
            await parts.metadata.refresh()
        assert caught.value.retriable
        assert trio.current_time() == 0


async def test_silent_cluster_is_dialled_again(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection to the bootstrap address is open and of no use.

    Only a new dial finds the new place.
    """
    async with ScriptedCluster(nodes=2) as cluster:
        names = Names(cluster, 0)
        cluster.stop(1)
        settings = {
            "bootstrap_servers": "boot:9092",
            "metadata_recovery_rebootstrap_trigger_ms": 60_000,
        }
        async with open_parts(cluster, dial=names.dial, background=True, **settings) as parts:
            assert known(parts) == {0}
            cluster.start(1)
            cluster.on("Metadata", alone(1), node=1)
            cluster.on("Metadata", of_nobody, node=0)
            names.boot = 1
            moment, seen = trio.current_time(), parts.metadata.snapshot
            with pytest.raises(TrikafkaError, match="does not know of any broker yet"):
                await parts.metadata.refresh()
            parts.metadata.request_update()
            await parts.metadata.changed(seen)
            assert known(parts) == {1}
            assert 60 <= trio.current_time() - moment < 62  # at the first attempt after that
            assert [host for _, host in names.dialled].count("boot") == 2
            assert (
                "looking for the cluster again at the bootstrap addresses: no broker has responded "
                "for 6"
            ) in caplog.text


async def test_rebootstraps_without_waits_do_not_spin(autojump_clock: Clock) -> None:
    """Each rebootstrap ends the reconnect back-offs; one for each round left no wait at all."""
    async with ScriptedCluster() as cluster:

        async def dial(host: str, port: int) -> trio.abc.Stream:
            if len(cluster.dials) > 100:
                await trio.sleep_forever()  # in a busy loop, virtual time stands still
            return await cluster.dial(host, port)

        settings = {"metadata_recovery_rebootstrap_trigger_ms": 0, "retry_backoff_ms": 0}
        async with open_parts(cluster, background=True, dial=dial, **settings) as parts:
            cluster.refuse(0)
            cluster.disconnect(0)
            count = len(cluster.dials)
            parts.metadata.request_update()
            await trio.sleep(0.5)
            assert 3 <= len(cluster.dials) - count < 50


async def test_known_brokers_alone_without_recovery(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2) as cluster:
        names = Names(cluster, 0)
        cluster.stop(1)
        settings = {
            "metadata_recovery_strategy": "none",
            "bootstrap_servers": "boot:9092",
            "dial": names.dial,
        }
        async with open_parts(cluster, **settings) as parts:
            assert known(parts) == {0}
            cluster.start(1)
            cluster.stop(0)
            names.boot = 1
            for _ in range(5):
                with pytest.raises(KafkaConnectionError):
                    await parts.metadata.refresh()
            assert [host for _, host in names.dialled].count("boot") == 1
            cluster.start(0)
            await parts.metadata.refresh()
            assert known(parts) == {0, 1}


def test_unknown_strategy_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="metadata_recovery_strategy"):
        config(metadata_recovery_strategy="hope")
    assert (
        config(
            **trikafka.from_properties({"metadata.recovery.strategy": "none"})
        ).metadata_recovery_strategy
        == "none"
    )


async def test_dials_that_time_out_get_more_time(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster() as cluster,
        open_parts(cluster, bootstrap=False, reconnect_backoff_max_ms=50) as parts,
    ):
        cluster.lose(0)
        took = []
        for _ in range(5):
            before = max(trio.current_time(), 0)
            with pytest.raises(
                KafkaConnectionError, match="did not answer as a Kafka broker within"
            ):
                await parts.brokers.connection(NODE)
            took.append(trio.current_time() - before)
        assert took[0] == 10
        assert 16 <= took[1] <= 24.1
        assert all(24 <= each <= 30.1 for each in took[2:])
        cluster.start(0)
        await parts.brokers.connection(NODE)
        cluster.lose(0)
        cluster.disconnect()
        await wait_all_tasks_blocked()
        before = trio.current_time()
        with pytest.raises(KafkaConnectionError, match="within 10 s"):  # a success begins again
            await parts.brokers.connection(NODE)
        assert 10 <= trio.current_time() - before <= 10.1


async def test_idle_connection_is_reopened_for_a_call(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "retry_backoff_ms": 1,
        }
        async with trikafka.open_producer(connections_max_idle_ms=5_000, **settings) as producer:
            for number in range(5):
                with trio.fail_after(1):
                    assert (await producer.send("t", b"x")).offset == number
                await trio.sleep(10)
                assert cluster.connections() == 0
        assert len([what for _, _, what in cluster.dials if what == "connected"]) >= 5


async def test_brokers_idle_close_fails_no_call(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
        }
        async with (
            trikafka.open_producer(**settings) as producer,
            trikafka.open_consumer(**settings) as consumer,
        ):
            for number in range(5):
                cluster.drop("Produce")
                cluster.drop("ListOffsets")
                assert (await producer.send("t", b"x")).offset == number
                assert await consumer.end_offsets([T0]) == {T0: number + 1}
                await trio.sleep(10)


def test_waits_have_jitter() -> None:
    """Clients that lost the same broker do not return at the same moments."""
    from trikafka._net.retry import backoff

    times = {backoff(5, 50, 1_000) for _ in range(20)}
    assert len(times) > 10
    assert all(0.64 <= each <= 0.96 for each in times)
    assert [backoff(n, 50, 1_000) for n in (30, 31)] <= [1.0, 1.0]
