"""aiokafka: consumers of many partitions, many consumers in a program, members of a group.

All of aiokafka's assignors are eager.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from typing import Any

from .. import tuning
from ..consumers import SETTLES, Idle, Member, group_figures
from ..feeding import feeder
from ..jobs import Job, Outcome, Window
from .aio import run

aiokafka: Any = importlib.import_module("aiokafka")
_PATIENCE = 240.0


async def assigned(job: Job) -> Outcome:
    settings = tuning.aiokafka_consumer()
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=job.bootstrap, **settings)
    await consumer.start()
    idle = Idle()
    count = 0
    size = 0
    with feeder(job) as feeding:
        places = [aiokafka.TopicPartition(job.topic, number) for number in range(job.partitions)]
        consumer.assign(places)
        await consumer.seek_to_end(*places)
        await consumer.getmany(timeout_ms=SETTLES * 1000)
        with idle:
            if await consumer.getmany(timeout_ms=job.seconds * 1000):
                raise RuntimeError("a record came before there was one")
        feeding.begin()
        async with asyncio.timeout(_PATIENCE):
            await consumer.getone()
        with Window() as window:
            end = time.perf_counter() + job.seconds
            # A machine may stand still for the whole time.
            while (left := end - time.perf_counter()) > 0 or not count:
                found = await consumer.getmany(timeout_ms=max(left, 0.1) * 1000)
                for records in found.values():
                    size += sum(len(record.value) for record in records)
                    count += len(records)
    await consumer.stop()
    return Outcome(count, size, window, "assign(), getmany()", settings, figures=idle.figures())


async def group(job: Job) -> Outcome:
    settings = tuning.aiokafka_member()
    members: list[Member] = []

    async def live(member: Member) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            job.topic, bootstrap_servers=job.bootstrap, group_id=job.topic, **settings
        )
        await consumer.start()
        try:
            async for _ in consumer:
                member.arrived()
        finally:
            await consumer.stop()

    with feeder(job) as feeding:
        feeding.begin()
        with Window() as window:
            tasks = []
            for _ in range(job.tasks):
                members.append(Member())
                tasks.append(asyncio.create_task(live(members[-1])))
                while not members[-1].arrivals and not members[-1].waited_too_long:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
                await asyncio.sleep(job.seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    count = sum(len(each.arrivals) for each in members)
    return Outcome(
        count,
        count * job.size,
        window,
        "topics, async for",
        settings,
        figures=group_figures(members),
    )


async def many(job: Job) -> Outcome:
    settings = tuning.aiokafka_consumer()
    share = -(-job.records // job.tasks)
    consumers, places = [], []
    for number in range(job.tasks):
        consumers.append(aiokafka.AIOKafkaConsumer(bootstrap_servers=job.bootstrap, **settings))
        places.append(aiokafka.TopicPartition(job.topic, number % job.partitions))
        await consumers[-1].start()
        await consumers[-1].end_offsets(places[-1:])

    async def read(consumer: Any, place: Any) -> tuple[int, int]:
        consumer.assign([place])
        consumer.seek(place, 0)
        count = size = 0
        while count < share:
            found = await consumer.getmany(timeout_ms=_PATIENCE * 1000)
            if not found:
                raise TimeoutError(f"{count} of {share} records")
            for records in found.values():
                for record in records:
                    size += len(record.value)
                count += len(records)
        return count, size

    with Window() as window:
        found = await asyncio.gather(*map(read, consumers, places))
    await asyncio.gather(*(consumer.stop() for consumer in consumers))
    return Outcome(
        sum(count for count, _ in found),
        sum(size for _, size in found),
        window,
        "getmany()",
        settings,
    )


WAYS = {
    **{("assigned", str(count)): run(assigned) for count in (1, 50, 500, 2_000)},
    ("group", "eager"): run(group),
    **{("many", str(count)): run(many) for count in (1, 10, 100)},
}
