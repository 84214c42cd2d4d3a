"""The contents of a topic as librdkafka sees them: a check independent of trikafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka


def read_topic(
    bootstrap: str, topic: str, isolation: str = "read_uncommitted", patience: float = 30
) -> list[Any]:
    """Return the messages of :func:`messages_of` as a list."""
    return list(messages_of(bootstrap, topic, isolation, patience))


def messages_of(
    bootstrap: str, topic: str, isolation: str = "read_uncommitted", patience: float = 30
) -> Iterator[Any]:
    """Yield every message of a topic up to the present end of each partition, in order within each.

    No group and no subscription is used, so that a fault there cannot falsify the check.

    Raises:
        TimeoutError: No message arrived for ``patience`` seconds.
        confluent_kafka.KafkaException: librdkafka reported an error.
    """
    settings = {
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "check.crcs": True,
        "isolation.level": isolation,
    }
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "read-topic", **settings}
    )
    try:
        left = set(consumer.list_topics(topic, timeout=patience).topics[topic].partitions)
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in left])
        while left:
            first = consumer.poll(patience)
            if first is None:
                raise TimeoutError(
                    f"nothing came for {patience:g} s; partitions {sorted(left)} of {topic} have "
                    "not ended"
                )
            # consume() waits until it has the full number. Without a timeout it returns only the
            # messages that have already arrived.
            for message in (first, *consumer.consume(10_000, timeout=0)):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise confluent_kafka.KafkaException(error)
    finally:
        consumer.close()
