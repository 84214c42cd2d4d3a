"""Options ``kafka.*`` of jobs for Java's client. Pure.

They are honoured, ignored with a warning, or refused.
"""

from __future__ import annotations

import logging
import re

import pytest
from trikafka_spark.kafka_settings import (
    REFUSED_READING,
    REFUSED_WRITING,
    consumer_settings,
    producer_settings,
)

from trikafka import ConfigurationError

SERVERS = {"bootstrap.servers": "h:1"}


def test_equivalent_options_are_honoured() -> None:
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" '
        'password="p";',
        "isolation.level": "read_committed",
        "fetch.min.bytes": "1000",
        "client.id": "job",
        "client.rack": "r1",
        "socket.connection.setup.timeout.ms": "20000",
    }
    assert consumer_settings(SERVERS | given) == {
        "bootstrap_servers": "h:1",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
        "isolation_level": "read_committed",
        "fetch_min_bytes": 1000,
        "client_id": "job",
        "client_rack": "r1",
        "socket_connection_setup_timeout_ms": 20000,
    }
    assert producer_settings(
        SERVERS | {"acks": "1", "linger.ms": "7", "compression.type": "lz4"}
    ) == {
        "bootstrap_servers": "h:1",
        "acks": 1,
        "linger_ms": 7,
        "compression_type": "lz4",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("client.dns.lookup", "use_all_dns_ips"),
        ("receive.buffer.bytes", "65536"),
        ("send.buffer.bytes", "65536"),
        ("socket.nagle.disable", "true"),
        ("metric.reporters", "com.example.Reporter"),
        ("metrics.num.samples", "3"),
        ("session.timeout.ms", "10000"),
        ("group.id", "g"),
        ("group_id", "g"),
        ("max.poll.records", "500"),
        ("max.poll.interval.ms", "1000"),
        ("sasl.login.refresh.window.factor", "0.8"),
        ("ssl.enabled.protocols", "TLSv1.2,TLSv1.3"),
        ("acks", "all"),  # a producer's option in a read
    ],
)
def test_meaningless_options_are_logged(
    name: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "trikafka.spark"):
        assert consumer_settings(SERVERS | {name: value}) == {"bootstrap_servers": "h:1"}
    assert [record.getMessage() for record in caplog.records] == [
        f"these options mean nothing to trikafka and are ignored: kafka.{name}"
    ]


@pytest.mark.parametrize(
    "name",
    [
        *REFUSED_READING,
        "auto_offset_reset",
        "ssl.engine.factory.class",
        "config.providers",
        "security.providers",
    ],
)
def test_unsupported_read_options_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"'kafka\.{name}' is not supported: .+"):
        consumer_settings(SERVERS | {name: "x"})


def test_javas_token_handler_is_accepted() -> None:
    """Java's own handler for tokens is accepted, and other handlers are refused."""
    handler = "org.apache.kafka.common.security.oauthbearer.{}OAuthBearerLoginCallbackHandler"
    for package in ("", "secured."):
        settings = consumer_settings(
            SERVERS | {"sasl.login.callback.handler.class": handler.format(package)}
        )
        assert settings == {"bootstrap_servers": "h:1"}
    with pytest.raises(
        ConfigurationError, match=r"sasl\.login\.callback\.handler\.class must be 'org\.apache"
    ):
        consumer_settings(SERVERS | {"sasl.login.callback.handler.class": "com.corp.Handler"})


@pytest.mark.parametrize("name", [*REFUSED_WRITING, "transactional_id"])
def test_unsupported_write_options_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"'kafka\.{name}' is not supported: .+"):
        producer_settings(SERVERS | {name: "x"})


def test_partitioner_of_librdkafka_is_kept() -> None:
    given = SERVERS | {"partitioner": "consistent_random"}
    assert producer_settings(given)["partitioner"] == "consistent_random"


def test_wrong_names_and_values_are_refused() -> None:
    """Wrong names and values of options are refused before any connection is opened."""
    with pytest.raises(ConfigurationError, match=r"did you mean 'kafka\.isolation\.level'"):
        consumer_settings(SERVERS | {"isolation.levell": "x"})
    with pytest.raises(ConfigurationError, match=r"^kafka\.isolation\.level must be one of"):
        consumer_settings(SERVERS | {"isolation.level": "x"})
    with pytest.raises(
        ConfigurationError, match=r"^kafka\.ssl\.truststore\.location needs kafka\."
    ):
        consumer_settings(SERVERS | {"ssl.truststore.location": "/x", "ssl.truststore.type": "PEM"})
    plain = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    with pytest.raises(ConfigurationError, match=r"='PLAIN' needs kafka\.sasl\.jaas\.config$"):
        consumer_settings(SERVERS | plain)
    with pytest.raises(ConfigurationError, match=r"at least kafka\.linger\.ms \(5\)"):
        producer_settings(SERVERS | {"delivery.timeout.ms": "1"})
    with pytest.raises(ConfigurationError, match=r"ssl\.enabled\.protocols is 'TLSv1\.2'"):
        consumer_settings(SERVERS | {"ssl.enabled.protocols": "TLSv1.2"})


@pytest.mark.parametrize(
    ("given", "begin"),
    [
        ({"ssl.key.password": "x"}, "kafka.ssl.key.password needs"),
        ({"ssl.endpoint.identification.algorithm": ""}, "kafka.ssl.endpoint.identification.algo"),
        ({"sasl.username": "u"}, "kafka.sasl.username needs"),
        ({"message.timeout.ms": "x"}, "kafka.message.timeout.ms must be a number"),
        (
            {"security.protocol": "SSL", "ssl.key.password": "x"},
            "kafka.ssl.keystore.key and kafka.ssl.key.password need kafka.ssl.keystore.location",
        ),
    ],
)
def test_error_has_the_name_that_was_given(given: dict[str, str], begin: str) -> None:
    """Errors name the job's option, not the setting that is made from it."""
    for settings in (consumer_settings, producer_settings):
        with pytest.raises(ConfigurationError, match=f"^{re.escape(begin)}"):
            settings(SERVERS | given)


def test_ignored_option_has_the_name_that_was_given(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "trikafka.spark"):
        producer_settings(SERVERS | {"fetch.message.max.bytes": "1000000"})
    assert caplog.records[0].getMessage().endswith("ignored: kafka.fetch.message.max.bytes")


def test_javas_security_options_are_translated() -> None:
    given = {
        "security.protocol": "SASL_SSL",
        "ssl.enabled.protocols": "TLSv1.3",
        "ssl.protocol": "TLSv1.3",
        "enable.ssl.certificate.verification": "true",
        "sasl.mechanism": "AWS_MSK_IAM",
        "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
        "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    }
    assert consumer_settings(SERVERS | given) == {
        "bootstrap_servers": "h:1",
        "security_protocol": "SASL_SSL",
        "ssl_minimum_version": "TLSv1.3",
        "sasl_mechanism": "AWS_MSK_IAM",
    }


def test_jks_trust_store_is_honoured() -> None:
    given = {
        "ssl.truststore.type": "JKS",
        "ssl.truststore.location": "/t.jks",
        "ssl.truststore.password": "t",
    }
    assert consumer_settings({**SERVERS, "security.protocol": "SSL", **given}) == {
        "bootstrap_servers": "h:1",
        "security_protocol": "SSL",
        "ssl_cafile": "/t.jks",
        "ssl_ca_password": "t",
    }
