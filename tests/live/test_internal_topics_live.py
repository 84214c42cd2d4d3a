"""``exclude_internal_topics`` also holds for a pattern that the broker matches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
from cluster_waits import topic_reported

import trikafka
from trikafka import SubscriptionPattern

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker


@pytest.mark.parametrize("exclude", [True, False])
async def test_internal_topics_are_excluded(kafka_broker: KafkaBroker, exclude: bool) -> None:
    """A pattern that the broker matches includes internal topics only if they are not excluded."""
    where: dict[str, Any] = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    async with trikafka.open_admin(**where) as admin:
        if "plain" not in await admin.list_topics():
            await admin.create_topics({"plain": trikafka.NewTopic(1, 1)})
            await topic_reported(admin, "plain", 1)
    async with trikafka.open_producer(**where) as producer:
        await producer.send("plain", b"x")
    settings: dict[str, Any] = {
        "group_protocol": "consumer",
        "auto_offset_reset": "earliest",
        "exclude_internal_topics": exclude,
    }
    async with trikafka.open_consumer(
        group_id=f"internal-{exclude}", **where, **settings
    ) as consumer:
        consumer.subscribe(SubscriptionPattern("plain|__consumer_offsets"))
        with trio.fail_after(240):
            while (record := await consumer.receive()).topic != "plain":
                pass
        assert record.value == b"x"
        # A member whose broker stood still may have to join again, and own nothing for a moment.
        wanted = {"plain"} if exclude else {"plain", "__consumer_offsets"}
        with trio.move_on_after(240):
            while (topics := {tp.topic for tp in consumer.assignment()}) != wanted:
                await consumer.receive_batch(timeout=1)
        assert topics == wanted
