"""Standstills of a producer: each API breaks for good after all has worked, and the log and
health() report it. The consumer's are in ``tests/consumer/test_consumer_standstill.py``.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio
from producing import ready
from trio.testing import MockClock as Clock

import trikafka
from trikafka import GroupMetadata, TopicPartition, TrikafkaError
from trikafka.error_codes import ErrorCode as E
from trikafka.testing import ScriptedCluster
from trikafka.testing._breaking import HOW

LIMIT = 10.0  # stall_warning_ms
HEARD = 1.25 * LIMIT


async def send(cluster: ScriptedCluster, producer: Any) -> None:
    await producer.send("t", b"x", partition=0)


async def commit(cluster: ScriptedCluster, producer: Any) -> None:
    async with producer.transaction():
        await producer.send("t", b"x", partition=0)


async def abort(cluster: ScriptedCluster, producer: Any) -> None:
    txn = producer.transaction()
    async with txn:
        await producer.send("t", b"x", partition=0)
        await txn.abort()


async def commit_offsets(cluster: ScriptedCluster, producer: Any) -> None:
    async with producer.transaction() as txn:
        await txn.send_offsets({TopicPartition("t", 1): 1}, GroupMetadata("g"))


async def ask(cluster: ScriptedCluster, producer: Any) -> None:
    await producer.partitions_for("t")


@dataclass(frozen=True)
class Api:
    """An API with codes that pass or do not, the program's work, and names for the log."""

    name: str
    retriable: int
    fatal: int
    work: Callable[[ScriptedCluster, Any], Any]
    names: tuple[str, ...]
    version: int | None = None  # of transactions
    moved: bool = False  # another node is the coordinator from then on

    def __str__(self) -> str:
        return self.name


X = ("transaction", "'x'", "t-0", "commit()", "send_offsets()")
APIS = [
    Api(
        "Produce",
        E.NOT_ENOUGH_REPLICAS,
        E.TOPIC_AUTHORIZATION_FAILED,
        send,
        ("t-0", "not delivered"),
    ),
    Api("Metadata", 0, 0, send, ("metadata",)),
    Api("AddPartitionsToTxn", E.COORDINATOR_LOAD_IN_PROGRESS, E.INVALID_TXN_STATE, commit, X, 1),
    Api(
        "AddOffsetsToTxn", E.COORDINATOR_LOAD_IN_PROGRESS, E.INVALID_TXN_STATE, commit_offsets, X, 1
    ),
    Api(
        "TxnOffsetCommit",
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.GROUP_AUTHORIZATION_FAILED,
        commit_offsets,
        X,
        2,
    ),
    Api(
        "EndTxn",
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.PRODUCER_FENCED,
        commit,
        X,
        2,
    ),
    # Rights that are missing may be given later: the end of a transaction is asked for until then.
    Api("EndTxn", E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, E.PRODUCER_FENCED, abort, X, 1),
    Api("InitProducerId", E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, E.PRODUCER_FENCED, abort, X, 1),
    Api(
        "FindCoordinator",
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        E.INVALID_REQUEST,
        commit,
        X,
        2,
        moved=True,
    ),
    Api("ApiVersions", 0, 0, send, ("broker 0", "broker 1")),
]
#: With a code of the second kind each of these fails with an error of its own, which the program
#: gets: nothing stands still.
RAISED = {
    "Produce",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "EndTxn",
    "InitProducerId",
    "FindCoordinator",
}
CASES = [
    pytest.param(api, how, id=f"{number}-{api}-{how}")
    for number, api in enumerate(APIS)
    for how in HOW
    if api.fatal or "code" not in how
]


