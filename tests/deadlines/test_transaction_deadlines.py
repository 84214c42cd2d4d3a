"""The calls of transactions end at their limit, whatever is wrong with the broker, naming the root cause. In virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from deadline_table import FAULTS, GRACE, LIMIT, TP, Fault, Row, begin
from test_deadlines import check_error, check_time
from trio.testing import MockClock as Clock

import trikafka
from trikafka import GroupMetadata, Producer, Transaction
from trikafka.errors import KafkaTimeoutError, TransactionUndecidedError
from trikafka.testing import ScriptedCluster

Run = Callable[[ScriptedCluster, Any, dict[str, Any]], Awaitable[Any]]


def row(name: str, needs: str, error: int, run: Run = lambda _, txn, k: txn) -> Row:
    return Row("producer", name, needs, error, run)


#: Each with what was sent before: a commit may fail while it delivers, or when the coordinator is asked.
ROWS = [
    (row("commit", "Produce", 6, lambda _, txn, k: txn.commit(**k)), b"waits"),
    (row("commit", "EndTxn", 15, lambda _, txn, k: txn.commit(**k)), b"delivered"),
    (row("abort", "EndTxn", 15, lambda _, txn, k: txn.abort(**k)), b"delivered"),
    (row("send_offsets", "TxnOffsetCommit", 15, lambda _, txn, k: txn.send_offsets({TP: 1}, GroupMetadata("g"), **k)), b""),
]
rows = pytest.mark.parametrize(("row", "sent"), ROWS, ids=lambda value: str(value) if isinstance(value, Row) else value.decode())


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[ScriptedCluster, Producer, Transaction]]:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial, "transactional_id": "x"}
        async with trikafka.open_producer(**given, close_timeout_ms=2_000, linger_ms=0) as producer:
            async with producer.transaction():  # everybody knows everybody
                await producer.send("t", b"first")
            txn = producer.transaction()
            await txn.__aenter__()
            yield cluster, producer, txn


async def attempt(
    cluster: ScriptedCluster, producer: Producer, txn: Transaction, row: Row, sent: bytes, fault: Fault | None, limit: float
) -> tuple[Any, float]:
    if sent == b"delivered":
        await producer.send("t", sent)
    if fault is not None:
        begin(fault, cluster, row)
    if sent == b"waits":
        producer.send_nowait("t", sent)
    before = trio.current_time()
    try:
        result = await row.run(cluster, txn, {"timeout": limit})
    except KafkaTimeoutError as error:
        result = error
    return result, trio.current_time() - before


@pytest.mark.parametrize("limit", [LIMIT, 0.0])
@pytest.mark.parametrize("fault", FAULTS)
@rows
async def test_the_limit_is_kept(row: Row, sent: bytes, fault: Fault, limit: float, autojump_clock: Clock) -> None:
    async with opened() as (cluster, producer, txn):
        result, took = await attempt(cluster, producer, txn, row, sent, fault, limit)
        assert isinstance(result, KafkaTimeoutError), result
        assert isinstance(result, TransactionUndecidedError) == (row.name == "commit" and sent == b"delivered")
        assert (
            took == pytest.approx(max(limit, GRACE), abs=1e-9)
            if row.name != "send_offsets"
            else check_time(fault, limit, took) is None
        )
        check_error(row, fault, result, limit)


@rows
async def test_no_time_at_all_takes_what_a_healthy_broker_says(row: Row, sent: bytes, autojump_clock: Clock) -> None:
    async with opened() as (cluster, producer, txn):
        result, took = await attempt(cluster, producer, txn, row, sent, None, 0.0)
        assert not isinstance(result, Exception), result
        assert took == 0.0


async def test_negative_limits(autojump_clock: Clock) -> None:
    async with opened() as (_, producer, txn):
        for call in (txn.commit, txn.abort, txn.prepare):
            with pytest.raises(ValueError, match="timeout"):
                await call(timeout=-1)
        with pytest.raises(ValueError, match="timeout"):
            await txn.send_offsets({TP: 1}, GroupMetadata("g"), timeout=-1)
        with pytest.raises(ValueError, match="timeout"):
            producer.transaction(timeout=-1)
