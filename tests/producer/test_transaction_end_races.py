"""Ends of transactions that race with other calls."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio
from transacting import committed, open_at_the_broker, producer_of, transacting, until_closed
from trio.testing import MockClock as Clock

from trikafka import Producer
from trikafka.error_codes import ErrorCode
from trikafka.errors import (
    IllegalStateError,
    TransactionAbortableError,
    TransactionUndecidedError,
)
from trikafka.testing import ScriptedCluster


@pytest.mark.parametrize("version", [1, 2])
async def test_closing_aborts_a_refused_commit(version: int, autojump_clock: Clock) -> None:
    """Otherwise readers of committed records would wait until transaction_timeout_ms has passed."""
    async with ScriptedCluster(nodes=1, topics={"t": 2}, transaction_version=version) as cluster:
        cluster.move_coordinator(0)
        with trio.fail_after(30):
            async with producer_of(cluster) as producer:
                with trio.move_on_after(0.5) as scope:
                    async with producer.transaction():
                        await producer.send("t", b"x")
                        cluster.delay("EndTxn", 1, times=1)
                        cluster.fail("EndTxn", ErrorCode.TRANSACTION_ABORTABLE)
                assert scope.cancelled_caught
        assert not open_at_the_broker(cluster)


@pytest.mark.parametrize("version", [1, 2])
async def test_block_end_raises_a_late_refusal(version: int, autojump_clock: Clock) -> None:
    """The commit inside the block was cut off, so nothing else would say that it has failed."""
    async with transacting(version) as (cluster, producer):
        with pytest.raises(TransactionAbortableError):  # noqa: PT012
            async with producer.transaction() as txn:
                await producer.send("t", b"lost", partition=0)
                cluster.delay("EndTxn", 1, times=1)
                cluster.fail("EndTxn", ErrorCode.TRANSACTION_ABORTABLE)
                with trio.move_on_after(0.5):
                    await txn.commit()
                with pytest.raises(TransactionUndecidedError):
                    await txn.abort()
        async with producer.transaction():
            await producer.send("t", b"next", partition=0)
        assert await committed(cluster) == [b"next"]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("passed", [0.0, 2.0])
async def test_block_end_waits_for_a_commit(
    version: int, passed: float, autojump_clock: Clock
) -> None:
    async with transacting(version) as (cluster, producer):
        async with producer.transaction() as txn:
            await producer.send("t", b"x", partition=0)
            cluster.delay("EndTxn", 1, times=1)
            with pytest.raises(TransactionUndecidedError):
                await txn.commit(timeout=0.5)
            await trio.sleep(passed)
        assert producer.health().transaction == "ready"
        assert await committed(cluster) == [b"x"]


@pytest.mark.parametrize("ends", ["its own exception", "a cancellation"])
async def test_block_end_waits_for_no_other_reason(ends: str, autojump_clock: Clock) -> None:
    """The outcome of the commit that was cut off does not hold up an exception."""
    async with transacting() as (cluster, producer):
        began = trio.current_time()
        with trio.move_on_after(2) as scope, suppress(LookupError):
            async with producer.transaction() as txn:
                await producer.send("t", b"x", partition=0)
                cluster.delay("EndTxn", 60, times=1)
                with trio.move_on_after(0.5):
                    await txn.commit()
                if ends == "its own exception":
                    raise LookupError
        took = trio.current_time() - began
        assert took == pytest.approx(2 if scope.cancelled_caught else 0.5, abs=0.01)
        assert scope.cancelled_caught == (ends == "a cancellation")


@pytest.mark.parametrize("version", [1, 2])
async def test_block_end_after_other_transactions(version: int, autojump_clock: Clock) -> None:
    """Other transactions have followed before the block asks for its outcome."""
    async with transacting(version) as (cluster, producer):
        async with producer.transaction() as txn:
            await producer.send("t", b"first", partition=0)
            cluster.delay("EndTxn", 1, times=1)
            with trio.move_on_after(0.5):
                await txn.commit()
            for value in (b"second", b"third"):
                async with producer.transaction():
                    await producer.send("t", value, partition=0)
        assert await committed(cluster) == [b"first", b"second", b"third"]
        with pytest.raises(IllegalStateError, match="nothing of it is committed"):  # noqa: PT012
            async with producer.transaction() as txn:
                await producer.send("t", b"lost", partition=0)
                cluster.delay("EndTxn", 1, times=1)
                cluster.fail("EndTxn", ErrorCode.TRANSACTION_ABORTABLE)
                with trio.move_on_after(0.5):
                    await txn.commit()
                with pytest.raises(TransactionAbortableError):
                    async with producer.transaction():
                        pass
                for _ in range(2):
                    async with producer.transaction():
                        await producer.send("t", b"more", partition=0)


async def test_cut_off_commits_are_not_kept_for_ever(autojump_clock: Clock) -> None:
    async with transacting() as (cluster, producer):
        cluster.delay("EndTxn", 1, times=250)
        for _ in range(250):
            with trio.move_on_after(0.5):
                async with producer.transaction():
                    await producer.send("t", b"x", partition=0)
        manager: Any = producer._transactions
        assert len(manager._cut_off_before) == 100


async def cut_off_and_refused(cluster: ScriptedCluster, producer: Producer) -> None:
    """Leave behind a commit that is cut off.

    The coordinator refuses it four seconds later; the abort takes three.
    """
    cluster.delay("EndTxn", 5, times=1)
    cluster.fail("EndTxn", ErrorCode.TRANSACTION_ABORTABLE)
    with trio.move_on_after(1):
        async with producer.transaction():
            await producer.send("t", b"lost", partition=0)
    cluster.delay("EndTxn", 3, times=1)


@pytest.mark.parametrize("version", [1, 2])
async def test_refusal_outlives_a_cancelled_begin(version: int, autojump_clock: Clock) -> None:
    """The begin that aborted the transaction was cancelled before it could raise the reason."""
    async with transacting(version) as (cluster, producer):
        await cut_off_and_refused(cluster, producer)
        with trio.move_on_after(5) as scope:
            async with producer.transaction():
                raise AssertionError("it began")
        assert scope.cancelled_caught
        with pytest.raises(
            TransactionAbortableError, match="the transaction before was not committed"
        ):
            async with producer.transaction():
                raise AssertionError("it began")
        async with producer.transaction():
            await producer.send("t", b"kept", partition=0)
        await until_closed(cluster)
        assert await committed(cluster) == [b"kept"]


@pytest.mark.parametrize("version", [1, 2])
async def test_two_begins_wait_for_the_abort(version: int, autojump_clock: Clock) -> None:
    """One of them raises the outcome of the transaction before; the other one begins."""
    ends: list[str] = []

    async def begin(producer: Producer) -> None:
        try:
            async with producer.transaction():
                await producer.send("t", b"kept", partition=0)
            ends.append("committed")
        except TransactionAbortableError:
            ends.append("told")

    async with transacting(version) as (cluster, producer):
        await cut_off_and_refused(cluster, producer)
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(begin, producer)
        assert sorted(ends) == ["committed", "told"]
        await until_closed(cluster)
        assert await committed(cluster) == [b"kept"]


@pytest.mark.parametrize("version", [1, 2])
async def test_commit_raises_after_a_close_aborted(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (cluster, producer), trio.open_nursery() as nursery:
        cluster.delay("Produce", 2, times=1)
        async with producer.transaction() as txn:
            await producer.enqueue("t", b"x", partition=0)
            await trio.sleep(1)
            nursery.start_soon(producer.aclose)
            with pytest.raises(IllegalStateError, match="aborted"):
                await txn.commit()
