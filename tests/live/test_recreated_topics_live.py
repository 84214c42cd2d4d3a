"""A topic that is deleted and recreated under a member of a group, in both protocols (KIP-516).

The broker is real.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
import trio
from cluster_waits import topic_reported

from trikafka import (
    Admin,
    Consumer,
    NewTopic,
    TopicPartition,
    open_admin,
    open_consumer,
    open_producer,
)
from trikafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker

OLD, NEW = 30, 60
RECREATED = "was deleted and created again"


async def write(bootstrap: str, topic: str, values: list[bytes]) -> None:
    async with open_producer(bootstrap_servers=bootstrap) as producer:
        for value in values:
            await producer.enqueue(topic, value, partition=0)


@pytest.mark.parametrize("committing", ["auto", "by hand"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_recreated_topic_is_read_once(
    kafka_broker: KafkaBroker, protocol: str, committing: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The recreated topic is read from its beginning, each record once."""
    bootstrap, topic = kafka_broker.bootstrap_servers, f"recreated-{uuid.uuid4().hex[:8]}"
    settings: dict[str, Any] = {
        "group_id": topic,
        "group_protocol": protocol,
        "auto_offset_reset": "earliest",
        "metadata_max_age_ms": 1_000,
        "auto_commit_interval_ms": 100,
        "enable_auto_commit": committing == "auto",
    }
    with trio.fail_after(300):
        async with open_admin(bootstrap_servers=bootstrap) as admin:
            await admin.create_topics({topic: NewTopic(1, 1)})
            await topic_reported(admin, topic, 1)
            await write(bootstrap, topic, [b"old"] * OLD)
            async with open_consumer(topic, bootstrap_servers=bootstrap, **settings) as consumer:
                assert [(await consumer.receive()).value for _ in range(OLD)] == [b"old"] * OLD
                await create_again(bootstrap, admin, topic)
                if committing == "by hand":
                    await commit_to_the_old_one(consumer, topic, caplog)
                wanted = [b"new %d" % number for number in range(NEW)]
                await write(bootstrap, topic, wanted)
                assert [(await consumer.receive()).value for _ in range(NEW)] == wanted
                await consumer.commit()
            offsets = await admin.list_group_offsets(topic)
            assert {tp.partition: position.offset for tp, position in offsets.items()} == {0: NEW}


async def commit_to_the_old_one(
    consumer: Consumer[Any, Any], topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Commit an offset of the deleted topic until it is refused.

    A broker that does not know of the deletion yet accepts it. So does any broker once the consumer
    has learned of the new topic, which its log says: the offset is one of that topic then.
    """
    refusal = ""
    while not refusal and RECREATED not in caplog.text:
        try:
            await consumer.commit({TopicPartition(topic, 0): OLD})
        except UnknownTopicOrPartitionError as error:
            refusal = str(error)
    assert RECREATED in (refusal or caplog.text)


async def create_again(bootstrap: str, admin: Admin, topic: str) -> None:
    """Delete the topic and create it again; return once the broker serves the new one."""
    async with open_consumer(bootstrap_servers=bootstrap) as asking:
        old = await asking.topic_ids([topic])
        await admin.delete_topics([topic])
        while True:  # the deletion may not have reached all brokers
            try:
                await admin.create_topics({topic: NewTopic(1, 1)})
                break
            except TopicAlreadyExistsError:
                await trio.lowlevel.checkpoint()
        # Before that the broker would write new records into the old topic.
        while (await asking.topic_ids([topic])).get(topic) in (None, old[topic]):
            pass
