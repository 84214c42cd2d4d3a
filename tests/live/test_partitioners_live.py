"""Keys stay in their partitions when a program moves from librdkafka, for each of its partitioners."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import trio
from cluster_waits import topic_reported
from confluent_kafka import Producer

from trikafka import NewTopic, from_properties, open_admin, open_producer
from trikafka.config import ProducerConfig

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker

#: Not a power of two, so that all bits of a hash count.
PARTITIONS = 23
#: A thousand keys: each length up to 63 bytes, many longer ones, any bytes.
KEYS = [
    random.Random(length).randbytes(length if length < 900 else 10 * length)
    for length in range(1, 1001)
]
#: The null key and the empty one, where their partition is a function of the key.
SHORT: dict[str, list[bytes | None]] = {
    "consistent": [None, b""],
    "consistent_random": [],
    "murmur2": [None, b""],
    "murmur2_random": [b""],
    "fnv1a": [None, b""],
    "fnv1a_random": [b""],
}


def by_librdkafka(servers: str, topic: str, keys: list[bytes | None], **settings: Any) -> list[int]:
    """Return the partitions into which librdkafka writes these keys."""
    found: dict[int, int] = {}
    producer = Producer({"bootstrap.servers": servers, **settings})
    for number, key in enumerate(keys):

        def delivered(error: Any, message: Any, number: int = number) -> None:
            assert error is None, error
            found[number] = message.partition()

        producer.produce(topic, b"v", key=key, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(240) == 0
    return [found[number] for number in range(len(keys))]


@pytest.fixture
async def topic(kafka_broker: KafkaBroker) -> str:
    name = f"partitioners-{uuid.uuid4().hex[:8]}"
    async with open_admin(bootstrap_servers=kafka_broker.bootstrap_servers) as admin:
        await admin.create_topics({name: NewTopic(PARTITIONS, 1)})
        await topic_reported(admin, name, PARTITIONS)
    return name


@pytest.mark.parametrize("name", SHORT)
async def test_keys_keep_their_partitions(name: str, topic: str, kafka_broker: KafkaBroker) -> None:
    """The same by ``enqueue`` (the first record of a batch and later ones) and ``send_arrow``."""
    servers = kafka_broker.bootstrap_servers
    keys: list[bytes | None] = [*KEYS, *SHORT[name]]
    theirs = await trio.to_thread.run_sync(
        lambda: by_librdkafka(servers, topic, keys, partitioner=name)
    )
    assert len(set(theirs)) == PARTITIONS
    async with open_producer(bootstrap_servers=servers, partitioner=name) as producer:
        acks = [await producer.enqueue(topic, b"v", key=key) for key in keys]
        assert [(await ack.wait()).partition for ack in acks] == theirs
        table = pa.table({"key": pa.array(keys, pa.binary()), "value": [b"v"] * len(keys)})
        delivery = await producer.send_arrow(topic, table)
        rows = {place.partition: part.rows for place, part in delivery.partitions.items()}
        assert rows == {number: theirs.count(number) for number in set(theirs)}


async def test_properties_keep_librdkafkas_default(topic: str, kafka_broker: KafkaBroker) -> None:
    """A configuration of librdkafka without a partitioner: both use its default."""
    servers = kafka_broker.bootstrap_servers
    given = {"bootstrap.servers": servers, "queue.buffering.max.ms": "5"}
    theirs = await trio.to_thread.run_sync(lambda: by_librdkafka(servers, topic, [*KEYS]))
    async with open_producer(**from_properties(given, ProducerConfig)) as producer:
        acks = [await producer.enqueue(topic, b"v", key=key) for key in KEYS]
        assert [(await ack.wait()).partition for ack in acks] == theirs


async def test_empty_keys_are_spread_as_there(topic: str, kafka_broker: KafkaBroker) -> None:
    """``consistent_random`` sticks to a partition for empty keys until a batch is full."""
    servers = kafka_broker.bootstrap_servers
    settings: Any = {"bootstrap_servers": servers, "batch_size": 1_000}
    async with open_producer(**settings, partitioner="consistent_random") as producer:
        acks = [await producer.enqueue(topic, b"v" * 100, key=b"") for _ in range(500)]
        assert len({(await ack.wait()).partition for ack in acks}) > 5
