"""The cost of asyncio: trikafka.aio beside trikafka on Trio and aiokafka, in one run.

``python -m benchmarks.asyncio_face`` starts a broker (or takes ``--bootstrap``) and runs every way
in a process of its own, in turns, so that a change of the machine's load affects every way. The
table has the medians of the rounds. Each case has the settings of ``tuning.py``.

* ``lone``: one task sends, one record after the other, each acknowledged. Microseconds, p50.
* ``send200``, ``send1000``: so many tasks send. Records a second, and microseconds of processor
  time a send (all threads of the client's process).
* ``batches``: records read by batch (``batches()``; aiokafka: ``getmany()``). Records a second,
  and microseconds of processor time a thousand records.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

import trikafka
import trikafka.aio
from trikafka import NewTopic, TopicPartition

from . import tuning

PARTITIONS = 3
VALUE = bytes(100)
#: Sends of one measurement, and sends before it that do not count.
LONE, WARM = 400, 50
SENDS = 40_000
#: Records of the topic that is read, and how often one process reads it: for more than a second, so
#: that what happens once (a connection, a collection of all garbage) counts little.
RECORDS, READS = 1_000_000, 10
CASES = ["lone", "send200", "send1000", "batches"]
WAYS = ["trio", "aio", "aiokafka"]
Figures = dict[str, float]


class Watch:
    """Wall and processor time since the start."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._processor = time.process_time()

    def rates(self, count: int, per: int = 1) -> Figures:
        """Return the count a second, and microseconds of processor time per ``per``."""
        processor = time.process_time() - self._processor
        return {
            "rate": count / (time.perf_counter() - self._wall),
            "us": processor / count * per * 1e6,
        }


async def lone(send: Callable[[], Awaitable[object]]) -> Figures:
    """Send one record after the other; return the microseconds of a send."""
    for _ in range(WARM):
        await send()
    ages = []
    for _ in range(LONE):
        began = time.perf_counter()
        await send()
        ages.append((time.perf_counter() - began) * 1e6)
    cuts = statistics.quantiles(ages, n=100)
    return {"p50": statistics.median(ages), "p99": cuts[98], "best": min(ages)}


# --- trikafka -------------------------------------------------------------------------------------


async def on_trio(case: str, bootstrap: str, topic: str) -> Figures:
    if case == "batches":
        async with trikafka.open_consumer(
            bootstrap_servers=bootstrap, **tuning.trikafka_consumer()
        ) as consumer:
            return await read(consumer, topic)
    async with trikafka.open_producer(
        bootstrap_servers=bootstrap, **sending(case, tuning.trikafka_producer)
    ) as producer:
        if case == "lone":
            return await lone(lambda: producer.send(topic, VALUE))
        tasks = int(case.removeprefix("send"))

        async def work() -> None:
            for _ in range(SENDS // tasks):
                await producer.send(topic, VALUE)

        await producer.send(topic, VALUE)
        watch = Watch()
        async with trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(work)
        return watch.rates(SENDS)


async def on_asyncio(case: str, bootstrap: str, topic: str) -> Figures:
    if case == "batches":
        async with trikafka.aio.open_consumer(
            bootstrap_servers=bootstrap, **tuning.trikafka_consumer()
        ) as consumer:
            return await read(consumer, topic)
    async with trikafka.aio.open_producer(
        bootstrap_servers=bootstrap, **sending(case, tuning.trikafka_producer)
    ) as producer:
        if case == "lone":
            return await lone(lambda: producer.send(topic, VALUE))
        return await crowd(case, lambda: producer.send(topic, VALUE))


async def read(consumer: Any, topic: str) -> Figures:
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    ends = await consumer.end_offsets(places)
    watch = Watch()
    count = 0
    for _ in range(READS):
        consumer.assign(places)
        consumer.seek_to_beginning()
        async for batch in consumer.batches(ends):
            count += len(batch)
        consumer.assign([])
    return watch.rates(count, 1_000)


def sending(case: str, settings: Callable[[str, str], dict[str, Any]]) -> dict[str, Any]:
    return settings("latency" if case == "lone" else "concurrent", "none")


async def crowd(case: str, send: Callable[[], Awaitable[object]]) -> Figures:
    """Send from as many tasks of asyncio as the case names; return the rate."""
    tasks = int(case.removeprefix("send"))

    async def work() -> None:
        for _ in range(SENDS // tasks):
            await send()

    await send()
    watch = Watch()
    await asyncio.gather(*(work() for _ in range(tasks)))
    return watch.rates(SENDS)


# --- aiokafka -------------------------------------------------------------------------------------


async def with_aiokafka(case: str, bootstrap: str, topic: str) -> Figures:
    aiokafka: Any = importlib.import_module("aiokafka")
    if case == "batches":
        return await read_by_aiokafka(aiokafka, bootstrap, topic)
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=bootstrap, **sending(case, tuning.aiokafka_producer)
    )
    await producer.start()
    try:
        if case == "lone":
            return await lone(lambda: producer.send_and_wait(topic, VALUE))
        return await crowd(case, lambda: producer.send_and_wait(topic, VALUE))
    finally:
        await producer.stop()


async def read_by_aiokafka(aiokafka: Any, bootstrap: str, topic: str) -> Figures:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, **tuning.aiokafka_consumer())
    await consumer.start()
    try:
        places = [aiokafka.TopicPartition(topic, number) for number in range(PARTITIONS)]
        total = sum((await consumer.end_offsets(places)).values())
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        watch = Watch()
        count = 0
        while count < total:
            found = await consumer.getmany(timeout_ms=30_000)
            count += sum(map(len, found.values()))
        return watch.rates(count, 1_000)
    finally:
        await consumer.stop()


