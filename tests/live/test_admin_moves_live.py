"""Reassignments, elections, log directories, members, share groups: beside Java's tools."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from cluster_waits import PATIENT, topic_reported
from trikafka_broker import KafkaCluster
from trikafka_broker.pytest_plugin import _open

import trikafka
from trikafka import NewTopic, TopicDescription, TopicPartition, TopicPartitionReplica

_LIMIT = 240
#: For the tools that describe groups: 5 s by default, which is little for JVMs that stand still.
_PATIENT = ("--timeout", "120000")


@pytest.fixture(scope="module")
def kafka_cluster(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Run three brokers that stay in the cluster although one stands still for some seconds."""
    with _open(request.config, {"brokers": 3, "properties": PATIENT}) as cluster:
        yield cluster


def fresh() -> str:
    return f"moves-{uuid.uuid4().hex[:8]}"


async def java(brokers: Any, tool: str, *arguments: str) -> str:
    """Run one of Kafka's tools; return its output."""
    server = ("--bootstrap-server", brokers.bootstrap_servers)
    done = await trio.to_thread.run_sync(
        lambda: brokers.run_tool(
            f"org.apache.kafka.tools.{tool}", *server, *arguments, timeout=_LIMIT
        )
    )
    return str(done.stdout)


async def described(
    admin: trikafka.Admin, topic: str, wanted: Callable[[TopicDescription], bool]
) -> TopicDescription:
    """Return the topic once the brokers describe it as wanted: the controller has it first."""
    with trio.fail_after(_LIMIT):
        while True:
            with suppress(trikafka.UnknownTopicOrPartitionError):  # of a broker that is behind
                found = (await admin.describe_topics([topic]))[topic]
                if wanted(found):
                    return found
            await trio.sleep(0.05)


async def made(admin: trikafka.Admin, partitions: dict[int, list[int]]) -> str:
    name = fresh()
    await admin.create_topics({name: NewTopic(assignments=partitions)})
    await topic_reported(admin, name, len(partitions), _LIMIT)
    return name


async def test_moved_partition_is_as_java_says(kafka_cluster: Any, tmp_path: Path) -> None:
    async with trikafka.open_admin(bootstrap_servers=kafka_cluster.bootstrap_servers) as admin:
        name = await made(admin, {0: [0, 1], 1: [1, 2]})
        first, missing = TopicPartition(name, 0), TopicPartition(name, 7)
        with pytest.raises(trikafka.AdminErrors, match=f"{name}-7") as raised:
            await admin.alter_partition_reassignments({first: [2, 0], missing: [1]})
        assert (list(raised.value.results), list(raised.value.failures)) == ([first], [missing])
        with trio.fail_after(_LIMIT):
            while first in await admin.list_partition_reassignments([first]):  # noqa: ASYNC110
                await trio.sleep(0.05)
        await described(admin, name, lambda seen: seen.partitions[0].replicas == (2, 0))
        plan = tmp_path / "plan.json"
        parts = [{"topic": name, "partition": 0, "replicas": [2, 0]}]
        plan.write_text(json.dumps({"version": 1, "partitions": parts}))
        verify = ("--verify", "--reassignment-json-file", str(plan))
        with trio.fail_after(2 * _LIMIT):  # the tool may ask a broker that is behind
            while f"partition {name}-0 is completed" not in await java(  # noqa: ASYNC110
                kafka_cluster, "reassign.ReassignPartitionsCommand", *verify
            ):
                await trio.sleep(0.1)
        with pytest.raises(trikafka.BrokerResponseError, match="NO_REASSIGNMENT_IN_PROGRESS"):
            await admin.alter_partition_reassignments({first: None})


