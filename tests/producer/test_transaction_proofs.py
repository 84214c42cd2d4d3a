"""Proofs that an error gives about a request that ends a transaction.

Unproven outcomes are undecided, and nothing is committed twice.
"""

# ruff: noqa: PT012 (it is a whole block of a transaction that raises)

from __future__ import annotations

import pytest
import trio
from test_detached_transactions import admin_of
from transacting import committed, producer_of, transacting, until_closed
from trio.testing import MockClock as Clock

from trikafka._state.producer.transaction_proofs import PROOFS, Proof
from trikafka.error_codes import ErrorCode
from trikafka.errors import (
    ProducerFencedError,
    TransactionAbortableError,
    TransactionFatalError,
    TransactionUndecidedError,
)
from trikafka.testing import ScriptedCluster

both = pytest.mark.parametrize("version", [1, 2])
ALL = [code for code in ErrorCode if code]
UNPROVEN = [code for code in ALL if code not in PROOFS["EndTxn"]]
UNKNOWN = ErrorCode.UNKNOWN_SERVER_ERROR


class Own(Exception):
    """An exception of the program."""


@both
async def test_unproven_commit_is_asked_again(version: int, autojump_clock: Clock) -> None:
    """For each code that proves nothing the coordinator then says that it has committed."""
    assert len(UNPROVEN) > 100
    async with transacting(version) as (cluster, producer):
        for code in UNPROVEN:
            rule = cluster.fail("EndTxn", code, after=True)
            async with producer.transaction():
                await producer.send("t", code.name.encode(), partition=0)
            assert rule.used == 1
        await until_closed(cluster)
        assert await committed(cluster) == [code.name.encode() for code in UNPROVEN]


@both
async def test_repeated_payment_is_seen_once(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (cluster, producer):
        cluster.fail("EndTxn", UNKNOWN, after=True)
        for _ in range(2):
            try:
                async with producer.transaction():
                    await producer.send("t", b"payment", partition=0)
                break
            except TransactionAbortableError:
                pass
        await until_closed(cluster)
        assert await committed(cluster) == [b"payment"]


@both
@pytest.mark.parametrize("after", [True, False])
async def test_unknown_commit_is_undecided(
    after: bool, version: int, autojump_clock: Clock
) -> None:
    async with transacting(version) as (cluster, producer):
        async with producer.transaction() as txn:
            await producer.send("t", b"x", partition=0)
            rule = cluster.fail("EndTxn", UNKNOWN, times=None, after=after)
            with pytest.raises(TransactionUndecidedError, match="UNKNOWN_SERVER_ERROR"):
                await txn.commit(timeout=2)
            with pytest.raises(TransactionUndecidedError):
                await txn.abort()
            rule.remove()
            await txn.commit()
        await until_closed(cluster)
        assert await committed(cluster) == [b"x"]


@both
@pytest.mark.parametrize(
    "code", [code for code, row in PROOFS["EndTxn"].items() if row.proof is Proof.NOT_COMMITTED]
)
async def test_coordinator_settles_a_doubt(
    code: ErrorCode, version: int, autojump_clock: Clock
) -> None:
    async with transacting(version) as (cluster, producer):
        cluster.fail("EndTxn", UNKNOWN)
        cluster.fail("EndTxn", code)
        with pytest.raises(TransactionAbortableError, match="was not committed"):
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
        async with producer.transaction():
            await producer.send("t", b"y", partition=0)
        await until_closed(cluster)
        assert await committed(cluster) == [b"y"]


@both
@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.PRODUCER_FENCED])
async def test_unsettled_doubt_is_noted(
    code: ErrorCode, version: int, autojump_clock: Clock
) -> None:
    """The refused attempt proves nothing about the one before it, which was carried out."""
    async with transacting(version) as (cluster, producer):
        cluster.fail("EndTxn", UNKNOWN, after=True)
        cluster.fail("EndTxn", code, times=None)
        with pytest.raises((TransactionFatalError, ProducerFencedError)) as caught:
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
        assert caught.value.__notes__ == [
            "Whether the transaction was committed is unknown: an earlier attempt got the "
            "response"
            " UNKNOWN_SERVER_ERROR, which does not say."
        ]


@both
async def test_doubt_outlasts_missing_rights(version: int, autojump_clock: Clock) -> None:
    """Rights may return, so the coordinator is asked until then.

    The commit is undecided meanwhile.
    """
    async with transacting(version) as (cluster, producer):
        cluster.fail("EndTxn", UNKNOWN, after=True)
        cluster.fail("EndTxn", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, times=20)
        txn = producer.transaction()
        async with txn:
            await producer.send("t", b"x", partition=0)
            with pytest.raises(TransactionUndecidedError):
                await txn.commit(timeout=1)
            await txn.commit()
        assert await committed(cluster) == [b"x"]


@both
async def test_unknown_abort_is_asked_again(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (cluster, producer):
        for api in ("EndTxn", "InitProducerId"):
            for after in (True, False):
                cluster.fail(api, UNKNOWN, after=after)
                with pytest.raises(Own):
                    async with producer.transaction():
                        await producer.send("t", b"x", partition=0)
                        raise Own
        before = trio.current_time()
        async with producer.transaction():
            await producer.send("t", b"y", partition=0)
        assert trio.current_time() - before < 2
        await until_closed(cluster)
        assert await committed(cluster) == [b"y"]


@pytest.mark.parametrize("after", [True, False])
async def test_prepared_commit_survives_unknown_errors(after: bool, autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=1, topics={"t": 2}) as cluster:
        cluster.transactions.two_phase = True
        cluster.offer("InitProducerId", (0, 6))
        async with (
            producer_of(cluster, two_phase_commit=True) as producer,
            producer.transaction() as txn,
        ):
            await producer.send("t", b"x", partition=0)
            prepared = await txn.prepare()
        cluster.fail("EndTxn", UNKNOWN, after=after)
        async with producer_of(cluster, two_phase_commit=True, commit_prepared=str(prepared)):
            pass
        await until_closed(cluster)
        assert await committed(cluster) == [b"x"]


@both
@pytest.mark.parametrize("after", [True, False])
async def test_detached_end_survives_unknown_errors(
    after: bool, version: int, autojump_clock: Clock
) -> None:
    async with transacting(version) as (cluster, producer), admin_of(cluster) as admin:
        async with producer.transaction() as txn:
            await producer.send("t", b"x", partition=0)
            detached = await txn.detach()
        rule = cluster.fail("EndTxn", UNKNOWN, times=None, after=after)
        with pytest.raises(TransactionUndecidedError, match="may be called again"):
            await admin.end_transaction(detached, commit=True, timeout=2)
        rule.remove()
        await admin.end_transaction(detached, commit=True)
        await until_closed(cluster)
        assert await committed(cluster) == [b"x"]
