"""The bytes of the records that wait in a share consumer, while the program does something else."""

from __future__ import annotations

import random

import pytest
import trio
from sharing import cluster_of, queue_of
from trio.testing import MockClock as Clock

from trikafka.testing import ScriptedCluster

BOUND = 1_000_000


async def size_at_rest(queue: object) -> int:
    """Return the bytes that wait in the buffer once nothing is fetched any more."""
    await trio.sleep(5)
    size: int = queue._parts.core.buffer.size  # type: ignore[attr-defined]
    return size


@pytest.mark.parametrize(("nodes", "partitions"), [(1, 1), (1, 8), (3, 6)])
@pytest.mark.parametrize("size", [1_000, 100_000])
async def test_records_that_wait_are_bounded(
    nodes: int, partitions: int, size: int, autojump_clock: Clock
) -> None:
    """A quick program has a large window when it stops."""
    async with cluster_of(partitions, nodes=nodes) as cluster:
        for number in range(partitions):
            for _ in range(4_000_000 // size):
                cluster.append("t", number, [bytes(size)])
        async with queue_of(cluster, fetch_buffer_bytes=BOUND) as queue:
            for _ in range(3_000 if size == 1_000 else 20):
                (await queue.receive()).accept()
            assert 0.3 * BOUND < await size_at_rest(queue) < 1.25 * BOUND
            for _ in range(100_000 // size):
                (await queue.receive()).accept()
            assert await size_at_rest(queue) < 1.25 * BOUND


async def test_a_batch_above_the_bound_passes(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster:
        for _ in range(3):
            cluster.append("t", 0, [bytes(2 * BOUND)])
        async with queue_of(cluster, fetch_buffer_bytes=BOUND) as queue:
            for offset in range(3):
                delivery = await queue.receive()
                assert delivery.record.offset == offset
                delivery.accept()
                assert await size_at_rest(queue) < 4.1 * BOUND  # the delivered one, and one more


async def test_records_that_grow_are_bounded(autojump_clock: Clock) -> None:
    """A broker counts the bytes of compressed records."""
    chance = random.Random(7)
    async with cluster_of() as cluster:
        for _ in range(100):
            cluster.append("t", 0, [chance.randbytes(1_000) * 10], compression="gzip")
        async with queue_of(cluster, fetch_buffer_bytes=BOUND) as queue:
            for _ in range(3):
                for _ in range(20):
                    (await queue.receive()).accept()
                assert 0.3 * BOUND < await size_at_rest(queue) < 1.25 * BOUND


@pytest.mark.parametrize("compressed", [0, 9])
async def test_one_compressed_partition_is_bounded(compressed: int, autojump_clock: Clock) -> None:
    chance = random.Random(7)
    async with cluster_of(10) as cluster:
        for number in range(10):
            for _ in range(100):
                if number == compressed:
                    cluster.append("t", number, [chance.randbytes(1_000) * 10], compression="gzip")
                else:
                    cluster.append("t", number, [chance.randbytes(1_000)])
        async with queue_of(cluster, fetch_buffer_bytes=BOUND // 4) as queue:
            for _ in range(30):
                for _ in range(20):
                    (await queue.receive()).accept()
                assert await size_at_rest(queue) < 1.25 * BOUND // 4


async def test_slices_count_with_their_batch(autojump_clock: Clock) -> None:
    """A slice keeps the bytes of the records beside it, which other members have."""
    async with cluster_of() as cluster:
        for _ in range(10):
            cluster.append("t", 0, [bytes(10_000)] * 50)
        settings = {"acquire": "records", "fetch_buffer_bytes": BOUND}
        async with queue_of(cluster, **settings) as queue, queue_of(cluster, **settings):
            (await queue.receive()).accept()
            await trio.sleep(5)
            kept = {
                id(each.records._columns.value_data): len(each.records._columns.value_data)
                for each in queue._parts.core.buffer._waiting
            }
            assert sum(kept.values()) < 1.25 * BOUND
            assert queue._parts.core.buffer.size >= sum(kept.values())


async def test_lost_records_leave_the_buffer(autojump_clock: Clock) -> None:
    """Nothing is received while connections break."""
    async with cluster_of() as cluster:
        for _ in range(200):
            cluster.append("t", 0, [bytes(100_000)])
        cluster.shares.times.delivery_limit = 100
        async with queue_of(cluster, fetch_buffer_bytes=BOUND) as queue:
            (await queue.receive()).accept()
            for _ in range(10):
                cluster.disconnect()
                assert await size_at_rest(queue) < 1.25 * BOUND


async def test_one_plain_record_keeps_the_estimate(autojump_clock: Clock) -> None:
    """What came before it was compressed, and so is what follows."""
    chance = random.Random(7)

    def fill(cluster: ScriptedCluster, count: int) -> None:
        for _ in range(count):
            cluster.append("t", 0, [chance.randbytes(1_000) * 10], compression="gzip")

    async with cluster_of() as cluster, queue_of(cluster, fetch_buffer_bytes=BOUND // 4) as queue:
        fill(cluster, 20)
        for _ in range(20):
            (await queue.receive()).accept()
        cluster.append("t", 0, [b"plain"])
        (await queue.receive()).accept()
        fill(cluster, 200)
        assert await size_at_rest(queue) < 1.25 * BOUND // 4
