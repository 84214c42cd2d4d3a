"""``-F FILE``: settings of a file that several commands share."""

from __future__ import annotations

import pytest

from trikafka.cli.options import Common
from trikafka.config import AdminConfig, ConsumerConfig, ProducerConfig
from trikafka.errors import ConfigurationError

FILE = (("security.protocol", "SSL"), ("group.id", "g"), ("acks", "1"), ("request.timeout.ms", "1000"))


def test_a_client_takes_what_it_knows_of_a_file() -> None:
    common = Common("a:1", (), False, FILE)
    shared = {"security_protocol": "SSL", "request_timeout_ms": 1000, "bootstrap_servers": "a:1"}
    assert common.settings(AdminConfig) == shared
    assert common.settings(ConsumerConfig) == {**shared, "group_id": "g"}
    assert common.settings(ProducerConfig)["acks"] == 1


def test_what_is_given_by_hand_wins_and_must_be_known() -> None:
    common = Common("a:1", (("request_timeout_ms", "2000"), ("group.id", "h")), False, FILE)
    assert common.settings(ConsumerConfig)["request_timeout_ms"] == 2000
    assert common.settings(AdminConfig)["group_id"] == "h"  # which an admin client refuses: it was meant


@pytest.mark.parametrize(("name", "hint"), [("sasl.pasword", "sasl.password"), ("ssl.ca.loction", "ssl.ca.location")])
def test_a_name_that_nobody_knows_is_an_error_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=f"unknown setting '{name}' for any client; did you mean '{hint}'"):
        Common("a:1", (), False, ((name, "x"),)).settings(AdminConfig)


def test_what_programs_of_java_read_records_by_is_passed_over() -> None:
    file = (("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer"), ("key.serializer", "x.Own"))
    assert Common("a:1", (), False, file).settings(ConsumerConfig) == {"bootstrap_servers": "a:1"}
