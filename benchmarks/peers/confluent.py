"""confluent-kafka (librdkafka): consume(10000), poll(), produce(), and the asyncio producer.

confluent-kafka calls its asyncio producer experimental.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from typing import Any

from .. import tuning
from ..feeding import paced, wait_to_begin
from ..jobs import Job, Missing, Outcome, Window, age, stamp
from ..pace import Pace
from ..plan import PORTS

confluent: Any = importlib.import_module("confluent_kafka")
_PATIENCE = 240.0
#: Records after which a producing loop serves the queue of delivery reports.
_SERVE_EVERY = 1_000


def _consumer(job: Job) -> tuple[Any, list[Any], dict[str, Any]]:
    settings = tuning.confluent_consumer()
    consumer = confluent.Consumer(
        {"bootstrap.servers": job.bootstrap, **job.connection, **settings}
    )
    places = [confluent.TopicPartition(job.topic, number, 0) for number in range(job.partitions)]
    for place in places:
        consumer.get_watermark_offsets(place, timeout=_PATIENCE)
    return consumer, places, settings


def consume_batch(job: Job) -> Outcome:
    consumer, places, settings = _consumer(job)
    count = size = 0
    with Window() as window:
        consumer.assign(places)
        while count < job.records:
            # consume() returns when it has the full number or when the time is over. So it must
            # never request more records than will arrive.
            messages = consumer.consume(min(10_000, job.records - count), _PATIENCE)
            if not messages:
                raise TimeoutError(f"{count} of {job.records} records")
            for message in messages:
                if message.error() is not None:
                    raise RuntimeError(message.error())
                size += len(message.value())
            count += len(messages)
    consumer.close()
    return Outcome(count, size, window, "consume(10000)", settings)


def consume_one(job: Job) -> Outcome:
    consumer, places, settings = _consumer(job)
    count = size = 0
    with Window() as window:
        consumer.assign(places)
        poll = consumer.poll
        while count < job.records:
            message = poll(_PATIENCE)
            if message is None:
                raise TimeoutError(f"{count} of {job.records} records")
            if message.error() is not None:
                raise RuntimeError(message.error())
            size += len(message.value())
            count += 1
    consumer.close()
    return Outcome(count, size, window, "poll()", settings)


def _producer(job: Job, way: str) -> tuple[Any, dict[str, Any]]:
    """Return a producer that has delivered one record: it is connected and has its producer id."""
    settings = tuning.confluent_producer(way, job.compression)
    more = {
        "bootstrap.servers": job.bootstrap,
        "delivery.report.only.error": way == "one",
        **job.connection,
    }
    producer = confluent.Producer({**more, **settings})
    producer.produce(job.topic, b"first")
    if producer.flush(_PATIENCE):
        raise TimeoutError("the first record was not delivered")
    return producer, settings


def produce_one(job: Job) -> Outcome:
    producer, settings = _producer(job, "one")
    settings["delivery.report.only.error"] = True
    topic, size = job.topic, 0
    values = job.values()
    with Window() as window:
        produce, poll = producer.produce, producer.poll
        for number, value in enumerate(values):
            while True:
                try:
                    produce(topic, value)
                    break
                except BufferError:
                    poll(0.01)
            size += len(value)
            if not number % _SERVE_EVERY:
                poll(0)
        if producer.flush(_PATIENCE):
            raise TimeoutError("not all records were delivered")
    return Outcome(job.records, size, window, "produce()", settings)


def fill(job: Job) -> Outcome:
    """Write a topic that all peers read: evenly over the partitions, in batches of 64 KiB."""
    settings = {
        **tuning.confluent_producer("one", job.compression),
        "batch.size": 65_536,
        "delivery.report.only.error": True,
    }
    producer = confluent.Producer({"bootstrap.servers": job.bootstrap, **settings})
    values = job.values()
    with Window() as window:
        for number, value in enumerate(values):
            while True:
                try:
                    producer.produce(job.topic, value, partition=number % job.partitions)
                    break
                except BufferError:
                    producer.poll(0.01)
        if producer.flush(_PATIENCE):
            raise TimeoutError("not all records were delivered")
    return Outcome(job.records, job.records * job.size, window, "produce()", settings)


def feed(job: Job) -> Outcome:
    """Write records at a pace, over all partitions, while another process is measured."""
    settings = tuning.confluent_producer("latency", job.compression)
    producer = confluent.Producer({"bootstrap.servers": job.bootstrap, **settings})
    producer.list_topics(job.topic, _PATIENCE)
    value = bytes(job.size)
    count = 0
    wait_to_begin()
    with Window() as window:
        for partition in paced(job.rate, job.partitions):
            producer.produce(job.topic, value, partition=partition)
            producer.poll(0)
            count += 1
        producer.flush(_PATIENCE)
    return Outcome(count, count * job.size, window, "produce()", settings)


def produce_concurrent(job: Job) -> Outcome:
    try:
        aio: Any = importlib.import_module("confluent_kafka.aio")
    except ImportError:
        raise Missing("this confluent-kafka has no asyncio producer") from None
    return asyncio.run(_produce_concurrent(job, aio.AIOProducer))


async def _produce_concurrent(job: Job, make: Any) -> Outcome:
    settings = tuning.confluent_producer("concurrent", job.compression)
    own = {"batch_size": max(1, job.tasks // 4), "buffer_timeout": 0.002}
    producer = make({"bootstrap.servers": job.bootstrap, **job.connection, **settings}, **own)
    await (await producer.produce(job.topic, b"first"))
    values = job.values()
    total = 0

    async def work() -> None:
        nonlocal total
        for value in values:
            await (await producer.produce(job.topic, value))
            total += len(value)

    with Window() as window:
        await asyncio.gather(*(work() for _ in range(job.tasks)))
    await producer.close()
    return Outcome(job.records, total, window, "AIOProducer.produce()", {**settings, **own})


def latency(job: Job) -> Outcome:
    producer, settings = _producer(job, "latency")
    consumer, _, more = _consumer(job)
    _, end = consumer.get_watermark_offsets(
        confluent.TopicPartition(job.topic, 0), timeout=_PATIENCE
    )
    consumer.assign([confluent.TopicPartition(job.topic, 0, end)])
    filler = bytes(job.size - 8)
    ages: list[float] = []
    lag = 0.0

    def produce() -> None:
        nonlocal lag
        with Pace(job.rate) as pace:
            for _ in range(job.records):
                pace.wait()
                producer.produce(job.topic, stamp() + filler)
                producer.poll(0)
        producer.flush(_PATIENCE)
        lag = pace.latest

    consumer.poll(0.5)
    thread = threading.Thread(target=produce, daemon=True)
    with Window() as window:
        thread.start()
        while len(ages) < job.records:
            message = consumer.poll(_PATIENCE)
            if message is None or message.error() is not None:
                raise TimeoutError(
                    f"{len(ages)} of {job.records} records: {message and message.error()}"
                )
            ages.append(age(message.value()))
        thread.join()
    consumer.close()
    call = "produce() in a thread, poll()"
    return Outcome(
        len(ages),
        len(ages) * job.size,
        window,
        call,
        {**settings, **more},
        ages,
        {"latest_send": lag},
    )


def acks(job: Job) -> Outcome:
    """Measure the time from the call of ``produce`` to its delivery report.

    A thread serves the reports, as confluent-kafka's documentation shows it.
    """
    producer, settings = _producer(job, "latency")
    value = bytes(job.size)
    ages: list[float] = []
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            producer.poll(0.1)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with Window() as window, Pace(job.rate) as pace:
        for _ in range(job.records):
            pace.wait()
            began = time.perf_counter()
            producer.produce(
                job.topic,
                value,
                on_delivery=lambda *_, began=began: ages.append(time.perf_counter() - began),
            )
        if producer.flush(_PATIENCE):
            raise TimeoutError("not all records were delivered")
    over.set()
    thread.join()
    return Outcome(
        len(ages), len(ages) * job.size, window, "produce(), poll() in a thread", settings, ages
    )


def connect(job: Job) -> Outcome:
    """Measure the time to a client that knows the cluster, for one client after another."""
    admin: Any = importlib.import_module("confluent_kafka.admin")
    times: list[float] = []
    with Window() as window:
        for _ in range(job.records):
            began = time.perf_counter()
            client = admin.AdminClient({"bootstrap.servers": job.bootstrap, **job.connection})
            client.list_topics(timeout=_PATIENCE)
            times.append(time.perf_counter() - began)
            del client
    return Outcome(
        len(times), len(times) * job.size, window, "AdminClient(), list_topics()", {}, times
    )


WAYS = {
    **{("connect", port): connect for port in PORTS},
    ("fill", "one"): fill,
    ("feed", "one"): feed,
    ("consume", "batch"): consume_batch,
    ("consume", "one"): consume_one,
    ("produce", "one"): produce_one,
    ("produce", "concurrent"): produce_concurrent,
    ("produce", "crowd"): produce_concurrent,
    ("latency", "one"): latency,
    ("latency", "thousand"): latency,
    ("latency", "acks"): acks,
}
