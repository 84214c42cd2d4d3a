"""``-F FILE``: settings that several commands share."""

from __future__ import annotations

import pytest

from trikafka.cli.options import Common
from trikafka.config import AdminConfig, ConsumerConfig, ProducerConfig
from trikafka.errors import ConfigurationError

FILE = (
    ("security.protocol", "SSL"),
    ("group.id", "g"),
    ("acks", "1"),
    ("request.timeout.ms", "1000"),
)


def test_client_takes_its_settings_of_a_file() -> None:
    common = Common("a:1", (), False, FILE)
    shared = {"security_protocol": "SSL", "request_timeout_ms": 1000, "bootstrap_servers": "a:1"}
    assert common.settings(AdminConfig) == shared
    assert common.settings(ConsumerConfig) == {**shared, "group_id": "g"}
    assert common.settings(ProducerConfig)["acks"] == 1


def test_option_overrides_the_file() -> None:
    common = Common("a:1", (("request_timeout_ms", "2000"), ("group.id", "h")), False, FILE)
    assert common.settings(ConsumerConfig)["request_timeout_ms"] == 2000
    # An admin client refuses an explicit group.id.
    assert common.settings(AdminConfig)["group_id"] == "h"


@pytest.mark.parametrize(
    ("name", "hint"), [("sasl.pasword", "sasl.password"), ("ssl.ca.loction", "ssl.ca.location")]
)
def test_unknown_name_is_an_error_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"unknown setting '{name}' for any client; did you mean '{hint}'"
    ):
        Common("a:1", (), False, ((name, "x"),)).settings(AdminConfig)


def test_java_serializers_are_ignored() -> None:
    file = (
        ("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer"),
        ("key.serializer", "x.Own"),
    )
    assert Common("a:1", (), False, file).settings(ConsumerConfig) == {"bootstrap_servers": "a:1"}


def test_file_keeps_its_partitioner_beside_an_option() -> None:
    """What librdkafka's defaults add must not override a choice of the file."""
    file = (("partitioner", "murmur2_random"), ("queue.buffering.max.ms", "5"))
    option = (("message.timeout.ms", "60000"),)
    assert Common("a:1", option, False, file).settings(ProducerConfig) == {
        "bootstrap_servers": "a:1",
        "partitioner": "murmur2_random",
        "linger_ms": 5,
        "delivery_timeout_ms": 60_000,
    }
    found = Common("a:1", option, False, file[1:]).settings(ProducerConfig)
    assert found["partitioner"] == "consistent_random"
    assert "partitioner" not in Common("a:1", option, False, file[1:]).settings(AdminConfig)
