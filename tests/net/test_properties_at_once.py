"""All that is wrong with a file of properties is told in one error, and what only Java's client knows of is left out."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from trikafka.config import ConsumerConfig, ProducerConfig, from_properties
from trikafka.errors import ConfigurationError

SECRET = "s3cr3t-77aa"


def test_all_names_that_nobody_has_in_one_error() -> None:
    with pytest.raises(ConfigurationError) as caught:
        from_properties({"lingre.ms": "5", "acks": "all", "bufer.memory": "1", "zzz": "1"}, ProducerConfig)
    assert str(caught.value) == (
        "unknown settings for any client: 'lingre.ms' (did you mean 'linger.ms'?), 'bufer.memory' (did you mean 'buffer.memory'?),"
        " 'zzz'"
    )


def test_names_that_are_no_texts() -> None:
    given: Any = {"acks": "all", 1: SECRET}
    with pytest.raises(ConfigurationError, match=r"^the names of properties are texts, such as 'group.id', not 1$"):
        from_properties(given, ProducerConfig)


def test_values_that_cannot_be_read_stand_beside_them() -> None:
    given = {
        "value.serializer": "io.confluent.kafka.serializers.KafkaAvroSerializer",
        "lingre.ms": "5",
        "batch.size": "16k",
        "enable.idempotence": "yes",
        "client.id": "a",
        "client_id": "b",
    }
    with pytest.raises(ConfigurationError) as caught:
        from_properties(given, ProducerConfig)
    assert str(caught.value) == (
        "unknown setting 'lingre.ms' for any client; did you mean 'linger.ms'?"
        "; value.serializer='io.confluent.kafka.serializers.KafkaAvroSerializer' is a class of Java's: leave it out, for"
        " records are bytes, or encode before the call"
        "; batch.size must be a number, not '16k'; enable.idempotence must be true or false, not 'yes'"
        "; client_id is given twice, the second time as 'client_id'"
    )


def test_keywords_too_and_whose_they_are() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ConsumerConfig.build({"group": "g", "linger_ms": 5})
    assert str(caught.value) == (
        "unknown settings for open_consumer(): 'group' (did you mean 'group_id'?), 'linger_ms' (it is one of open_producer()"
        " (of a file that several clients share: from_properties(file, ConsumerConfig)))"
    )


@pytest.mark.parametrize(
    "name",
    [
        "metric.reporters",
        "metrics.num.samples",
        "auto.include.jmx.reporter",
        "interceptor.classes",
        "confluent.monitoring.interceptor.topic",
        "send.buffer.bytes",
        "receive_buffer_bytes",
        "schema.registry.url",
        "basic.auth.user.info",
    ],
)
def test_what_only_other_languages_clients_have(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Before, each was an unknown setting, though it stands in many files; the nearest name of it was never what it means."""
    assert from_properties({"acks": "all", name: SECRET}) == {"acks": "all"}
    [line] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line == f"these properties were given but are not used: {name} (trikafka has no such thing)"


def test_a_name_that_is_near_them_is_none_of_them() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown setting 'metric\.reporter'"):
        from_properties({"metric.reporter": "x"})
    with pytest.raises(ConfigurationError, match="unknown setting 'debugging'"):
        from_properties({"debugging": "x"})
