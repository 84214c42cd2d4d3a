"""Metadata, FindCoordinator, and creating and deleting topics."""

from __future__ import annotations

from typing import Any

import pytest
from rawclient import RawClient
from trio.testing import MockClock as Clock

import trikafka
from trikafka.testing import ScriptedCluster


@pytest.mark.parametrize("version", range(14))
async def test_metadata_in_every_version(autojump_clock: Clock, version: int) -> None:
    async with ScriptedCluster(nodes=3, topics={"t": 4, "u": 1}) as cluster:
        client = await RawClient.connect(cluster, 1)
        answer = await client.call("Metadata", version, topics=[] if version == 0 else None)
        assert [(node.node_id, node.host, node.port) for node in answer.brokers] == [
            (i, f"broker-{i}", 9092) for i in range(3)
        ]
        assert [topic.name for topic in answer.topics] == ["t", "u"]
        assert [part.leader_id for part in answer.topics[0].partitions] == [0, 1, 2, 0]
        assert answer.topics[0].partitions[1].replica_nodes == [1, 2, 0]
        if version >= 2:
            assert answer.cluster_id == "scripted-cluster"
        if version >= 10:
            assert answer.topics[0].topic_id != answer.topics[1].topic_id


async def test_metadata_of_topics_by_name_and_id(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1, "u": 1}) as cluster:
        client = await RawClient.connect(cluster)
        answer = await client.call(
            "Metadata", 12, topics=[{"name": "u"}, {"name": "none"}, {"name": "a/b"}]
        )
        assert [(topic.name, topic.error_code) for topic in answer.topics] == [
            ("u", 0),
            ("none", 3),
            ("a/b", 17),
        ]
        by_id = [
            {"topic_id": answer.topics[0].topic_id, "name": None},
            {"topic_id": _other_id(), "name": None},
        ]
        answer = await client.call("Metadata", 12, topics=by_id)
        assert [(topic.name, topic.error_code) for topic in answer.topics] == [
            ("u", 0),
            (None, 100),
        ]
        assert (await client.call("Metadata", 12, topics=[])).topics == []


def _other_id() -> Any:
    import uuid

    return uuid.UUID(int=5)


async def test_metadata_creates_topics_if_both_allow_it(autojump_clock: Clock) -> None:
    async with ScriptedCluster(auto_create_topics=True) as cluster:
        client = await RawClient.connect(cluster)
        answer = await client.call(
            "Metadata", 12, topics=[{"name": "n"}], allow_auto_topic_creation=False
        )
        assert answer.topics[0].error_code == 3
        answer = await client.call(
            "Metadata", 12, topics=[{"name": "n"}], allow_auto_topic_creation=True
        )
        assert answer.topics[0].error_code == 5
        answer = await client.call(
            "Metadata", 12, topics=[{"name": "n"}], allow_auto_topic_creation=True
        )
        assert [part.partition_index for part in answer.topics[0].partitions] == [0]


async def test_moved_leader_gets_a_new_epoch(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        cluster.move_leader("t", 0, 1)
        part = (await client.call("Metadata", 12, topics=None)).topics[0].partitions[0]
        assert (part.leader_id, part.leader_epoch) == (1, 1)
        cluster.move_leader("t", 0, None)
        part = (await client.call("Metadata", 12, topics=None)).topics[0].partitions[0]
        assert (part.leader_id, part.leader_epoch, part.error_code) == (-1, 2, 5)


async def test_metadata_may_fail_for_one_topic_only(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1, "u": 1}) as cluster:
        client = await RawClient.connect(cluster)
        cluster.fail("Metadata", 5, topic="u")
        codes = [
            topic.error_code for topic in (await client.call("Metadata", 12, topics=None)).topics
        ]
        assert codes == [0, 5]


@pytest.mark.parametrize("version", range(7))
async def test_find_coordinator_in_every_version(autojump_clock: Clock, version: int) -> None:
    async with ScriptedCluster(nodes=2, coordinator=1) as cluster:
        client = await RawClient.connect(cluster)

        async def find(key: str = "g") -> tuple[int, int]:
            answer = await client.call(
                "FindCoordinator", version, key=key, key_type=0, coordinator_keys=[key]
            )
            found = answer.coordinators[0] if version >= 4 else answer
            return found.error_code, found.node_id

        assert await find() == (0, 1)
        cluster.move_coordinator(0, "g")
        assert await find() == (0, 0)
        assert await find("h") == await find("") == (0, 1)
        cluster.stop(1)
        assert await find("h") == (15, -1)
        cluster.fail("FindCoordinator", 14)
        assert await find() == (14, -1)


