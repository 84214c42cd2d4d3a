"""The consumer against a real Kafka: an outage, transactions, ends of partitions."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
import trio
from cluster_waits import topic_made
from trikafka_broker.trio_api import Cluster

from trikafka import NewTopic, TopicPartition, open_admin, open_consumer, open_producer

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker
    from trikafka_broker.pytest_plugin import MakeKafkaCluster


#: A member must not lose its session while a broker restarts, also on a busy machine: records that
#: were not committed would come again. Most tests have a shorter session (pyproject.toml).
SESSION = {
    "group.consumer.max.session.timeout.ms": 120_000,
    "group.consumer.session.timeout.ms": 120_000,
}


def in_time(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Fail a test that hangs."""

    @functools.wraps(test)
    async def limited(**fixtures: Any) -> None:
        with trio.fail_after(400):
            await test(**fixtures)

    return limited


async def make_topic(bootstrap: str, partitions: int, **config: str) -> str:
    name = f"consumer-{uuid.uuid4().hex[:8]}"
    replicas = min(3, len(bootstrap.split(",")))
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        await topic_made(admin, name, NewTopic(partitions, replicas, config))
    return name


async def write(bootstrap: str, topic: str, partitions: int, numbers: range) -> None:
    async with open_producer(bootstrap_servers=bootstrap) as producer:
        for number in numbers:
            await producer.enqueue(topic, b"%d" % number, partition=number % partitions)


@in_time
async def test_records_between_the_ends_are_read(kafka_broker: KafkaBroker) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic = await make_topic(bootstrap, 3)
    await write(bootstrap, topic, 3, range(3_000))
    tps = [TopicPartition(topic, number) for number in range(3)]
    async with open_consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(tps)
        ends = await consumer.end_offsets(tps)
        assert ends == dict.fromkeys(tps, 1_000)
        seen = [
            int(record.value or b"") async for batch in consumer.batches(ends) for record in batch
        ]
        assert sorted(seen) == list(range(3_000))
        consumer.seek(tps[1], 998)
        assert [(await consumer.receive()).offset, (await consumer.receive()).offset] == [998, 999]
        consumer.seek(tps[2], 5_000)  # out of range: to the beginning, by the policy
        assert (await consumer.receive()).offset == 0


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@in_time
async def test_librdkafkas_compression_is_read(kafka_broker: KafkaBroker, compression: str) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic = await make_topic(bootstrap, 1)

    def produce() -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": compression,
                "linger.ms": 50,
                "enable.idempotence": True,
            }
        )
        for number in range(2_000):
            producer.produce(topic, b"value %d" % number, b"key", headers=[("h", b"x")])
        assert producer.flush(240) == 0

    await trio.to_thread.run_sync(produce)
    async with open_consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        for number in range(2_000):
            record = await consumer.receive()
            assert (record.offset, record.value, record.key) == (
                number,
                b"value %d" % number,
                b"key",
            )


@in_time
async def test_consumer_survives_killed_brokers(
    make_kafka_cluster: MakeKafkaCluster,
) -> None:
    """The consumer survives the death of the coordinator and leader in a cluster of three."""
    cluster = Cluster(
        await trio.to_thread.run_sync(lambda: make_kafka_cluster(brokers=3, properties=SESSION))
    )
    bootstrap = cluster.bootstrap_servers
    topic = await make_topic(bootstrap, 6)
    await write(bootstrap, topic, 6, range(600))
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "request_timeout_ms": 15_000}
    async with open_consumer(
        topic, bootstrap_servers=bootstrap, group_id=topic, **settings
    ) as consumer:
        seen = [int((await consumer.receive()).value or b"") for _ in range(600)]
        coordinator = await consumer._parts.coordinators.find(topic)
        victim = next(broker for broker in cluster.brokers if broker.node_id == coordinator.node_id)
        await victim.kill()
        await write(bootstrap, topic, 6, range(600, 1_200))
        seen += [int((await consumer.receive()).value or b"") for _ in range(600)]
        assert sorted(seen) == list(range(1_200))
        await consumer.commit(timeout=240)
        await victim.start()
        await write(bootstrap, topic, 6, range(1_200, 1_800))
        seen += [int((await consumer.receive()).value or b"") for _ in range(600)]
        assert sorted(seen) == list(range(1_800))
        await consumer.commit(timeout=240)


@in_time
async def test_aborted_records_are_never_seen(kafka_broker: KafkaBroker) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic = await make_topic(bootstrap, 2)

    def produce() -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": topic,
                "transaction.timeout.ms": 600_000,
                "linger.ms": 0,
            }
        )
        producer.init_transactions(240)
        for number in range(30):
            producer.begin_transaction()
            kind = b"no" if number % 3 == 1 else b"yes"
            for each in range(10):
                producer.produce(topic, b"%s %d %d" % (kind, number, each), partition=each % 2)
            assert producer.flush(240) == 0
            (producer.abort_transaction if kind == b"no" else producer.commit_transaction)(240)
        producer.begin_transaction()
        producer.produce(topic, b"no end", partition=0)
        assert producer.flush(240) == 0
        open_one.append(producer)

    open_one: list[Any] = []
    await trio.to_thread.run_sync(produce)
    tps = [TopicPartition(topic, number) for number in range(2)]
    settings: dict[str, Any] = {
        "auto_offset_reset": "earliest",
        "isolation_level": "read_committed",
    }
    async with open_consumer(bootstrap_servers=bootstrap, **settings) as consumer:
        consumer.assign(tps)
        ends = await consumer.end_offsets(tps)
        seen = [record.value async for batch in consumer.batches(ends) for record in batch]
        assert len(seen) == 200
        assert all(value.startswith(b"yes") for value in seen if value)
        assert not await consumer.receive_batch(timeout=1)  # not the open one either
        await trio.to_thread.run_sync(open_one[0].commit_transaction, 240)
        assert (await consumer.receive()).value == b"no end"
    async with open_consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(tps)
        seen = [(await consumer.receive()).value for _ in range(301)]
        assert sum(value.startswith(b"no") for value in seen if value) == 101
