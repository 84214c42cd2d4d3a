"""trikafka: many partitions, many consumers in a program, groups, a stream per partition."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import trio

import trikafka
from trikafka import Consumer, TopicPartition
from trikafka.errors import ConfigurationError

from .. import tuning
from ..consumers import SETTLES, Idle, Member, group_figures
from ..feeding import feeder
from ..jobs import Job, Missing, Outcome, Window
from .ours import run


@asynccontextmanager
async def _consumer(
    job: Job,
) -> AsyncIterator[tuple[Consumer, list[TopicPartition], dict[str, Any]]]:
    settings = tuning.trikafka_consumer()
    async with trikafka.open_consumer(
        bootstrap_servers=job.bootstrap, **job.connection, **settings
    ) as consumer:
        places = [TopicPartition(job.topic, number) for number in range(job.partitions)]
        await consumer.end_offsets(places[:1])
        yield consumer, places, settings


async def assigned(job: Job) -> Outcome:
    """Measure the consumer while no records arrive, and then while a few arrive per second."""
    idle = Idle()
    count = 0
    size = 0
    with feeder(job) as feeding:
        async with _consumer(job) as (consumer, places, settings):
            consumer.assign(places)
            consumer.seek_to_end(places)
            with trio.move_on_after(SETTLES):
                await consumer.receive()
            with idle, trio.move_on_after(job.seconds):
                await consumer.receive()
                raise RuntimeError("a record came before there was one")
            feeding.begin()
            await consumer.receive()
            with Window() as window:
                while not count:  # a machine may stand still for the whole time
                    with trio.move_on_after(job.seconds):
                        async for record in consumer:
                            size += len(record.value or b"")
                            count += 1
    return Outcome(count, size, window, "assign(), async for", settings, figures=idle.figures())


async def group(job: Job) -> Outcome:
    settings = tuning.trikafka_member(job.way)
    members: list[Member] = []

    async def live(member: Member) -> None:
        async with trikafka.open_consumer(
            bootstrap_servers=job.bootstrap, group_id=job.topic, **settings
        ) as consumer:
            consumer.subscribe([job.topic])
            async for _ in consumer:
                member.arrived()

    with feeder(job) as feeding:
        feeding.begin()
        with Window() as window:
            async with trio.open_nursery() as nursery:
                for _ in range(job.tasks):
                    members.append(Member())
                    nursery.start_soon(live, members[-1])
                    while not members[-1].arrivals and not members[-1].waited_too_long:  # noqa: ASYNC110
                        await trio.sleep(0.005)
                    await trio.sleep(job.seconds)
                nursery.cancel_scope.cancel()
    count = sum(len(each.arrivals) for each in members)
    return Outcome(
        count,
        count * job.size,
        window,
        "subscribe(), async for",
        settings,
        figures=group_figures(members),
    )


def in_group(job: Job) -> Outcome:
    """Run the group case; report a trikafka that refuses the settings as missing."""
    try:
        return run(group)(job)
    except* ConfigurationError as errors:
        raise Missing(str(errors.exceptions[0])) from None


async def many(job: Job) -> Outcome:
    """Let each consumer read its share of the records from one partition."""
    share = -(-job.records // job.tasks)
    count = size = 0

    async def read(consumer: Consumer, place: TopicPartition) -> None:
        nonlocal count, size
        consumer.assign([place])
        consumer.seek(place, 0)
        mine = 0
        async for batch in consumer.batches():
            for record in batch:
                size += len(record.value or b"")
            mine += len(batch)
            if mine >= share:
                break
        count += mine

    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(_consumer(job)) for _ in range(job.tasks)]
        with Window() as window:
            async with trio.open_nursery() as nursery:
                for number, (consumer, places, _) in enumerate(opened):
                    nursery.start_soon(read, consumer, places[number % len(places)])
    return Outcome(count, size, window, "batches()", opened[0][2])


async def streams(job: Job) -> Outcome:
    """Read each partition in a task of its own."""
    count = size = 0

    async def one_by_one(stream: Any) -> None:
        nonlocal count, size
        async for record in stream:
            size += len(record.value)
            count += 1
            if count >= job.records:
                nursery.cancel_scope.cancel()
                return

    async def by_batch(stream: Any) -> None:
        nonlocal count, size
        async for batch in stream.batches():
            for record in batch:
                size += len(record.value)
            count += len(batch)
            if count >= job.records:
                nursery.cancel_scope.cancel()
                return

    handle = by_batch if job.way == "batch" else one_by_one
    async with _consumer(job) as (consumer, places, settings):
        partitions = getattr(consumer, "partitions", None)
        if partitions is None:
            raise Missing("this trikafka has no partitions()")
        with Window() as window:
            _assign(consumer, places)
            async with trio.open_nursery() as nursery:
                async for stream in partitions():
                    nursery.start_soon(handle, stream)
    call = "partitions(), batches()" if job.way == "batch" else "partitions(), async for"
    return Outcome(count, size, window, call, settings)


async def together(job: Job) -> Outcome:
    """Read the same partitions in one loop."""
    count = size = 0
    async with _consumer(job) as (consumer, places, settings):
        with Window() as window:
            _assign(consumer, places)
            async for batch in consumer.batches():
                for record in batch:
                    size += len(record.value or b"")
                count += len(batch)
                if count >= job.records:
                    break
    return Outcome(count, size, window, "batches()", settings)


def _assign(consumer: Consumer, places: list[TopicPartition]) -> None:
    consumer.assign(places)
    for place in places:
        consumer.seek(place, 0)


WAYS = {
    **{("assigned", str(count)): run(assigned) for count in (1, 50, 500, 2_000)},
    **{("group", way): in_group for way in ("cooperative", "consumer")},
    **{("many", str(count)): run(many) for count in (1, 10, 100)},
    **{("streams", way): run(streams) for way in ("one", "batch")},
    ("streams", "together"): run(together),
}
