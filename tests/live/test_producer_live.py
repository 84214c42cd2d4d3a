"""The producer against a real Kafka, read by other clients, with an outage."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import kafka
import pytest
import trio
from trikafka_broker.trio_api import Cluster

from benchmarks.librdkafka import read_topic
from trikafka import NewTopic, open_admin, open_producer
from trikafka._api.producer.producer import Ack
from trikafka._wire.partitioning import partition_for_key

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker
    from trikafka_broker.pytest_plugin import MakeKafkaCluster


async def make_topic(bootstrap: str, partitions: int, **config: str) -> str:
    # The records have old times, and a broker deletes what is older than its retention.
    config = {"retention.ms": "-1", **config}
    name = f"producer-{uuid.uuid4().hex[:8]}"
    replicas = min(3, len(bootstrap.split(",")))
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics({name: NewTopic(partitions, replicas, config)})
    return name


async def read(bootstrap: str, topic: str, partitions: int) -> list[list[bytes | None]]:
    """Return the values of each partition, read by a client that is not ours."""
    return await trio.to_thread.run_sync(_read_by_kafka_python, bootstrap, topic, partitions)


def _read_by_kafka_python(bootstrap: str, topic: str, partitions: int) -> list[list[bytes | None]]:
    places = [kafka.TopicPartition(topic, number) for number in range(partitions)]
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap.split(","), auto_offset_reset="earliest"
    )
    try:
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        found: list[list[bytes | None]] = [[] for _ in places]
        while any(consumer.position(place) < ends[place] for place in places):
            for place, records in consumer.poll(timeout_ms=1_000).items():
                found[place.partition] += [record.value for record in records]
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize("compression", ["none", "lz4", "gzip", "snappy", "zstd"])
async def test_librdkafka_reads_our_records(kafka_broker: KafkaBroker, compression: str) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic = await make_topic(bootstrap, 3)
    expected = {}
    async with open_producer(bootstrap_servers=bootstrap, compression_type=compression) as producer:
        acks = []
        for number in range(500):
            key = None if number % 5 == 0 else b"key-%d" % (number % 17)
            value = None if number % 7 == 0 else b"value %d " % number + b"x" * (number % 300)
            headers = (
                [("number", b"%d" % number), ("empty", b""), ("none", None)] if number % 3 else []
            )
            timestamp = 1_700_000_000_000 + number
            acks.append(
                await producer.enqueue(topic, value, key=key, headers=headers, timestamp=timestamp)
            )
            expected[number] = (key, value, headers or None, timestamp)
        places = [await ack.wait() for ack in acks]
    messages = await trio.to_thread.run_sync(read_topic, bootstrap, topic)
    assert len(messages) == 500
    found = {
        (m.partition(), m.offset()): (m.key(), m.value(), m.headers(), m.timestamp()[1])
        for m in messages
    }
    assert {
        number: found[place.partition, place.offset or 0] for number, place in enumerate(places)
    } == expected
    for number, place in enumerate(places):
        key = expected[number][0]
        assert key is None or place.partition == partition_for_key(key, 3)


async def test_console_consumer_reads_our_records(
    make_kafka_cluster: MakeKafkaCluster,
) -> None:
    cluster = Cluster(await trio.to_thread.run_sync(make_kafka_cluster))
    bootstrap = cluster.bootstrap_servers
    topic = await make_topic(bootstrap, 1)
    async with open_producer(bootstrap_servers=bootstrap, compression_type="lz4") as producer:
        for number in range(10):
            await producer.enqueue(
                topic,
                f"wert {number} ä".encode(),
                key=b"k",
                headers=[("h", b"1")],
                timestamp=number,
            )
    printed = [f"formatter-property=print.{what}=true" for what in ("key", "headers", "timestamp")]
    options = [
        part for each in printed for part in ("--" + each.split("=", 1)[0], each.split("=", 1)[1])
    ]
    result = await cluster.run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(
            "--bootstrap-server",
            bootstrap,
            "--topic",
            topic,
            "--from-beginning",
            "--max-messages",
            "10",
            *options,
        ),
    )
    assert result.stdout.splitlines() == [
        f"CreateTime:{number}\th:1\tk\twert {number} ä" for number in range(10)
    ]


async def test_batch_too_large_for_the_topic_is_split(kafka_broker: KafkaBroker) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic = await make_topic(bootstrap, 1, **{"max.message.bytes": "2000"})
    async with open_producer(bootstrap_servers=bootstrap, linger_ms=50) as producer:
        acks = [
            await producer.enqueue(topic, b"%04d" % number + b"x" * 100) for number in range(100)
        ]
        assert [(await ack.wait()).offset for ack in acks] == list(range(100))
        assert producer.statistics().batches_split > 0
    (values,) = await read(bootstrap, topic, 1)
    assert [int(value[:4]) for value in values if value] == list(range(100))


@pytest.mark.parametrize("acks", [0, 1])
async def test_records_are_sent_with_fewer_acks(kafka_broker: KafkaBroker, acks: int) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic = await make_topic(bootstrap, 1)
    async with open_producer(bootstrap_servers=bootstrap) as producer:
        await producer.send(
            topic, b"0"
        )  # the leader has the partition now; with acks=0 others lose records silently
    async with open_producer(
        bootstrap_servers=bootstrap, acks=acks, enable_idempotence=False
    ) as producer:
        for number in range(1, 100):
            metadata = await producer.send(topic, b"%d" % number)
            assert metadata.offset == (number if acks else None)
    (values,) = await read(bootstrap, topic, 1)
    assert values == [b"%d" % number for number in range(100)]


async def produce_while(
    bootstrap: str, topic: str, partitions: int, count: int, trouble: Any
) -> list[Ack]:
    """Write ``count`` records to each partition during ``trouble``, and some more after it."""
    acks: list[Ack] = []
    over = trio.Event()

    async def write() -> None:
        number = 0
        while not over.is_set() or number < count:
            for partition in range(partitions):
                acks.append(await producer.enqueue(topic, b"%d" % number, partition=partition))
            number += 1
            await trio.sleep(0.002)

    async with open_producer(
        bootstrap_servers=bootstrap, request_timeout_ms=3_000, batch_size=1_000
    ) as producer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await trio.sleep(0.5)
            await trouble()
            await trio.sleep(0.5)
            over.set()
        for ack in acks:
            await ack.wait()
        assert producer.statistics().records_failed == 0
        assert producer.statistics().buffer_used == 0
    return acks


@pytest.mark.parametrize("trouble", ["restart", "kill", "freeze"])
async def test_producer_survives_an_outage(
    make_kafka_cluster: MakeKafkaCluster, trouble: str
) -> None:
    cluster = Cluster(await trio.to_thread.run_sync(make_kafka_cluster))
    (broker,) = cluster.brokers
    bootstrap = cluster.bootstrap_servers
    topic = await make_topic(bootstrap, 3)

    async def go_wrong() -> None:
        if trouble == "restart":
            await broker.restart()
        elif trouble == "kill":
            await broker.kill()
            await trio.sleep(1)
            await broker.start()
        else:
            await broker.freeze()
            await trio.sleep(5)
            await broker.thaw()

    await check_nothing_lost(
        bootstrap, topic, 3, await produce_while(bootstrap, topic, 3, 500, go_wrong)
    )


async def test_producer_survives_killed_leaders(make_kafka_cluster: MakeKafkaCluster) -> None:
    cluster = Cluster(await trio.to_thread.run_sync(lambda: make_kafka_cluster(brokers=3)))
    bootstrap = cluster.bootstrap_servers
    topic = await make_topic(bootstrap, 3, **{"min.insync.replicas": "2"})

    async def go_wrong() -> None:
        for broker in cluster.brokers[:2]:
            await broker.kill()
            await trio.sleep(2)
            await broker.start()
            await trio.sleep(2)

    await check_nothing_lost(
        bootstrap, topic, 3, await produce_while(bootstrap, topic, 3, 500, go_wrong)
    )


async def check_nothing_lost(bootstrap: str, topic: str, partitions: int, acks: list[Ack]) -> None:
    """Check that every record is there once, in order."""
    count = len(acks) // partitions
    for values in await read(bootstrap, topic, partitions):
        assert values == [b"%d" % number for number in range(count)]
