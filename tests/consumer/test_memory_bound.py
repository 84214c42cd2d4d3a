"""Fetched and undelivered bytes stay within ``fetch_buffer_bytes`` and a quarter more, in each way
of reading.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from consuming import T0, T1, cluster_of, consumer_of
from trio.testing import MockClock as Clock

from trikafka import MemoryBudget, PartitionStream, TopicPartition
from trikafka._api.consumer.consumer import Consumer
from trikafka.testing import ScriptedCluster

#: The bound, and a batch: as 8 MiB and 0.9 MB, a tenth in size.
BOUND, BATCH = 800_000, 90_000
EACH = 3


class Most(trio.abc.Instrument):
    """The most bytes that consumers had buffered after any step.

    The first fetch from each broker shows how large batches are, and these begin together. Where a
    batch is more than its part of the ``bound``, counting begins when the buffer first was within
    the bound again.
    """

    def __init__(self, *consumers: Consumer, bound: int = BOUND) -> None:
        self._buffers = [consumer._parts.core.buffer for consumer in consumers]
        self._before = 0
        self._known = bound == BOUND
        self._bound = bound
        self.bytes = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        now = sum(buffer.buffered for buffer in self._buffers)
        self._known = self._known or (now < self._before and now <= self._bound)
        self._before = now
        if self._known:
            self.bytes = max(self.bytes, now)


@asynccontextmanager
async def full_cluster(
    partitions: int, nodes: int, size: int = BATCH
) -> AsyncIterator[ScriptedCluster]:
    async with cluster_of(partitions, nodes=nodes) as cluster:
        for number in range(partitions):
            for offset in range(EACH):
                cluster.append("t", number, [b"%d" % offset + bytes(size)])
        yield cluster


@asynccontextmanager
async def watched(
    cluster: ScriptedCluster, partitions: int, **settings: Any
) -> AsyncIterator[tuple[Consumer, Most]]:
    async with consumer_of(cluster, **({"fetch_buffer_bytes": BOUND} | settings)) as consumer:
        consumer.assign([TopicPartition("t", number) for number in range(partitions)])
        most = Most(consumer, bound=settings.get("fetch_buffer_bytes", BOUND))
        trio.lowlevel.add_instrument(most)
        try:
            yield consumer, most
        finally:
            trio.lowlevel.remove_instrument(most)


async def streams_of(consumer: Consumer, count: int) -> list[Any]:
    iteration = consumer.partitions()
    return [await anext(iteration) for _ in range(count)]


@pytest.mark.parametrize(("partitions", "nodes"), [(40, 1), (40, 3), (200, 3)])
async def test_unread_streams_stay_within_the_bound(
    autojump_clock: Clock, partitions: int, nodes: int
) -> None:
    """A stream that is read at last has its records at once."""
    async with (
        full_cluster(partitions, nodes) as cluster,
        watched(cluster, partitions) as (consumer, most),
    ):
        streams = await streams_of(consumer, partitions)
        await trio.sleep(5)
        assert BOUND / 2 < most.bytes <= 1.25 * BOUND
        for stream in random.sample(streams, 20):
            with trio.fail_after(3):
                values = [(await stream.receive()).value[:1] for _ in range(EACH)]
            assert values == [b"0", b"1", b"2"]
        assert most.bytes <= 1.25 * BOUND
        stalled = [why for why in consumer.health().stalled.values() if "leader" in why]
        assert stalled == []


ONE, THREE, TIGHT = (40, 1, BOUND), (60, 3, BOUND), (12, 4, 50_000)


@pytest.mark.parametrize(
    ("way", "partitions", "nodes", "bound"),
    [
        ("receive", *ONE),
        ("nowait", *ONE),
        ("batches", *THREE),
        ("cut off", *THREE),
        ("arrow", *TIGHT),
        ("cut off", *TIGHT),
    ],
)
async def test_slow_and_quick_streams_stay_bounded(
    autojump_clock: Clock, way: str, partitions: int, nodes: int, bound: int
) -> None:
    """All of them end, also where one batch exceeds the bound."""
    chosen = random.Random(way)
    got: Counter[int] = Counter()

    async def read(stream: Any) -> None:
        number, pause = stream.partition.partition, chosen.choice((0.0, 0.01, 0.5))
        while got[number] < EACH:
            if way == "receive":
                await stream.receive()
                got[number] += 1
            elif way == "batches":
                got[number] += len(await anext(stream.batches()))
            elif way == "arrow":
                got[number] += (await anext(stream.arrow_batches())).num_rows
            elif way == "cut off":
                with trio.move_on_after(0.05):
                    await stream.receive()
                    got[number] += 1
            else:
                try:
                    stream.receive_nowait()
                    got[number] += 1
                except trio.WouldBlock:
                    await trio.sleep(0.02)
            await trio.sleep(pause)

    async with (
        full_cluster(partitions, nodes) as cluster,
        watched(cluster, partitions, fetch_buffer_bytes=bound) as (consumer, most),
    ):
        with trio.fail_after(200):
            async with trio.open_nursery() as nursery:
                for stream in await streams_of(consumer, partitions):
                    nursery.start_soon(read, stream)
        assert most.bytes <= max(1.25 * bound, BATCH + 100)


TOGETHER = [
    ("receive", *ONE),
    ("receive", *TIGHT),
    ("batches", 12, 4, 200_000),
    ("batches", 200, 3, BOUND),
    ("arrow", *ONE),
    ("arrow", *TIGHT),
]


@pytest.mark.parametrize(("way", "partitions", "nodes", "bound"), TOGETHER)
async def test_all_partitions_together_stay_bounded(
    autojump_clock: Clock, way: str, partitions: int, nodes: int, bound: int
) -> None:
    """Each broker has its turn, also where the bound has room for one batch at a time."""
    got = 0
    async with (
        full_cluster(partitions, nodes) as cluster,
        watched(cluster, partitions, fetch_buffer_bytes=bound) as (consumer, most),
    ):
        with trio.fail_after(200):
            while got < EACH * partitions:
                if way == "receive":
                    await consumer.receive()
                    got += 1
                elif way == "batches":
                    got += len(await anext(consumer.batches()))
                else:
                    got += (await anext(consumer.arrow_batches(max_bytes=BATCH))).num_rows
                if got % 7 == 0:
                    await trio.sleep(0.05)
        assert most.bytes <= max(1.25 * bound, BATCH + 100)


@pytest.mark.parametrize("by_stream", [False, True])
async def test_shared_budget_bounds_two_consumers(autojump_clock: Clock, by_stream: bool) -> None:
    budget = MemoryBudget(BOUND)
    async with (
        full_cluster(40, 2) as cluster,
        consumer_of(cluster, memory_budget=budget) as one,
        consumer_of(cluster, memory_budget=budget) as other,
    ):
        most = Most(one, other)
        trio.lowlevel.add_instrument(most)
        streams = []
        for consumer in (one, other):
            consumer.assign([TopicPartition("t", number) for number in range(40)])
            if by_stream:
                streams += await streams_of(consumer, 40)
        await trio.sleep(5)
        assert BOUND / 3 < most.bytes <= 1.25 * BOUND
        for stream in streams[::9]:
            with trio.fail_after(3):
                await stream.receive()
        trio.lowlevel.remove_instrument(most)
        assert most.bytes <= 1.25 * BOUND


async def test_paused_streams_delay_no_other(autojump_clock: Clock) -> None:
    async with full_cluster(12, 2) as cluster, watched(cluster, 12) as (consumer, most):
        streams = await streams_of(consumer, 12)
        await trio.sleep(2)
        consumer.pause(stream.partition for stream in streams[1:])
        with trio.fail_after(5):
            for _ in range(EACH):
                await streams[0].receive()
        consumer.resume(stream.partition for stream in streams[1:])
        with trio.fail_after(20):
            for stream in streams[1:]:
                assert [(await stream.receive()).offset for _ in range(EACH)] == [0, 1, 2]
        assert most.bytes <= 1.25 * BOUND


@pytest.mark.parametrize("streams", [False, True], ids=["receive", "streams"])
@pytest.mark.parametrize("how", ["frozen", "slow", "answering"])
async def test_small_buffer_waits_for_no_late_fetch(
    autojump_clock: Clock, how: str, streams: bool
) -> None:
    """A late fetch keeps the room of one batch for a few seconds, not until it ends.

    An ``answering`` broker is as slow, but takes commits meanwhile.
    """
    member: Any = {"group_id": "g", "enable_auto_commit": False} if how == "answering" else {}
    async with (
        cluster_of(2, nodes=3, coordinator=1) as cluster,
        consumer_of(cluster, fetch_buffer_bytes=1000, **member) as consumer,
        trio.open_nursery() as nursery,
    ):
        cluster.move_leader("t", 0, 1)
        cluster.move_leader("t", 1, 2)
        for number in (0, 1):
            cluster.append("t", number, [b"x" * 1500])
        consumer.assign([T0, T1])
        assert len([await consumer.receive() for _ in range(2)]) == 2
        if how == "frozen":
            cluster.freeze(1)
        else:
            cluster.delay("Fetch", 25, node=1)
        arrived = []

        async def read(stream: PartitionStream[Any, Any]) -> None:
            async for record in stream:
                arrived.append(record.offset)

        async def read_all() -> None:
            if streams:
                async for stream in consumer.partitions():
                    nursery.start_soon(read, stream)
            while True:
                arrived.append((await consumer.receive()).offset)

        nursery.start_soon(read_all)
        for _ in range(10):
            await trio.sleep(1)
            cluster.append("t", 1, [b"y" * 1500])
            if member:
                await consumer.commit({T0: 1})
        await trio.sleep(2)
        assert arrived == list(range(1, 11))
        nursery.cancel_scope.cancel()


async def test_streams_decompress_little_at_once(autojump_clock: Clock) -> None:
    """Each handler holds what was decompressed for it, which the buffer no longer counts."""
    partitions = 40
    sizes: list[int] = []
    async with cluster_of(partitions) as cluster:
        for number in range(partitions):
            for _ in range(20):
                cluster.append("t", number, [bytes(5_000)], compression="gzip")
        async with watched(cluster, partitions) as (consumer, _):
            for stream in await streams_of(consumer, partitions):
                sizes.append((await stream.batches().__anext__()).nbytes)
    assert sum(sizes) <= BOUND / 3 + partitions * 5_200
