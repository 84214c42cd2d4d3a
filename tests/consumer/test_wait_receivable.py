"""The wait for records that takes none, and what is taken without a wait after it."""

from __future__ import annotations

import contextlib

import pytest
import trio
import trio.testing
from consuming import T0, T1, RecordingListener, cluster_of, consumer_of, member_of
from trio.testing import MockClock as Clock

from trikafka import CorruptRecordError
from trikafka._api.consumer.batches import Batches
from trikafka.testing import ScriptedCluster, encode_batch, flip


async def test_wait_takes_no_record(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=5) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0, T1])
        seen: list[tuple[int, int]] = []
        while len(seen) < 10:
            assert await consumer.wait_receivable()
            assert await consumer.wait_receivable(timeout=0)
            record = consumer.receive_nowait()
            seen.append((record.partition, record.offset))
            if len(seen) % 3 == 0:
                assert await consumer.wait_receivable()
                batch = consumer.receive_batch_nowait()
                seen += [(batch.partition, offset) for offset in batch.offsets]
        assert sorted(seen) == [(p, offset) for p in (0, 1) for offset in range(5)]
        assert not await consumer.wait_receivable(timeout=1)
        with pytest.raises(trio.WouldBlock):
            consumer.receive_nowait()


async def test_wait_ends_with_the_first_record(autojump_clock: Clock) -> None:
    async with (
        cluster_of() as cluster,
        consumer_of(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):
        consumer.assign([T0])

        async def write() -> None:
            await trio.sleep(100)
            cluster.append("t", 0, [b"late"])

        nursery.start_soon(write)
        with trio.move_on_after(50) as scope:
            await consumer.wait_receivable()
        assert scope.cancelled_caught
        assert await consumer.wait_receivable()
        assert trio.current_time() == 100
        assert consumer.receive_nowait().value == b"late"


async def test_wait_runs_listeners_and_counts_as_a_poll(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=3) as cluster,
        consumer_of(
            cluster, group_id="g", auto_commit_interval_ms=10, max_poll_interval_ms=400_000
        ) as consumer,
    ):
        log: list[object] = []
        consumer.subscribe(["t"], RecordingListener(log))
        assert await consumer.wait_receivable()
        assert log == [("assigned", [T0])]
        consumer.receive_batch_nowait()
        await trio.sleep(1)
        assert cluster.committed("g", T0).offset == 0
        assert not await consumer.wait_receivable(timeout=1)  # comes back: the batch is processed
        assert cluster.committed("g", T0).offset == 3


async def test_batches_wait_and_end_at_their_offsets(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=50) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0, T1])
        batches = consumer.batches({T0: 20, T1: 30})
        assert sorted(await gathered(batches)) == sorted([*range(20), *range(30)])


async def gathered(batches: Batches) -> list[int]:
    """Return the offsets of all that can be read."""
    seen: list[int] = []
    while await batches.wait_receivable():
        with contextlib.suppress(trio.WouldBlock):
            for batch in batches.gather_nowait(1_000, 1_000_000):
                seen += batch.offsets
    return seen


async def test_gather_stops_at_the_corrupt_batch(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster, consumer_of(cluster) as consumer:
        cluster.append("t", 0, [b"0"])
        cluster.append_batch("t", 0, flip(encode_batch([b"broken"], timestamp=0)))
        cluster.append("t", 1, [b"1"])
        consumer.assign([T0, T1])
        batches = consumer.batches()
        with pytest.raises(CorruptRecordError):
            await gathered(batches)
        assert await consumer.position(T0) == 1
        assert await consumer.position(T1) in (0, 1)


async def test_member_waits_for_its_assignment(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster, member_of(cluster) as consumer:
        assert await consumer.wait_receivable(timeout=30)
        assert consumer.assignment() == {T0}
