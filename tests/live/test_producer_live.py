"""The producer against a real Kafka, read by other clients, with an outage."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import kafka
import pytest
import trio
from cluster_waits import topic_made
from trikafka_broker.trio_api import Cluster

from benchmarks.soak import opened_at_last
from trikafka import NewTopic, TopicPartition, open_admin, open_consumer, open_producer
from trikafka._api.producer.producer import Ack

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker
    from trikafka_broker.pytest_plugin import MakeKafkaCluster


async def make_topic(bootstrap: str, partitions: int, **config: str) -> str:
    # The records have old times, and a broker deletes what is older than its retention.
    config = {"retention.ms": "-1", **config}
    name = f"producer-{uuid.uuid4().hex[:8]}"
    replicas = min(3, len(bootstrap.split(",")))
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        await topic_made(admin, name, NewTopic(partitions, replicas, config))
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


@pytest.mark.parametrize("acks", [0, 1])
async def test_records_are_sent_with_fewer_acks(kafka_broker: KafkaBroker, acks: int) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic = await make_topic(bootstrap, 1)
    async with open_producer(bootstrap_servers=bootstrap) as producer:
        # From then on the leader has the partition. With acks=0 a broker that does not have it yet
        # would drop records silently.
        await producer.send(topic, b"0")
    async with open_producer(
        bootstrap_servers=bootstrap, acks=acks, enable_idempotence=False
    ) as producer:
        for number in range(1, 100):
            metadata = await producer.send(topic, b"%d" % number)
            assert metadata.offset == (number if acks else None)
    async with open_consumer(bootstrap_servers=bootstrap) as consumer:
        place = TopicPartition(topic, 0)
        with trio.fail_after(240):
            # Without acks the broker may still have requests to handle.
            while (await consumer.end_offsets([place]))[place] < 100:
                pass
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
            await trio.sleep(0.01)  # an outage may last for a minute

    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "request_timeout_ms": 3_000,
        "delivery_timeout_ms": 480_000,  # two brokers may start one after the other, in minutes
        "batch_size": 1_000,
    }
    async with AsyncExitStack() as stack:
        producer = await opened_at_last(stack, lambda: open_producer(**settings))
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


async def test_producer_survives_outages(make_kafka_cluster: MakeKafkaCluster) -> None:
    """No record is lost or doubled by a restart, a kill and a freeze of the broker."""
    cluster = Cluster(await trio.to_thread.run_sync(make_kafka_cluster))
    (broker,) = cluster.brokers
    bootstrap = cluster.bootstrap_servers

    async def kill() -> None:
        await broker.kill()
        await broker.start()

    async def freeze() -> None:
        await broker.freeze()
        await trio.sleep(5)  # longer than the limit of a request
        await broker.thaw()

    for go_wrong in (broker.restart, kill, freeze):
        topic = await make_topic(bootstrap, 3)
        await check_nothing_lost(
            bootstrap, topic, 3, await produce_while(bootstrap, topic, 3, 100, go_wrong)
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
        bootstrap, topic, 3, await produce_while(bootstrap, topic, 3, 100, go_wrong)
    )


async def check_nothing_lost(bootstrap: str, topic: str, partitions: int, acks: list[Ack]) -> None:
    """Check that every record is there once, in order."""
    count = len(acks) // partitions
    for values in await read(bootstrap, topic, partitions):
        assert values == [b"%d" % number for number in range(count)]
