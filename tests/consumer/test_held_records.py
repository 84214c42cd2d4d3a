"""Records in the user's hand, skipped batches and damaged ones, beside commits and seeks."""

from __future__ import annotations

import struct

import pytest
import trio
from consuming import T0, T1, cluster_of, consumer_of, member_of, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka import CorruptRecordError
from trikafka.testing import control_batch, encode_batch


async def read_on(consumer: trikafka.Consumer) -> None:
    while True:
        await consumer.receive_batch()


COMMITTED = {"isolation_level": "read_committed", "auto_commit_interval_ms": 1000}


@pytest.mark.parametrize("fetch_max_bytes", [1, 50 << 20])
async def test_auto_commit_skips_records_in_hand(
    autojump_clock: Clock, fetch_max_bytes: int
) -> None:
    """The marker is decoded beside the records, by the step after them or as a chunk of its own."""
    async with (
        cluster_of() as cluster,
        member_of(cluster, fetch_max_bytes=fetch_max_bytes, **COMMITTED) as consumer,
    ):
        values = [b"x" * 4000] * 400
        batch = encode_batch(
            values, timestamp=1, producer=(5, 0, 0), transactional=True, compression="gzip"
        )
        cluster.append_batch("t", 0, batch)
        cluster.append_batch("t", 0, control_batch(5, 0, commit=True, timestamp=1))
        await consumer.receive_batch(timeout=0)
        await trio.sleep(10)
        table = await anext(consumer.arrow_batches())
        assert table.num_rows == 400
        await trio.sleep(30)
        held = cluster.committed("g", ("t", 0))
        assert held is None or held.offset == 0
        await consumer.receive_batch(timeout=5)
        done = cluster.committed("g", ("t", 0))
        assert done is not None
        assert done.offset == 401


async def test_damaged_length_is_raised_beside_traffic(autojump_clock: Clock) -> None:
    async with cluster_of(2) as cluster:
        bad = bytearray(encode_batch([b"v"] * 3, timestamp=1))
        bad[8:12] = struct.pack(">i", 30)
        cluster.append_batch("t", 1, bytes(bad), count=3)
        cluster.delay("Fetch", 0.01)

        async def feed() -> None:
            while True:
                cluster.append("t", 0, [b"x"] * 3)
                await trio.sleep(0.005)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed)
            async with consumer_of(cluster) as consumer:
                consumer.assign([T0, T1])
                with trio.fail_after(2), pytest.raises(CorruptRecordError, match="t-1 at offset 0"):
                    await read_on(consumer)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
async def test_highly_compressed_batch_is_not_corrupt(compression: str) -> None:
    """First or behind another batch. The part over the loop's time is decoded in a thread."""
    async with cluster_of() as cluster:
        for values in ([b"small"], [bytes(6_000_000)], [b"last"]):
            cluster.append_batch("t", 0, encode_batch(values, timestamp=1, compression=compression))
        async with consumer_of(cluster) as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 0)
            with trio.fail_after(240):
                sizes = [len((await consumer.receive()).value or b"") for _ in range(3)]
    assert sizes == [5, 6_000_000, 4]


async def test_skipped_batches_let_other_tasks_run() -> None:
    """The batches are of aborted transactions. In real time."""
    async with cluster_of() as cluster:
        batch = encode_batch([b"x"], timestamp=1, producer=(5, 0, 0), transactional=True)
        for _ in range(40_000):
            cluster.append_batch("t", 0, batch)
        cluster.append_batch("t", 0, control_batch(5, 0, commit=False, timestamp=1))
        cluster.append("t", 0, [b"seen"])
        async with consumer_of(cluster, isolation_level="read_committed") as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 0)
            await until(lambda: consumer.statistics().buffered_bytes > 2_000_000)
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await trio.lowlevel.checkpoint()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(count)
                await trio.lowlevel.checkpoint()
                before = turns
                assert (await consumer.receive()).value == b"seen"
                assert turns - before >= 2
                nursery.cancel_scope.cancel()


async def test_position_moves_over_aborted_records(autojump_clock: Clock) -> None:
    """A reader of a range counts it as progress, so it waits for what comes behind them."""
    async with cluster_of() as cluster:
        batch = encode_batch([bytes(1_000)], timestamp=1, producer=(5, 0, 0), transactional=True)
        for _ in range(100):
            cluster.append_batch("t", 0, batch)
        cluster.append_batch("t", 0, control_batch(5, 0, commit=False, timestamp=1))
        cluster.append("t", 0, [b"seen"])
        cluster.delay("Fetch", 1, times=None)
        async with consumer_of(
            cluster, isolation_level="read_committed", max_partition_fetch_bytes=10_000
        ) as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 0)
            positions, seen = [], None
            while seen is None:
                with trio.move_on_after(2):
                    seen = (await consumer.receive()).value
                positions.append(await consumer.position(T0, timeout=0))
    assert seen == b"seen"
    assert positions == sorted(positions)
    assert len(set(positions)) > 4
