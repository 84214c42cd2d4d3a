"""Settings, offsets of groups and deleted records: trikafka's word beside that of Java's tools."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
import trio
from cluster_waits import topic_reported
from trikafka_broker import KafkaCluster

import trikafka
from trikafka import ConfigChange, ConfigResource, NewTopic, OffsetSpec, TopicPartition


@pytest.fixture
def one_broker(kafka_broker_cluster: KafkaCluster) -> KafkaCluster:
    return kafka_broker_cluster


def fresh() -> str:
    return f"changes-{uuid.uuid4().hex[:8]}"


async def java(broker: Any, tool: str, *arguments: str) -> str:
    """Run one of Kafka's tools; return its output."""
    server = ("--bootstrap-server", broker.bootstrap_servers)
    done = await trio.to_thread.run_sync(
        lambda: broker.run_tool(tool, *server, *arguments, timeout=240)
    )
    return str(done.stdout)


async def java_configs(broker: Any, kind: str, name: str) -> dict[str, str]:
    text = await java(
        broker,
        "kafka.admin.ConfigCommand",
        "--describe",
        "--entity-type",
        kind,
        "--entity-name",
        name,
    )
    return dict(re.findall(r"^  (\S+?)=(\S*) sensitive=", text, re.MULTILINE))


async def entries(
    admin: trikafka.Admin, resource: ConfigResource, **wanted: str | None
) -> dict[str, trikafka.ConfigEntry]:
    """Return the settings once the broker has these own values: the controller has them first."""
    with trio.fail_after(240):
        while True:
            found = (await admin.describe_configs([resource], documentation=True))[resource]
            own = {name: entry for name, entry in found.items() if not entry.is_default}
            values = {name.replace("_", "."): value for name, value in wanted.items()}
            if all((own[name].value if name in own else None) == values[name] for name in values):
                return found
            await trio.sleep(0.05)


async def test_topic_settings_are_as_java_says(one_broker: Any) -> None:
    name = fresh()
    topic = ConfigResource("topic", name)
    async with trikafka.open_admin(bootstrap_servers=one_broker.bootstrap_servers) as admin:
        await admin.create_topics({name: NewTopic(1, 1, {"retention.ms": 60_000})})
        await topic_reported(admin, name, 1)
        await admin.alter_configs(
            {topic: {"cleanup.policy": "compact", "retention.ms": None, "flush.ms": 7}}
        )
        await admin.alter_configs({topic: {"cleanup.policy": ConfigChange("append", "delete")}})
        mine = await entries(admin, topic, cleanup_policy="compact,delete", retention_ms=None)
        own = {entry.name: entry.value for entry in mine.values() if entry.source == "topic"}
        assert own == await java_configs(one_broker, "topics", name)
        assert own == {"cleanup.policy": "compact,delete", "flush.ms": "7"}
        policy = mine["cleanup.policy"]
        assert policy.type == "list"
        assert "retention" in (policy.documentation or "")
        assert policy.synonyms[0] == ("cleanup.policy", "compact,delete", "topic")
        assert mine["retention.ms"].is_default

        await admin.alter_configs({topic: {"flush.ms": 8}}, validate_only=True)
        await admin.alter_configs({topic: {"cleanup.policy": ConfigChange("subtract", "compact")}})
        await entries(admin, topic, cleanup_policy="delete", flush_ms="7")


async def test_one_wrong_setting_leaves_the_others(one_broker: Any) -> None:
    good, bad, missing = (ConfigResource("topic", fresh()) for _ in range(3))
    async with trikafka.open_admin(bootstrap_servers=one_broker.bootstrap_servers) as admin:
        await admin.create_topics({one.name: NewTopic(1, 1) for one in (good, bad)})
        for one in (good, bad):
            await topic_reported(admin, one.name, 1)
        with pytest.raises(trikafka.TrikafkaError, match=bad.name) as caught:
            await admin.alter_configs(
                {bad: {"no.such": 1}, good: {"flush.ms": 7}, missing: {"flush.ms": 7}}
            )
        assert missing.name in str(caught.value)
        await entries(admin, good, flush_ms="7")
        with pytest.raises(trikafka.UnknownTopicOrPartitionError, match=missing.name):
            await admin.describe_configs([missing])


