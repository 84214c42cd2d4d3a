"""Calls of several tasks on transactions, also after the end.

No call affects another transaction.
"""

# ruff: noqa: PT012 (it is a whole block of a transaction that raises)

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pyarrow as pa
import pytest
import trio
import trio.lowlevel
from transacting import committed, transacting, until_closed
from trio.testing import MockClock as Clock

import trikafka
from trikafka import OffsetAndMetadata, TopicPartition, Transaction
from trikafka._managers.producer.offsets_under_way import OffsetsUnderWay
from trikafka.error_codes import ErrorCode
from trikafka.errors import IllegalStateError, KafkaTimeoutError

T1 = TopicPartition("t", 1)
GROUP = trikafka.GroupMetadata("g")
both = pytest.mark.parametrize("version", [1, 2])


class Outcomes(list[object]):
    """The results and errors of calls in other tasks."""

    async def of(self, call: Callable[[], Awaitable[object]]) -> None:
        try:
            self.append(await call())
        except Exception as error:
            self.append(error)


@both
@pytest.mark.parametrize("slow", ["refused", "late"])
async def test_offsets_do_not_join_the_next_transaction(
    version: int, slow: str, autojump_clock: Clock
) -> None:
    """Otherwise the next commit would commit offsets whose output was aborted."""
    outcomes = Outcomes()
    async with transacting(version) as (cluster, producer):
        if slow == "refused":
            cluster.fail("TxnOffsetCommit", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=3)
        else:  # with the epoch of the one before, it is refused as another producer's
            cluster.move_coordinator(0)
            cluster.delay("TxnOffsetCommit", 3, times=1)
        async with trio.open_nursery() as nursery:
            with pytest.raises(KeyError):
                async with producer.transaction() as txn:
                    await producer.send("t", b"aborted", partition=0)
                    nursery.start_soon(
                        outcomes.of, lambda txn=txn: txn.send_offsets({T1: 7}, GROUP)
                    )
                    await trio.sleep(0.05)
                    raise KeyError
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
                await trio.sleep(10)
        assert [type(outcome) for outcome in outcomes] in ([IllegalStateError], [type(None)])
        await until_closed(cluster)
        assert cluster.committed("g", T1) is None
        assert await committed(cluster) == [b"x"]
        async with producer.transaction():
            await producer.send("t", b"y", partition=0)


@both
async def test_commit_waits_for_offsets(version: int, autojump_clock: Clock) -> None:
    outcomes = Outcomes()
    async with transacting(version) as (cluster, producer):
        cluster.fail("TxnOffsetCommit", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=2)
        async with trio.open_nursery() as nursery, producer.transaction() as txn:
            await producer.send("t", b"x", partition=0)
            nursery.start_soon(outcomes.of, lambda: txn.send_offsets({T1: 7}, GROUP))
            await trio.sleep(0.05)
        assert outcomes == [None]
        await until_closed(cluster)
        assert cluster.committed("g", T1) == OffsetAndMetadata(7)
        assert await committed(cluster) == [b"x"]


@both
@pytest.mark.parametrize("turn", range(4))  # Trio chooses at random which task goes on first
@pytest.mark.parametrize("refused", [0, 1])
async def test_offsets_arrive_in_order_of_the_calls(
    version: int, refused: int, turn: int, autojump_clock: Clock
) -> None:
    """A retried first call would overwrite the last one, and records would be processed twice."""
    async with transacting(version) as (cluster, producer):
        if refused:
            cluster.fail("TxnOffsetCommit", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=refused)
        async with producer.transaction() as txn, trio.open_nursery() as nursery:
            for offset in (5, 7, 9):
                nursery.start_soon(txn.send_offsets, {T1: offset}, GROUP)
                await trio.lowlevel.checkpoint()
        await until_closed(cluster)
        assert cluster.committed("g", T1) == OffsetAndMetadata(9)


