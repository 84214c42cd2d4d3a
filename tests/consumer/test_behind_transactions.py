"""A read_committed consumer behind an open transaction: the log and ``health()`` say so.

Everything before the last stable offset is read, so the lag is 0 and every fetch succeeds, and yet
the partition stands still (DESIGN 3g). If no coordinator knows the transaction, it does so for
ever.
"""

from __future__ import annotations

import logging

import pytest
import trio
from consuming import T0, T1, cluster_of, consumer_of, until, values
from trio.testing import MockClock as Clock

from trikafka import Consumer
from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster, control_batch, encode_batch

LIMIT = 10.0  # stall_warning_ms
COMMITTED = {"isolation_level": "read_committed"}


def begin(cluster: ScriptedCluster, producer: int = 7, partition: int = 0) -> None:
    """Append two records of a transaction that stays open."""
    batch = encode_batch([b"a", b"b"], timestamp=0, producer=(producer, 0, 0), transactional=True)
    cluster.append_batch("t", partition, batch)


def end(cluster: ScriptedCluster, producer: int = 7) -> None:
    cluster.append_batch("t", 0, control_batch(producer, 0, commit=True, timestamp=0))


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        f"{record.levelname} {record.message}"
        for record in caplog.records
        if record.name == "trikafka.consumer"
    ]


async def pass_by(consumer: Consumer, seconds: float) -> None:
    """Ask for records for this long, and get none."""
    assert not await consumer.receive_batch(timeout=seconds)


async def test_open_transaction_is_logged_once(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with cluster_of(2, records=3) as cluster, consumer_of(cluster, **COMMITTED) as consumer:
        consumer.assign([T0, T1])
        assert len(await values(consumer, 6)) == 6
        await pass_by(consumer, LIMIT)  # at rest
        begin(cluster)
        cluster.append("t", 0, [b"behind it"])
        await pass_by(consumer, 0.8 * LIMIT)
        assert not logged(caplog)
        assert not consumer.health().behind_transactions
        await pass_by(consumer, 0.45 * LIMIT)
        (line,) = logged(caplog)
        assert line.startswith("WARNING committed records of t-0: no progress for 1")
        assert "a transaction is open there" in line
        assert "find_hanging_transactions" in line
        health = consumer.health()
        assert list(health.behind_transactions) == [T0]
        assert "a transaction is open there" in health.behind_transactions[T0]
        assert (health.ok, health.reasons, dict(health.stalled)) == (True, (), {})
        await pass_by(consumer, 5 * LIMIT)
        assert logged(caplog) == [line]
        end(cluster)
        assert await values(consumer, 3) == [b"a", b"b", b"behind it"]
        await until(lambda: len(logged(caplog)) == 2)
        assert logged(caplog)[1].startswith("INFO committed records of t-0: goes on, after ")
        assert not consumer.health().behind_transactions


async def test_each_transaction_has_its_time(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Short transactions that follow each other without a gap are no standstill."""
    async with cluster_of() as cluster, consumer_of(cluster, **COMMITTED) as consumer:
        consumer.assign([T0])
        begin(cluster, 100)
        for number in range(101, 110):
            await pass_by(consumer, 0.6 * LIMIT)
            begin(cluster, number)
            end(cluster, number - 1)
            assert await values(consumer, 2) == [b"a", b"b"]
    assert not logged(caplog)


@pytest.mark.parametrize("how", ["read_uncommitted", "paused", "records before it"])
async def test_consumer_that_does_not_wait_is_silent(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    level = "read_uncommitted" if how == "read_uncommitted" else "read_committed"
    async with (
        cluster_of(records=3) as cluster,
        consumer_of(cluster, isolation_level=level) as consumer,
    ):
        consumer.assign([T0])
        await values(consumer, 3)
        begin(cluster)
        if how == "read_uncommitted":
            await values(consumer, 2)
        await pass_by(consumer, 1)
        if how == "paused":
            consumer.pause([T0])
        elif how == "records before it":
            consumer.seek(T0, 1)
            await trio.sleep(2 * LIMIT)
            assert consumer.health().stalled  # they are there, and no task receives them
            caplog.clear()
        await trio.sleep(3 * LIMIT)
        assert not consumer.health().behind_transactions
    assert not [line for line in logged(caplog) if "transaction" in line]


async def test_bounded_iteration_names_the_transaction(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of the log is the bound, and an open transaction is before it."""
    async with cluster_of(records=3) as cluster, consumer_of(cluster, **COMMITTED) as consumer:
        consumer.assign([T0])
        begin(cluster)
        got: list[bytes | None] = []
        with trio.move_on_after(3 * LIMIT):
            async for batch in consumer.batches({T0: 5}):
                got += [record.value for record in batch]
        assert got == [b"0", b"1", b"2"]
        assert list(consumer.health().behind_transactions) == [T0]
    (line,) = logged(caplog)
    assert "committed records of t-0: no progress" in line


@pytest.mark.parametrize("how", ["refused", "frozen", "lost", "no leader"])
async def test_outage_is_not_blamed_on_a_transaction(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """The last fetch showed an open transaction, which may have ended since."""
    async with (
        cluster_of(records=3, nodes=2) as cluster,
        consumer_of(cluster, **COMMITTED) as consumer,
    ):
        consumer.assign([T0])
        await values(consumer, 3)
        begin(cluster)
        await pass_by(consumer, 1)
        leader = cluster.partition("t", 0).leader
        assert leader is not None
        if how == "refused":
            cluster.fail("Fetch", ErrorCode.KAFKA_STORAGE_ERROR, None)
        elif how == "frozen":
            cluster.freeze(leader)
        elif how == "lost":
            cluster.stop(leader, noticed=False)
        else:
            cluster.move_leader("t", 0, None)
        await pass_by(consumer, 4 * LIMIT)
        (line,) = logged(caplog)
        assert line.startswith("WARNING t-0: no progress for ")
        health = consumer.health()
        assert (list(health.stalled), dict(health.behind_transactions)) == ([T0], {})
        cluster.thaw(leader)


async def test_pause_does_not_end_a_wait(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The log does not say that the records go on while the transaction is open."""
    caplog.set_level(logging.INFO)
    async with cluster_of(records=3) as cluster, consumer_of(cluster, **COMMITTED) as consumer:
        consumer.assign([T0])
        await values(consumer, 3)
        begin(cluster)
        await pass_by(consumer, 2 * LIMIT)
        (line,) = logged(caplog)
        consumer.pause([T0])
        await pass_by(consumer, 2 * LIMIT)
        assert logged(caplog) == [line]
        assert not consumer.health().behind_transactions
        consumer.resume([T0])
        await pass_by(consumer, 2 * LIMIT)
        assert list(consumer.health().behind_transactions) == [T0]
