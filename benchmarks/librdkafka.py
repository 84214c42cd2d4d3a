"""What stands in a topic, as librdkafka sees it: a judge that is not ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka


def read_topic(bootstrap: str, topic: str, isolation: str = "read_uncommitted", patience: float = 30) -> list[Any]:
    """As :func:`messages_of`, in a list."""
    return list(messages_of(bootstrap, topic, isolation, patience))


def messages_of(bootstrap: str, topic: str, isolation: str = "read_uncommitted", patience: float = 30) -> Iterator[Any]:
    """Every message of a topic, from the beginning to the end of each partition; in order within one.

    No group and no subscription: whether that works is another question. Raises :exc:`TimeoutError` when nothing comes for
    ``patience`` seconds, :exc:`confluent_kafka.KafkaException`.
    """
    settings = {"enable.partition.eof": True, "enable.auto.commit": False, "check.crcs": True, "isolation.level": isolation}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "read-topic", **settings})
    try:
        left = set(consumer.list_topics(topic, timeout=patience).topics[topic].partitions)
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in left])
        while left:
            first = consumer.poll(patience)
            if first is None:
                raise TimeoutError(f"nothing came for {patience:g} s; partitions {sorted(left)} of {topic} have not ended")
            # consume() waits until its number is full, so it may take only what is here already
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
