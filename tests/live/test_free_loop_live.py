"""The loop stays free while tables are sent and read at full speed, against a real Kafka.

The tests have a file of their own. They run while the tests of the other processes are quick ones,
since they wait for the end of the others.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import trio
import trio.lowlevel
from test_arrow_live import make_topic

import trikafka
from trikafka import TopicPartition

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker


@pytest.mark.alone
async def test_loop_stays_free_while_a_table_is_sent(kafka_broker: KafkaBroker) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic = await make_topic(bootstrap, 4)
    noise = os.urandom(1 << 20)
    values = [noise[at : at + 1000] for at in range(0, 1_000_000, 10)]
    table = pa.table(
        {
            "value": pa.array(values * 2, pa.binary()).cast(pa.binary_view()),
            "key": [str(n) for n in range(200_000)],
        }
    )
    assert table.nbytes > 200_000_000

    async with trikafka.open_producer(
        bootstrap_servers=bootstrap, compression_type="zstd"
    ) as producer:
        await keeps_the_loop_free(lambda: producer.send_arrow(topic, table))


@pytest.mark.alone
@pytest.mark.parametrize("way", ["arrow_batches", "batches", "one by one"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_loop_stays_free_while_consuming(
    kafka_broker: KafkaBroker, way: str, compression: str
) -> None:
    """The loop stays free during a consume at full speed, so no heartbeat is late because of it.

    Batches of a megabyte are the longest piece of work.
    """
    bootstrap = kafka_broker.bootstrap_servers
    topic = await make_topic(bootstrap, 4)
    table = pa.table(
        {
            "value": [
                b'{"number":%09d,"text":"' % number + b"abcdefgh" * 9 + b'"}'
                for number in range(100_000)
            ]
        }
    )
    async with trikafka.open_producer(
        bootstrap_servers=bootstrap, compression_type=compression
    ) as producer:
        for _ in range(1 if way == "one by one" else 5):
            await producer.send_arrow(topic, table)
    places = [TopicPartition(topic, number) for number in range(4)]
    async with trikafka.open_consumer(
        bootstrap_servers=bootstrap, max_partition_fetch_bytes=2**23
    ) as consumer:
        ends = await consumer.end_offsets(places)

        async def consume() -> None:
            consumer.assign(places)
            for place in places:
                consumer.seek(place, 0)
            count = 0
            if way == "arrow_batches":
                async for joined in consumer.arrow_batches(until=ends):
                    count += joined.num_rows
            elif way == "batches":
                async for batch in consumer.batches(until=ends):
                    count += len(batch)
            else:
                async for _ in consumer:
                    count += 1
                    if count == len(table):
                        break
            assert count == sum(ends.values())

        await consume()  # the imports for the first table do not count
        await keeps_the_loop_free(consume)


async def keeps_the_loop_free(work: Callable[[], Awaitable[object]]) -> None:
    """Check that the loop turns at least every 50 ms during ``work``.

    A turn counts with the processor time that all threads of this process used in it, if that is
    less than its time on the clock: in the rest the machine was busy with other processes. The best
    of ten counts.
    """
    shortest = math.inf
    for _ in range(10):
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            clock, used = time.perf_counter(), time.process_time()
            while True:
                await trio.lowlevel.checkpoint()
                now, spent = time.perf_counter(), time.process_time()
                longest = max(longest, min(now - clock, spent - used))
                clock, used = now, spent

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await work()
            nursery.cancel_scope.cancel()
        shortest = min(shortest, longest)
        if shortest < 0.05:
            return
    raise AssertionError(f"the loop was held for {shortest * 1000:.0f} ms")