async def test_brokers_and_groups_have_settings(one_broker: Any) -> None:
    group, broker = ConfigResource("group", fresh()), ConfigResource("broker", "0")
    everywhere, logger = ConfigResource("broker", ""), ConfigResource("broker_logger", "0")
    async with trikafka.open_admin(bootstrap_servers=one_broker.bootstrap_servers) as admin:
        await admin.alter_configs({group: {"consumer.session.timeout.ms": 50_000}})
        mine = await entries(admin, group, consumer_session_timeout_ms="50000")
        assert mine["consumer.session.timeout.ms"].source == "group"
        await admin.alter_configs({everywhere: {"log.cleaner.threads": 1}})
        await entries(admin, broker, log_cleaner_threads="1")
        found = await admin.describe_configs([broker, everywhere, logger])
        threads = found[broker]["log.cleaner.threads"]
        assert (threads.value, threads.source) == ("1", "brokers")
        assert found[broker]["node.id"].read_only
        assert found[everywhere]["log.cleaner.threads"].value == "1"
        assert all(entry.source == "broker_logger" for entry in found[logger].values())
        await admin.alter_configs({everywhere: {"log.cleaner.threads": None}})
        with pytest.raises(trikafka.TrikafkaError, match="no live broker 9; it has 0"):
            await admin.describe_configs([ConfigResource("broker", "9")])


async def test_group_offsets_are_as_java_says(one_broker: Any) -> None:
    name, group = fresh(), fresh()
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    servers = one_broker.bootstrap_servers
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await admin.create_topics({name: NewTopic(2, 1)})
        await topic_reported(admin, name, 2)
        async with trikafka.open_producer(bootstrap_servers=servers) as producer:
            for _ in range(9):
                await producer.send(name, b"v", partition=0)
        await admin.alter_group_offsets(
            group, {first: 4, second: trikafka.OffsetAndMetadata(0, metadata="mine")}
        )
        text = await java(
            one_broker,
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            "--describe",
            "--group",
            group,
            # 5 s by default, which is little for two JVMs that stand still.
            "--timeout",
            "60000",
        )
        rows = re.findall(rf"^{group}\s+{name}\s+(\d)\s+(\d+)\s+(\d+)\s+(\d+)", text, re.MULTILINE)
        assert sorted(rows) == [("0", "4", "9", "5"), ("1", "0", "0", "0")]
        await admin.delete_group_offsets(group, [first])
        left = await admin.list_group_offsets(group)
        assert {tp: at.metadata for tp, at in left.items()} == {second: "mine"}
        await admin.delete_group_offsets(group, [first])  # no error: it has none
        with pytest.raises(trikafka.GroupIdNotFoundError, match="no-such-group"):
            await admin.delete_group_offsets("no-such-group", [first])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_group_with_members_keeps_its_offsets(one_broker: Any, protocol: Any) -> None:
    name, group = fresh(), fresh()
    tp, servers = TopicPartition(name, 0), one_broker.bootstrap_servers
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await admin.create_topics({name: NewTopic(1, 1)})
        await topic_reported(admin, name, 1)
        async with (
            trikafka.open_producer(bootstrap_servers=servers) as producer,
            trikafka.open_consumer(
                name,
                bootstrap_servers=servers,
                group_id=group,
                group_protocol=protocol,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            ) as consumer,
        ):
            await producer.send(name, b"v")
            with trio.fail_after(240):
                record = await consumer.receive()
            await consumer.commit(record)
            with pytest.raises(trikafka.IllegalStateError, match=f"{group!r} has members"):
                await admin.alter_group_offsets(group, {tp: 0})
            with pytest.raises(trikafka.BrokerResponseError, match="stop them first") as caught:
                await admin.delete_group_offsets(group, [tp])
            assert set(caught.value.failures) == {tp}
            assert (await admin.list_group_offsets(group))[tp].offset == 1


async def test_records_before_an_offset_are_gone(one_broker: Any) -> None:
    name = fresh()
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    servers = one_broker.bootstrap_servers
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await admin.create_topics({name: NewTopic(2, 1)})
        await topic_reported(admin, name, 2)
        async with trikafka.open_producer(bootstrap_servers=servers) as producer:
            for number in range(10):
                await producer.send(name, b"v", partition=number % 2)
        found = await admin.delete_records({first: 2, second: OffsetSpec.LATEST})
        assert found == {first: 2, second: 5}
        begins = await admin.list_offsets(dict.fromkeys(found, OffsetSpec.EARLIEST))
        assert {tp: at.offset for tp, at in begins.items() if at is not None} == found
        with pytest.raises(trikafka.AdminErrors, match="OFFSET_OUT_OF_RANGE") as caught:
            await admin.delete_records({first: 3, second: 99})
        assert set(caught.value.failures) == {second}
        assert caught.value.results == {first: 3}
        begins = await admin.list_offsets({first: OffsetSpec.EARLIEST})
        assert begins[first] is not None
        assert begins[first].offset == 3
