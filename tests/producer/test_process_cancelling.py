"""``trikafka.process`` cancelled at every await and called again: each record is written once."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio
from test_processing import Protocol, consumer_settings, protocols, versions
from transacting import committed, producer_of
from trio.testing import MockClock as Clock

import trikafka
from trikafka import Consumer, Producer, RecordBatch, TopicPartition, Transaction
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable

Given = tuple[ScriptedCluster, Producer, Consumer]
COUNT = 21
END = TopicPartition("in", 0)


class Enough(Exception):
    """Ends a run."""


@versions
@protocols
async def test_process_may_be_cancelled_anywhere(
    version: int, protocol: Protocol, autojump_clock: Clock
) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[Given]:
        async with ScriptedCluster(
            topics={"t": 2, "in": 1}, transaction_version=version
        ) as cluster:
            cluster.append("in", 0, [b"%d" % number for number in range(COUNT)])
            async with (
                producer_of(cluster) as producer,
                trikafka.open_consumer("in", **consumer_settings(cluster, protocol)) as consumer,
            ):
                yield cluster, producer, consumer

    async def run(given: Given, batches: int) -> None:
        """Run until so many batches were handled; abort the last one's transaction."""
        _, producer, consumer = given
        handled = 0

        async def handler(batch: RecordBatch, txn: Transaction) -> None:
            nonlocal handled
            handled += 1
            for record in batch:
                await producer.enqueue("t", record.value, partition=handled % 2)
            await producer.flush()
            if handled == batches:
                raise Enough

        with suppress(Enough):
            await trikafka.process(consumer, producer, handler, max_records=1)

    async def check(given: Given) -> None:
        cluster, producer, consumer = given
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, given, 1_000)
                while (at := cluster.committed("g", END)) is None or at.offset < COUNT:  # noqa: ASYNC110
                    await trio.sleep(0.1)
                nursery.cancel_scope.cancel()
            assert Counter(await committed(cluster)) == Counter(
                b"%d" % number for number in range(COUNT)
            )
        assert consumer.assignment() == {END}
        assert producer.statistics().buffer_used == 0

    with trio.fail_after(20_000):
        count = await assert_all_awaits_cancellable(lambda given: run(given, 3), check, setup=setup)
    assert count >= 20
