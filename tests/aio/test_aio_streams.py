"""``partitions()`` of asyncio: a task a partition, whose life is what the consumer goes by."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
import trio
from hosting import (
    LOOPS,
    T0,
    T1,
    Cluster,
    cluster_of,
    consumer_of,
    cut_off,
    member_of,
    nothing_left,
    producer_of,
    run,
    until,
)

import trikafka
import trikafka.aio
from trikafka import TopicPartition

SETTINGS: dict[str, Any] = {"enable_auto_commit": False, "auto_commit_interval_ms": 20}


@pytest.mark.parametrize("kind", LOOPS)
def test_each_partition_has_a_task_and_its_order(kind: str) -> None:
    async def main() -> None:
        seen: dict[int, list[int]] = {0: [], 1: [], 2: []}

        async def handle(stream: trikafka.aio.PartitionStream) -> None:
            async for record in stream:
                assert TopicPartition(record.topic, record.partition) == stream.partition
                await asyncio.sleep(0)
                seen[record.partition].append(record.offset)
            assert stream.ended

        async with cluster_of(3, records=50) as cluster, member_of(cluster) as consumer:

            async def serve() -> None:
                async with asyncio.TaskGroup() as tasks:
                    async for stream in consumer.partitions():
                        tasks.create_task(handle(stream))

            serving = asyncio.create_task(serve())
            await until(lambda: all(len(one) == 50 for one in seen.values()))
            await consumer.unsubscribe()  # ends the streams, and the iteration
            await serving
        assert seen == {number: list(range(50)) for number in range(3)}
        assert cluster.committed("g", T0).offset == 50

    with nothing_left(kind):
        run(main, kind)


@pytest.mark.parametrize("kind", LOOPS)
def test_random_cancels_of_streams_lose_nothing(kind: str) -> None:
    """Neither a record that a stream delivers, nor a stream that the iteration yields."""
    dice = random.Random(20261126)

    async def main() -> None:
        written, cut = 0, 0
        seen: dict[TopicPartition, list[int]] = {}
        streams: list[trikafka.aio.PartitionStream] = []

        async def record(stream: trikafka.aio.PartitionStream) -> None:
            seen.setdefault(stream.partition, []).append((await stream.receive()).offset)

        async def batch(stream: trikafka.aio.PartitionStream) -> None:
            found = await anext(stream.batches())
            seen.setdefault(stream.partition, []).extend(found.offsets)

        async def table(stream: trikafka.aio.PartitionStream) -> None:
            found = await anext(stream.arrow_batches(max_rows=3))
            seen.setdefault(stream.partition, []).extend(found["offset"].to_pylist())

        async with cluster_of(3) as cluster, member_of(cluster) as consumer:
            iteration = consumer.partitions()
            while len(streams) < 3:
                stream, error = await cut_off(anext(iteration), dice.choice([0, 1, 2, 3, 5, 8]))
                if stream is not None:
                    streams.append(stream)
                else:
                    assert isinstance(error, asyncio.CancelledError), repr(error)
            serving = asyncio.create_task(anext(iteration))
            while cut < 300:
                if written - sum(map(len, seen.values())) < 10:
                    cluster.append("t", dice.randrange(3), [b"x"] * 3)
                    written += 3
                way = dice.choice([record, record, batch, table])
                turns = dice.choice([0, 1, 2, 3, 5, 20])
                _, error = await cut_off(way(dice.choice(streams)), turns)
                assert error is None or isinstance(error, asyncio.CancelledError), repr(error)
                cut += error is not None

            async def rest(stream: trikafka.aio.PartitionStream) -> None:
                while (
                    len(seen.get(stream.partition, ())) < cluster.partition(*stream.partition).end
                ):
                    await record(stream)

            await asyncio.gather(*map(rest, streams))
            serving.cancel()
            await asyncio.wait([serving])
            assert seen == {tp: list(range(cluster.partition(*tp).end)) for tp in seen}
            assert sum(map(len, seen.values())) == written

    with nothing_left(kind):
        run(main, kind)


def test_revocation_waits_for_a_streams_block() -> None:
    """What an asyncio task has in hand is finished and committed before the partition goes."""

    async def main() -> None:
        steps: list[str] = []
        others: list[int] = []
        read: dict[TopicPartition, int] = {}

        async def handle(stream: trikafka.aio.PartitionStream) -> None:
            async with stream:
                async for record in stream:
                    read[stream.partition] = record.offset
                    if record.offset == 2 and stream.partition == T1:
                        steps.append("in hand")
                        await until(lambda: "joining" in steps)
                        await asyncio.sleep(0.05)
                        steps.append("finished")

        async with cluster_of(2, records=3) as cluster:
            settings: dict[str, Any] = {"heartbeat_interval_ms": 20}

            async def serve() -> None:
                async with member_of(cluster, **settings) as consumer, asyncio.TaskGroup() as tasks:
                    async for stream in consumer.partitions():
                        tasks.create_task(handle(stream))

            serving = asyncio.create_task(serve())
            await until(lambda: read == {T0: 2, T1: 2})
            async with member_of(cluster, **settings) as second:
                joining = asyncio.create_task(second.receive_batch(timeout=240))
                await asyncio.sleep(0)
                steps.append("joining")
                await until(lambda: second.assignment())
                assert steps == ["in hand", "joining", "finished"]
                (mine,) = second.assignment()
                assert cluster.committed("g", mine).offset == 3
                others.append(mine.partition)
                joining.cancel()
                await asyncio.wait([joining])
            serving.cancel()
            await asyncio.wait([serving])
        assert others

    with nothing_left():
        run(main)


def test_stream_belongs_to_the_task_that_reads() -> None:
    async def main() -> None:
        async with cluster_of(1, records=9) as cluster, consumer_of(cluster) as consumer:
            consumer.assign([T0])
            stream = await anext(consumer.partitions())
            done = asyncio.Event()

            async def read() -> None:
                assert (await stream.receive()).offset == 0
                await done.wait()

            reading = asyncio.create_task(read())
            await until(lambda: stream.position == 1)
            for receive in (consumer.receive, lambda: anext(consumer.batches())):
                with pytest.raises(trio.BusyResourceError, match="as a stream"):
                    await receive()
            done.set()
            await reading
            # The task has ended without asking for more: its record was not processed.
            assert (await consumer.receive()).offset == 0
            assert stream.ended
            with pytest.raises(trio.EndOfChannel):
                await stream.receive()
            assert [record async for record in stream] == []
            # A task that reads on by a receive has processed what its own stream delivered.
            again = await anext(consumer.partitions())
            assert (await again.receive()).offset == 1
            assert (await consumer.receive()).offset == 2

    with nothing_left():
        run(main)


def test_stream_is_left_and_yielded_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with cluster_of(1, records=9) as cluster, member_of(cluster, **SETTINGS) as consumer:
            iteration = consumer.partitions()
            async with await anext(iteration) as stream:
                assert stream.owned
                assert (await stream.receive()).offset == 0
                await stream.commit(1)
                stream.report_progress()
            assert stream.ended
            await stream.wait_ended()
            assert cluster.committed("g", T0).offset == 1
            again = await anext(iteration)
            assert again.partition == T0
            assert [record.offset async for record in first(again, 2)] == [1, 2]
            await again.aclose()
            async with asyncio.timeout(240):
                third = await anext(iteration)
                # Asking for the record at 2 has marked the one before.
                assert (await third.receive()).offset == 2
        # The task that leaves the consumer's block is the handler: the leave does not wait for it.
        said = [record.getMessage() for record in caplog.records]
        assert not [line for line in said if line.startswith(("leaving", "the handlers of"))]

    with nothing_left():
        run(main)


async def first(stream: trikafka.aio.PartitionStream, count: int) -> Any:
    async for record in stream:
        yield record
        count -= 1
        if not count:
            return


def test_cancelled_entry_of_a_stream_leaves_it() -> None:
    """A block that was never entered must not hold a revocation up."""

    async def main() -> None:
        async with cluster_of(1, records=9) as cluster, member_of(cluster) as consumer:
            stream = await anext(consumer.partitions())
            for turns in range(4):
                _, error = await cut_off(stream.__aenter__(), turns)
                if isinstance(error, asyncio.CancelledError) and stream.ended:
                    break
            assert stream.ended
            async with asyncio.timeout(240):
                await consumer.unsubscribe()

    with nothing_left():
        run(main)


# --- process --------------------------------------------------------------------------------------


async def copied(cluster: Cluster) -> list[bytes | None]:
    """Return what a reader of committed records sees in the topic ``out``."""
    async with consumer_of(cluster, isolation_level="read_committed") as reader:
        out = TopicPartition("out", 0)
        reader.assign([out])
        ends = await reader.end_offsets([out])
        return [record.value async for batch in reader.batches(ends) for record in batch]


@pytest.mark.parametrize("kind", LOOPS)
def test_process_copies_exactly_once(kind: str) -> None:
    """A cancelled call aborts its transaction; the next one begins where the last commit was."""

    async def main() -> None:
        async with (
            cluster_of(1, records=30) as cluster,
            producer_of(cluster, transactional_id="x") as producer,
            member_of(cluster, max_poll_records=10, **SETTINGS) as consumer,
        ):
            cluster.create_topic("out", 1)
            stuck = asyncio.Event()

            async def handler(batch: trikafka.RecordBatch, txn: trikafka.aio.Transaction) -> None:
                for record in batch:
                    await producer.enqueue("out", record.value)
                if batch.offsets[0] == 10 and not stuck.is_set():
                    with pytest.raises(trikafka.IllegalStateError, match="does not end"):
                        await txn.commit()
                    stuck.set()
                    await asyncio.sleep(3600)

            run_it = trikafka.aio.process
            first_run = asyncio.create_task(
                run_it(consumer, producer, handler, max_records=10, commit_interval=0)
            )
            await stuck.wait()
            first_run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first_run
            assert cluster.committed("g", T0).offset == 10
            second_run = asyncio.create_task(run_it(consumer, producer, handler))
            await until(lambda: cluster.committed("g", T0).offset == 30)
            second_run.cancel()
            await asyncio.wait([second_run])
            assert await copied(cluster) == [b"%d" % number for number in range(30)]

    with nothing_left(kind):
        run(main, kind)


def test_error_of_a_handler_ends_process() -> None:
    async def main() -> None:
        async with (
            cluster_of(1, records=3) as cluster,
            producer_of(cluster, transactional_id="x") as producer,
            member_of(cluster, **SETTINGS) as consumer,
        ):
            cluster.create_topic("out", 1)

            async def handler(batch: trikafka.RecordBatch, txn: object) -> None:
                await producer.send("out", b"dropped")
                raise LookupError("no such thing")

            with pytest.raises(LookupError, match="no such thing"):
                await trikafka.aio.process(consumer, producer, handler)
            assert await copied(cluster) == []
            assert (await consumer.receive()).offset == 0

    with nothing_left():
        run(main)


def test_process_refuses_wrong_arguments() -> None:
    async def main() -> None:
        async with (
            cluster_of(1) as cluster,
            producer_of(cluster) as producer,
            member_of(cluster, **SETTINGS) as consumer,
        ):
            process: Any = trikafka.aio.process

            async def one(batch: object) -> None: ...

            for arguments, match in (
                ((object(), producer, one), "process.. of trikafka.aio needs a consumer"),
                ((consumer, object(), one), "process.. of trikafka.aio needs a producer"),
                ((consumer, producer, one), "is called with .batch, txn."),
                ((consumer, producer, 7), "must be an async function"),
            ):
                with pytest.raises(trikafka.ConfigurationError, match=match):
                    await process(*arguments)
            ensure: Any = trikafka.aio.ensure_topics
            with pytest.raises(trikafka.ConfigurationError, match="needs a consumer"):
                await ensure(producer, {})

    run(main)


def test_ensure_topics_makes_what_is_missing() -> None:
    async def main() -> None:
        async with cluster_of(1) as cluster, member_of(cluster) as consumer:
            receiving = asyncio.create_task(consumer.receive())
            found = await trikafka.aio.ensure_topics(
                consumer, {"jobs": trikafka.NewTopic(3, 1)}, timeout=240
            )
            assert {name: len(partitions) for name, partitions in found.items()} == {
                "jobs": 3,
                "t": 1,
            }
            receiving.cancel()
            await asyncio.wait([receiving])

    with nothing_left():
        run(main)
