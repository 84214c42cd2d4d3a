"""Transactions cancelled at every await: all or nothing, nothing is left open, and the producer
works.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from transacting import Given, committed, producer_of, transacting, until_closed
from trio.testing import MockClock as Clock

import trikafka
from trikafka import OffsetAndMetadata, TopicPartition
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable

T1 = TopicPartition("t", 1)
GROUP = trikafka.GroupMetadata("g")
both = pytest.mark.parametrize("version", [1, 2])
VALUES = [b"a", b"b", b"c"]


def check_of(*, allowed: tuple[int, ...] = (0, 3)) -> Callable[[Given], Awaitable[None]]:
    """Return a check that all or none of the values are there.

    The offset is committed with them, and the next transaction works.
    """

    async def check(given: Given) -> None:
        cluster, producer = given
        with trio.fail_after(60):
            async with producer.transaction():
                await producer.send("t", b"after", partition=0)
            await until_closed(cluster)
            seen = [value for value in await committed(cluster) if value != b"after"]
        assert len(seen) in allowed, seen
        assert seen in ([], sorted(VALUES))
        if cluster.requests("TxnOffsetCommit"):
            assert cluster.committed("g", T1) == (OffsetAndMetadata(3) if seen else None)
        statistics = producer.statistics()
        assert (statistics.buffer_used, statistics.tasks_waiting, statistics.batches_waiting) == (
            0,
            0,
            0,
        )

    return check


@both
async def test_transaction_may_be_cancelled_anywhere(version: int, autojump_clock: Clock) -> None:
    async def scenario(given: Given) -> None:
        producer = given[1]
        async with producer.transaction() as txn:
            for value in VALUES:
                await producer.send("t", value, partition=VALUES.index(value) // 2)
            await txn.send_offsets({T1: 3}, GROUP)

    count = await assert_all_awaits_cancellable(
        scenario, check_of(), setup=lambda: transacting(version)
    )
    assert count >= 6


@both
async def test_explicit_commit_may_be_cancelled(version: int, autojump_clock: Clock) -> None:
    async def scenario(given: Given) -> None:
        producer = given[1]
        async with producer.transaction() as txn:
            for value in VALUES:
                await producer.enqueue("t", value, partition=0)
            await txn.commit()

    assert (
        await assert_all_awaits_cancellable(
            scenario, check_of(), setup=lambda: transacting(version)
        )
        >= 3
    )


@both
async def test_explicit_abort_may_be_cancelled(version: int, autojump_clock: Clock) -> None:
    async def scenario(given: Given) -> None:
        producer = given[1]
        async with producer.transaction() as txn:
            await producer.send("t", b"a", partition=0)
            await txn.abort()

    assert (
        await assert_all_awaits_cancellable(
            scenario, check_of(allowed=(0,)), setup=lambda: transacting(version)
        )
        >= 3
    )


@both
async def test_abort_by_an_exception_may_be_cancelled(version: int, autojump_clock: Clock) -> None:
    async def scenario(given: Given) -> None:
        producer = given[1]
        with suppress(KeyError):
            async with producer.transaction():
                await producer.send("t", b"a", partition=0)
                raise KeyError

    check = check_of(allowed=(0,))
    assert (
        await assert_all_awaits_cancellable(scenario, check, setup=lambda: transacting(version))
        >= 2
    )


@both
async def test_repeated_commit_may_be_cancelled(version: int, autojump_clock: Clock) -> None:
    async def scenario(given: Given) -> None:
        cluster, producer = given
        cluster.delay("EndTxn", 5)
        async with producer.transaction() as txn:
            for value in VALUES:
                await producer.send("t", value, partition=0)
            with trio.move_on_after(1):
                await txn.commit()
            await txn.commit()

    assert (
        await assert_all_awaits_cancellable(
            scenario, check_of(), setup=lambda: transacting(version)
        )
        >= 4
    )


@both
async def test_waiting_begin_may_be_cancelled(version: int, autojump_clock: Clock) -> None:
    async def scenario(given: Given) -> None:
        cluster, producer = given
        cluster.delay("EndTxn", 5)
        with trio.CancelScope() as first:
            async with producer.transaction():
                await producer.send("t", b"never", partition=1)
                first.cancel()
                # The abort gets one second here, and goes on in the background.
                await trio.lowlevel.checkpoint()
        async with producer.transaction():
            for value in VALUES:
                await producer.send("t", value, partition=0)

    assert (
        await assert_all_awaits_cancellable(
            scenario, check_of(), setup=lambda: transacting(version)
        )
        >= 4
    )


async def test_prepare_may_be_cancelled_anywhere(autojump_clock: Clock) -> None:
    """Cancelled before it is prepared, the transaction is aborted; after that it is committed."""

    @asynccontextmanager
    async def setup() -> AsyncIterator[Given]:
        async with ScriptedCluster(topics={"t": 2}) as cluster:
            cluster.transactions.two_phase = True
            cluster.offer("InitProducerId", (0, 6))
            async with producer_of(cluster, two_phase_commit=True) as producer:
                await producer.partitions_for("t")
                yield cluster, producer

    async def scenario(given: Given) -> None:
        producer = given[1]
        async with producer.transaction() as txn:
            for value in VALUES:
                await producer.enqueue("t", value, partition=0)
            await txn.prepare()
            with trio.CancelScope(shield=True):
                await txn.commit()

    assert await assert_all_awaits_cancellable(scenario, check_of(), setup=setup) >= 1


@both
async def test_moving_coordinator_may_be_cancelled(version: int, autojump_clock: Clock) -> None:
    async def scenario(given: Given) -> None:
        cluster, producer = given
        async with producer.transaction() as txn:
            await producer.send("t", b"a", partition=0)
            cluster.move_coordinator(1)
            await producer.send("t", b"b", partition=0)
            await producer.send("t", b"c", partition=1)
            cluster.move_coordinator(0)
            await txn.send_offsets({T1: 3}, GROUP)

    assert (
        await assert_all_awaits_cancellable(
            scenario, check_of(), setup=lambda: transacting(version, nodes=2)
        )
        >= 6
    )


@both
async def test_table_in_a_transaction_may_be_cancelled(version: int, autojump_clock: Clock) -> None:
    import pyarrow as pa

    table = pa.table({"value": VALUES, "partition": [0, 0, 1]})

    async def scenario(given: Given) -> None:
        producer = given[1]
        async with producer.transaction():
            await producer.send_arrow("t", table)

    assert (
        await assert_all_awaits_cancellable(
            scenario, check_of(), setup=lambda: transacting(version)
        )
        >= 4
    )


@both
async def test_open_and_exit_may_be_cancelled(version: int, autojump_clock: Clock) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[ScriptedCluster]:
        async with ScriptedCluster(topics={"t": 2}, transaction_version=version) as cluster:
            yield cluster

    async def scenario(cluster: ScriptedCluster) -> None:
        async with producer_of(cluster) as producer, producer.transaction():
            for value in VALUES:
                await producer.send("t", value, partition=0)

    async def check(cluster: ScriptedCluster) -> None:
        await trio.testing.wait_all_tasks_blocked()
        assert cluster.connections() == 0
        if "x" in cluster.transactions.by_id:
            await until_closed(cluster)
        async with producer_of(cluster) as producer:
            await check_of()((cluster, producer))

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 6
