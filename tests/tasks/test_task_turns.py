"""``run_tasks`` and handlers without a checkpoint, or without regard to their cancellation."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import trio
from tasking import cluster_of, committed, consumer_of, producer_of
from trio.testing import MockClock as Clock

import trikafka
from trikafka import Record


@pytest.mark.parametrize("transactional", [False, True])
async def test_others_run_beside_a_plain_handler(
    autojump_clock: Clock, transactional: bool
) -> None:
    """A call takes half a millisecond. All records are one batch."""
    calls = 0
    between: list[int] = []

    async def handler(record: Record) -> None:
        nonlocal calls
        calls += 1
        autojump_clock.jump(0.0005)

    async def other() -> None:
        seen = 0
        while calls < 100:
            between.append(calls - seen)
            seen = calls
            await trio.lowlevel.checkpoint()

    async with (
        cluster_of(1, records=100) as cluster,
        consumer_of(cluster) as consumer,
        producer_of(cluster, transactional_id="x" if transactional else None) as producer,
        trio.open_nursery() as nursery,
    ):
        given: dict[str, Any] = {"producer": producer} if transactional else {}
        nursery.start_soon(lambda: trikafka.run_tasks(consumer, handler, **given))
        with trio.fail_after(60):
            await other()
        nursery.cancel_scope.cancel()
    assert max(between) <= 10


async def test_others_run_in_virtual_time_too(autojump_clock: Clock) -> None:
    """A plain handler takes no virtual time at all. Trio may run two of its turns in a row."""
    calls = 0
    seen: list[int] = []

    async def handler(record: Record) -> None:
        nonlocal calls
        calls += 1

    async with (
        cluster_of(1, records=1_000) as cluster,
        consumer_of(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(trikafka.run_tasks, consumer, handler)
        with trio.fail_after(60):
            while calls < 1_000:
                seen.append(calls)
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert max(after - before for before, after in pairwise(seen)) <= 210


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_swallowed_cancellation_ends_the_run(autojump_clock: Clock, concurrency: int) -> None:
    """Only the records in hand count as handled, and no other record begins."""
    began: list[int] = []
    done: list[int] = []

    async def handler(record: Record) -> None:
        began.append(record.offset)
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            return
        done.append(record.offset)

    async with cluster_of(1, records=100) as cluster, consumer_of(cluster) as consumer:
        with trio.move_on_after(2.5) as scope:
            await trikafka.run_tasks(consumer, handler, concurrency=concurrency)
        assert scope.cancelled_caught
        assert len(done) == 2 * concurrency
        assert len(began) == 3 * concurrency
        assert committed(cluster) == 3 * concurrency
