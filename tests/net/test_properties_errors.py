"""Errors of properties: one error names all faults of a file, and Java's own settings are left out."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from trikafka.config import ConsumerConfig, ProducerConfig, from_properties
from trikafka.errors import ConfigurationError

SECRET = "s3cr3t-77aa"


def test_all_unknown_names_are_in_one_error() -> None:
    with pytest.raises(ConfigurationError) as caught:
        from_properties(
            {"lingre.ms": "5", "acks": "all", "bufer.memory": "1", "ssl.zzz": "1"}, ProducerConfig
        )
    assert str(caught.value) == (
        "unknown settings for any client: 'lingre.ms' (did you mean 'linger.ms'?), 'bufer.memory' "
        "(did you mean 'buffer.memory'?),"
        " 'ssl.zzz'"
    )


def test_name_that_is_no_text_is_refused() -> None:
    given: Any = {"acks": "all", 1: SECRET}
    with pytest.raises(
        ConfigurationError, match=r"^the names of properties are texts, such as 'group.id', not 1$"
    ):
        from_properties(given, ProducerConfig)


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "/no/such/file", "/"])
def test_unreadable_file_is_named(path: str) -> None:
    with pytest.raises(ConfigurationError, match="the properties cannot be read"):
        from_properties(path)


def test_unreadable_values_are_in_the_same_error() -> None:
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
        "; value.serializer='io.confluent.kafka.serializers.KafkaAvroSerializer' is a class of "
        "Java's, and records are bytes: leave it out, or encode before the call"
        "; batch.size must be a number, not '16k'; enable.idempotence must be true or false, not "
        "'yes'"
        "; client_id is given twice, the second time as 'client_id', with another value"
    )


def test_keywords_are_explained_with_their_client() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ConsumerConfig.build({"group": "g", "linger_ms": 5})
    assert str(caught.value) == (
        "unknown settings for open_consumer(): 'group' (did you mean 'group_id'?), 'linger_ms' "
        "(it is one of open_producer()"
        " (of a file that several clients share: from_properties(file, ConsumerConfig)))"
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("metric.reporters", "statistics(), health() and observers replace metrics"),
        ("metrics.num.samples", "statistics(), health() and observers replace metrics"),
        ("interceptor.classes", "observers replace interceptors"),
        ("send.buffer.bytes", "sockets have the system's buffers, and send without delay"),
        ("receive_buffer_bytes", "sockets have the system's buffers, and send without delay"),
        ("schema.registry.url", "trikafka has no schema registry"),
        ("basic.auth.user.info", "trikafka has no schema registry"),
        ("topic.name.of.the.program", "no Kafka client's"),
    ],
)
def test_settings_of_other_clients_are_ignored(
    name: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They stand in many files. The nearest name of trikafka's would not be what they mean."""
    assert from_properties({"acks": "all", name: SECRET}) == {"acks": "all"}
    [line] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line == f"these properties were given but are not used: {name} ({why})"


def test_name_near_an_ignored_one_is_unknown() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown setting 'metric\.reporter'"):
        from_properties({"metric.reporter": "x"})
    with pytest.raises(ConfigurationError, match="unknown setting 'statistics_interval'"):
        from_properties({"statistics_interval": "x"})


@pytest.mark.parametrize(
    "name",
    ["ACKS", "Enable.Idempotence", "SSL.CA.LOCATION", "Sasl_User", "producer.sasl.jaas.config"],
)
def test_name_in_another_case_is_an_error(name: str) -> None:
    """Behind a prefix, too, a name about security is an error: the program would run without it."""
    with pytest.raises(ConfigurationError, match=f"unknown setting '{name}'"):
        from_properties({name: SECRET}, ProducerConfig)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("queue.buffering.max.kbytes", "buffer_memory"),
        ("max.in.flight", "max_in_flight_requests_per_connection"),
        ("queue.buffering.max.ms", "linger_ms"),
        ("socket.timeout.ms", "request_timeout_ms"),
        ("message.timeout.ms", "delivery_timeout_ms"),
    ],
)
@pytest.mark.parametrize("value", [[1], True])
def test_value_that_is_no_number_is_kept(name: str, setting: str, value: Any) -> None:
    """Opening the client raises the error that names the setting."""
    given = {"debug": "all", "delivery.timeout.ms": 1_000, name: value}
    if setting == "delivery_timeout_ms":
        del given["delivery.timeout.ms"]
    found = from_properties(given, ProducerConfig)
    assert found[setting] == value
    with pytest.raises(ConfigurationError, match=setting):
        ProducerConfig.take(found)


def test_placeholders_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Java fills them in where the file names config.providers, which is refused here."""
    jaas = 'x.PlainLoginModule required username=a password="${file:/run/s.properties:pw}";'
    from_properties({"sasl.jaas.config": jaas, "client.id": "${env:HOSTNAME}", "group.id": "${x}"})
    assert [record.getMessage() for record in caplog.records] == [
        "these properties hold placeholders such as ${env:NAME}, which are used as they are: "
        "sasl.jaas.config, client.id; fill them in before"
    ]
