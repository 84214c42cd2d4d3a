"""The session of a member of the consumer protocol (KIP-848): how long it delivers without a
coordinator. Also static members that return before their earlier session has ended.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from consuming import T0, T1, RecordingListener, cluster_of, consumer_of, until, values
from trio.testing import MockClock as Clock

from trikafka.errors import ErrorCode, FencedInstanceIdError
from trikafka.testing import ScriptedCluster
from trikafka.testing.cancellation import assert_all_awaits_cancellable

BEAT, CONFIGS = "ConsumerGroupHeartbeat", "DescribeConfigs"
QUICK: dict[str, Any] = {"consumer_session_timeout": 6, "consumer_heartbeat_interval": 1}


def member_of(cluster: ScriptedCluster, *topics: str, **settings: Any) -> Any:
    """Open a member of the group ``g`` by the consumer protocol."""
    given = {"group_id": "g", "group_protocol": "consumer", "enable_auto_commit": False}
    return consumer_of(cluster, *topics, **(given | settings))


async def stops_after(cluster: ScriptedCluster, **settings: Any) -> float:
    """Return how long after its last answered heartbeat a member takes itself for removed."""
    events: list[Any] = []
    for number in (0, 1):
        cluster.move_leader("t", number, 1)
    async with member_of(cluster, **settings) as consumer:
        consumer.subscribe(["t"], RecordingListener(events))
        await values(consumer, 6)
        await trio.sleep(3.5)
        last = max(seen.time for seen in cluster.requests(BEAT))
        cluster.stop(0)
        await until(lambda: consumer.statistics().state != "stable", 0.001)
        late = trio.current_time() - last
        cluster.append("t", 0, [b"another member's"])
        with pytest.raises(trio.WouldBlock):
            consumer.receive_nowait()
        assert not await consumer.receive_batch(timeout=1)
        assert events == [("assigned", [T0, T1]), ("lost", [T0, T1])]
        return late


async def test_session_timeout_is_read_from_the_group(autojump_clock: Clock) -> None:
    async with cluster_of(2, nodes=2, records=3, **QUICK) as cluster:
        assert await stops_after(cluster) == pytest.approx(6, abs=0.021)
        (asked,) = cluster.requests(CONFIGS)
        (resource,) = asked.request.resources
        assert (resource.resource_type, resource.resource_name) == (32, "g")
        assert asked.time <= cluster.requests(BEAT)[0].time


async def test_shorter_session_timeout_ms_counts(autojump_clock: Clock) -> None:
    async with cluster_of(2, nodes=2, records=3, consumer_heartbeat_interval=1) as cluster:
        assert await stops_after(cluster, session_timeout_ms=7_000) == pytest.approx(7, abs=0.021)


async def test_longer_session_timeout_ms_is_ignored(autojump_clock: Clock) -> None:
    async with cluster_of(2, nodes=2, records=3, **QUICK) as cluster:
        assert await stops_after(cluster, session_timeout_ms=60_000) == pytest.approx(6, abs=0.021)


@pytest.mark.parametrize("how", ["not allowed", "not offered", "no entry", "cut twice"])
async def test_unreadable_session_timeout_has_a_default(
    autojump_clock: Clock, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trikafka.membership")
    async with cluster_of(2, nodes=2, records=3, **QUICK) as cluster:
        match how:
            case "not allowed":
                cluster.fail(CONFIGS, ErrorCode.GROUP_AUTHORIZATION_FAILED, None)
            case "not offered":
                cluster.offer(CONFIGS, None)
            case "no entry":
                cluster.on(CONFIGS, without_entries)
            case "cut twice":
                cluster.drop(CONFIGS, 2)
        assert await stops_after(cluster) == pytest.approx(45, abs=0.021)
    (line,) = [
        record.getMessage()
        for record in caplog.records
        if "session timeout is assumed" in record.getMessage()
    ]
    assert "45 s, the default of brokers" in line
    assert "session_timeout_ms with group_protocol='consumer'" in line


async def without_entries(request: Any, default: Any) -> Any:
    response = await default()
    response.results[0].configs = []
    return response


async def test_session_timeout_request_is_retried(autojump_clock: Clock) -> None:
    async with cluster_of(2, nodes=2, records=3, **QUICK) as cluster:
        cluster.drop(CONFIGS, 1)
        assert await stops_after(cluster) == pytest.approx(6, abs=0.021)


async def test_partition_has_one_reader_after_expiry(autojump_clock: Clock) -> None:
    """One member loses its way to the coordinator.

    The other gets its partitions when the session has ended.
    """
    handled: dict[str, list[float]] = {"one": [], "two": []}

    async def work(name: str, consumer: Any) -> None:
        async for _ in consumer:
            handled[name].append(trio.current_time())

    async with cluster_of(2, nodes=2, **QUICK) as cluster:
        for number in (0, 1):
            cluster.move_leader("t", number, 1)
        async with member_of(cluster, "t") as one, trio.open_nursery() as nursery:
            nursery.start_soon(work, "one", one)
            await until(lambda: len(one.assignment()) == 2)
            lost = one.statistics().member_id
            last = max(seen.time for seen in cluster.requests(BEAT))
            cluster.silence(BEAT, where=lambda request: request.member_id == lost)
            async with member_of(cluster, "t") as two:
                nursery.start_soon(work, "two", two)
                for _ in range(200):
                    cluster.append("t", 0, [b"x"])
                    cluster.append("t", 1, [b"x"])
                    await trio.sleep(0.1)
                nursery.cancel_scope.cancel()
        assert max(handled["one"]) <= last + 1 + 6
        assert max(handled["one"]) < min(handled["two"])


async def test_session_timeout_request_is_cancellable(autojump_clock: Clock) -> None:
    async def scenario() -> None:
        async with cluster_of(1, records=1) as cluster, member_of(cluster, "t") as consumer:
            cluster.delay(CONFIGS, 0.01)
            await values(consumer, 1)

    assert await assert_all_awaits_cancellable(scenario) > 5


# Static members.


async def test_static_member_waits_for_its_earlier_run(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """After SIGKILL and a restart the coordinator still keeps the old member."""
    async with cluster_of(1, records=3, **QUICK) as cluster, trio.open_nursery() as nursery:
        killed = trio.Event()

        async def first_run() -> None:
            async with member_of(cluster, "t", group_instance_id="one") as consumer:
                await values(consumer, 1)
                cluster.silence(
                    BEAT, where=lambda request: request.member_id == consumer.statistics().member_id
                )
                killed.set()
                await trio.sleep(5)

        nursery.start_soon(first_run)
        await killed.wait()
        last = max(seen.time for seen in cluster.requests(BEAT))
        async with member_of(cluster, "t", group_instance_id="one") as consumer:
            with trio.move_on_after(3):
                await consumer.receive()
            health = consumer.health()
            assert not health.ok
            assert "UNRELEASED_INSTANCE_ID" in health.reasons[0]
            assert await values(consumer, 1) == [b"0"]
            assert trio.current_time() - last < 6 + 1.5
            assert consumer.health().ok
        nursery.cancel_scope.cancel()
    (line,) = [
        each.getMessage()
        for each in caplog.records
        if "still holds group_instance_id" in each.getMessage()
    ]
    assert "'one'" in line
    assert "up to 6 s" in line


async def test_living_holder_of_the_instance_is_raised(autojump_clock: Clock) -> None:
    async with (
        cluster_of(1, **QUICK) as cluster,
        member_of(cluster, "t", group_instance_id="one") as first,
    ):
        await until(lambda: first.statistics().state == "stable")
        began = trio.current_time()
        async with member_of(cluster, "t", group_instance_id="one") as second:
            for _ in range(2):
                with pytest.raises(FencedInstanceIdError, match="UNRELEASED_INSTANCE_ID"):
                    await second.receive()
            assert 6 + 5 <= trio.current_time() - began < 6 + 5 + 1.5
            assert first.statistics().state == "stable"
        assert len([seen for seen in cluster.requests(BEAT) if seen.request.member_epoch == 0]) < 15


async def test_interval_over_the_session_is_shortened(autojump_clock: Clock) -> None:
    events: list[Any] = []
    settings: dict[str, Any] = {"session_timeout_ms": 3_000}
    async with (
        cluster_of(1, records=1, consumer_heartbeat_interval=1_000) as cluster,
        member_of(cluster, **settings) as consumer,
    ):
        consumer.subscribe(["t"], RecordingListener(events))
        await values(consumer, 1)
        assert not await consumer.receive_batch(timeout=20)
        times = [seen.time for seen in cluster.requests(BEAT)]
        assert times[-1] - times[-2] == pytest.approx(1, abs=0.01)
        assert events == [("assigned", [T0])]
