"""The end of a run of tasks: cancelled at any point, by a consumer's error, by several errors."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tasking import Stuck, Values, cluster_of, committed, consumer_of, producer_of, running, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka import Consumer, CorruptRecordError, KafkaTimeoutError, Record
from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster
from trikafka.testing.cancellation import assert_all_awaits_cancellable


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_run_may_be_cancelled_anywhere(autojump_clock: Clock, concurrency: int) -> None:
    """Finished records are committed, others are handled by the next run, and no task is left."""
    done: list[int] = []

    async def handler(record: Record) -> None:
        await trio.sleep(0.3)
        done.append(record.offset)

    @asynccontextmanager
    async def setup() -> AsyncIterator[tuple[ScriptedCluster, Consumer]]:
        done.clear()
        async with (
            cluster_of(1, records=8) as cluster,
            consumer_of(cluster, auto_commit_interval_ms=500) as consumer,
        ):
            yield cluster, consumer

    async def scenario(given: tuple[ScriptedCluster, Consumer]) -> None:
        async with trio.open_nursery() as nursery:

            async def stop() -> None:
                await until(lambda: len(done) == 8)
                await given[1].aclose()

            nursery.start_soon(stop)
            await trikafka.run_tasks(given[1], handler, concurrency=concurrency)

    async def check(given: tuple[ScriptedCluster, Consumer]) -> None:
        cluster, consumer = given
        at = committed(cluster) or 0
        assert set(range(at)) <= set(done)
        if len(done) == 8:
            return
        if concurrency == 1:
            assert at == len(done)  # the second for that was enough
        async with running(consumer, handler):
            await until(lambda: committed(cluster) == 8)
        assert set(done) == set(range(8))
        assert len(done) <= 8 + (concurrency - 1)

    with trio.fail_after(100_000):
        assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 3


@pytest.mark.parametrize("seconds", [step / 10 for step in range(1, 40, 3)])
async def test_cancelled_runs_lose_no_record(autojump_clock: Clock, seconds: float) -> None:
    seen: set[tuple[int, int]] = set()

    async def handler(record: Record) -> None:
        await trio.sleep(0.07)
        seen.add((record.partition, record.offset))

    async with cluster_of(3, records=20) as cluster:
        with trio.fail_after(1_000):
            while len(seen) < 60:
                with trio.move_on_after(seconds + 0.5):
                    async with consumer_of(cluster, auto_commit_interval_ms=200) as consumer:
                        await trikafka.run_tasks(consumer, handler, concurrency=2)
                for part in range(3):
                    assert {
                        (part, offset) for offset in range(committed(cluster, part) or 0)
                    } <= seen


async def test_consumer_error_is_raised_unchanged(autojump_clock: Clock) -> None:
    handler = Values()
    async with cluster_of(2, records=3) as cluster:
        cluster.fail("JoinGroup", ErrorCode.GROUP_AUTHORIZATION_FAILED, times=None)
        async with consumer_of(cluster) as consumer:
            with pytest.raises(trikafka.AuthorizationError), trio.fail_after(30):
                await trikafka.run_tasks(consumer, handler)


async def test_records_before_corrupt_ones_are_handled(
    autojump_clock: Clock,
) -> None:
    handler = Values()
    async with cluster_of(1, records=3) as cluster, consumer_of(cluster) as consumer:
        data = cluster.partition("t", 0).batches[0].data
        cluster.append_batch("t", 0, data[:70] + b"\xff" + data[71:], count=3)
        with pytest.raises(CorruptRecordError), trio.fail_after(30):
            await trikafka.run_tasks(consumer, handler)
        assert [record.offset for record in handler.done] == [0, 1, 2]
        assert committed(cluster) == 3


async def test_first_error_is_raised_others_are_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(record: Record) -> None:
        await trio.sleep(1 + record.partition)
        raise KeyError(record.partition)

    async with cluster_of(3, records=3) as cluster, consumer_of(cluster) as consumer:
        with pytest.raises(KeyError) as raised:
            await trikafka.run_tasks(consumer, handler)
    assert raised.value.args == (0,)
    logged = [
        line.getMessage()
        for line in caplog.records
        if line.levelno == logging.WARNING and line.name == "trikafka.tasks"
    ]
    assert logged == [
        "while the tasks were ending: KeyError(1)",
        "while the tasks were ending: KeyError(2)",
    ]


@pytest.mark.parametrize("transactional", [False, True])
async def test_interrupt_is_raised_in_no_group(autojump_clock: Clock, transactional: bool) -> None:
    async def handler(record: Record) -> None:
        raise KeyboardInterrupt

    async with cluster_of(2, records=3) as cluster, consumer_of(cluster) as consumer:
        async with producer_of(
            cluster, transactional_id="x" if transactional else None
        ) as producer:
            with pytest.raises(KeyboardInterrupt):
                await trikafka.run_tasks(
                    consumer, handler, **({"producer": producer} if transactional else {})
                )


async def test_lost_partition_has_one_task_at_a_time(
    autojump_clock: Clock,
) -> None:
    """The member is removed and rejoins at once.

    The record in hand is handled again after its first handler ended.
    """
    at_work: set[int] = set()
    seen: list[int] = []

    async def handler(record: Record) -> None:
        assert record.partition not in at_work
        at_work.add(record.partition)
        seen.append(record.offset)
        await trio.sleep(20 if len(seen) == 1 else 0.1)
        at_work.remove(record.partition)

    async with (
        cluster_of(1, records=3) as cluster,
        consumer_of(cluster) as consumer,
        running(consumer, handler),
    ):
        await until(lambda: len(seen) == 1)
        cluster.fail("Heartbeat", ErrorCode.UNKNOWN_MEMBER_ID, times=1)
        await until(lambda: committed(cluster) == 3)
    assert seen == [0, 0, 1, 2]


async def test_reassigned_partition_has_a_new_timer(autojump_clock: Clock) -> None:
    """After a partition has been revoked and assigned again, another task has it."""
    settings: dict[str, Any] = {"partition_assignment_strategy": ["range"]}
    handler, other = Stuck(0, 1), Values()
    async with cluster_of(2, records=2) as cluster, consumer_of(cluster, **settings) as first:
        async with running(first, handler, task_timeout_ms=20_000):
            await trio.sleep(15)
            async with consumer_of(cluster, **settings) as second, running(second, other):
                await until(lambda: len(other.done) == 2)
            handler.times = 0
            await until(lambda: len(handler.done) == 2)


async def test_failing_commits_are_made_up_for(autojump_clock: Clock) -> None:
    settings: dict[str, Any] = {
        "default_api_timeout_ms": 1_000,
        "auto_commit_interval_ms": 500,
        "request_timeout_ms": 1_000,
    }
    handler = Values(0.1)
    async with cluster_of(2, records=200) as cluster, consumer_of(cluster, **settings) as consumer:
        cluster.fail("OffsetCommit", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=30)
        async with running(consumer, handler, task_timeout_ms=20_000):
            await until(lambda: committed(cluster, 0) == committed(cluster, 1) == 200)


async def test_limit_0_ends_with_a_timed_out_commit(
    autojump_clock: Clock,
) -> None:
    settings: dict[str, Any] = {
        "default_api_timeout_ms": 1_000,
        "auto_commit_interval_ms": 500,
        "request_timeout_ms": 1_000,
    }
    async with cluster_of(1, records=2) as cluster, consumer_of(cluster, **settings) as consumer:
        cluster.silence("OffsetCommit")
        with pytest.raises(KafkaTimeoutError, match="commit"), trio.fail_after(60):
            await trikafka.run_tasks(consumer, Values(), task_timeout_ms=0)
