"""The hint in a fresh client's error about a missing topic, on a real broker.

The client does not know any other topic before.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from cluster_waits import topic_reported, topics_deleted

import trikafka
from trikafka import NewTopic, UnknownTopicOrPartitionError


async def first_errors(servers: str, *topics: str) -> dict[str, str]:
    """Return the texts of the first errors of a producer about missing topics."""
    said: dict[str, str] = {}
    async with trikafka.open_producer(bootstrap_servers=servers) as producer:

        async def miss(topic: str) -> None:
            with pytest.raises(UnknownTopicOrPartitionError) as caught:
                await producer.send(topic, b"x")
            said[topic] = str(caught.value)

        with trio.fail_after(240):
            async with trio.open_nursery() as nursery:
                for topic in topics:
                    nursery.start_soon(miss, topic)
        # A topic that was only found for the hint is looked up as any other.
        assert (await producer.send("greetings", b"x")).topic == "greetings"
    return said


async def test_first_error_names_the_nearest_topic(
    kafka_broker: Any,
) -> None:
    """The first error of a fresh producer names the nearest topic.

    Previously it had no name, because the producer only knew topics that it had used.
    """
    servers = kafka_broker.bootstrap_servers
    topics = {
        "greetings": NewTopic(3, 1),
        "greetings-of-last-year": NewTopic(1, 1),
        "invoices": NewTopic(1, 1),
    }
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await admin.create_topics(topics)
        try:
            for name, topic in topics.items():
                await topic_reported(admin, name, topic.partitions)
            # An error does not wait for the search. On a machine that stands still it may be first:
            # then another fresh producer is asked.
            for _ in range(10):
                said = await first_errors(servers, "greetngs", "invoces", "zebras")
                assert "did you mean" not in said["zebras"]
                if "did you mean" in said["greetngs"] and "did you mean" in said["invoces"]:
                    break
            assert "did you mean 'greetings'?" in said["greetngs"]
            assert "did you mean 'invoices'?" in said["invoces"]
        finally:
            await topics_deleted(admin, topics)
