"""Assignment in a classic group in virtual time: the leader's input, and the time in which a moving
partition has no reader.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from consuming import (
    T0,
    T1,
    T2,
    T3,
    RecordingListener,
    cluster_of,
    consumer_of,
    member_of,
    until,
    values,
)
from trio.testing import MockClock as Clock

from trikafka import TopicPartition
from trikafka._managers.group.group_messages import decode_subscription
from trikafka.errors import IllegalStateError
from trikafka.testing import ScriptedCluster

COOPERATIVE = {
    "partition_assignment_strategy": ["cooperative-sticky"],
    "heartbeat_interval_ms": 3_000,
}
STATIC = {"group_instance_id": "one", "session_timeout_ms": 30_000}


async def drain(consumer: Any) -> None:
    async for _ in consumer:
        pass


def subscription_of(cluster: ScriptedCluster, number: int = -1, protocol: int = 0) -> Any:
    """Return the subscription in a JoinGroup request, by default the last one."""
    return decode_subscription(
        bytes(cluster.requests("JoinGroup")[number].request.protocols[protocol].metadata), None
    )


async def test_restarted_static_member_gets_new_ones(
    autojump_clock: Clock,
) -> None:
    """KIP-814: the coordinator has the returning leader skip the assignment, which is outdated."""
    async with cluster_of(2, records=1) as cluster:
        async with member_of(cluster, **STATIC) as consumer:
            await values(consumer, 2)
        generation = cluster.group("g").generation
        cluster.add_partitions("t", 4)
        for number in (2, 3):
            cluster.append("t", number, [b"new"])
        async with member_of(cluster, **STATIC) as consumer:
            began = trio.current_time()
            seen: list[bytes | None] = []
            while not consumer.assignment():
                seen += [record.value for record in await consumer.receive_batch(timeout=0.001)]
            # One backoff, so that a coordinator which says so for ever causes no storm.
            assert trio.current_time() - began < 0.15
            while len(seen) < 2:
                seen += await values(consumer, 1)
            assert seen == [b"new", b"new"]
            assert consumer.assignment() == {T0, T1, T2, T3}
            assert cluster.group("g").generation == generation + 1
            assert not cluster.requests("DescribeGroups")  # alone, it knows what all have


@pytest.mark.parametrize("grows", [False, True])
async def test_static_leader_describes_the_group(autojump_clock: Clock, grows: bool) -> None:
    async with cluster_of(2, records=1, initial_rebalance_delay=1) as cluster:
        other = STATIC | {"group_instance_id": "two"}
        async with (
            member_of(cluster, **STATIC) as first,
            member_of(cluster, **other) as second,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(drain, first)
            nursery.start_soon(drain, second)
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 1)
            leader = cluster.group("g").leader
            nursery.cancel_scope.cancel()
        generation = cluster.group("g").generation
        if grows:
            cluster.add_partitions("t", 4)
        again = STATIC if cluster.group("g").static_member("one").member_id == leader else other
        async with member_of(cluster, **again) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(drain, consumer)
            await until(lambda: consumer.statistics().state == "stable")
            await trio.sleep(1)
            assert len(cluster.requests("DescribeGroups")) == 1
            if not grows:
                assert cluster.group("g").generation == generation
                assert len(consumer.assignment()) == 1
            else:  # the group waited for the other member, which was away, until its session ended
                assert cluster.group("g").generation == generation + 1
                assert len(consumer.assignment()) == 4
                assert trio.current_time() == pytest.approx(32, abs=0.01)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("strategy", ["sticky", "cooperative-sticky"])
async def test_leader_gets_the_last_assignment(autojump_clock: Clock, strategy: str) -> None:
    settings = {"partition_assignment_strategy": [strategy], "client_rack": "r1"}
    async with cluster_of(3, records=9) as cluster, member_of(cluster, **settings) as consumer:
        await consumer.receive()
        first = subscription_of(cluster)
        assert (first.owned, first.generation, first.rack) == ((), -1, "r1")
        empty = first.user_data
        consumer.enforce_rebalance("to see what it tells")
        await until(lambda: consumer.statistics().generation == 1)
        with trio.move_on_after(1):
            await drain(consumer)
        assert consumer.statistics().generation == 2
        eager = strategy == "sticky"
        again = subscription_of(cluster)
        assert (again.owned, again.generation) == (() if eager else (T0, T1, T2), 1)
        assert again.user_data != empty
        assert consumer.assignment() == {T0, T1, T2}


async def test_reasons_are_sent_to_the_broker(autojump_clock: Clock) -> None:
    """KIP-800."""
    async with cluster_of(1, records=9) as cluster:
        async with member_of(cluster) as consumer:
            await consumer.receive()
            consumer.enforce_rebalance("because " + 300 * "x")
            consumer.enforce_rebalance("this one comes too late")
            with trio.move_on_after(1):
                await drain(consumer)
            consumer.subscribe(["t", "u"])
            with trio.move_on_after(1):
                await drain(consumer)
        reasons = [seen.request.reason for seen in cluster.requests("JoinGroup")]
        assert reasons == [
            *2 * ["the consumer subscribed"],
            ("because " + 300 * "x")[:255],
            "the subscription changed",
        ]
        (leave,) = cluster.requests("LeaveGroup")
        assert leave.request.members[0].reason == "the consumer is being closed"


async def test_enforce_rebalance_needs_a_group(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster:
        async with consumer_of(cluster) as consumer:
            consumer.assign([T0])
            with pytest.raises(IllegalStateError, match="no group to rebalance"):
                consumer.enforce_rebalance()
        async with consumer_of(cluster, group_id="g") as consumer:
            with pytest.raises(IllegalStateError):
                consumer.enforce_rebalance()


async def test_assigned_consumer_joins_no_group(autojump_clock: Clock) -> None:
    # Fetches wait longer than by default: two a second take most of this test's time.
    settings = {"group_id": "g", "fetch_max_wait_ms": 20_000}
    async with cluster_of(records=9) as cluster, consumer_of(cluster, **settings) as consumer:
        consumer.assign([T0])
        await values(consumer, 3)
        await trio.sleep(600)  # longer than the poll interval, too
        assert await values(consumer, 1) == [b"3"]
        await trio.sleep(6)
        assert not [
            seen
            for api in ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup")
            for seen in cluster.requests(api)
        ]
        assert cluster.committed("g", T0).offset == 3


async def test_second_cooperative_round_is_quick(
    autojump_clock: Clock,
) -> None:
    """The third member has its first record after 50 ms, though heartbeats are 3 s apart."""
    async with cluster_of(6, records=1) as cluster:
        async with (
            member_of(cluster, **COOPERATIVE) as first,
            member_of(cluster, **COOPERATIVE) as second,
            trio.open_nursery() as nursery,
        ):
            for consumer in (first, second):
                nursery.start_soon(drain, consumer)
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 3)
            await trio.sleep(30)
            rounds = len(cluster.requests("SyncGroup"))
            async with member_of(cluster, **COOPERATIVE) as third:
                nursery.start_soon(drain, third)
                await until(lambda: len(third.assignment()) == 2)
                now = trio.current_time()
                heard = cluster.requests("SyncGroup")[rounds].time
                assert [len(c.assignment()) for c in (first, second, third)] == [2, 2, 2]
                assert now - heard == pytest.approx(0.05, abs=0.002)
                nursery.cancel_scope.cancel()


async def test_heartbeats_slow_down_after_rebalance(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(records=1) as cluster, member_of(cluster, **COOPERATIVE) as consumer:
        await consumer.receive()
        joined = cluster.requests("JoinGroup")[-1].answered_at
        await trio.sleep(16)
        gaps = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3, 3, 3, 3]
        assert [round(seen.time - joined, 3) for seen in cluster.requests("Heartbeat")] == [
            round(sum(gaps[: number + 1]), 3) for number in range(len(gaps))
        ]


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_rebalance_states_come_in_order(autojump_clock: Clock, strategy: str) -> None:
    states: list[str] = []

    async def note(what: str) -> None:
        states.append(consumer.statistics().state)

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    lines: list[str] = []
    logger, handler = logging.getLogger("trikafka.membership"), Noting(logging.INFO)
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        settings: Any = {"group_id": "g", "partition_assignment_strategy": [strategy]}
        async with (
            cluster_of(2, records=9) as cluster,
            consumer_of(cluster, **settings) as consumer,
        ):
            consumer.subscribe(["t"], RecordingListener([], then=note))
            await consumer.receive()
            cluster.delay("OffsetCommit", 1, 1)
            other = consumer_of(cluster, "t", **settings)
            async with other as second, trio.open_nursery() as nursery:
                nursery.start_soon(drain, second)
                await trio.sleep(4)  # it has heard of the rebalance, and waits for the user
                states.append(consumer.statistics().state)
                while len(consumer.assignment()) != 1 or not second.assignment():
                    await consumer.receive_batch(timeout=0.1)
                states.append(consumer.statistics().state)
                nursery.cancel_scope.cancel()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    if strategy == "range":
        assert states == [
            "assigning",
            "prepare revocation",
            "revoking",
            "assigning",
            "stable",
            "leaving",
        ]
    else:  # it continues to read until it knows what to revoke
        assert states[0] == "assigning"
        assert "revoking" in states
        assert states[-2:] == ["stable", "leaving"]
    member = cluster.requests("LeaveGroup")[-1].request.members[0].member_id
    assert f"group g: joined generation 1 as {member}, the leader" in lines
    assert f"group g: {member} left" in lines
    assert "group g: assigned t-0, t-1" in lines
    assert len([line for line in lines if "revoked" in line]) >= 1


async def test_common_strategy_of_members_is_used(autojump_clock: Clock) -> None:
    """Range and cooperative-sticky together are eager (KIP-429); the latter alone is not."""
    for strategy, owned in ((["range", "cooperative-sticky"], ()), (["cooperative-sticky"], (T0,))):
        async with (
            cluster_of(records=3) as cluster,
            member_of(cluster, partition_assignment_strategy=strategy) as consumer,
        ):
            await consumer.receive()
            consumer.enforce_rebalance()
            await consumer.receive_batch(timeout=1)
            await consumer.receive_batch(timeout=1)
            assert subscription_of(cluster).owned == owned


async def test_partitions_are_assigned_by_rack(autojump_clock: Clock) -> None:
    """KIP-881: subscriptions have the racks of the members, and metadata those of the replicas."""
    settings = {"partition_assignment_strategy": ["range"]}
    async with cluster_of(2, nodes=2, racks=["east", "west"], initial_rebalance_delay=1) as cluster:
        near = {
            cluster._state.topics["t"].partitions[number].replicas[0]: number for number in (0, 1)
        }
        async with (
            member_of(cluster, client_rack="east", **settings) as east,
            member_of(cluster, client_rack="west", **settings) as west,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(drain, east)
            nursery.start_soon(drain, west)
            await until(lambda: bool(east.assignment() and west.assignment()))
            assert east.assignment() == {TopicPartition("t", near[0])}
            assert west.assignment() == {TopicPartition("t", near[1])}
            nursery.cancel_scope.cancel()
