"""A file of Java's properties that several programs share: what one of them has no use for is left out, with one warning."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import trikafka
from trikafka.cli.options import Common
from trikafka.config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig, from_properties
from trikafka.errors import ConfigurationError

SECRET = "s3cr3t-77aa"
JAVA = "org.apache.kafka.common.serialization."
JAVA_CONSUMER = "org.apache.kafka.clients.consumer."
SASL = {
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.jaas.config": f'x.ScramLoginModule required username="a" password="{SECRET}";',
    "sasl.login.class": "x.Own",
}
TLS = {
    "ssl.endpoint.identification.algorithm": "",
    "ssl.truststore.location": "trust.jks",
    "ssl.truststore.password": SECRET,
    "ssl.protocol": "TLSv1.3",
}


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("protocol", "given", "unused"),
    [
        ("PLAINTEXT", {**SASL, **TLS}, [*SASL, *TLS]),
        ("plaintext", {"ssl.endpoint.identification.algorithm": ""}, ["ssl.endpoint.identification.algorithm"]),
        ("SSL", SASL, [*SASL]),
        ("SSL", {**SASL, "ssl.ca.location": "ca.pem"}, [*SASL]),
        ("SASL_PLAINTEXT", {**TLS, "sasl.mechanism": "GSSAPI"}, [*TLS]),
    ],
)
def test_what_the_security_protocol_has_no_use_for(
    protocol: str, given: dict[str, str], unused: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Before, each of these was refused, by its value or when a client was opened. Java's client warns."""
    shared = {"bootstrap.servers": "a:1", **given, "security.protocol": protocol}
    AdminConfig.build(from_properties(shared))
    [line] = told(caplog)
    assert line == (
        f"these properties were given but are not used: {', '.join(unused)} (security.protocol is {protocol.upper()})"
    )


def test_what_is_used_is_neither_left_out_nor_told(caplog: pytest.LogCaptureFixture) -> None:
    shared = {"security.protocol": "SASL_SSL", "ssl.ca.location": "ca.pem", "sasl.mechanism": "PLAIN", "sasl.username": "a"}
    found = from_properties({**shared, "sasl.password": SECRET}, AdminConfig)
    assert set(found) == {"security_protocol", "ssl_cafile", "sasl_mechanism", "sasl_plain_username", "sasl_plain_password"}
    assert told(caplog) == []


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        # No protocol: who has written credentials down may believe that they are used.
        ({"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": SECRET}, "needs security_protocol='SASL_SSL'"),
        ({"ssl.ca.location": "ca.pem"}, "ssl_cafile needs security_protocol='SSL'"),
        # A protocol that uses it: what it says counts.
        ({"security.protocol": "SSL", **TLS}, "is a store of type JKS"),
        ({"security.protocol": "SASL_PLAINTEXT", **SASL}, "unknown setting 'sasl.login.class'"),
    ],
)
def test_what_may_be_meant_is_refused(properties: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        AdminConfig.build(from_properties(properties, AdminConfig))
    assert SECRET not in str(caught.value)


def test_keywords_are_meant() -> None:
    with pytest.raises(ConfigurationError, match="sasl_mechanism needs security_protocol"):
        AdminConfig.build({"security_protocol": "PLAINTEXT", "sasl_mechanism": "PLAIN"})


SHARED = {
    "bootstrap.servers": "a:1",
    "client.id": "c",
    "group.id": "g",
    "acks": "all",
    "linger.ms": "5",
    "key.serializer": "x.Own",
    "key.deserializer": f"{JAVA}StringDeserializer",
}


@pytest.mark.parametrize(
    ("client", "settings", "unused"),
    [
        (ConsumerConfig, {"group_id": "g", "key_deserializer": bytes.decode}, "acks, linger.ms, key.serializer"),
        (ProducerConfig, {"acks": "all", "linger_ms": 5}, "group.id, key.deserializer"),
        (AdminConfig, {}, "group.id, acks, linger.ms, key.serializer, key.deserializer"),
    ],
)
def test_what_other_clients_have(
    client: type[ClientConfig], settings: dict[str, Any], unused: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, they were an error when the client was opened, and a serializer already when they were read."""
    shared = {**SHARED, "key.serializer": f"{JAVA}ByteArraySerializer"} if client is ProducerConfig else SHARED
    found = from_properties(shared, client)
    assert found == {"bootstrap_servers": "a:1", "client_id": "c", **settings}
    client.build(found)
    assert told(caplog) == [f"these properties were given but are not used: {unused} (not for {client.given_to})"]


def test_a_name_that_no_client_has_stays_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown setting 'lingre\.ms' for any client; did you mean 'linger\.ms'"):
        from_properties({"lingre.ms": "5"}, ConsumerConfig)


def test_all_of_a_file_in_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "base.properties"
    file.write_text(f"security.protocol=PLAINTEXT\nlinger.ms=5\nsasl.password={SECRET}\n")
    assert from_properties(file, ConsumerConfig) == {"security_protocol": "PLAINTEXT"}
    [line] = told(caplog)
    assert line.endswith(
        "not used: sasl.password (security.protocol is PLAINTEXT); linger.ms (not for open_consumer())"
    )
    assert SECRET not in caplog.text


async def test_whoever_does_not_say_which_client_is_told_how() -> None:
    with pytest.raises(ConfigurationError) as caught:
        async with trikafka.open_consumer(**from_properties({"linger.ms": "5"})):
            pass
    assert str(caught.value) == (
        "unknown setting 'linger_ms' for open_consumer(); it is one of open_producer() (of a file that several clients share:"
        " from_properties(file, ConsumerConfig))"
    )


def test_on_the_command_line_the_protocol_beside_a_file_counts() -> None:
    file = (("security.protocol", "PLAINTEXT"), ("sasl.mechanism", "GSSAPI"))
    assert "sasl_mechanism" not in Common("a:1", (), False, file).settings(AdminConfig)
    beside = Common("a:1", (("security_protocol", "SASL_PLAINTEXT"),), False, file).settings(AdminConfig)
    assert (beside["security_protocol"], beside["sasl_mechanism"]) == ("SASL_PLAINTEXT", "GSSAPI")


def test_java_s_names_of_assignors_and_its_class_for_text() -> None:
    assignors = f"{JAVA_CONSUMER}CooperativeStickyAssignor, {JAVA_CONSUMER}RangeAssignor, mine"
    found = from_properties({"partition.assignment.strategy": assignors}, ConsumerConfig)
    assert found == {"partition_assignment_strategy": ("cooperative-sticky", "range", "mine")}
    assert from_properties({"key.serializer": f"{JAVA}StringSerializer"}, ProducerConfig) == {}
