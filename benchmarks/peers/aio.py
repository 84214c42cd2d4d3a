"""aiokafka: getmany(), async for, send() in one task and send_and_wait() in many."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from .. import tuning
from ..jobs import Job, Outcome, Window, age, stamp
from ..pace import Pace

aiokafka: Any = importlib.import_module("aiokafka")
_PATIENCE = 240.0


async def _consumer(job: Job) -> tuple[Any, list[Any], dict[str, Any]]:
    settings = tuning.aiokafka_consumer()
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=job.bootstrap, **settings)
    await consumer.start()
    places = [aiokafka.TopicPartition(job.topic, number) for number in range(job.partitions)]
    await consumer.end_offsets(places)
    return consumer, places, settings


def _assign(consumer: Any, places: list[Any]) -> None:
    consumer.assign(places)
    for place in places:
        consumer.seek(place, 0)


async def consume_batch(job: Job) -> Outcome:
    consumer, places, settings = await _consumer(job)
    count = size = 0
    with Window() as window:
        _assign(consumer, places)
        while count < job.records:
            found = await consumer.getmany(timeout_ms=_PATIENCE * 1000)
            if not found:
                raise TimeoutError(f"{count} of {job.records} records")
            for records in found.values():
                for record in records:
                    size += len(record.value)
                count += len(records)
    await consumer.stop()
    return Outcome(count, size, window, "getmany()", settings)


async def consume_one(job: Job) -> Outcome:
    consumer, places, settings = await _consumer(job)
    count = size = 0
    with Window() as window:
        _assign(consumer, places)
        async with asyncio.timeout(_PATIENCE * 2):
            async for record in consumer:
                size += len(record.value)
                count += 1
                if count >= job.records:
                    break
    await consumer.stop()
    return Outcome(count, size, window, "async for", settings)


async def _producer(job: Job, way: str) -> tuple[Any, dict[str, Any]]:
    settings = tuning.aiokafka_producer(way, job.compression)
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=job.bootstrap, **settings)
    await producer.start()
    await producer.send_and_wait(job.topic, b"first")
    return producer, settings


async def produce_one(job: Job) -> Outcome:
    producer, settings = await _producer(job, "one")
    topic, size = job.topic, 0
    values = job.values()
    with Window() as window:
        for value in values:
            await producer.send(topic, value)
            size += len(value)
        await producer.flush()
    await producer.stop()
    return Outcome(job.records, size, window, "send()", settings)


async def produce_concurrent(job: Job) -> Outcome:
    producer, settings = await _producer(job, "concurrent")
    values = job.values()
    total = 0

    async def work() -> None:
        nonlocal total
        for value in values:
            await producer.send_and_wait(job.topic, value)
            total += len(value)

    with Window() as window:
        await asyncio.gather(*(work() for _ in range(job.tasks)))
    await producer.stop()
    return Outcome(job.records, total, window, "send_and_wait()", settings)


async def _readable(pace: Pace) -> None:
    """Wait in asyncio's way until there is a tick."""
    loop = asyncio.get_running_loop()
    ticked = loop.create_future()

    def tick() -> None:
        loop.remove_reader(pace)  # otherwise the loop calls this until the tick is taken
        ticked.set_result(None)

    loop.add_reader(pace, tick)
    await ticked


async def latency(job: Job) -> Outcome:
    producer, settings = await _producer(job, "latency")
    consumer, places, more = await _consumer(job)
    ends = await consumer.end_offsets(places)
    consumer.assign(places)
    for place in places:
        consumer.seek(place, ends[place])
    filler = bytes(job.size - 8)
    ages: list[float] = []
    lag = 0.0

    async def produce() -> None:
        nonlocal lag
        with Pace(job.rate) as pace:
            for _ in range(job.records):
                await pace.tick(_readable)
                await producer.send(job.topic, stamp() + filler)
        await producer.flush()
        lag = pace.latest

    await consumer.getmany(timeout_ms=500)
    with Window() as window:
        task = asyncio.create_task(produce())
        async with asyncio.timeout(_PATIENCE + job.records / job.rate):
            while len(ages) < job.records:
                ages.append(age((await consumer.getone()).value))
        await task
    await consumer.stop()
    await producer.stop()
    call = "send() in a task, getone()"
    return Outcome(
        len(ages),
        len(ages) * job.size,
        window,
        call,
        {**settings, **more},
        ages,
        {"latest_send": lag},
    )


async def acks(job: Job) -> Outcome:
    producer, settings = await _producer(job, "latency")
    value = bytes(job.size)
    ages: list[float] = []

    async def send() -> None:
        began = time.perf_counter()
        await producer.send_and_wait(job.topic, value)
        ages.append(time.perf_counter() - began)

    with Window() as window, Pace(job.rate) as pace:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(job.records):
                await pace.tick(_readable)
                tasks.create_task(send())
    await producer.stop()
    return Outcome(
        len(ages), len(ages) * job.size, window, "send_and_wait() in a task each", settings, ages
    )


def run(way: Callable[[Job], Awaitable[Outcome]]) -> Callable[[Job], Outcome]:
    async def main(job: Job) -> Outcome:
        return await way(job)

    return lambda job: asyncio.run(main(job))


WAYS = {
    ("consume", "batch"): run(consume_batch),
    ("consume", "one"): run(consume_one),
    ("produce", "one"): run(produce_one),
    ("produce", "concurrent"): run(produce_concurrent),
    ("produce", "crowd"): run(produce_concurrent),
    ("latency", "one"): run(latency),
    ("latency", "thousand"): run(latency),
    ("latency", "acks"): run(acks),
}
