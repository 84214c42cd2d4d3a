"""Seeds 000 and 003 with a real Kafka: polls without a wait, and overdue members."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
import trio
from cluster_waits import topic_reported

from trikafka import (
    Admin,
    ConfigResource,
    Consumer,
    NewTopic,
    PollIntervalExceededError,
    Record,
    open_admin,
    open_consumer,
    open_producer,
)

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker

INTERVAL = 16.0
#: Of a member of the consumer protocol: longer than the test waits for it to leave.
SESSION = {"consumer.session.timeout.ms": 45_000}


async def polled(consumer: Consumer) -> tuple[Record, float]:
    """Return the next record, by polls that do not wait, and the time before the last poll."""
    with trio.fail_after(240):
        while True:
            before = trio.current_time()
            if batch := await consumer.receive_batch(timeout=0):
                return batch[0], before


async def overdue(bootstrap: str, admin: Admin, protocol: str, instance: str | None) -> None:
    """Run one member, alone with a topic and a group of its own, until it misses its interval."""
    name = f"overdue-{uuid.uuid4().hex[:8]}"
    await admin.create_topics({name: NewTopic(1, 1)})
    await topic_reported(admin, name, 1)
    await admin.alter_configs({ConfigResource("group", name): SESSION})
    async with open_producer(bootstrap_servers=bootstrap) as producer:
        await producer.send(name, b"x", partition=0)
    settings: dict[str, Any] = {
        "group_id": name,
        "group_protocol": protocol,
        "group_instance_id": instance,
    }
    settings |= {
        "max_poll_interval_ms": INTERVAL * 1000,
        "auto_offset_reset": "earliest",
        "bootstrap_servers": bootstrap,
    }
    if protocol == "classic":  # the interval is never below the session
        settings |= {"session_timeout_ms": INTERVAL * 1000}
    async with open_consumer(name, **settings) as consumer:
        record, came = await polled(consumer)
        assert record.offset == 0
        with trio.fail_after(240):
            while consumer.statistics().state != "stale":  # noqa: ASYNC110
                await trio.sleep(0.02)
        assert trio.current_time() - came >= INTERVAL
        if instance is None:
            # The member left the group, so its session does not have to expire.
            with trio.fail_after(INTERVAL - 1):
                while (await admin.describe_groups([name]))[name].members:  # noqa: ASYNC110
                    await trio.sleep(0.02)
        with pytest.raises(PollIntervalExceededError):
            await consumer.commit()
        record, _ = await polled(consumer)
        assert record.offset == 0  # no offset was committed before
        await consumer.commit()
        assert len((await admin.describe_groups([name]))[name].members) == 1


async def test_overdue_members_rejoin_at_the_next_poll(
    kafka_broker: KafkaBroker,
) -> None:
    """A member that polls without waiting becomes stale, and joins again at its next poll."""
    bootstrap = kafka_broker.bootstrap_servers
    async with open_admin(bootstrap_servers=bootstrap) as admin, trio.open_nursery() as nursery:
        for protocol in ("classic", "consumer"):
            for instance in (None, "one"):
                nursery.start_soon(overdue, bootstrap, admin, protocol, instance)
