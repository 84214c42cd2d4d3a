"""``mark_processed``: only marked records are committed, never past an unmarked one.

Also the forms of a commit.
"""

from __future__ import annotations

import pytest
import trio
from consuming import T0, T1, cluster_of, member_of, until, values
from trio.testing import MockClock as Clock

from trikafka import OffsetAndMetadata, Record
from trikafka._api.consumer.partition_stream import PartitionStream
from trikafka.errors import IllegalStateError
from trikafka.testing import ScriptedCluster

MARKED = {"enable_auto_offset_store": False}


def committed(cluster: ScriptedCluster, tp: tuple[str, int] = T0) -> int | None:
    found = cluster.committed("g", tp)
    return None if found is None else found.offset


async def test_only_marked_records_are_committed(autojump_clock: Clock) -> None:
    async with cluster_of(records=9) as cluster:
        async with member_of(cluster, auto_commit_interval_ms=1_000, **MARKED) as consumer:
            records = [await consumer.receive() for _ in range(5)]
            await trio.sleep(3)
            assert committed(cluster) in (None, 0)
            for index, upto in ((1, 0), (2, 0), (0, 3), (4, 3)):
                assert consumer.mark_processed(records[index])
                await trio.sleep(3)
                assert (committed(cluster) or 0) == upto
            await consumer.commit()
            assert committed(cluster) == 3
        assert committed(cluster) == 3  # a clean exit says nothing of what is not marked


async def test_batch_is_marked_at_once(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=9) as cluster,
        member_of(cluster, max_poll_records=4, **MARKED) as consumer,
    ):
        batches = [await consumer.receive_batch() for _ in range(3)]
        assert consumer.mark_processed(batches[1])
        await consumer.commit()
        assert (committed(cluster) or 0) == 0
        assert consumer.mark_processed(batches[0])
        await consumer.commit()
        assert committed(cluster) == 8


async def test_mark_of_a_revoked_partition_is_ignored(autojump_clock: Clock) -> None:
    async with cluster_of(records=3) as cluster, member_of(cluster, **MARKED) as consumer:
        record = await consumer.receive()
        await consumer.unsubscribe()
        assert consumer.mark_processed(record) is False
        assert committed(cluster) in (None, 0)


async def test_wrong_marks_are_refused(autojump_clock: Clock) -> None:
    async with cluster_of(records=3) as cluster:
        async with member_of(cluster) as consumer:
            with pytest.raises(IllegalStateError, match="enable_auto_offset_store=False"):
                consumer.mark_processed(await consumer.receive())
        async with member_of(cluster, **MARKED) as consumer:
            with pytest.raises(TypeError, match="Record"):
                consumer.mark_processed(3)  # type: ignore[arg-type]


async def test_worker_pool_commits_only_finished(autojump_clock: Clock) -> None:
    """Four workers finish out of order, and one is stuck in record 7.

    A revocation waits for the others, and the rest is read again.
    """
    settings = {
        "auto_commit_interval_ms": 500,
        "max_poll_interval_ms": 40_000,
        "partition_assignment_strategy": ["range"],
    } | MARKED
    async with (
        cluster_of(2, records=20) as cluster,
        member_of(cluster, **settings) as consumer,
        trio.open_nursery() as nursery,
    ):
        done: set[tuple[int, int]] = set()

        async def worker(records: trio.MemoryReceiveChannel[Record]) -> None:
            async for record in records:
                await trio.sleep(1 + (record.offset * 7) % 3)
                if record.offset == 7:
                    await trio.sleep_forever()
                done.add((record.partition, record.offset))
                consumer.mark_processed(record)
                for tp in (T0, T1):
                    upto = committed(cluster, tp) or 0
                    assert {(tp.partition, offset) for offset in range(upto)} <= done

        async def pool(stream: PartitionStream) -> None:
            send, receive = trio.open_memory_channel[Record](0)
            async with trio.open_nursery() as workers, send:
                for _ in range(4):
                    workers.start_soon(worker, receive)
                async for record in stream:
                    await send.send(record)

        async def run() -> None:
            async for stream in consumer.partitions():
                nursery.start_soon(pool, stream)

        nursery.start_soon(run)
        await until(lambda: len(done) == 38, 0.1)
        await trio.sleep(1)
        assert (committed(cluster, T0), committed(cluster, T1)) == (7, 7)
        async with member_of(cluster, **settings) as second:
            with trio.fail_after(30):
                assert (await second.receive()).offset == 7
        nursery.cancel_scope.cancel()


async def test_commit_takes_records_batches_and_offsets(autojump_clock: Clock) -> None:
    async with (
        cluster_of(2, records=9) as cluster,
        member_of(cluster, enable_auto_commit=False, max_poll_records=3) as consumer,
    ):
        batches = [await consumer.receive_batch() for _ in range(4)]
        first = next(batch for batch in batches if batch.partition == 0)
        await consumer.commit(first[0])
        assert (committed(cluster, T0), committed(cluster, T1)) == (1, None)
        await consumer.commit(first)
        assert (committed(cluster, T0), committed(cluster, T1)) == (3, None)
        last = {batch.partition: batch for batch in batches}  # several of each, in order
        await consumer.commit(record for batch in reversed(batches) for record in batch[:2])
        assert [committed(cluster, tp) for tp in (T0, T1)] == [
            last[tp.partition].next_offset - 1 for tp in (T0, T1)
        ]
        await consumer.commit(batches)
        assert [committed(cluster, tp) for tp in (T0, T1)] == [
            last[tp.partition].next_offset for tp in (T0, T1)
        ]
        await consumer.commit({T0: OffsetAndMetadata(4, 0, "why")})
        assert await consumer.committed([T0]) == {T0: OffsetAndMetadata(4, 0, "why")}
        await consumer.commit([])
        for wrong in (3, [3], "t"):
            with pytest.raises(TypeError):
                await consumer.commit(wrong)  # type: ignore[arg-type]


async def test_seek_takes_a_committed_position(autojump_clock: Clock) -> None:
    async with (
        cluster_of(2, records=9) as cluster,
        member_of(cluster, enable_auto_commit=False) as consumer,
    ):
        assert len(await values(consumer, 18)) == 18
        assert (consumer.current_lag(T0), consumer.current_lag(T1)) == (0, 0)
        consumer.seek(T0, OffsetAndMetadata(4, 0))
        assert consumer.current_lag(T0) == 5
        with trio.fail_after(5):
            assert (await consumer.receive()).offset == 4
        consumer.seek(T0, OffsetAndMetadata(2))
        with trio.fail_after(5):
            assert (await consumer.receive()).offset == 2
        with pytest.raises(IllegalStateError, match="not assigned"):
            consumer.current_lag(("t", 7))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="offset"):
            consumer.seek(T0, OffsetAndMetadata(-1))
