"""A broker freezes and others take over.

Six seconds after the election all goes on, and nothing doubles.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock as Clock

import trikafka
from trikafka import TopicPartition
from trikafka.testing import ScriptedCluster

T0 = TopicPartition("t", 0)
AIM = 6.0  # seconds after the election
ELECTION = 3.5


def settings_of(cluster: ScriptedCluster, **settings: Any) -> dict[str, Any]:
    return {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial} | settings


@asynccontextmanager
async def reading(
    cluster: ScriptedCluster, *topics: str, **settings: Any
) -> AsyncIterator[trikafka.Consumer]:
    """Open a consumer that has read the topic ``t``, which has one record, to its end."""
    settings = settings_of(cluster, auto_offset_reset="earliest", **settings)
    async with trikafka.open_consumer(*topics, **settings) as consumer:
        if not topics:
            consumer.assign([T0])
        while (await consumer.receive()).partition != 0:
            pass
        await consumer.receive_batch(timeout=2)
        yield consumer


@asynccontextmanager
async def cluster_of(nodes: int = 3) -> AsyncIterator[ScriptedCluster]:
    """Open a cluster with the topic ``t`` of one partition, led by node 1; node 0 coordinates."""
    async with ScriptedCluster(nodes=nodes, topics={"t": 1}) as cluster:
        cluster.move_leader("t", 0, 1)
        cluster.move_coordinator(0)
        cluster.append("t", 0, [b"0"])
        yield cluster


async def elect(cluster: ScriptedCluster, frozen: int) -> None:
    """Freeze a node, and let another one lead and coordinate once the controller notices."""
    cluster.freeze(frozen)
    await trio.sleep(ELECTION)
    if cluster.partition("t", 0).leader == frozen:
        cluster.move_leader("t", 0, (frozen + 1) % 3)
    else:
        cluster.move_coordinator((frozen + 1) % 3)


@pytest.mark.parametrize("offset", [number / 10 for number in range(0, 10, 3)])
@pytest.mark.parametrize("group", [None, "g"])
async def test_consumer_follows_the_new_leader(
    autojump_clock: Clock, offset: float, group: str | None
) -> None:
    async with (
        cluster_of() as cluster,
        reading(cluster, *(["t"] if group else []), group_id=group) as consumer,
    ):
        await trio.sleep(offset)
        await elect(cluster, 1)
        cluster.append("t", 0, [b"new"])
        elected = trio.current_time()
        assert (await consumer.receive()).value == b"new"
        assert trio.current_time() - elected <= AIM
        await trio.sleep(60)
        cluster.thaw(1)
        cluster.append("t", 0, [b"newer"])
        assert (await consumer.receive()).value == b"newer"
        assert not await consumer.receive_batch(timeout=30)


async def test_late_election_is_found(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, reading(cluster) as consumer:
        cluster.freeze(1)
        await trio.sleep(20)
        cluster.move_leader("t", 0, 2)
        cluster.append("t", 0, [b"new"])
        elected = trio.current_time()
        assert (await consumer.receive()).value == b"new"
        assert trio.current_time() - elected <= 2


async def test_slow_broker_is_kept(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """The broker thaws after seven seconds and leads as before.

    No connection is closed, and nothing is lost or doubled.
    """
    async with cluster_of() as cluster, reading(cluster, "t", group_id="g") as consumer:
        dials = len(cluster.dials)
        cluster.freeze(1)
        await trio.sleep(7)
        cluster.append("t", 0, [b"1", b"2"])
        cluster.thaw(1)
        assert [(await consumer.receive()).value for _ in range(2)] == [b"1", b"2"]
        assert not await consumer.receive_batch(timeout=30)
        assert {node for _, node, _ in cluster.dials[dials:]} <= {0, 2}


async def test_broker_that_just_answered_may_be_silent(autojump_clock: Clock) -> None:
    """A fetch is under way when another connection has a response. Then the broker freezes."""
    async with cluster_of() as cluster:
        cluster.move_coordinator(1)
        async with reading(cluster, "t", group_id="g", heartbeat_interval_ms=1000) as consumer:
            fetches = len(cluster.requests("Fetch", node=1))
            await cluster.seen("Fetch", fetches + 1, node=1)
            await cluster.seen("Heartbeat", len(cluster.requests("Heartbeat")) + 1)
            await trio.sleep(0.01)
            cluster.freeze(1)
            await trio.sleep(ELECTION)
            cluster.move_leader("t", 0, 2)
            cluster.move_coordinator(2)
            cluster.append("t", 0, [b"new"])
            elected = trio.current_time()
            assert (await consumer.receive()).value == b"new"
            assert trio.current_time() - elected <= AIM
            await consumer.commit(timeout=1)


async def test_frozen_follower_yields_to_its_leader(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}, racks=["a", "b"]) as cluster:
        cluster.move_leader("t", 0, 0)
        cluster.append("t", 0, [b"0"])
        async with reading(cluster, client_rack="b") as consumer:
            assert cluster.requests("Fetch")[-1].node_id == 1
            cluster.freeze(1)
            began = trio.current_time()
            cluster.append("t", 0, [b"new"])
            assert (await consumer.receive()).value == b"new"
            assert trio.current_time() - began <= AIM


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_commit_goes_to_the_new_coordinator(autojump_clock: Clock, protocol: str) -> None:
    async with (
        cluster_of() as cluster,
        reading(
            cluster, "t", group_id="g", group_protocol=protocol, enable_auto_commit=False
        ) as consumer,
    ):
        cluster.freeze(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.commit)
            await trio.sleep(ELECTION)
            cluster.move_coordinator(2)
            elected = trio.current_time()
        assert trio.current_time() - elected <= AIM
        committed = cluster.committed("g", ("t", 0))
        assert committed is not None
        assert committed.offset == 1
        generation = consumer.group_metadata().generation
        await trio.sleep(60)
        cluster.thaw(0)
        await trio.sleep(10)
        assert consumer.group_metadata().generation == generation, (
            "heartbeats found the new coordinator in time"
        )
        assert consumer.health().ok


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup", "OffsetFetch", "ConsumerGroupHeartbeat"])
async def test_joining_goes_on_at_the_new_coordinator(autojump_clock: Clock, api: str) -> None:
    protocol = "consumer" if api == "ConsumerGroupHeartbeat" else "classic"
    settings: dict[str, Any] = {
        "group_id": "g",
        "group_protocol": protocol,
        "auto_offset_reset": "earliest",
    }
    async with cluster_of() as cluster:
        async with trikafka.open_consumer("t", **settings_of(cluster, **settings)) as consumer:
            got: list[Any] = []

            async def receive() -> None:
                got.append(await consumer.receive())

            async with trio.open_nursery() as nursery:
                cluster.silence(api, 1, node=0)
                nursery.start_soon(receive)
                await cluster.seen(api)
                cluster.freeze(0)
                await trio.sleep(ELECTION)
                cluster.move_coordinator(2)
                elected = trio.current_time()
            assert trio.current_time() - elected <= AIM
            cluster.thaw(0)


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("thaws", [False, True])
async def test_idempotent_producer_follows_the_leader(
    autojump_clock: Clock, carried_out: bool, thaws: bool
) -> None:
    """Batches in flight are sent again with their sequence numbers.

    The new leader does not write them twice.
    """
    async with (
        cluster_of() as cluster,
        trikafka.open_producer(**settings_of(cluster, linger_ms=0)) as producer,
    ):
        await producer.send("t", b"1")
        cluster.silence("Produce", 1, node=1, after=carried_out)
        acks = [await producer.enqueue("t", b"%d" % number) for number in range(2, 6)]
        await cluster.seen("Produce", 2)
        await elect(cluster, 1)
        elected = trio.current_time()
        acks += [await producer.enqueue("t", b"%d" % number) for number in range(6, 9)]
        for ack in acks:
            await ack.wait()
        assert trio.current_time() - elected <= AIM
        if thaws:
            cluster.thaw(1)
            await trio.sleep(60)
        await producer.send("t", b"9")
        assert [record.value for record in cluster.records("t", 0)] == [
            b"%d" % number for number in range(10)
        ]


@pytest.mark.parametrize("learnt", [3.6, 4.9, 5.5])
async def test_leader_that_moved_before_is_left(autojump_clock: Clock, learnt: float) -> None:
    """Something else has the metadata refreshed, before or after the broker counts as silent."""
    async with (
        cluster_of() as cluster,
        trikafka.open_producer(**settings_of(cluster, linger_ms=0)) as producer,
    ):
        await producer.send("t", b"1")
        cluster.silence("Produce", 1, node=1)
        began = trio.current_time()
        ack = await producer.enqueue("t", b"2")
        await cluster.seen("Produce", 2)
        await elect(cluster, 1)
        elected = trio.current_time()
        await trio.sleep_until(began + learnt)
        # The request may go to the frozen broker first. Another one is asked a second later.
        await producer.partitions_for(f"another-{learnt}", timeout=2)
        await ack.wait()
        assert trio.current_time() - elected <= AIM


async def test_producer_waits_for_a_slow_leader(autojump_clock: Clock) -> None:
    async with (
        cluster_of() as cluster,
        trikafka.open_producer(**settings_of(cluster, linger_ms=0)) as producer,
    ):
        await producer.send("t", b"1")
        dials = len(cluster.dials)
        cluster.freeze(1)
        acks = [await producer.enqueue("t", b"%d" % number) for number in range(2, 6)]
        await trio.sleep(7)
        cluster.thaw(1)
        for ack in acks:
            await ack.wait()
        assert [record.value for record in cluster.records("t", 0)] == [
            b"%d" % number for number in range(6)
        ]
        assert {node for _, node, _ in cluster.dials[dials:]} <= {0, 2}


async def test_producer_without_idempotence_waits(autojump_clock: Clock) -> None:
    """Its records could be doubled: the frozen leader may have written them."""
    settings = {"linger_ms": 0, "enable_idempotence": False}
    async with (
        cluster_of() as cluster,
        trikafka.open_producer(**settings_of(cluster, **settings)) as producer,
    ):
        await producer.send("t", b"1")
        cluster.silence("Produce", 1, node=1, after=True)
        ack = await producer.enqueue("t", b"2")
        await elect(cluster, 1)
        began = trio.current_time()
        await ack.wait()
        assert trio.current_time() - began > 20


@pytest.mark.parametrize("version", [1, 2])
async def test_transaction_goes_on_at_new_coordinator(autojump_clock: Clock, version: int) -> None:
    async with ScriptedCluster(nodes=3, topics={"t": 1}, transaction_version=version) as cluster:
        cluster.move_leader("t", 0, 1)
        cluster.move_coordinator(0)
        async with trikafka.open_producer(
            **settings_of(cluster, linger_ms=0, transactional_id="x")
        ) as producer:
            for number in range(2):
                async with producer.transaction():
                    await producer.send("t", b"%d" % number)
                    if number:
                        cluster.freeze(0)
                        until = trio.current_time() + ELECTION
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(move_at, cluster, until)
                            await producer.send("t", b"more")
            assert trio.current_time() - until <= AIM
        assert cluster.transactions.by_id["x"].state.value in (
            "Empty",
            "CompleteCommit",
            "PrepareCommit",
        )


async def move_at(cluster: ScriptedCluster, when: float) -> None:
    await trio.sleep_until(when)
    cluster.move_coordinator(2)


async def test_metadata_is_requested_of_others_first(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, reading(cluster) as consumer:
        cluster.freeze(1)
        await trio.sleep(7)
        before = len(cluster.requests("Metadata", node=1))
        for _ in range(10):
            began = trio.current_time()
            await consumer.list_topics(timeout=5)
            assert trio.current_time() - began < 0.1
        assert len(cluster.requests("Metadata", node=1)) == before


async def test_frozen_broker_is_one_log_line(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trikafka")
    async with cluster_of() as cluster, reading(cluster) as consumer:
        caplog.clear()
        await elect(cluster, 1)
        cluster.append("t", 0, [b"new"])
        await consumer.receive()
        await trio.sleep(3)
        cluster.thaw(1)
        await trio.sleep(30)
        lines = [record.getMessage() for record in caplog.records]
        assert len([line for line in lines if "does not respond" in line]) == 1
        assert len(lines) <= 2, lines