@both
async def test_offsets_after_failed_ones_are_not_sent(version: int, autojump_clock: Clock) -> None:
    outcomes = Outcomes()
    async with transacting(version) as (cluster, producer):
        cluster.fail("TxnOffsetCommit", ErrorCode.GROUP_AUTHORIZATION_FAILED, times=1)
        with pytest.raises(trikafka.TransactionAbortableError):
            async with producer.transaction() as txn, trio.open_nursery() as nursery:
                for offset in (5, 7):
                    nursery.start_soon(
                        outcomes.of, lambda offset=offset: txn.send_offsets({T1: offset}, GROUP)
                    )
                    await trio.lowlevel.checkpoint()
        assert [isinstance(outcome, trikafka.TransactionError) for outcome in outcomes] == [
            True,
            True,
        ]
        assert len(cluster.requests("TxnOffsetCommit")) == 1


@both
async def test_no_record_joins_while_a_commit_runs(version: int, autojump_clock: Clock) -> None:
    """The other commit was cancelled. A record accepted now would go with the next transaction."""
    outcomes = Outcomes()
    async with transacting(version) as (cluster, producer), trio.open_nursery() as nursery:
        cluster.delay("Produce", 2, times=1)
        async with producer.transaction() as txn:
            await producer.enqueue("t", b"a", partition=0)
            await trio.sleep(0.1)
            nursery.start_soon(outcomes.of, txn.commit)
            with trio.move_on_after(0.5):
                await txn.commit()
            with pytest.raises(IllegalStateError, match="being committed"):
                await producer.enqueue("t", b"b", partition=1)
            await trio.sleep(5)
        assert outcomes == [None]
        async with producer.transaction():
            await producer.send("t", b"c", partition=0)
        await until_closed(cluster)
        assert await committed(cluster) == [b"a", b"c"]


@both
async def test_concurrent_commits_are_one_request(version: int, autojump_clock: Clock) -> None:
    outcomes = Outcomes()
    async with transacting(version) as (cluster, producer):
        cluster.delay("Produce", 2, times=1)
        async with producer.transaction() as txn:
            await producer.enqueue("t", b"a", partition=0)
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(outcomes.of, txn.commit)
        assert outcomes == [None] * 3
        assert len(cluster.requests("EndTxn")) == 1
        assert await committed(cluster) == [b"a"]


@both
async def test_late_commit_spares_the_next_transaction(version: int, autojump_clock: Clock) -> None:
    """It ends in the step in which the next transaction begins to commit.

    The next one stays closed.
    """
    outcomes = Outcomes()
    async with transacting(version) as (cluster, producer), trio.open_nursery() as nursery:
        cluster.delay("EndTxn", 5, times=1)

        async def following() -> None:
            async with producer.transaction():
                cluster.delay("Produce", 2, times=1)
                await producer.enqueue("t", b"b", partition=0)

        with trio.move_on_after(1):
            async with producer.transaction() as first:
                await producer.send("t", b"a", partition=0)
                await first.commit()
        for _ in range(2):
            nursery.start_soon(outcomes.of, lambda: Transaction.commit(first))
        nursery.start_soon(following)
        for _ in range(2):
            nursery.start_soon(outcomes.of, lambda: Transaction.commit(first))
        await trio.sleep(5)
        with pytest.raises(IllegalStateError, match="being committed"):
            await producer.enqueue("t", b"c", partition=1)
        await trio.sleep(5)
        assert outcomes == [None] * 4
        assert await committed(cluster) == [b"a", b"b"]


@both
async def test_calls_after_the_close_are_refused(version: int, autojump_clock: Clock) -> None:
    for calls in range(6):
        async with transacting(version) as (_, producer):
            txn = producer.transaction()
            await producer.aclose()
            for _ in range(calls):
                await trio.lowlevel.checkpoint()
            with trio.fail_after(1), pytest.raises(trio.ClosedResourceError):
                async with txn:
                    await txn.send_offsets({T1: 7}, GROUP)


