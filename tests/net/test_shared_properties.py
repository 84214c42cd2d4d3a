"""Java's properties that several programs share: unused ones are left out, with one warning."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import trikafka
from trikafka.cli.options import Common
from trikafka.config import (
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    ShareConsumerConfig,
    from_properties,
)
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
    "ssl.keystore.location": "key.jks",
    "ssl.keystore.password": SECRET,
    "ssl.protocol": "TLSv1.3",
}


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("protocol", "given", "unused"),
    [
        ("PLAINTEXT", {**SASL, **TLS}, [*SASL, *TLS]),
        (
            "plaintext",
            {"ssl.endpoint.identification.algorithm": ""},
            ["ssl.endpoint.identification.algorithm"],
        ),
        ("SSL", SASL, [*SASL]),
        ("SSL", {**SASL, "ssl.ca.location": "ca.pem"}, [*SASL]),
        ("SASL_PLAINTEXT", {**TLS, "sasl.mechanism": "GSSAPI"}, [*TLS]),
        # Keywords of aiokafka, with its defaults.
        ("PLAINTEXT", {"sasl_mechanism": "PLAIN", "ssl_context": None}, ["sasl_mechanism"]),
    ],
)
def test_properties_unused_by_the_protocol_warn(
    protocol: str, given: dict[str, Any], unused: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Java's client warns, too."""
    shared = {"bootstrap.servers": "a:1", **given, "security.protocol": protocol}
    AdminConfig.build(from_properties(shared))
    [line] = logged(caplog)
    assert line == (
        f"these properties were given but are not used: {', '.join(unused)} (security.protocol is "
        f"{protocol.upper()})"
    )


def test_used_properties_are_kept_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    shared = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "ca.pem",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a",
    }
    found = from_properties({**shared, "sasl.password": SECRET}, AdminConfig)
    assert set(found) == {
        "security_protocol",
        "ssl_cafile",
        "sasl_mechanism",
        "sasl_plain_username",
        "sasl_plain_password",
    }
    assert logged(caplog) == []


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        # No protocol: a user who has written credentials may believe that they are used.
        (
            {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": SECRET},
            "needs security_protocol='SASL_SSL'",
        ),
        ({"ssl.ca.location": "ca.pem"}, "ssl_cafile needs security_protocol='SSL'"),
        # A protocol that uses it: its value counts.
        ({"security.protocol": "SSL", **TLS}, "is a store of type JKS"),
        ({"security.protocol": "SASL_PLAINTEXT", **SASL}, "'sasl.login.class' is not supported"),
    ],
)
def test_ambiguous_property_is_refused(properties: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        AdminConfig.build(from_properties(properties, AdminConfig))
    assert SECRET not in str(caught.value)


def test_contradictory_keywords_are_refused() -> None:
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
        (
            ConsumerConfig,
            {"group_id": "g", "key_deserializer": bytes.decode},
            "acks, linger.ms, key.serializer",
        ),
        (ProducerConfig, {"acks": "all", "linger_ms": 5}, "group.id, key.deserializer"),
        (AdminConfig, {}, "group.id, acks, linger.ms, key.serializer, key.deserializer"),
    ],
)
def test_properties_of_other_clients_warn(
    client: type[ClientConfig],
    settings: dict[str, Any],
    unused: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Serializers are left out when the file is read."""
    shared = (
        {**SHARED, "key.serializer": f"{JAVA}ByteArraySerializer"}
        if client is ProducerConfig
        else SHARED
    )
    found = from_properties(shared, client)
    assert found == {"bootstrap_servers": "a:1", "client_id": "c", **settings}
    client.build(found)
    assert logged(caplog) == [
        f"these properties were given but are not used: {unused} (not for {client.given_to})"
    ]


def test_unknown_property_stays_an_error() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"unknown setting 'lingre\.ms' for any client; did you mean 'linger\.ms'",
    ):
        from_properties({"lingre.ms": "5"}, ConsumerConfig)


def test_one_warning_names_all_unused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "base.properties"
    level = "isolation.level=read_committed"
    file.write_text(f"security.protocol=PLAINTEXT\nlinger.ms=5\nsasl.password={SECRET}\n{level}\n")
    assert from_properties(file, ConsumerConfig) == {
        "security_protocol": "PLAINTEXT",
        "isolation_level": "read_committed",
    }
    [line] = logged(caplog)
    assert line.endswith(
        "not used: sasl.password (security.protocol is PLAINTEXT); linger.ms (not for "
        "open_consumer())"
    )
    assert SECRET not in caplog.text


async def test_error_suggests_naming_the_client() -> None:
    with pytest.raises(ConfigurationError) as caught:
        async with trikafka.open_consumer(**from_properties({"linger.ms": "5"})):
            pass
    assert str(caught.value) == (
        "unknown setting 'linger_ms' for open_consumer(); it is one of open_producer() (of a file "
        "that several clients share: from_properties(file, ConsumerConfig))"
    )


def test_option_beside_a_file_sets_the_protocol() -> None:
    file = (("security.protocol", "PLAINTEXT"), ("sasl.mechanism", "GSSAPI"))
    assert "sasl_mechanism" not in Common("a:1", (), False, file).settings(AdminConfig)
    beside = Common("a:1", (("security_protocol", "SASL_PLAINTEXT"),), False, file).settings(
        AdminConfig
    )
    assert (beside["security_protocol"], beside["sasl_mechanism"]) == ("SASL_PLAINTEXT", "GSSAPI")


def test_assignors_and_strings_of_java_are_read() -> None:
    assignors = f"{JAVA_CONSUMER}CooperativeStickyAssignor, {JAVA_CONSUMER}RangeAssignor, mine"
    found = from_properties({"partition.assignment.strategy": assignors}, ConsumerConfig)
    assert found == {"partition_assignment_strategy": ("cooperative-sticky", "range", "mine")}
    assert from_properties({"key.serializer": f"{JAVA}StringSerializer"}, ProducerConfig) == {}


def test_settings_of_a_share_group_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Without the warning, the group would begin at the end of its topics unnoticed."""
    given = {
        "bootstrap.servers": "a:1",
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.auto.commit": "false",
    }
    assert from_properties(given, ShareConsumerConfig) == {
        "bootstrap_servers": "a:1",
        "group_id": "g",
    }
    assert logged(caplog) == [
        "these properties were given but are not used: enable.auto.commit (not for "
        "open_share_consumer()); auto.offset.reset, isolation.level (settings of the group, by "
        "admin.alter_configs on the resource type GROUP: share.auto.offset.reset, "
        "share.isolation.level)"
    ]


@pytest.mark.parametrize("wrong", [None, 5, [("group.id", "g")], b"file"])
def test_wrong_kind_of_properties_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="a mapping, or the path of a file, not"):
        from_properties(wrong)


def test_settings_of_a_share_consumer_are_taken(caplog: pytest.LogCaptureFixture) -> None:
    """``max_in_flight`` here is no alias of the producer's setting."""
    own = {
        "acquire": "records",
        "max_in_flight": "5",
        "max_processing_ms": "9000",
        "ack_linger_ms": "3",
    }
    given = {"bootstrap_servers": "a:1", "group_id": "g", **own}
    taken = from_properties(given, ShareConsumerConfig)
    config = ShareConsumerConfig.build(taken)
    assert (config.acquire, config.max_in_flight) == ("records", 5)
    assert (config.max_processing_ms, config.ack_linger_ms) == (9000, 3)
    assert not logged(caplog)
    assert from_properties(given, ConsumerConfig) == {"bootstrap_servers": "a:1", "group_id": "g"}
    assert all(name in logged(caplog)[0] for name in own)
