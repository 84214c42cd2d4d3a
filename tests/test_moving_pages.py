"""The pages *Coming from* name every public method of the other clients.

A method of Java or of an admin client need not stand there if ours has the same name.
``tests/data/java_methods.txt`` has the methods of Java's interfaces (Kafka 4.4.0, by ``javap``).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka.admin
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from trio.testing import MockClock

import trikafka
from trikafka import ConfigurationError, NewTopic, TopicPartition
from trikafka.testing import ScriptedCluster

ROOT = Path(__file__).parent.parent
JAVA = {
    line.split()[0]: line.split()[1:]
    for line in (ROOT / "tests/data/java_methods.txt").read_text().splitlines()
}


def named(page: str) -> set[str]:
    """Return the words in the first column of a page's tables."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return set(re.findall(r"\w+", " ".join(re.findall(r"^\| (.*?) \|", text, re.MULTILINE))))


@pytest.mark.parametrize(
    ("page", "client", "ours"),
    [
        ("from-aiokafka.md", AIOKafkaConsumer, None),
        ("from-aiokafka.md", AIOKafkaProducer, None),
        ("from-aiokafka.md", AIOKafkaAdminClient, None),
        ("from-kafka-python.md", kafka.KafkaConsumer, None),
        ("from-kafka-python.md", kafka.KafkaProducer, None),
        ("from-kafka-python.md", kafka.KafkaAdminClient, trikafka.Admin),
        ("from-confluent-kafka.md", confluent_kafka.Consumer, None),
        ("from-confluent-kafka.md", confluent_kafka.Producer, None),
        ("from-confluent-kafka.md", confluent_kafka.ShareConsumer, None),
        ("from-confluent-kafka.md", confluent_kafka.admin.AdminClient, trikafka.Admin),
    ],
)
def test_page_names_each_method(page: str, client: type, ours: type | None) -> None:
    methods = {
        name for name in dir(client) if not name.startswith("_") and callable(getattr(client, name))
    }
    assert len(methods) > 10
    same = set() if ours is None else set(dir(ours))
    assert methods - named(page) <= same, sorted(methods - named(page) - same)


@pytest.mark.parametrize("client", ["Consumer", "Producer", "Admin", "ShareConsumer"])
def test_page_names_what_java_names_differently(client: str) -> None:
    ours = dir(getattr(trikafka, client))
    differ = {name for name in JAVA[client] if re.sub("([A-Z])", r"_\1", name).lower() not in ours}
    missing = differ - named("java.md")
    assert missing == set(), sorted(missing)


@pytest.mark.parametrize(
    "partition", [aiokafka.TopicPartition("t", 0), kafka.TopicPartition("t", 0)]
)
async def test_one_partition_of_another_client_is_no_list(
    partition: Any, autojump_clock: MockClock
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings: Any = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with (
            trikafka.open_consumer(group_id="g", **settings) as consumer,
            trikafka.open_admin(**settings) as admin,
        ):
            consumer.assign([partition])
            assert consumer.assignment() == {TopicPartition("t", 0)}
            said = r"not one partition; write \[TopicPartition\('t', 0\)\]"
            for call in consumer.assign, consumer.pause, consumer.resume, consumer.seek_to_end:
                with pytest.raises(ConfigurationError, match=said):
                    call(partition)
            for look_up in consumer.committed, consumer.end_offsets, admin.describe_producers:
                with pytest.raises(ConfigurationError, match=said):
                    await look_up(partition)


async def test_errors_name_the_module_of_foreign_classes(autojump_clock: MockClock) -> None:
    """They have the names of trikafka's."""
    confluent: Any = confluent_kafka.TopicPartition("t", 0)
    position: Any = aiokafka.structs.OffsetAndMetadata(3, "")
    topic: Any = kafka.admin.NewTopic("t", 1, 1)
    resource: Any = kafka.admin.ConfigResource("TOPIC", "t")
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings: Any = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with (
            trikafka.open_consumer(group_id="g", **settings) as consumer,
            trikafka.open_admin(**settings) as admin,
        ):
            for given in confluent, [confluent]:
                with pytest.raises(ConfigurationError, match="of the module cimpl"):
                    consumer.assign(given)
            with pytest.raises(ConfigurationError, match=r"of the module aiokafka\.structs"):
                await consumer.commit({TopicPartition("t", 0): position})
            for call in (
                admin.create_topics({"u": topic}),
                admin.describe_configs([resource]),
                trikafka.ensure_topics(consumer, {"u": topic}),
            ):
                with pytest.raises(ConfigurationError, match=r"of the module kafka\.admin"):
                    await call
            assert await admin.create_topics({"u": NewTopic(1)})