@pytest.mark.parametrize("version", range(2, 8))
async def test_create_topics_in_every_version(autojump_clock: Clock, version: int) -> None:
    def topic(name: str, partitions: int = 2, replication: int = 1) -> dict[str, Any]:
        return {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication,
            "assignments": [],
            "configs": [{"name": "max.message.bytes", "value": "100"}],
        }

    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        asked = [topic("new"), topic("t"), topic("a/b"), topic("zero", 0), topic("wide", 1, 3)]
        answer = await client.call(
            "CreateTopics", version, topics=asked, timeout_ms=1000, validate_only=False
        )
        assert [item.error_code for item in answer.topics] == [0, 36, 17, 37, 38]
        checked = await client.call(
            "CreateTopics", version, topics=[topic("dry")], timeout_ms=1000, validate_only=True
        )
        assert checked.topics[0].error_code == 0
        names = [item.name for item in (await client.call("Metadata", 12, topics=None)).topics]
        assert names == ["t", "new"]
        if version >= 5:
            assert [(entry.name, entry.value) for entry in answer.topics[0].configs] == [
                ("max.message.bytes", "100")
            ]


@pytest.mark.parametrize("version", range(1, 7))
async def test_delete_topics_in_every_version(autojump_clock: Clock, version: int) -> None:
    async with ScriptedCluster(topics={"t": 1, "u": 1}) as cluster:
        client = await RawClient.connect(cluster)
        names = ["t", "none"]
        topics = [{"name": name} for name in names] if version >= 6 else []
        answer = await client.call(
            "DeleteTopics", version, topics=topics, topic_names=names, timeout_ms=1000
        )
        assert [(item.name, item.error_code) for item in answer.responses] == [
            ("t", 0),
            ("none", 3),
        ]
        assert [item.name for item in (await client.call("Metadata", 12, topics=None)).topics] == [
            "u"
        ]


async def test_create_partitions_checks_its_arguments(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        client = await RawClient.connect(cluster)
        for count, code in ((2, 37), (4, 0)):
            answer = await client.call(
                "CreatePartitions",
                3,
                topics=[{"name": "t", "count": count, "assignments": None}],
                timeout_ms=1,
                validate_only=False,
            )
            assert answer.results[0].error_code == code
        assert len((await client.call("Metadata", 12, topics=None)).topics[0].partitions) == 4


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"cleanup.polcy": "compact"}, "Unknown topic config name: cleanup.polcy"),
        ({"cleanup.policy": "cmpact"}, "Invalid value cmpact for .*one of: compact, delete"),
        ({"message.timestamp.type": "x"}, "Invalid value x .*one of: CreateTime, LogAppendTime"),
        ({"retention.ms": "abc"}, "Invalid value abc for configuration retention.ms"),
        ({"max.message.bytes": "-1"}, "Invalid value -1 .*Value must be at least 0"),
        ({"preallocate": "yes"}, "Invalid value yes .*one of: true, false"),
    ],
)
async def test_wrong_config_is_refused(
    config: dict[str, str], said: str, autojump_clock: Clock
) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_admin(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as admin,
    ):
        topic = trikafka.ConfigResource("topic", "t")
        with pytest.raises(trikafka.BrokerResponseError, match=said):
            await admin.create_topics({"u": trikafka.NewTopic(1, 1, config)})
        with pytest.raises(trikafka.BrokerResponseError, match=said):
            await admin.alter_configs({topic: config})
        await admin.alter_configs({topic: {"cleanup.policy": "compact,delete"}})
        await admin.create_topics({"u": trikafka.NewTopic(1, 1, {"retention.ms": "-1"})})


async def test_names_that_collide_in_metrics_are_refused(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"a.b": 1}) as cluster,
        trikafka.open_admin(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as admin,
    ):
        with pytest.raises(trikafka.InvalidTopicError, match=r"'a_b' collides with .*: a\.b"):
            await admin.create_topics({"a_b": trikafka.NewTopic(1, 1)})


async def test_timestamp_in_microseconds_is_refused(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_producer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as producer,
    ):
        with pytest.raises(trikafka.BrokerResponseError, match="INVALID_TIMESTAMP"):
            await producer.send("t", b"x", timestamp=1_700_000_000_000_000)