async def test_preferred_leader_is_elected(kafka_cluster: Any) -> None:
    async with trikafka.open_admin(bootstrap_servers=kafka_cluster.bootstrap_servers) as admin:
        name = await made(admin, {0: [0, 1]})
        tp = TopicPartition(name, 0)
        await described(
            admin, name, lambda seen: set(seen.partitions[0].in_sync_replicas) == {0, 1}
        )
        await admin.alter_partition_reassignments({tp: [1, 0]})
        await described(admin, name, lambda seen: seen.partitions[0].replicas == (1, 0))
        with trio.fail_after(_LIMIT):
            while True:
                with suppress(trikafka.BrokerResponseError):  # while the replica is not in sync
                    assert list(await admin.elect_leaders([tp])) == [tp]
                    break
                await trio.sleep(0.1)
        await described(admin, name, lambda seen: seen.partitions[0].leader == 1)
        assert await admin.elect_leaders([tp]) == {tp: False}
        said = await java(
            kafka_cluster,
            "LeaderElectionCommand",
            "--election-type",
            "preferred",
            "--topic",
            name,
            "--partition",
            "0",
        )
        assert "Valid replica already elected for partitions" in said
        assert f"{name}-0" in said


async def test_replicated_producers_are_fenced(kafka_cluster: Any) -> None:
    """The coordinator's record has to reach the followers of its log first (KAFKA-16047)."""
    names = [fresh() for _ in range(4)]
    async with trikafka.open_admin(bootstrap_servers=kafka_cluster.bootstrap_servers) as admin:
        made = await admin.fence_producers(names, timeout=_LIMIT)
        assert list(made) == names
        again = await admin.fence_producers(names, timeout=_LIMIT)
        assert all(again[name].epoch > made[name].epoch for name in names)
        await admin.force_terminate_transaction(names[0], timeout=_LIMIT)


def sizes(
    found: dict[int, dict[str, trikafka.LogDirDescription]],
) -> dict[tuple[int, str, str], int]:
    """Return the size of each replica by broker, directory and partition."""
    return {
        (broker, path, f"{tp.topic}-{tp.partition}"): replica.size
        for broker, directories in found.items()
        for path, directory in directories.items()
        for tp, replica in directory.replicas.items()
    }


async def test_directories_are_as_java_says(kafka_cluster: Any) -> None:
    servers = kafka_cluster.bootstrap_servers
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        name = await made(admin, {0: [0, 1], 1: [2, 0]})
        async with trikafka.open_producer(bootstrap_servers=servers, acks="all") as producer:
            for number in range(20):
                await producer.send(name, b"v" * 100, partition=number % 2)
        partitions = [TopicPartition(name, 0), TopicPartition(name, 1)]
        with trio.fail_after(_LIMIT):  # until the followers have everything
            while True:
                found = sizes(await admin.describe_log_dirs(partitions=partitions))
                if len(set(found.values())) == 1:
                    break
                await trio.sleep(0.1)
        said = await java(kafka_cluster, "LogDirsCommand", "--describe", "--topic-list", name)
        theirs = {
            (broker["broker"], directory["logDir"], part["partition"]): part["size"]
            for line in said.splitlines()
            if line.startswith("{")
            for broker in json.loads(line)["brokers"]
            for directory in broker["logDirs"]
            for part in directory["partitions"]
        }
        mine = await admin.describe_log_dirs(partitions=partitions)
        assert sizes(mine) == theirs
        assert len(theirs) == 4
        replica = TopicPartitionReplica(name, 0, 1)
        (place,) = (await admin.describe_replica_log_dirs([replica])).values()
        assert place.path in mine[1]
        assert place.future_path is None
        with pytest.raises(trikafka.BrokerResponseError, match="LOG_DIR_NOT_FOUND"):
            await admin.alter_replica_log_dirs({replica: "/no/such/directory"})


async def test_removed_static_member_is_gone(kafka_cluster: Any) -> None:
    servers, group = kafka_cluster.bootstrap_servers, fresh()
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        name = await made(admin, {0: [0], 1: [1]})
        async with trikafka.open_consumer(
            name,
            bootstrap_servers=servers,
            group_id=group,
            group_protocol="classic",
            group_instance_id="one",
            session_timeout_ms=600_000,
        ) as consumer:
            with trio.fail_after(_LIMIT):
                while not consumer.assignment():
                    await consumer.receive_batch(timeout=0.1)
        # A static member stays in its group when its consumer is closed.
        (member,) = (await admin.describe_groups([group]))[group].members
        assert (member.instance_id, member.topics) == ("one", (name,))
        said = await members(kafka_cluster, group)
        assert member.member_id in said
        assert await admin.remove_group_members(group, reason="test") == ["one"]
        with pytest.raises(trikafka.MemberFencedError, match="member 'one'"):
            await admin.remove_group_members(group, instance_ids=["one"])
        with trio.fail_after(_LIMIT):
            while True:
                found = (await admin.describe_groups([group]))[group]
                if found.state == "Empty":
                    break
                await trio.sleep(0.05)
        assert found.members == ()