# --- the run --------------------------------------------------------------------------------------


def child(way: str, case: str, bootstrap: str, topic: str) -> Figures:
    """Run one way of one case, in a process of its own."""
    if way == "trio":
        return trio.run(on_trio, case, bootstrap, topic)
    main = with_aiokafka if way == "aiokafka" else on_asyncio
    factory = importlib.import_module("uvloop").new_event_loop if way == "aio+uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main(case, bootstrap, topic))


def measured(way: str, case: str, bootstrap: str, topic: str) -> Figures:
    command = [sys.executable, "-m", "benchmarks.asyncio_face", "--child", way, case, topic]
    done = subprocess.run(
        [*command, "--bootstrap", bootstrap], capture_output=True, text=True, check=True
    )
    figures: Figures = json.loads(done.stdout)
    return figures


async def fill(bootstrap: str, topic: str) -> None:
    import pyarrow

    table = pyarrow.table({"value": pyarrow.array([VALUE] * (RECORDS // 10))})
    async with trikafka.open_producer(bootstrap_servers=bootstrap) as producer:
        for number in range(10):
            await producer.send_arrow(topic, table, partition=number % PARTITIONS)


async def make_topic(bootstrap: str) -> str:
    topic = f"asyncio-{uuid.uuid4().hex[:8]}"
    async with trikafka.open_admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics({topic: NewTopic(PARTITIONS, 1)})
    return topic


@contextmanager
def broker(bootstrap: str | None) -> Iterator[str]:
    if bootstrap is not None:
        yield bootstrap
        return
    from trikafka_broker.cluster import KafkaCluster

    with KafkaCluster() as cluster:
        yield cluster.brokers[0].bootstrap_servers


def run(bootstrap: str, cases: list[str], rounds: int) -> None:
    ways = [*WAYS, *(["aio+uvloop"] if importlib.util.find_spec("uvloop") else [])]
    full = trio.run(make_topic, bootstrap)
    if "batches" in cases:
        trio.run(fill, bootstrap, full)
    print(f"load average at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    for case in cases:
        found: dict[str, list[Figures]] = {way: [] for way in ways}
        for number in range(rounds):
            # Every second round runs backwards, so that no way always follows the same one.
            for way in ways if number % 2 == 0 else ways[::-1]:
                topic = full if case == "batches" else trio.run(make_topic, bootstrap)
                found[way].append(measured(way, case, bootstrap, topic))
        for way in ways:
            names = found[way][0]
            medians = {name: statistics.median(one[name] for one in found[way]) for name in names}
            print(
                f"{case:9} {way:11}", *(f"{n} {x:12,.1f}" for n, x in medians.items()), flush=True
            )
    print(f"load average at the end: {os.getloadavg()[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="trikafka.aio beside Trio and aiokafka")
    parser.add_argument("--bootstrap", help="a broker (default: one is started)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=CASES)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        way, case, topic = options.child
        print(json.dumps(child(way, case, options.bootstrap, topic)))
        return
    with broker(options.bootstrap) as bootstrap:
        run(bootstrap, options.cases, options.rounds)


if __name__ == "__main__":
    main()
