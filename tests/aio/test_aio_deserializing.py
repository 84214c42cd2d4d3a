"""Async deserializers of asyncio run in asyncio, and a cancelled receive loses no record."""

from __future__ import annotations

import asyncio
import contextvars
import random
from typing import Any

import pytest
import sniffio
from hosting import (
    LOOPS,
    T0,
    cluster_of,
    consumer_of,
    cut_off,
    member_of,
    nothing_left,
    run,
    until,
)

import trikafka
import trikafka.aio
from trikafka import DeserializationError, TopicPartition

where: contextvars.ContextVar[str] = contextvars.ContextVar("where", default="nowhere")


@pytest.mark.parametrize("kind", LOOPS)
def test_async_deserializers_run_in_asyncio(kind: str) -> None:
    async def main() -> None:
        tasks: set[int] = set()

        async def number(data: bytes) -> int:
            assert sniffio.current_async_library() == "asyncio"
            assert where.get() == "in the receive"
            tasks.add(id(asyncio.current_task()))
            async with asyncio.timeout(240):
                await asyncio.sleep(0)
            return int(data)

        async with (
            cluster_of(1, records=500) as cluster,
            consumer_of(cluster, value_deserializer=number) as consumer,
        ):
            consumer.assign([T0])
            where.set("in the receive")
            values: list[Any] = [(await consumer.receive()).value]
            async for record in consumer:
                values.append(record.value)
                if len(values) == 300:
                    break
            async for batch in consumer.batches({T0: 400}):
                values.extend(record.value for record in batch)
            stream = await anext(consumer.partitions())
            while len(values) < 500:
                values.append((await stream.receive()).value)
            assert values == list(range(500))
            assert len(tasks) < 300  # one task for the records of a receive, not one for each

    with nothing_left(kind):
        run(main, kind)


@pytest.mark.parametrize("kind", LOOPS)
def test_random_cancels_lose_no_awaited_record(kind: str) -> None:
    dice = random.Random(20261127)

    async def number(data: bytes) -> int:
        for _ in range(dice.randrange(3)):
            await asyncio.sleep(0)
        if dice.random() < 0.1:
            raise ConnectionError
        return int(data)

    async def main() -> None:
        async with (
            cluster_of(2) as cluster,
            consumer_of(cluster, value_deserializer=number, max_poll_records=3) as consumer,
        ):
            consumer.assign([TopicPartition("t", 0), TopicPartition("t", 1)])
            seen: dict[int, list[Any]] = {0: [], 1: []}
            written = {0: 0, 1: 0}

            async def one() -> None:
                record = await consumer.receive()
                seen[record.partition].append(record.value)

            async def several() -> None:
                batch = await consumer.receive_batch(timeout=0.05)
                for record in batch:  # a failed record is the last, and is delivered again
                    seen[record.partition].append(record.value)

            cut = failed = 0
            while cut < 300 or not failed:
                if sum(written.values()) - sum(map(len, seen.values())) < 6:
                    partition = dice.randrange(2)
                    more = range(written[partition], written[partition] + 3)
                    cluster.append("t", partition, [b"%d" % value for value in more])
                    written[partition] += 3
                turns = dice.choice([0, 1, 2, 3, 5, 8, 20])
                _, error = await cut_off(dice.choice([one, several])(), turns)
                cut += isinstance(error, asyncio.CancelledError)
                failed += isinstance(error, DeserializationError)
                assert error is None or isinstance(
                    error, asyncio.CancelledError | DeserializationError
                ), repr(error)
            while sum(map(len, seen.values())) < sum(written.values()):
                try:
                    await one()
                except DeserializationError:
                    continue
            assert seen == {number: list(range(count)) for number, count in written.items()}

    with nothing_left(kind):
        run(main, kind)


def test_tasks_retry_an_async_deserializer() -> None:
    async def main() -> None:
        asked: list[bytes] = []
        done: list[Any] = []

        async def number(data: bytes) -> int:
            asked.append(data)
            await asyncio.sleep(0)
            if data == b"1" and asked.count(data) < 3:
                raise ConnectionError
            return int(data)

        async def handler(record: trikafka.Record[Any, int]) -> None:
            done.append(record.value)

        async with (
            cluster_of(1, records=3) as cluster,
            member_of(
                cluster,
                value_deserializer=number,
                enable_auto_commit=False,
                auto_commit_interval_ms=20,
            ) as consumer,
        ):
            policy = trikafka.RetryPolicy(DeserializationError, backoff_ms=1)
            task = asyncio.create_task(trikafka.aio.run_tasks(consumer, handler, retry=policy))
            await until(lambda: done == [0, 1, 2])
            assert asked.count(b"1") == 3
            task.cancel()
            await asyncio.wait([task])

    with nothing_left():
        run(main)
