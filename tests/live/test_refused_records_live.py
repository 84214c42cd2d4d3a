"""Refusals of a real Kafka (records of a batch, large batches), and levels of compression."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from test_producer_live import make_topic, read

from benchmarks.librdkafka import read_topic
from trikafka import BrokerResponseError, open_producer

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker


async def test_records_without_a_key_fail_alone(
    kafka_broker: KafkaBroker,
) -> None:
    """In a compacted topic only the records without a key fail."""
    bootstrap = kafka_broker.bootstrap_servers
    topic = await make_topic(bootstrap, 1, **{"cleanup.policy": "compact"})
    async with open_producer(bootstrap_servers=bootstrap, linger_ms=100) as producer:
        await producer.send(topic, b"first", key=b"k")
        acks = [
            producer.send_nowait(
                topic, b"%d" % n, key=None if n % 4 == 1 else b"%d" % n, partition=0
            )
            for n in range(12)
        ]
        behind = await producer.enqueue(topic, b"behind", key=b"k")
        for number, ack in enumerate(acks):
            if number % 4 == 1:
                with pytest.raises(BrokerResponseError, match="without key"):
                    await ack.wait()
            else:
                assert (await ack.wait()).offset is not None
        await behind.wait()
    assert await read(bootstrap, topic, 1) == [
        [b"first", *(b"%d" % n for n in range(12) if n % 4 != 1), b"behind"]
    ]


async def test_batch_too_large_for_the_topic_is_split(kafka_broker: KafkaBroker) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic = await make_topic(bootstrap, 1, **{"max.message.bytes": "3000"})
    async with open_producer(
        bootstrap_servers=bootstrap, linger_ms=100, batch_size=100_000
    ) as producer:
        acks = [
            await producer.enqueue(topic, b"%03d" % number + b"x" * 500) for number in range(60)
        ]
        assert [(await ack.wait()).offset for ack in acks] == list(range(60))
        assert producer.statistics().batches_split > 0
    (found,) = await read(bootstrap, topic, 1)
    assert [value[:3] for value in found if value] == [b"%03d" % number for number in range(60)]


@pytest.mark.parametrize(("codec", "level"), [("gzip", 9), ("lz4", 12), ("zstd", 19), ("zstd", -5)])
async def test_compression_levels_are_accepted(
    kafka_broker: KafkaBroker, codec: str, level: int
) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic = await make_topic(bootstrap, 1)
    async with open_producer(
        bootstrap_servers=bootstrap,
        compression_type=codec,
        compression_gzip_level=level if codec == "gzip" else None,
        compression_lz4_level=level if codec == "lz4" else None,
        compression_zstd_level=level if codec == "zstd" else None,
        partitioner=lambda topic, key, partitions: partitions[0],
    ) as producer:
        acks = [await producer.enqueue(topic, b"%d " % number * 100) for number in range(100)]
        for ack in acks:
            await ack.wait()
    found = read_topic(bootstrap, topic)
    assert [message.value() for message in found] == [
        b"%d " % number * 100 for number in range(100)
    ]
