"""``trikafka.process`` called again after it ended: nothing is lost or doubled, and a seek of the
program stands.
"""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from test_processing import Copying, consumer_settings, input_of
from transacting import committed, producer_of, until_closed
from trio.testing import MockClock as Clock

import trikafka
from trikafka import RecordBatch, TopicPartition, Transaction
from trikafka.errors import CorruptRecordError, TransactionUndecidedError
from trikafka.testing import ScriptedCluster

IN0, IN1 = TopicPartition("in", 0), TopicPartition("in", 1)


async def test_seek_skips_a_failing_record(autojump_clock: Clock) -> None:
    poisoned: list[int] = []
    async with ScriptedCluster(topics={"t": 2, "in": 1}) as cluster:
        cluster.append("in", 0, [b"%d" % number for number in range(20)])
        async with (
            producer_of(cluster) as producer,
            trikafka.open_consumer("in", **consumer_settings(cluster)) as consumer,
        ):

            async def handler(batch: RecordBatch, txn: Transaction) -> None:
                for record in batch:
                    if record.value == b"7":
                        poisoned.append(record.offset)
                        raise KeyError
                    await producer.enqueue("t", record.value, partition=0)

            with pytest.raises(KeyError):
                await trikafka.process(consumer, producer, handler, max_records=1)
            consumer.seek(IN0, 8)
            with trio.move_on_after(10):
                await trikafka.process(consumer, producer, handler, max_records=1)
        assert poisoned == [7]
        assert cluster.committed("g", IN0) == trikafka.OffsetAndMetadata(20, leader_epoch=0)
        assert await committed(cluster) == [b"%d" % number for number in range(20) if number != 7]


async def test_records_before_a_corrupt_batch_are_kept(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2, "in": 2}) as cluster:
        for part in range(2):
            cluster.append("in", part, [b"%d-%d" % (part, number) for number in range(5)])
        data = cluster.partition("in", 0).batches[0].data
        cluster.append_batch("in", 1, data[:70] + b"\xff" + data[71:], count=5)
        cluster.append("in", 1, [b"1-last"])
        async with (
            producer_of(cluster) as producer,
            trikafka.open_consumer("in", **consumer_settings(cluster)) as consumer,
        ):
            handler = Copying(producer)
            for _ in range(3):
                with pytest.raises(CorruptRecordError), trio.fail_after(10):
                    await trikafka.process(consumer, producer, handler)
            assert [cluster.committed("g", tp) for tp in (IN0, IN1)] == [
                trikafka.OffsetAndMetadata(5, leader_epoch=0)
            ] * 2
            consumer.seek(IN1, 10)
            with trio.move_on_after(10):
                await trikafka.process(consumer, producer, handler)
        seen = Counter(await committed(cluster))
        assert [seen[b"0-%d" % number] for number in range(5)] == [1] * 5
        assert seen[b"1-last"] == 1
        assert set(seen.values()) == {1}


async def test_closing_in_a_commit_ends_process(autojump_clock: Clock) -> None:
    """The next producer with the same id settles the commit, which succeeded here."""
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        input_of(cluster)
        errors: list[BaseException] = []
        async with (
            trikafka.open_consumer("in", **consumer_settings(cluster)) as consumer,
            trio.open_nursery() as nursery,
        ):
            cluster.delay("EndTxn", 500, after=True, times=1)
            async with producer_of(cluster, close_timeout_ms=1000) as producer:

                async def run() -> None:
                    try:
                        await trikafka.process(consumer, producer, Copying(producer))
                    except TransactionUndecidedError as error:
                        errors.append(error)

                nursery.start_soon(run)
                await trio.sleep(3)
            for _ in range(50):
                await trio.lowlevel.checkpoint()
            assert len(errors) == 1
            async with producer_of(cluster) as another:
                with trio.move_on_after(30):
                    await trikafka.process(consumer, another, Copying(another))
        await until_closed(cluster)
        seen = await committed(cluster)
        assert len(seen) == len(set(seen)) == 160