@both
async def test_late_table_spares_the_next_transaction(version: int, autojump_clock: Clock) -> None:
    """It waits for room, and then for its topic, which is gone, while the next one begins."""
    outcomes = Outcomes()
    table = pa.table({"value": [b"x" * 100] * 1_000})
    async with transacting(version, nodes=2, buffer_memory=20_000) as (cluster, producer):
        cluster.create_topic("u", 2)
        for partition in (0, 1):
            cluster.move_leader("t", partition, 0)
            cluster.move_leader("u", partition, 1)
        async with producer.transaction():
            await producer.send_arrow("t", table.slice(0, 1))
            await producer.send("u", b"x", partition=0)
        cluster.fail("Produce", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, node=0, times=None)
        cluster.delay("Produce", 2, node=1, times=1)
        async with trio.open_nursery() as nursery:
            async with producer.transaction() as first:
                await producer.enqueue("u", b"x", partition=0)
                nursery.start_soon(outcomes.of, lambda: producer.send_arrow("t", table))
                await trio.sleep(0.5)
                cluster.delete_topic("t")
                await trio.sleep(2)
                await first.abort()
            async with producer.transaction():
                await producer.send("u", b"x", partition=1)
                assert not outcomes
                await trio.sleep(10)
        assert [type(outcome) for outcome in outcomes] == [trikafka.ArrowDeliveryError]


@pytest.mark.parametrize("commit", [True, False])
async def test_ended_transaction_needs_no_next_epoch(commit: bool, autojump_clock: Clock) -> None:
    """The cluster was upgraded to version 2. In version 1 each abort asks for an epoch."""
    async with transacting(1) as (cluster, producer):
        async with producer.transaction() as txn:
            await producer.send("t", b"a", partition=0)
            cluster.transactions.version = 2
            cluster.delay("InitProducerId", 4, times=1)
            if commit:
                await txn.commit(timeout=1)
                await txn.commit(timeout=1)
            else:
                with pytest.raises(KafkaTimeoutError, match="abort"):
                    await txn.abort(timeout=1)
                await txn.abort(timeout=1)
        async with producer.transaction():
            await producer.send("t", b"b", partition=0)
        assert await committed(cluster) == ([b"a"] if commit else []) + [b"b"]


@both
async def test_cancelled_offsets_do_not_join_the_next(version: int, autojump_clock: Clock) -> None:
    """Brokers before Kafka 3.6 do not verify that a transaction is open.

    In version 1 the next one has the same id.
    """
    async with transacting(version, nodes=3) as (cluster, producer):
        cluster.transactions.verification = False
        cluster.move_coordinator(0, "x")
        cluster.move_coordinator(1, "g")
        cluster.delay("TxnOffsetCommit", 3, times=1)
        with trio.move_on_after(1):
            async with producer.transaction() as txn:
                await producer.send("t", b"a", partition=0)
                await txn.send_offsets({T1: 7}, GROUP)
        async with producer.transaction() as txn:
            await producer.send("t", b"b", partition=0)
            await trio.sleep(10)
            await txn.send_offsets({TopicPartition("t", 0): 1}, GROUP)
        await until_closed(cluster)
        assert cluster.committed("g", T1) is None
        assert await committed(cluster) == [b"b"]


async def test_concurrent_offsets_wait_once_each(autojump_clock: Clock) -> None:
    """When each call waited for all earlier ones in turn, 2,000 calls took half a minute."""
    under_way, waited, count = OffsetsUnderWay(), 0, 1_000

    class Counted(trio.abc.Instrument):
        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            nonlocal waited
            waited += 1

    async def one() -> None:
        with under_way.call() as earlier:
            await trio.lowlevel.checkpoint()
            await earlier()

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)
        trio.lowlevel.add_instrument(counted := Counted())
        await trio.sleep(1)
    trio.lowlevel.remove_instrument(counted)
    assert waited < 5 * count
