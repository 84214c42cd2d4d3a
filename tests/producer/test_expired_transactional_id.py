"""A transactional id that the coordinator has forgotten after transactional.id.expiration.ms.

The transaction that meets this is aborted. The producer continues with the new producer id that it
gets, unless another producer took the id.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
import trio
from test_processing import EXPECTED, Copying, all_processed, consumer_settings, input_of
from transacting import committed, producer_of, transacting, until_closed
from trio.testing import MockClock as Clock

import trikafka
from trikafka import (
    GroupMetadata,
    PreparedTransaction,
    Producer,
    RecordBatch,
    TopicPartition,
    Transaction,
)
from trikafka.error_codes import ErrorCode
from trikafka.errors import (
    BrokerResponseError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionFatalError,
)
from trikafka.testing import ScriptedCluster

versions = pytest.mark.parametrize("version", [1, 2])
_FORGOTTEN = ErrorCode.INVALID_PRODUCER_ID_MAPPING


async def _send(producer: Producer, txn: Transaction) -> None:
    await producer.send("t", b"lost", partition=0)
    await txn.commit()


async def _enqueue(producer: Producer, txn: Transaction) -> None:
    for number in range(3_000):
        await producer.enqueue("t", b"lost %d" % number, partition=number % 2)
    await txn.commit()


async def _send_offsets(producer: Producer, txn: Transaction) -> None:
    await txn.send_offsets({TopicPartition("t", 1): 1}, GroupMetadata("g"))


def forget(cluster: ScriptedCluster, name: str = "x") -> None:
    """Remove the id, as the coordinator does when it expires."""
    del cluster.transactions.by_id[name]


@pytest.mark.parametrize("do", [_send, _enqueue, _send_offsets])
@versions
async def test_expired_id_gets_a_new_producer_id(
    version: int, do: Any, autojump_clock: Clock
) -> None:
    async with transacting(version) as (cluster, producer):
        async with producer.transaction():
            await producer.send("t", b"before", partition=0)
        await until_closed(cluster)
        old = cluster.transactions.by_id["x"].producer_id
        forget(cluster)
        with pytest.raises(
            TransactionAbortableError, match=r"transactional\.id\.expiration\.ms"
        ) as caught:
            async with producer.transaction() as txn:
                await do(producer, txn)
        cause = caught.value.__cause__
        while isinstance(cause, TransactionAbortableError):
            cause = cause.__cause__
        assert isinstance(cause, BrokerResponseError)
        assert cause.code == _FORGOTTEN
        for number in range(2):
            async with producer.transaction():
                for part in range(2):
                    await producer.send("t", b"%d" % number, partition=part)
        await until_closed(cluster)
        assert cluster.transactions.by_id["x"].producer_id != old
        assert producer.health().ok
        assert await committed(cluster) == [b"before", b"0", b"1", b"0", b"1"]
        assert cluster.committed("g", ("t", 1)) is None


@versions
async def test_empty_abort_does_not_notice_expiry(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (cluster, producer):
        forget(cluster)
        async with producer.transaction() as txn:
            await txn.abort()
        async with producer.transaction() as txn:
            await txn.commit()
        with pytest.raises(TransactionAbortableError):
            async with producer.transaction():
                await producer.send("t", b"lost")
        async with producer.transaction():
            await producer.send("t", b"kept", partition=0)
        await until_closed(cluster)
        assert await committed(cluster) == [b"kept"]


@versions
async def test_reused_expired_id_fences_the_producer(version: int, autojump_clock: Clock) -> None:
    """The coordinator says so when it is asked for a new producer id, and only then."""
    async with transacting(version) as (cluster, producer):
        forget(cluster)
        async with producer_of(cluster) as other:
            async with other.transaction():
                await other.send("t", b"new", partition=0)
            with pytest.raises(TransactionAbortableError):
                async with producer.transaction():
                    await producer.send("t", b"old", partition=0)
            for _ in range(2):
                with pytest.raises(ProducerFencedError):
                    async with producer.transaction():
                        await producer.send("t", b"older", partition=0)
            async with other.transaction():
                await other.send("t", b"newer", partition=0)
        await until_closed(cluster)
        assert await committed(cluster) == [b"new", b"newer"]


@versions
async def test_lost_response_for_the_new_id_is_fatal(version: int, autojump_clock: Clock) -> None:
    """The coordinator takes the next attempt for another producer's.

    The error says that there may be no other producer.
    """
    async with transacting(version) as (cluster, producer):
        forget(cluster)
        cluster.drop("InitProducerId", after=True)
        with pytest.raises(TransactionAbortableError):
            async with producer.transaction():
                await producer.send("t", b"lost", partition=0)
        for _ in range(2):
            with pytest.raises(
                TransactionFatalError, match="of this producer or of another"
            ) as caught:
                async with producer.transaction():
                    pass
            assert isinstance(caught.value.__cause__, ProducerFencedError)
        assert not producer.health().ok


@versions
async def test_lost_request_for_the_new_id_is_retried(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (cluster, producer):
        forget(cluster)
        cluster.drop("InitProducerId", 2)
        with pytest.raises(TransactionAbortableError):
            async with producer.transaction():
                await producer.send("t", b"lost", partition=0)
        async with producer.transaction():
            await producer.send("t", b"kept", partition=0)
        await until_closed(cluster)
        assert await committed(cluster) == [b"kept"]


@versions
async def test_commit_of_an_expired_id_is_aborted(version: int, autojump_clock: Clock) -> None:
    """An open transaction does not expire with its id, so it was aborted for its timeout before."""
    async with transacting(version, transaction_timeout_ms=1_000) as (cluster, producer):

        async def late() -> None:
            await producer.send("t", b"late", partition=0)
            await trio.sleep(3)
            forget(cluster)

        with pytest.raises(TransactionAbortableError, match=r"transactional\.id\.expiration\.ms"):
            async with producer.transaction():
                await late()
        async with producer.transaction():
            await producer.send("t", b"kept", partition=0)
        await until_closed(cluster)
        assert await committed(cluster) == [b"kept"]


@versions
@pytest.mark.parametrize("forgets", [True, False])
async def test_unknown_commit_outcome_is_noted(
    version: int, forgets: bool, autojump_clock: Clock
) -> None:
    """An earlier attempt got no response, so it may have committed."""
    async with transacting(version) as (cluster, producer):
        cluster.drop("EndTxn")
        cluster.fail("EndTxn", _FORGOTTEN if forgets else ErrorCode.PRODUCER_FENCED, times=None)
        with pytest.raises(TransactionFatalError if forgets else ProducerFencedError) as caught:
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
        (note,) = caught.value.__notes__
        assert note == (
            "Whether the transaction was committed is unknown: an earlier attempt got no response."
        )
        caught.value.add_note("mine")
        with pytest.raises(TransactionFatalError if forgets else ProducerFencedError) as again:
            async with producer.transaction():
                pass
        assert "mine" not in again.value.__notes__


@versions
async def test_certain_fenced_commit_has_no_note(version: int, autojump_clock: Clock) -> None:
    async with transacting(version) as (cluster, producer):
        cluster.fail("EndTxn", ErrorCode.PRODUCER_FENCED)
        with pytest.raises(ProducerFencedError) as caught:
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
        assert not getattr(caught.value, "__notes__", [])


class CopyingTables:
    """As :class:`Copying`, with tables."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def __call__(self, batch: RecordBatch, txn: Transaction) -> None:
        table = pa.table({"value": [record.value for record in batch]})
        await self._producer.send_arrow("t", table, partition=batch.partition % 2)


