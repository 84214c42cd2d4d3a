"""The librdkafka reader that other live tests judge by."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import trio
from cluster_waits import topic_reported

from benchmarks.librdkafka import read_topic
from trikafka import NewTopic, open_admin, open_producer

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker


async def test_reader_returns_at_the_end(
    kafka_broker: KafkaBroker,
) -> None:
    """The reader returns at the end of the topic.

    It once waited for the whole of its patience there, which made the live tests ten minutes
    longer.
    """
    bootstrap, topic = kafka_broker.bootstrap_servers, f"reader-{uuid.uuid4().hex[:8]}"
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics({topic: NewTopic(3, 1)})
        await topic_reported(admin, topic, 3)
    async with open_producer(bootstrap_servers=bootstrap) as producer:
        for number in range(20):
            await producer.enqueue(topic, b"%02d" % number, partition=number % 2)
    began = time.monotonic()
    found = await trio.to_thread.run_sync(lambda: read_topic(bootstrap, topic, patience=300))
    assert time.monotonic() - began < 150
    assert sorted(message.value() for message in found) == [
        b"%02d" % number for number in range(20)
    ]