@asynccontextmanager
async def working(api: Api) -> AsyncIterator[tuple[ScriptedCluster, Any, list[Exception]]]:
    """Open a producer that has done its work twice and continues."""
    settings: dict[str, Any] = {
        "stall_warning_ms": LIMIT * 1000,
        "metadata_max_age_ms": 1000,
        "linger_ms": 0,
    }
    if api.version is not None:
        settings["transactional_id"] = "x"
    async with ScriptedCluster(
        nodes=2, topics={"t": 2}, transaction_version=api.version or 2
    ) as cluster:
        cluster.move_coordinator(0)
        settings |= {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "close_timeout_ms": 100,
        }
        raised: list[Exception] = []
        async with trikafka.open_producer(**settings) as producer:
            for _ in range(2):
                await api.work(cluster, producer)
            assert producer.health().ok, producer.health().reasons

            async def work() -> None:
                while True:
                    try:
                        await api.work(cluster, producer)
                    except (TrikafkaError, ExceptionGroup) as error:
                        raised.append(error)
                    await trio.sleep(0.5)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(work)
                yield cluster, producer, raised
                nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("api", "how"), CASES)
async def test_broken_api_is_logged_and_unhealthy(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, api: Api, how: str
) -> None:
    caplog.set_level(logging.WARNING, "trikafka")
    async with working(api) as (cluster, producer, raised):
        HOW[how](cluster, api)
        if api.moved:
            cluster.move_coordinator(1)
        if api.name == "ApiVersions":
            cluster.disconnect()
        await trio.sleep(HEARD + 1)
        if api.name in RAISED and how == "a code that does not":
            assert raised
            return
        lines = [record.getMessage() for record in caplog.records]
        named = [line for line in lines if any(name in line for name in api.names)]
        assert named, (lines, producer.health(), raised[:2])
        assert not producer.health().ok, (named, raised[:2])


async def test_stalled_record_is_logged_once(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trikafka.producer")
    async with ready(partitions=2) as (cluster, producer):
        rule = cluster.fail("Produce", E.NOT_ENOUGH_REPLICAS, None, partition=0)
        ack = await producer.enqueue("t", b"x", partition=0)
        while producer.health().ok:
            await trio.sleep(0.1)
            await producer.send("t", b"x", partition=1)
        assert trio.current_time() <= HEARD
        await trio.sleep(LIMIT * 2)
        [line] = [record.getMessage() for record in caplog.records]
        assert line.startswith("t-0: no progress for 1")
        assert " s (producer 'trikafka'): a record has had no outcome" in line
        assert "NOT_ENOUGH_REPLICAS" in line
        assert [
            "t-0: a record has had no outcome for " in reason
            for reason in producer.health().reasons
        ] == [True]
        rule.remove()
        await ack.wait()
        await producer.flush()
        await trio.sleep(LIMIT)
        assert producer.health().ok


async def test_many_stalled_partitions_take_few_lines(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker's error names the partition, and yet the partitions have one cause."""
    caplog.set_level(logging.INFO, "trikafka.producer")
    async with ready(partitions=100) as (cluster, producer):
        rule = cluster.fail("Produce", E.NOT_ENOUGH_REPLICAS, None)
        for number in range(100):
            for _ in range(1 + number % 3):
                await producer.enqueue("t", b"x", partition=number)
        await trio.sleep(2 * LIMIT)
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 11, lines
        assert all(
            f"NOT_ENOUGH_REPLICAS]: t-{line[2:].split(':')[0]}" in line for line in lines[:10]
        )
        assert lines[10].startswith("90 more make no progress: a record has had no outcome")
        assert len(producer.health().reasons) == 100
        rule.remove()
        await producer.flush()


async def test_shrinking_backlog_is_no_standstill(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ready(batch_size=0, max_in_flight_requests_per_connection=1) as (cluster, producer):
        cluster.delay("Produce", 1)
        acks = [await producer.enqueue("t", b"%d" % number) for number in range(25)]
        while not acks[-1].done:
            await trio.sleep(0.5)
            assert producer.health().ok
        assert not caplog.records


async def test_lingering_records_are_no_standstill(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ready(linger_ms=25_000) as (_, producer):
        ack = await producer.enqueue("t", b"x")
        while not ack.done:
            await trio.sleep(0.5)
            assert producer.health().ok
        assert not caplog.records
