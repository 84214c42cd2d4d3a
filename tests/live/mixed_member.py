"""A group member in its own process, which a test kills.

``mixed_member.py ours|librdkafka BOOTSTRAP TOPIC PROTOCOL STRATEGY``. It prints each batch that it
has handled as a line (``partition first last ...``), and commits after that.
"""

from __future__ import annotations

import sys
from typing import Any

BOOTSTRAP, TOPIC, PROTOCOL, STRATEGY = sys.argv[2:6]


def tell(handled: dict[int, list[int]]) -> None:
    for partition, offsets in handled.items():
        print(partition, *offsets, flush=True)


def librdkafka() -> None:
    import confluent_kafka

    settings: dict[str, Any] = {
        "bootstrap.servers": BOOTSTRAP,
        "group.id": TOPIC,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "group.protocol": PROTOCOL,
        # The rebalance timeout, too: after it a member that lost its assignment is removed.
        "max.poll.interval.ms": 60_000,
    }
    if PROTOCOL == "classic":
        settings |= {
            "partition.assignment.strategy": STRATEGY,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 300,
        }
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([TOPIC])
    while True:
        handled: dict[int, list[int]] = {}
        for message in consumer.consume(500, 0.2):
            if message.error() is None:
                handled.setdefault(message.partition(), []).append(message.offset())
        if handled:
            tell(handled)
            while True:
                try:
                    consumer.commit(asynchronous=False)
                    break
                except confluent_kafka.KafkaException as error:
                    # A final error means that the partition was revoked. Another member then
                    # handles the records again.
                    if not error.args[0].retriable():
                        break


def ours() -> None:
    import trio

    import trikafka

    async def main() -> None:
        settings: Any = {"group_protocol": PROTOCOL} if PROTOCOL == "consumer" else {}
        if PROTOCOL == "classic":
            settings = {
                "partition_assignment_strategy": [STRATEGY],
                "session_timeout_ms": 6000,
                "heartbeat_interval_ms": 300,
            }
        settings |= {
            "bootstrap_servers": BOOTSTRAP,
            "group_id": TOPIC,
            "auto_offset_reset": "earliest",
        }
        async with trikafka.open_consumer(TOPIC, enable_auto_commit=False, **settings) as consumer:
            async for batch in consumer.batches():
                tell({batch.partition: list(batch.offsets)})
                await consumer.commit()

    trio.run(main)


{"ours": ours, "librdkafka": librdkafka}[sys.argv[1]]()
