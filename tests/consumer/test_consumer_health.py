"""The watchdog and ``health()``. A stalled partition is logged once with its reason."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import trio
from consuming import T0, T1, cluster_of, consumer_of, member_of
from trio.testing import MockClock as Clock

from trikafka import AuthorizationError
from trikafka.errors import topic_missing


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        f"{record.levelname} {record.message}"
        for record in caplog.records
        if record.name == "trikafka.consumer"
    ]


async def test_working_consumer_is_healthy(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with cluster_of(2, records=3) as cluster:
        async with member_of(cluster) as consumer:
            for _ in range(6):
                await consumer.receive()
            await consumer.receive_batch(timeout=60)
            health = consumer.health()
            assert health.connected
            assert (
                health.ok,
                health.reasons,
                health.state,
                dict(health.stalled),
                health.error,
            ) == (True, (), "stable", {}, None)
        health = consumer.health()
        assert (health.ok, health.reasons) == (False, ("the consumer is closed",))
    assert not lines(caplog)


async def test_leaderless_partition_is_logged_once(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A second line says when it continues."""
    caplog.set_level(logging.INFO)
    async with cluster_of(2, records=3, nodes=2) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0, T1])
        while (await consumer.receive_batch(timeout=1)).topic:
            pass
        cluster.move_leader("t", 0, None)
        for _ in range(60):
            await consumer.receive_batch(timeout=1)
        (line,) = lines(caplog)
        assert line.startswith("WARNING t-0: no progress for ")
        assert " s (consumer 'trikafka'): it has no leader that can be asked" in line
        assert [str(tp) for tp in consumer.health().stalled] == ["t-0"]
        assert "t-0: no progress: it has no leader" in consumer.health().reasons[0]
        cluster.move_leader("t", 0, 1)
        cluster.append("t", 0, [b"new"])
        assert (await consumer.receive()).value == b"new"
        await consumer.receive_batch(timeout=20)
        assert lines(caplog)[1].startswith("INFO t-0: goes on, after ")
        assert consumer.health().ok


async def test_unreachable_brokers_are_in_health(autojump_clock: Clock) -> None:
    async with cluster_of(records=3, nodes=2) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        await consumer.receive_batch()
        leader = cluster.partition("t", 0).leader
        cluster.refuse(leader)
        cluster.disconnect(leader)
        await consumer.receive_batch(timeout=5)
        health = consumer.health()
        assert [node.node_id for node in health.unreachable] == [leader]
        assert leader not in [node.node_id for node in health.connected]
        assert not any("no broker of the cluster" in reason for reason in health.reasons)
        cluster.refuse(1 - leader)
        cluster.disconnect()
        await consumer.receive_batch(timeout=5)
        health = consumer.health()
        assert not health.ok
        assert health.reasons[0].startswith("no broker of the cluster can be reached: since ")
        for node in (0, 1):
            cluster.refuse(node, False)
        await consumer.receive_batch(timeout=30)
        assert consumer.health().ok


async def test_idle_outage_names_the_last_attempt(autojump_clock: Clock) -> None:
    """The broker is back, but leads nothing that is wanted, so no request can notice."""
    async with cluster_of(records=3, nodes=2) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        await consumer.receive_batch()
        leader = cluster.partition("t", 0).leader
        cluster.refuse(leader)
        cluster.disconnect(leader)
        await consumer.receive_batch(timeout=2)
        (recent,) = consumer.health().unreachable.values()
        assert "last tried" not in recent
        cluster.move_leader("t", 0, 1 - leader)
        await consumer.receive_batch(timeout=2)
        cluster.refuse(leader, False)
        await consumer.receive_batch(timeout=60)
        (idle,) = consumer.health().unreachable.values()
        assert re.match(r"since 6\d s, last tried 6\d s ago: cannot connect", idle), idle


async def test_unreceived_records_are_a_reason(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_of(records=9) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        await consumer.receive()
        await trio.sleep(60)
        (line,) = lines(caplog)
        assert "records of it are there, but no task receives them" in line
        assert not consumer.health().ok


async def test_slow_handler_is_named_as_the_cause(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        cluster_of(records=9) as cluster,
        consumer_of(cluster, max_poll_interval_ms=40_000) as consumer,
    ):
        consumer.assign([T0])
        async with trio.open_nursery() as nursery:

            async def handle(stream: Any) -> None:
                async for _ in stream:
                    await trio.sleep(60)

            async def serve() -> None:
                async for stream in consumer.partitions():
                    nursery.start_soon(handle, stream)

            nursery.start_soon(serve)
            await trio.sleep(50)
            (line,) = lines(caplog)
            assert "its handler holds the records from offset 0" in line
            assert [reason for reason in consumer.health().reasons if "t-0" in reason] == list(
                consumer.health().reasons
            )
            assert len(consumer.health().reasons) == 1
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["paused", "at the end"])
async def test_resting_partition_is_not_stalled(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    async with cluster_of(records=3) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        await consumer.receive_batch()
        if how == "paused":
            cluster.append("t", 0, [b"more"])
            consumer.pause([T0])
        await trio.sleep(100)
        assert not lines(caplog)
        assert consumer.health().ok


@pytest.mark.parametrize("how", ["seek", "seek_to_end", "assign"])
async def test_overtaken_fetch_leaves_the_lag_known(autojump_clock: Clock, how: str) -> None:
    """A broker reports an idle partition's end once in a session, here in a useless response."""
    async with cluster_of(records=2) as cluster:
        held = cluster.delay("Fetch", 0.3, after=True)
        async with consumer_of(cluster, auto_offset_reset="latest") as consumer:
            consumer.assign([T0])
            await cluster.seen("Fetch")
            if how == "seek":
                consumer.seek(T0, 2)
            elif how == "seek_to_end":
                consumer.seek_to_end()
            else:
                consumer.assign([])
                consumer.assign([T0])
            await trio.sleep(1)
            held.remove()
            await consumer.receive_batch(timeout=30)
            assert consumer.current_lag(T0) == 0
            assert consumer.health().ok


async def test_health_names_a_missing_membership(autojump_clock: Clock) -> None:
    settings: dict[str, Any] = {"session_timeout_ms": 6000, "max_poll_interval_ms": 10_000}
    async with cluster_of(records=3) as cluster:
        async with member_of(cluster, **settings) as consumer:
            await consumer.receive_batch()
            await trio.sleep(30)
            health = consumer.health()
            assert (health.ok, health.state) == (False, "stale")
            assert "max_poll_interval_ms" in health.reasons[0]
        cluster.fail("JoinGroup", 30, None)
        async with member_of(cluster) as consumer:
            await trio.sleep(5)
            health = consumer.health()
            assert not health.ok
            assert isinstance(health.error, AuthorizationError)
            assert "the member is not in its group" in health.reasons[0]
            assert "the next attempt is in" in health.reasons[0]


async def test_missing_topic_is_a_reason(autojump_clock: Clock) -> None:
    with trio.fail_after(120):
        async with (
            cluster_of() as cluster,
            member_of(cluster, "nosuch", allow_auto_create_topics=False) as consumer,
        ):
            assert not await consumer.receive_batch(timeout=5)
            health = consumer.health()
            assert not health.ok
            assert health.reasons == (f"{topic_missing('nosuch')} (it is subscribed to)",)
            cluster.create_topic("nosuch")
            assert not await consumer.receive_batch(timeout=60)
            assert consumer.health().reasons == ()
