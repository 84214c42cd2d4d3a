"""The contents of a topic as librdkafka sees them: a check independent of trikafka."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient


def read_topic(
    bootstrap: str, topic: str, isolation: str = "read_uncommitted", patience: float = 240
) -> list[Any]:
    """Return the messages of :func:`messages_of` as a list."""
    return list(messages_of(bootstrap, topic, isolation, patience))


def messages_of(
    bootstrap: str, topic: str, isolation: str = "read_uncommitted", patience: float = 240
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
        left = _partitions_of(consumer, topic, patience)
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


def _partitions_of(consumer: confluent_kafka.Consumer, topic: str, patience: float) -> set[int]:
    """Return the numbers of a topic's partitions, once a broker knows the topic.

    A broker that has just started may not know it yet. Taken for the answer, that would be an empty
    topic, and each of its records would count as lost.
    """
    end = time.monotonic() + patience
    while True:
        metadata = consumer.list_topics(topic, timeout=patience).topics[topic]
        if metadata.error is None and metadata.partitions:
            return set(metadata.partitions)
        if time.monotonic() > end:
            raise TimeoutError(f"no partitions of {topic} in {patience:g} s: {metadata.error}")
        time.sleep(0.2)


def wait_until_in_sync(bootstrap: str, topics: Iterable[str], patience: float = 240) -> None:
    """Wait until each partition of the topics has a leader and all its replicas are in sync.

    Raises:
        TimeoutError: A partition was not in sync after ``patience`` seconds.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    end = time.monotonic() + patience
    while behind := _behind(admin, topics):
        if time.monotonic() > end:
            raise TimeoutError(f"not in sync after {patience:g} s: {', '.join(behind)}")
        time.sleep(0.2)


def _behind(admin: AdminClient, topics: Iterable[str]) -> list[str]:
    behind = []
    for topic in topics:
        try:
            metadata = admin.list_topics(topic, timeout=5).topics[topic]
        except confluent_kafka.KafkaException as error:
            behind.append(f"{topic} ({error})")
            continue
        if metadata.error is not None or not metadata.partitions:
            behind.append(f"{topic} ({metadata.error})")
        behind += [
            f"{topic}-{number}"
            for number, partition in metadata.partitions.items()
            if partition.leader < 0 or set(partition.isrs) != set(partition.replicas)
        ]
    return behind