async def members(brokers: Any, group: str) -> str:
    command = "consumer.group.ConsumerGroupCommand"
    return await java(brokers, command, "--describe", "--members", "--group", group, *_PATIENT)


async def test_share_offsets_are_as_java_says(kafka_cluster: Any) -> None:
    servers, group = kafka_cluster.bootstrap_servers, fresh()
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        name = await made(admin, {0: [0], 1: [1]})
        async with trikafka.open_producer(bootstrap_servers=servers) as producer:
            for _ in range(9):
                await producer.send(name, b"v", partition=0)
        starts = {TopicPartition(name, 0): 4, TopicPartition(name, 1): 0}
        # The topic of the share coordinator's state is made by the first request.
        with trio.fail_after(_LIMIT):
            while True:
                try:
                    await admin.alter_share_group_offsets(group, starts)
                    break
                except trikafka.TrikafkaError:
                    await trio.sleep(0.2)
        # The coordinator asks the leaders for the ends. A lag is missing while one does not answer.
        lags: dict[int, int | None] = {}
        rows: list[tuple[str, str, str]] = []
        with trio.fail_after(2 * _LIMIT):
            while lags != {0: 5, 1: 0}:
                mine = (await admin.list_share_group_offsets([group]))[group]
                assert {tp: at.start_offset for tp, at in mine.items()} == starts
                lags = {tp.partition: at.lag for tp, at in mine.items()}
            while sorted(rows) != [("0", "4", "5"), ("1", "0", "0")]:
                said = await java(
                    kafka_cluster,
                    "consumer.group.ShareGroupCommand",
                    *("--describe", "--offsets", "--group", group, *_PATIENT),
                )
                rows = re.findall(rf"^{group}\s+{name}\s+(\d+)\s+(\d+)\s+(\S+)", said, re.MULTILINE)
        found = (await admin.describe_share_groups([group]))[group]
        assert (found.state, found.members) == ("Empty", ())
        assert (await admin.describe_groups([group]))[group] == found
        await admin.delete_share_group_offsets(group, [name])
        assert await admin.list_share_group_offsets([group]) == {group: {}}
        await admin.delete_groups([group])
        with pytest.raises(trikafka.GroupIdNotFoundError, match=group):
            await admin.describe_share_groups([group])


async def test_cluster_is_described_whole(kafka_cluster: Any) -> None:
    async with trikafka.open_admin(bootstrap_servers=kafka_cluster.bootstrap_servers) as admin:
        seen = await admin.describe_cluster(fenced_brokers=True, authorized_operations=True)
        assert [node.node_id for node in seen.nodes] == [0, 1, 2]
        assert seen.fenced_nodes == ()
        assert seen.authorized_operations is not None
        assert {"create", "describe"} <= seen.authorized_operations
        name = fresh()
        topics = {name: NewTopic(2, 2, {"flush.ms": 7})}
        checked = await admin.create_topics(topics, validate_only=True)
        assert (checked[name].partitions, checked[name].topic_id) == (2, None)
        assert name not in await admin.list_topics()
        created = (await admin.create_topics(topics))[name]
        assert (created.config or {})["flush.ms"] == "7"
        await topic_reported(admin, name, 2, _LIMIT)
        await admin.create_partitions({name: 3}, assignments={name: [[2, 0]]})
        found = await described(admin, name, lambda seen: len(seen.partitions) == 3)
        assert found.topic_id == created.topic_id
        assert found.partitions[2].replicas == (2, 0)
        assert found.authorized_operations is not None
