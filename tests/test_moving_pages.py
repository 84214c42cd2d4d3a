"""The pages *Coming from* name every public method of the other clients.

A method of Java or of an admin client need not stand there if ours has the same name.
``tests/data/java_methods.txt`` has the methods of Java's interfaces (Kafka 4.4.0, by ``javap``).
"""

from __future__ import annotations

import re
from pathlib import Path

import confluent_kafka.admin
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

import trikafka

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