@versions
@pytest.mark.parametrize("handler", [Copying, CopyingTables])
async def test_process_survives_an_expired_id(
    version: int, handler: Any, autojump_clock: Clock
) -> None:
    async with ScriptedCluster(topics={"t": 2}, transaction_version=version) as cluster:
        input_of(cluster)
        async with (
            producer_of(cluster) as producer,
            trikafka.open_consumer("in", **consumer_settings(cluster)) as consumer,
        ):
            forget(cluster)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trikafka.process, consumer, producer, handler(producer))
                await all_processed(cluster)
                nursery.cancel_scope.cancel()
        assert Counter(await committed(cluster)) == EXPECTED


async def test_forgotten_prepared_one_was_completed(
    caplog: pytest.LogCaptureFixture, autojump_clock: Clock
) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        cluster.transactions.two_phase = True
        cluster.offer("InitProducerId", (0, 6))
        settings = {"two_phase_commit": True, "commit_prepared": str(PreparedTransaction(7, 3))}
        with caplog.at_level(logging.WARNING):
            async with producer_of(cluster, **settings) as producer, producer.transaction():
                await producer.send("t", b"next", partition=0)
        assert "transaction 7:3 was completed before" in caplog.text
        await until_closed(cluster)
        assert await committed(cluster) == [b"next"]
