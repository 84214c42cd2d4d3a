"""A fresh client that misses a topic is told which one it may have meant, though it has heard of no other. On a real broker."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from telling import told

import trikafka
from trikafka import NewTopic, UnknownTopicOrPartitionError


async def test_the_first_error_of_a_fresh_producer_names_the_nearest_topic(kafka_broker: Any) -> None:
    """Before, it had no near name: topics that nobody has asked for are not known."""
    servers = kafka_broker.bootstrap_servers
    topics = {"greetings": NewTopic(3, 1), "greetings-of-last-year": NewTopic(1, 1), "invoices": NewTopic(1, 1)}
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await admin.create_topics(topics)
        try:
            for name, topic in topics.items():
                await told(admin, name, topic.partitions)
            async with trikafka.open_producer(bootstrap_servers=servers) as producer:
                said: dict[str, str] = {}

                async def miss(topic: str) -> None:
                    with pytest.raises(UnknownTopicOrPartitionError) as caught:
                        await producer.send(topic, b"x")
                    said[topic] = str(caught.value)

                with trio.fail_after(20):
                    async with trio.open_nursery() as nursery:
                        for topic in ("greetngs", "invoces", "zebras"):
                            nursery.start_soon(miss, topic)
                assert "did you mean 'greetings'?" in said["greetngs"]
                assert "did you mean 'invoices'?" in said["invoces"]
                assert "did you mean" not in said["zebras"]
                place = await producer.send("greetings", b"x")  # what was only heard of is looked up as any other
                assert place.topic == "greetings"
        finally:
            await admin.delete_topics(list(topics))
