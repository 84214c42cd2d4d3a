"""Look-ups of the admin client beside Java's answers to the same questions (``AdminAnswers.java``)."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import trio
from cluster_waits import topic_reported
from trikafka_broker import fetch_jars
from trikafka_broker.java import find_java

import trikafka
from trikafka import (
    Admin,
    ConfigResource,
    GroupDescription,
    NewTopic,
    OffsetAndMetadata,
    OffsetSpec,
    TopicPartition,
    TopicPartitionReplica,
)

CALLS = {
    "describe_cluster",
    "describe_configs",
    "describe_groups",
    "describe_producers",
    "describe_replica_log_dirs",
    "describe_topics",
    "describe_transactions",
    "earliest",
    "earliest_local",
    "latest",
    "list_config_resources",
    "list_group_offsets",
    "list_groups",
    "list_partition_reassignments",
    "list_topics",
    "list_transactions",
    "max_timestamp",
    "time",
}
#: A time between the records' timestamps.
BETWEEN = 1_700_000_001_500


def java_says(*arguments: str) -> list[str]:
    here = Path(__file__)
    quiet = here.parents[1] / "state" / "log4j2-silent.properties"
    command = [
        str(find_java()),
        f"-Dlog4j2.configurationFile={quiet}",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        f"{fetch_jars()}/*",
        str(here.with_name("AdminAnswers.java")),
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def line(call: str, *answer: object) -> str:
    """Return an answer as Java prints it."""
    return f"{call}\t" + " ".join(_word(each) for each in answer)


def _word(value: object) -> str:
    if isinstance(value, TopicPartition):
        return str(value)
    if isinstance(value, bool | None):
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_word, value))}]"
    return str(value)


def or_none(value: int | None) -> int:
    """Return the value, or Java's -1."""
    return -1 if value is None else value


async def own_answers(admin: Admin, topic: str, group: str, name: str) -> Iterable[str]:
    found: list[str] = []

    def say(call: str, *answer: object) -> None:
        found.append(line(call, *answer))

    assert topic in await admin.list_topics()
    described = (await admin.describe_topics([topic]))[topic]
    say("list_topics", topic, described.is_internal)
    all_of = [TopicPartition(topic, part.partition) for part in described.partitions]
    for part in described.partitions:
        say("describe_topics", part.partition, part.leader, part.replicas, part.in_sync_replicas)
    cluster = await admin.describe_cluster()
    say("describe_cluster", cluster.cluster_id)
    for node in cluster.nodes:
        say("describe_cluster", node.node_id, node.host, node.port, node.rack)
    specs: dict[str, OffsetSpec | int] = {
        "earliest": OffsetSpec.EARLIEST,
        "latest": OffsetSpec.LATEST,
        "max_timestamp": OffsetSpec.MAX_TIMESTAMP,
        "earliest_local": OffsetSpec.EARLIEST_LOCAL,
        "time": BETWEEN,
    }
    for call, spec in specs.items():
        for tp, place in (await admin.list_offsets(dict.fromkeys(all_of, spec))).items():
            if place is None:
                say(call, tp, -1, -1, -1)
            else:
                epoch = or_none(place.leader_epoch)
                say(call, tp, place.offset, or_none(place.timestamp), epoch)
    for listed in await admin.list_groups():
        if listed.group_id.startswith(group):
            kind = str(listed.type).capitalize()
            say("list_groups", listed.group_id, kind, listed.protocol_type, listed.state)
    for each in (await admin.describe_groups([group, f"{group}-new"])).values():
        found += of_group(each)
    for tp, at in sorted((await admin.list_group_offsets(group)).items()):
        say("list_group_offsets", tp, at.offset, or_none(at.leader_epoch), at.metadata)
    for one in await admin.list_transactions():
        if one.transactional_id == name:
            say("list_transactions", name, one.producer_id, one.state)
    open_one = (await admin.describe_transactions([name]))[name]
    say(
        "describe_transactions",
        open_one.state,
        open_one.producer_id,
        open_one.producer_epoch,
        round(open_one.timeout * 1000),
        or_none(open_one.started),
        open_one.partitions,
    )
    for tp, producers in (await admin.describe_producers(all_of)).items():
        for producer in sorted(producers, key=lambda producer: str(producer.producer_id)):
            say(
                "describe_producers",
                tp,
                producer.producer_id,
                producer.producer_epoch,
                or_none(producer.last_sequence),
                or_none(producer.last_timestamp),
                or_none(producer.coordinator_epoch),
                or_none(producer.transaction_start),
            )
    say("list_partition_reassignments", len(await admin.list_partition_reassignments()))
    resource = ConfigResource("topic", topic)
    for _, entry in sorted((await admin.describe_configs([resource]))[resource].items()):
        say(
            "describe_configs",
            entry.name,
            entry.value,
            entry.read_only,
            entry.sensitive,
            entry.type,
        )
    say("list_config_resources", resource in await admin.list_config_resources(["topic"]))
    replica = TopicPartitionReplica(topic, 0, 0)
    at_broker = (await admin.describe_replica_log_dirs([replica]))[replica]
    where = (at_broker.path, at_broker.offset_lag, at_broker.future_path)
    say("describe_replica_log_dirs", *where)
    return found


