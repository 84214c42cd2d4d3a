"""The reader by librdkafka that other live tests judge by."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import trio

from benchmarks.librdkafka import read_topic
from trikafka import NewTopic, open_admin, open_producer

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker


async def test_it_ends_where_the_topic_ends_and_waits_for_no_more(kafka_broker: KafkaBroker) -> None:
    """It once waited for the whole of its patience at the end of each topic, which made the live tests ten minutes longer."""
    bootstrap, topic = kafka_broker.bootstrap_servers, f"reader-{uuid.uuid4().hex[:8]}"
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics({topic: NewTopic(3, 1)})
    async with open_producer(bootstrap_servers=bootstrap) as producer:
        for number in range(20):
            await producer.enqueue(topic, b"%02d" % number, partition=number % 2)
    began = time.monotonic()
    found = await trio.to_thread.run_sync(lambda: read_topic(bootstrap, topic, patience=60))
    assert time.monotonic() - began < 30
    assert sorted(message.value() for message in found) == [b"%02d" % number for number in range(20)]
