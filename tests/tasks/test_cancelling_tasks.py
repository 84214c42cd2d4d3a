"""Cancellation at every await of ``ensure_topics`` and of a run with dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from tasking import cluster_of, committed, consumer_of, producer_of, until
from test_task_transactions import Copying, seen_of
from trio.testing import MockClock as Clock

import trikafka
from trikafka import Consumer, NewTopic, Producer, Record
from trikafka.testing import ScriptedCluster
from trikafka.testing.cancellation import assert_all_awaits_cancellable

TOPICS = {"out": NewTopic(3), "dead": NewTopic(1, 1, {"max.message.bytes": "1000"})}


async def test_ensure_topics_may_be_cancelled(autojump_clock: Clock) -> None:
    """The next call creates the missing topics and finds all of them as specified."""

    @asynccontextmanager
    async def setup() -> AsyncIterator[tuple[ScriptedCluster, Consumer]]:
        async with cluster_of(2, topics={"out": 3}) as cluster, consumer_of(cluster) as consumer:
            yield cluster, consumer

    async def scenario(given: tuple[ScriptedCluster, Consumer]) -> None:
        await trikafka.ensure_topics(given[1], TOPICS)

    async def check(given: tuple[ScriptedCluster, Consumer]) -> None:
        with trio.fail_after(60):
            found = await trikafka.ensure_topics(given[1], TOPICS)
        assert {name: len(parts) for name, parts in found.items()} == {"out": 3, "dead": 1, "t": 2}
        assert len(given[0].requests("CreateTopics")) <= 2

    with trio.fail_after(100_000):
        assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 2


async def test_run_with_dead_letters_may_be_cancelled(autojump_clock: Clock) -> None:
    """Nothing is left open.

    The next run of the same producer writes each record once, where it belongs.
    """
    records = 4

    def fail(record: Record, calls: int) -> Exception | None:
        return ValueError("no") if record.value == b"2" else None

    def work(consumer: Consumer, producer: Producer) -> Any:
        return trikafka.run_tasks(
            consumer, Copying(producer, fail, 0.05), producer=producer, dead_letter="dead"
        )

    @asynccontextmanager
    async def setup() -> AsyncIterator[tuple[ScriptedCluster, Consumer, Producer]]:
        async with (
            cluster_of(1, records=records, topics={"out": 2, "dead": 2}) as cluster,
            producer_of(cluster, transactional_id="x") as producer,
            consumer_of(cluster) as consumer,
        ):
            yield cluster, consumer, producer

    async def scenario(given: tuple[ScriptedCluster, Consumer, Producer]) -> None:
        cluster, consumer, producer = given
        async with trio.open_nursery() as nursery:

            async def stop() -> None:
                await until(lambda: committed(cluster) == records)
                await consumer.aclose()

            nursery.start_soon(stop)
            await work(consumer, producer)

    async def check(given: tuple[ScriptedCluster, Consumer, Producer]) -> None:
        cluster, consumer, producer = given
        if committed(cluster) != records:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, consumer, producer)
                await until(lambda: committed(cluster) == records)
                nursery.cancel_scope.cancel()
        assert Counter(record.value for record in await seen_of(cluster, "out")) == Counter(
            [b"0", b"1", b"3"]
        )
        assert [record.value for record in await seen_of(cluster, "dead")] == [b"2"]

    with trio.fail_after(1_000_000):
        assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 3
