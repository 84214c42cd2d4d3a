"""Runs of tasks keep few bytes beside the consumer's buffer, however many records that may be."""

from __future__ import annotations

from functools import partial

import pytest
import trio
import trio.testing
from tasking import Values, cluster_of, consumer_of, producer_of, running, until
from trio.testing import MockClock as Clock

from trikafka import Record, TopicPartition, run_tasks
from trikafka.testing import ScriptedCluster

#: A record, and the bound of the consumer: a quarter of it is for the run.
SIZE, BOUND = 10_000, 800_000
MOST = BOUND // 4 // SIZE


def fill(cluster: ScriptedCluster, partitions: int) -> None:
    for number in range(partitions):
        for _ in range(200):
            cluster.append("t", number, [(b"hot", bytes(SIZE))])


@pytest.mark.parametrize("partitions", [1, 4])
async def test_records_behind_a_key_are_bounded_in_bytes(
    autojump_clock: Clock, partitions: int
) -> None:
    """All of these records have one key, so 1,000 of each partition could wait."""
    async with cluster_of(partitions) as cluster:
        fill(cluster, partitions)
        async with consumer_of(cluster, fetch_buffer_bytes=BOUND) as consumer:
            handler = Values(1)
            async with running(consumer, handler, concurrency=2):
                await until(lambda: len(handler.seen) > partitions)
                await trio.testing.wait_all_tasks_blocked()
                taken = [
                    await consumer.position(TopicPartition("t", number))
                    for number in range(partitions)
                ]
    # Of each partition, one is in work, one more may pass the bound, and one waits for room.
    assert sum(taken) <= len(handler.done) + MOST + 3 * partitions


async def test_transaction_takes_no_more_than_its_bytes(autojump_clock: Clock) -> None:
    """A round takes whole batches until it has enough, and not all 10,000 records that it may."""
    async with cluster_of() as cluster:
        fill(cluster, 1)
        async with (
            consumer_of(cluster, fetch_buffer_bytes=BOUND) as consumer,
            producer_of(cluster, transactional_id="x") as producer,
            running(consumer, Values(), producer=producer),
        ):
            ends: list[int] = []
            while not ends or ends[-1] < 200:
                found = cluster.committed("g", ("t", 0))
                if found is not None and found.offset not in ends:
                    ends.append(found.offset)
                await trio.lowlevel.checkpoint()
    assert max(after - before for before, after in zip([0, *ends], ends, strict=False)) <= MOST + 1


async def test_idle_partitions_leave_their_room(autojump_clock: Clock) -> None:
    """One of many partitions has records; those behind its busy key leave room for others."""
    async with cluster_of(50) as cluster:
        for number in range(40):
            key = b"hot" if number < 10 else b"%d" % number
            cluster.append("t", 0, [(key, bytes(SIZE))])
        others: list[float] = []

        async def handle(record: Record) -> None:
            await trio.sleep(10 if record.key == b"hot" else 0.1)
            if record.key != b"hot":
                others.append(trio.current_time())

        async with consumer_of(cluster, fetch_buffer_bytes=BOUND) as consumer:
            began = trio.current_time()
            async with running(consumer, handle, concurrency=8):
                await until(lambda: len(others) == 30)
    assert others[-1] - began < 5


async def test_headers_that_wait_count(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster:
        for _ in range(200):
            cluster.append("t", 0, [(b"hot", b"", None, [("h", bytes(SIZE))])])
        async with consumer_of(cluster, fetch_buffer_bytes=BOUND) as consumer:
            handler = Values(1)
            async with running(consumer, handler, concurrency=2):
                await until(lambda: len(handler.seen) > 1)
                await trio.testing.wait_all_tasks_blocked()
                taken = await consumer.position(TopicPartition("t", 0))
    assert taken <= len(handler.done) + MOST + 3


@pytest.mark.parametrize("bound", [1, 7, 160])
async def test_small_bounds_stop_no_partition(autojump_clock: Clock, bound: int) -> None:
    async with cluster_of(30) as cluster:
        for number in range(30):
            cluster.append("t", number, [(b"k", b"x"), (b"k", b"y")])
        async with consumer_of(cluster, fetch_buffer_bytes=bound) as consumer:
            handler = Values(1)
            async with running(consumer, handler, concurrency=2):
                await until(lambda: len(handler.done) == 60)


async def test_room_of_another_partition_is_noticed(autojump_clock: Clock) -> None:
    """A partition at its share waits while another one fills the rest, and goes on after it."""
    begun: list[Record] = []

    async def handle(record: Record) -> None:
        begun.append(record)
        if record.partition == 0 and record.key == b"hot":
            await trio.sleep_forever()
        await trio.sleep(1)

    async with cluster_of(2) as cluster:
        for number in range(2):
            for _ in range(MOST):
                cluster.append("t", number, [(b"hot", bytes(SIZE))])
        cluster.append("t", 0, [(b"other", b"x")])
        bound = 12 * MOST * SIZE  # half of the run's quarter: the records of one and a half
        async with consumer_of(cluster, fetch_buffer_bytes=bound) as consumer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(run_tasks, consumer, handle, concurrency=4))
                await until(lambda: any(each.key == b"other" for each in begun))
                nursery.cancel_scope.cancel()
    assert sum(each.partition == 1 for each in begun) < MOST
