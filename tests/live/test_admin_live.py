"""The admin client against a real broker."""

from __future__ import annotations

import uuid
from typing import Literal

import confluent_kafka
import pytest
import trio
from cluster_waits import topic_reported

import trikafka
from trikafka import (
    ConfigResource,
    ConsumerSettings,
    GroupIdNotFoundError,
    NewTopic,
    OffsetSpec,
    TopicPartition,
)


def fresh() -> str:
    return f"admin-{uuid.uuid4().hex[:8]}"


async def test_topics_and_offsets_are_managed(kafka_broker: object) -> None:
    name = fresh()
    servers: str = kafka_broker.bootstrap_servers  # type: ignore[attr-defined]
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        seen = await admin.describe_cluster()
        assert len(seen.nodes) == 1
        assert seen.cluster_id
        await admin.create_topics({name: NewTopic(2, 1, {"retention.ms": -1})})
        with pytest.raises(trikafka.TopicAlreadyExistsError, match=name):
            await admin.create_topics({name: NewTopic(2)})
        with pytest.raises(trikafka.ConfigurationError, match="a mapping of names to NewTopic"):
            await admin.create_topics([name])  # type: ignore[arg-type]
        with pytest.raises(trikafka.InvalidTopicError, match="no such name"):
            await admin.create_topics({"no such name": NewTopic(2)})
        with pytest.raises(trikafka.BrokerResponseError, match="INVALID_REPLICATION_FACTOR"):
            await admin.create_topics({fresh(): NewTopic(1, 7)})
        await topic_reported(admin, name, 2)
        assert await admin.topic_configs([name]) == {name: {"retention.ms": "-1"}}
        await admin.create_partitions({name: 3})
        await topic_reported(admin, name, 3)
        assert [info.partition for info in (await admin.list_topics())[name]] == [0, 1, 2]
        async with trikafka.open_producer(bootstrap_servers=servers) as producer:
            for n in range(5):
                await producer.send(name, b"v", partition=0, timestamp=1_000_000_000_000 + n)
        tp = TopicPartition(name, 0)
        latest = (await admin.list_offsets({tp: OffsetSpec.LATEST}))[tp]
        assert latest is not None
        # A broker that stood still for long was fenced, and leads in a later epoch than 0.
        assert (latest.offset, latest.timestamp) == (5, None)
        assert latest.leader_epoch in range(10)
        found = (await admin.list_offsets({tp: 1_000_000_000_003}))[tp]
        assert found is not None
        assert (found.offset, found.timestamp) == (3, 1_000_000_000_003)
        topic_id = (await admin.describe_topics([name]))[name].topic_id
        assert topic_id is not None
        assert (await admin.describe_topics([topic_id]))[topic_id].name == name
        await admin.delete_topics([topic_id])
        with pytest.raises(trikafka.UnknownTopicOrPartitionError, match=name):
            await admin.delete_topics([name])
        with pytest.raises(trikafka.UnknownTopicOrPartitionError, match=str(topic_id)):
            await admin.delete_topics([topic_id])


async def test_controllers_are_asked_themselves(kafka_broker: object) -> None:
    name = fresh()
    servers: str = kafka_broker.bootstrap_servers  # type: ignore[attr-defined]
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        quorum = await admin.describe_metadata_quorum()
        (endpoint,) = quorum.endpoints[quorum.leader_id or 0]
        controllers = f"{endpoint.host}:{endpoint.port}"
        async with trikafka.open_admin(bootstrap_controllers=controllers) as direct:
            seen = await direct.describe_cluster()
            assert seen.cluster_id == (await admin.describe_cluster()).cluster_id
            assert seen.controller is not None
            assert (seen.controller.host, seen.controller.port) == (endpoint.host, endpoint.port)
            assert (await direct.describe_metadata_quorum()).leader_id == quorum.leader_id
            assert "metadata.version" in (await direct.describe_features()).features
            await direct.create_topics({name: NewTopic(1, 1)})
            await direct.alter_configs({ConfigResource("topic", name): {"retention.ms": 7_000}})
            await topic_reported(admin, name, 1)
            with trio.fail_after(240):  # its settings are published a moment later
                while True:
                    if await direct.topic_configs([name]) == {name: {"retention.ms": "7000"}}:
                        break
                    await trio.sleep(0.05)
            with pytest.raises(trikafka.IllegalStateError, match="list_topics"):
                await direct.list_topics()
            await direct.delete_topics([name])
    with pytest.raises(trikafka.BootstrapError):
        async with trikafka.open_admin(bootstrap_controllers=servers):
            raise AssertionError


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_group_with_a_member_is_managed(
    kafka_broker: object, protocol: Literal["classic", "consumer"]
) -> None:
    name, group = fresh(), fresh()
    servers: str = kafka_broker.bootstrap_servers  # type: ignore[attr-defined]
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await admin.create_topics({name: NewTopic(2)})
        places = (TopicPartition(name, 0), TopicPartition(name, 1))
        settings: ConsumerSettings = {
            "bootstrap_servers": servers,
            "group_id": group,
            "group_protocol": protocol,
        }
        async with trikafka.open_consumer(name, client_id="reader", **settings) as consumer:
            with trio.fail_after(240):
                while consumer.assignment() != set(places):
                    await consumer.receive_batch(timeout=0.1)
            await consumer.commit(dict.fromkeys(places, 0))
            with trio.fail_after(240):  # the member confirms its assignment a moment later
                while True:
                    described = (await admin.describe_groups([group]))[group]
                    if described.state == "Stable":
                        break
                    await trio.sleep(0.05)
            assert [member.assignment for member in described.members] == [places]
            assert list(await admin.list_group_offsets(group)) == list(places)
            with pytest.raises(trikafka.BrokerResponseError, match="NON_EMPTY_GROUP"):
                await admin.delete_groups([group])
        with trio.fail_after(240):
            while True:
                listed = {found.group_id: found for found in await admin.list_groups()}
                if listed[group].state == "Empty":
                    break
                await trio.sleep(0.05)
        assert listed[group].type == protocol
        await admin.delete_groups([group])
        assert group not in {found.group_id for found in await admin.list_groups()}
        await admin.delete_topics([name])


async def test_consumer_protocol_group_is_listed(kafka_broker: object) -> None:
    name, group = fresh(), fresh()
    servers: str = kafka_broker.bootstrap_servers  # type: ignore[attr-defined]
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await admin.create_topics({name: NewTopic(2)})
        other = confluent_kafka.Consumer(
            {"bootstrap.servers": servers, "group.id": group, "group.protocol": "consumer"}
        )
        other.subscribe([name])
        try:
            with trio.fail_after(240):
                while group not in (
                    listed := {found.group_id: found for found in await admin.list_groups()}
                ):
                    await trio.to_thread.run_sync(other.poll, 0.1)
            described = await admin.describe_groups([group])
            with pytest.raises(GroupIdNotFoundError, match="'nosuch'"):
                await admin.describe_groups(["nosuch"])
            assert listed[group].type == "consumer"
            assert described[group].state in ("Stable", "Assigning", "Reconciling")
            assert len(described[group].members) == 1
        finally:
            await trio.to_thread.run_sync(other.close)
