"""trikafka: batches(), arrow_batches(), async for; send_nowait(), send(), send_arrow()."""

from __future__ import annotations

import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import cycle, islice
from typing import Any

import trio

import trikafka
from trikafka import Consumer, Producer, TopicPartition

from .. import tuning
from ..jobs import Job, Outcome, Window, age, make_values, stamp
from ..pace import Pace
from ..plan import PORTS
from .ours_watching import Renewals, watched

_PATIENCE = 240.0
#: Records between two checkpoints. send_nowait() sends nothing before its task reaches one.
_BREATH = 500
#: Rows of an Arrow table that is written in one call.
_ROWS = 100_000


def _extra(settings: dict[str, Any], own: int = 0) -> dict[str, Any]:
    """Return the figures for the memory aim, and whether the compiled part was in use.

    ``own`` is the size in bytes of the job's own data.
    """
    from trikafka._wire.records import IMPLEMENTATION

    reads = "linger_ms" not in settings
    buffers = (
        trikafka.ConsumerConfig(**settings).fetch_buffer_bytes
        if reads
        else trikafka.ProducerConfig(**settings).buffer_memory
    )
    return {"record_path": IMPLEMENTATION, "buffer_bytes": buffers, "own_bytes": own}


@asynccontextmanager
async def _consumer(
    job: Job,
) -> AsyncIterator[tuple[Consumer, list[TopicPartition], dict[str, Any]]]:
    settings = tuning.trikafka_consumer()
    async with trikafka.open_consumer(
        bootstrap_servers=job.bootstrap, **job.connection, **settings
    ) as consumer:
        places = [TopicPartition(job.topic, number) for number in range(job.partitions)]
        await consumer.end_offsets(places)
        yield consumer, places, settings


def _assign(consumer: Consumer, places: list[TopicPartition]) -> None:
    consumer.assign(places)
    for place in places:
        consumer.seek(place, 0)


async def consume_batch(job: Job) -> Outcome:
    count = size = 0
    async with _consumer(job) as (consumer, places, settings):
        async with watched() as window:
            _assign(consumer, places)
            async for batch in consumer.batches():
                for record in batch:
                    size += len(record.value or b"")
                count += len(batch)
                if count >= job.records:
                    break
    return Outcome(
        count, size, window, "batches()", settings, extra=_extra(settings), figures=window.gap()
    )


async def consume_one(job: Job) -> Outcome:
    count = size = 0
    async with _consumer(job) as (consumer, places, settings):
        async with watched() as window:
            _assign(consumer, places)
            async for record in consumer:
                size += len(record.value or b"")
                count += 1
                if count >= job.records:
                    break
    return Outcome(
        count, size, window, "async for", settings, extra=_extra(settings), figures=window.gap()
    )


async def consume_arrow(job: Job) -> Outcome:
    """Read Arrow tables as the client joins them. Arrow sums up the bytes of the values."""
    import pyarrow.compute as pc

    # The client imports modules for its first table. Imports are not timed.
    trikafka.RecordBatch.empty().to_arrow()
    count = size = 0
    async with _consumer(job) as (consumer, places, settings):
        tables, call = _arrow_batches(consumer)
        async with watched() as window:
            _assign(consumer, places)
            async for table in tables:
                size += pc.sum(pc.binary_length(table.column("value"))).as_py()
                count += table.num_rows
                if count >= job.records:
                    break
    return Outcome(
        count, size, window, call, settings, extra=_extra(settings), figures=window.gap()
    )


def _arrow_batches(consumer: Any) -> tuple[AsyncIterator[Any], str]:
    if hasattr(consumer, "arrow_batches"):
        return consumer.arrow_batches(), "arrow_batches()"

    async def unjoined() -> AsyncIterator[Any]:
        async for batch in consumer.batches():
            yield batch.to_arrow()

    return unjoined(), "batches(), to_arrow()"


@asynccontextmanager
async def _producer(
    job: Job, way: str, *plugins: object
) -> AsyncIterator[tuple[Producer, dict[str, Any]]]:
    settings = tuning.trikafka_producer(way, job.compression)
    where: Any = {"bootstrap_servers": job.bootstrap, "plugins": plugins, **job.connection}
    async with trikafka.open_producer(**where, **settings) as producer:
        await producer.send(job.topic, b"first")
        yield producer, settings


def _check(producer: Producer) -> None:
    if failed := producer.statistics().records_failed:
        raise RuntimeError(f"{failed} records were not delivered")


async def produce_one(job: Job) -> Outcome:
    topic, size = job.topic, 0
    async with _producer(job, "one") as (producer, settings):
        send_nowait = producer.send_nowait
        values = job.values()
        async with watched() as window:
            for number, value in enumerate(values):
                try:
                    send_nowait(topic, value)
                except trio.WouldBlock:
                    await producer.enqueue(topic, value)
                size += len(value)
                if not number % _BREATH:
                    await trio.lowlevel.checkpoint()
            await producer.flush()
        _check(producer)
    return Outcome(
        job.records,
        size,
        window,
        "send_nowait()",
        settings,
        extra=_extra(settings),
        figures=window.gap(),
    )


async def produce_enqueue(job: Job) -> Outcome:
    topic, size = job.topic, 0
    async with _producer(job, "enqueue") as (producer, settings):
        enqueue = producer.enqueue
        values = job.values()
        with Window() as window:
            for value in values:
                await enqueue(topic, value)
                size += len(value)
            await producer.flush()
        _check(producer)
    return Outcome(job.records, size, window, "enqueue()", settings, extra=_extra(settings))