def of_group(group: GroupDescription) -> list[str]:
    kind = str(group.type).capitalize()
    assignor = group.assignor if group.type == "consumer" else group.protocol
    found = [line("describe_groups", group.group_id, group.state, kind, assignor)]
    for member in group.members:
        found.append(
            line(
                "describe_groups",
                member.member_id,
                member.client_id,
                f"/{member.client_host}",
                member.instance_id or "-",
                sorted(member.assignment),
            )
        )
    return found


@pytest.fixture
def servers(kafka_broker: Any) -> dict[str, Any]:
    return {"bootstrap_servers": kafka_broker.bootstrap_servers}


async def test_look_ups_are_as_java_says(servers: dict[str, Any]) -> None:
    topic = f"answers-{uuid.uuid4().hex[:8]}"
    group, name = f"{topic}-group", f"{topic}-id"
    t0, t2 = TopicPartition(topic, 0), TopicPartition(topic, 2)
    async with (
        trikafka.open_admin(**servers) as admin,
        trikafka.open_producer(
            **servers, transactional_id=name, transaction_timeout_ms=600_000
        ) as producer,
        trikafka.open_consumer(
            **servers,
            group_id=group,
            client_id="old",
            group_protocol="classic",
            enable_auto_commit=False,
        ) as old,
        trikafka.open_consumer(
            **servers,
            group_id=f"{group}-new",
            client_id="new",
            group_protocol="consumer",
            group_instance_id="static",
            enable_auto_commit=False,
        ) as new,
    ):
        await admin.create_topics({topic: NewTopic(3, 1, {"flush.ms": 7, "retention.ms": -1})})
        await topic_reported(admin, topic, 3)
        await admin.alter_group_offsets(group, {t0: OffsetAndMetadata(1, 0, "a note"), t2: 0})
        async with producer.transaction():
            for stamp in (1_700_000_001_000, 1_700_000_002_000, 1_700_000_001_700):
                await producer.send(topic, b"v", partition=0, timestamp=stamp)
        await admin.delete_records({t0: 1})
        for consumer in (old, new):
            consumer.subscribe([topic])
            with trio.fail_after(240):
                while len(consumer.assignment()) < 3:
                    await consumer.receive_batch(timeout=0.1)
        with trio.fail_after(240):  # a member has its partitions before the group knows that it has
            while any(  # noqa: ASYNC110
                each.state != "Stable"
                for each in (await admin.describe_groups([group, f"{group}-new"])).values()
            ):
                await trio.sleep(0.05)
        async with producer.transaction():
            await producer.send(topic, b"v", partition=1, timestamp=1_700_000_001_000)
            asked = (servers["bootstrap_servers"], topic, group, name, str(BETWEEN))
            mine = list(await own_answers(admin, topic, group, name))
            said = await trio.to_thread.run_sync(java_says, *asked)
    assert {one.partition("\t")[0] for one in said} == CALLS
    assert mine == said
