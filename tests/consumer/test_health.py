"""The watchdog and ``health()``: a partition that stands still is told once, with the reason; a probe learns what is wrong."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from consuming import T0, T1, cluster_of, consumer_of, member_of
from trio.testing import MockClock as Clock

from trikafka import AuthorizationError
from trikafka.errors import topic_missing


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [f"{record.levelname} {record.message}" for record in caplog.records if record.name == "trikafka.consumer"]


async def test_a_consumer_that_works_is_healthy(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with cluster_of(2, records=3) as cluster:
        async with member_of(cluster) as consumer:
            for _ in range(6):
                await consumer.receive()
            await consumer.receive_batch(timeout=60)
            health = consumer.health()
            assert health.connected
            assert (health.ok, health.reasons, health.state, dict(health.stalled), health.error) == (True, (), "stable", {}, None)
        health = consumer.health()
        assert (health.ok, health.reasons) == (False, ("the consumer is closed",))
    assert not told(caplog)


async def test_a_partition_without_a_leader_is_told_once_and_when_it_goes_on(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with cluster_of(2, records=3, nodes=2) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0, T1])
        while (await consumer.receive_batch(timeout=1)).topic:
            pass
        cluster.move_leader("t", 0, None)
        for _ in range(60):
            await consumer.receive_batch(timeout=1)
        (line,) = told(caplog)
        assert line.startswith("WARNING t-0: no progress for ")
        assert "it has no leader that can be asked" in line
        assert [str(tp) for tp in consumer.health().stalled] == ["t-0"]
        assert "t-0: no progress: it has no leader" in consumer.health().reasons[0]
        cluster.move_leader("t", 0, 1)
        cluster.append("t", 0, [b"new"])
        assert (await consumer.receive()).value == b"new"
        await consumer.receive_batch(timeout=20)
        assert told(caplog)[1].startswith("INFO t-0: goes on, after ")
        assert consumer.health().ok


async def test_brokers_that_cannot_be_reached(autojump_clock: Clock) -> None:
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


async def test_records_that_nobody_receives(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster_of(records=9) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        await consumer.receive()
        await trio.sleep(60)
        (line,) = told(caplog)
        assert "records of it are there, but nobody receives them" in line
        assert not consumer.health().ok


@pytest.mark.parametrize("how", ["paused", "at the end"])
async def test_what_rests_is_not_stalled(autojump_clock: Clock, caplog: pytest.LogCaptureFixture, how: str) -> None:
    async with cluster_of(records=3) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        await consumer.receive_batch()
        if how == "paused":
            cluster.append("t", 0, [b"more"])
            consumer.pause([T0])
        await trio.sleep(100)
        assert not told(caplog)
        assert consumer.health().ok


async def test_a_member_that_left_and_a_group_that_may_not_be_joined(autojump_clock: Clock) -> None:
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
            assert "the group's work has stopped" in health.reasons[0]


async def test_a_topic_that_does_not_exist_is_a_reason_until_it_does(autojump_clock: Clock) -> None:
    with trio.fail_after(120):
        async with cluster_of() as cluster, member_of(cluster, "nosuch", allow_auto_create_topics=False) as consumer:
            assert not await consumer.receive_batch(timeout=5)
            health = consumer.health()
            assert not health.ok
            assert health.reasons == (f"{topic_missing('nosuch')} (it is subscribed to)",)
            cluster.create_topic("nosuch")
            assert not await consumer.receive_batch(timeout=60)
            assert consumer.health().reasons == ()