async def produce_concurrent(job: Job) -> Outcome:
    values = job.values()
    total = 0

    async def work(producer: Producer) -> None:
        nonlocal total
        for value in values:
            await producer.send(job.topic, value)
            total += len(value)

    async with _producer(job, "concurrent") as (producer, settings):
        with Window() as window:
            async with trio.open_nursery() as nursery:
                for _ in range(job.tasks):
                    nursery.start_soon(work, producer)
    return Outcome(job.records, total, window, "send()", settings, extra=_extra(settings))


async def produce_arrow(job: Job) -> Outcome:
    """Write the same table again and again."""
    table = _table(job)
    rows = len(table)
    async with _producer(job, "arrow") as (producer, settings):
        sent = 0
        async with watched() as window:
            while sent < job.records:
                await producer.send_arrow(
                    job.topic, table.slice(0, job.records - sent), value="value"
                )
                sent += min(rows, job.records - sent)
            await producer.flush()
        _check(producer)
    extra = _extra(settings, table.nbytes)
    return Outcome(
        sent, sent * job.size, window, "send_arrow()", settings, extra=extra, figures=window.gap()
    )


async def produce_tables(job: Job) -> Outcome:
    """Write the same tables, each while the previous table is in flight."""
    table = _table(job)
    async with _producer(job, "arrow") as (producer, settings):
        delivered = 0
        before = None
        async with watched() as window:
            for start in range(0, job.records, len(table)):
                ack = await producer.enqueue_arrow(
                    job.topic, table.slice(0, job.records - start), value="value"
                )
                delivered += (await before.wait()).rows if before is not None else 0
                before = ack
            delivered += (await before.wait()).rows if before is not None else 0
        _check(producer)
    extra = _extra(settings, table.nbytes)
    return Outcome(
        delivered,
        delivered * job.size,
        window,
        "enqueue_arrow()",
        settings,
        extra=extra,
        figures=window.gap(),
    )


def _table(job: Job) -> Any:
    import pyarrow as pa

    trikafka.RecordBatch.empty().to_arrow()  # as in consume_arrow
    rows = min(job.records, _ROWS, 2**25 // job.size)
    data = b"".join(islice(cycle(make_values(job.size)), rows))
    ends = array("i", range(0, (rows + 1) * job.size, job.size))
    return pa.table(
        {
            "value": pa.Array.from_buffers(
                pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(data)]
            )
        }
    )


async def latency(job: Job) -> Outcome:
    filler = bytes(job.size - 8)
    ages: list[float] = []
    lag = 0.0

    async def produce(producer: Producer) -> None:
        nonlocal lag
        with Pace(job.rate) as pace:
            for _ in range(job.records):
                await pace.tick(trio.lowlevel.wait_readable)
                await producer.enqueue(job.topic, stamp() + filler)
        lag = pace.latest

    async with (
        _producer(job, "latency") as (producer, settings),
        _consumer(job) as (consumer, places, more),
    ):
        ends = await consumer.end_offsets(places)
        consumer.assign(places)
        for place in places:
            consumer.seek(place, ends[place])
        await consumer.receive_batch(timeout=0.5)
        async with trio.open_nursery() as nursery:
            with Window() as window:
                nursery.start_soon(produce, producer)
                while len(ages) < job.records:
                    ages.append(age((await consumer.receive()).value or b""))
    call = "enqueue() in a task, receive()"
    extra = {**_extra(more), "latest_send": lag}
    return Outcome(len(ages), len(ages) * job.size, window, call, {**settings, **more}, ages, extra)


async def acks(job: Job) -> Outcome:
    """Measure the time from the call of ``send`` to its return, each in a task of its own."""
    value = bytes(job.size)
    ages: list[float] = []
    renewals = Renewals()

    async def send(producer: Producer) -> None:
        began = time.perf_counter()
        await producer.send(job.topic, value)
        ages.append(time.perf_counter() - began)

    async with _producer(job, "latency", renewals) as (producer, settings):
        with Window() as window, Pace(job.rate) as pace:
            async with trio.open_nursery() as nursery:
                for _ in range(job.records):
                    await pace.tick(trio.lowlevel.wait_readable)
                    nursery.start_soon(send, producer)
    call = "send() in a task each"
    return Outcome(
        len(ages),
        len(ages) * job.size,
        window,
        call,
        settings,
        ages,
        _extra(settings),
        renewals.figures(),
    )


async def connect(job: Job) -> Outcome:
    """Measure the time to a client that knows the cluster, for one client after another."""
    times: list[float] = []
    where: Any = {"bootstrap_servers": job.bootstrap, **job.connection}
    with Window() as window:
        for _ in range(job.records):
            began = time.perf_counter()
            async with trikafka.open_admin(**where):
                times.append(time.perf_counter() - began)
    return Outcome(len(times), len(times) * job.size, window, "open_admin()", {}, times)


def run(way: Callable[[Job], Awaitable[Outcome]]) -> Callable[[Job], Outcome]:
    async def main(job: Job) -> Outcome:
        with trio.fail_after(_PATIENCE):
            return await way(job)

    return lambda job: trio.run(main, job)


WAYS = {
    ("consume", "batch"): run(consume_batch),
    ("consume", "one"): run(consume_one),
    ("consume", "arrow"): run(consume_arrow),
    ("produce", "one"): run(produce_one),
    ("produce", "enqueue"): run(produce_enqueue),
    ("produce", "concurrent"): run(produce_concurrent),
    ("produce", "crowd"): run(produce_concurrent),
    ("produce", "arrow"): run(produce_arrow),
    ("produce", "tables"): run(produce_tables),
    ("latency", "one"): run(latency),
    ("latency", "thousand"): run(latency),
    ("latency", "acks"): run(acks),
    **{("connect", port): run(connect) for port in PORTS},
}
