"""Ctrl-C or ``sys.exit()`` inside user code: finished records are committed, the member leaves, and
the exception is raised unchanged.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tasking import cluster_of, committed, consumer_of, producer_of
from trio.testing import MockClock as Clock

import trikafka
from trikafka import Record
from trikafka.errors.groups import members
from trikafka.testing import ScriptedCluster

INTERRUPTS = [KeyboardInterrupt, SystemExit]


def left(cluster: ScriptedCluster) -> bool:
    return bool(cluster.requests("LeaveGroup"))


async def in_nursery(error: BaseException) -> None:
    async def fail(each: BaseException) -> None:
        raise each

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail, error)
        nursery.start_soon(fail, ValueError("beside it"))


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("in_group", [False, True])
async def test_interrupt_commits_finished_records(
    autojump_clock: Clock, interrupt: type[BaseException], concurrency: int, in_group: bool
) -> None:
    raised_at = 0.0

    async def handler(record: Record) -> None:
        nonlocal raised_at
        if record.partition == 1:
            await trio.sleep(0.3)
        elif record.offset == 5:
            await trio.sleep(1)
            raised_at = trio.current_time()
            if in_group:
                await in_nursery(interrupt())
            raise interrupt

    async with cluster_of(2, records=9) as cluster:
        with pytest.raises(interrupt) as raised:
            async with consumer_of(cluster, auto_commit_interval_ms=60_000) as consumer:
                await trikafka.run_tasks(consumer, handler, concurrency=concurrency)
        assert committed(cluster, 0) == 5
        assert committed(cluster, 1) == 3 * concurrency
        assert left(cluster)
        assert trio.current_time() == raised_at
    beside = raised.value.__cause__
    assert [str(error) for error in (members(beside) if beside else ())] == ["beside it"] * in_group


async def test_hanging_commit_delays_no_interrupt(autojump_clock: Clock) -> None:
    async def handler(record: Record) -> None:
        if record.offset == 2:
            cluster.silence("OffsetCommit")
            raise KeyboardInterrupt

    async with cluster_of(1, records=3) as cluster:
        begun = trio.current_time()
        with pytest.raises(KeyboardInterrupt):
            async with consumer_of(cluster) as consumer:
                await trikafka.run_tasks(consumer, handler)
        assert trio.current_time() - begun < 2.1
        assert left(cluster)


async def test_refused_commit_does_not_hide_interrupt(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(record: Record) -> None:
        if record.offset == 2:
            cluster.fail("OffsetCommit", trikafka.ErrorCode.GROUP_AUTHORIZATION_FAILED, None)
            raise KeyboardInterrupt

    async with cluster_of(1, records=3) as cluster:
        with pytest.raises(KeyboardInterrupt):
            async with consumer_of(cluster) as consumer:
                await trikafka.run_tasks(consumer, handler)
    assert "the last commit failed" in caplog.text


@pytest.mark.parametrize("by_hand", [False, True])
async def test_interrupt_aborts_the_transaction(autojump_clock: Clock, by_hand: bool) -> None:
    """Its input counts as unread."""
    raised = 0

    async def handler(*given: Any) -> None:
        nonlocal raised
        await producer.enqueue("out", b"x")
        if committed(cluster) == 3:
            raised += 1
            raise KeyboardInterrupt
        cluster.append("t", 0, [b"more"])

    async with cluster_of(1, records=3, topics={"out": 1}) as cluster:
        async with producer_of(cluster, transactional_id="x") as producer:
            with pytest.raises(KeyboardInterrupt):
                async with consumer_of(cluster, max_poll_records=3) as consumer:
                    await (
                        trikafka.process(consumer, producer, handler, max_records=1)
                        if by_hand
                        else trikafka.run_tasks(consumer, handler, producer=producer, batches=True)
                    )
        assert (raised, committed(cluster)) == (1, 3)
        assert left(cluster)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("streams", [False, True])
async def test_interrupt_auto_commits_finished_records(
    autojump_clock: Clock, streams: bool, protocol: str
) -> None:
    async def each(source: Any) -> None:
        async for record in source:
            if record.offset == 5:
                raise KeyboardInterrupt

    async with cluster_of(1, records=9) as cluster:
        with pytest.raises(KeyboardInterrupt):
            async with consumer_of(
                cluster, enable_auto_commit=True, group_protocol=protocol
            ) as consumer:
                await each(await anext(consumer.partitions()) if streams else consumer)
        assert committed(cluster) == 5
