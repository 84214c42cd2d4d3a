"""The properties of other clients: each is mapped, ignored with a reason, or refused with one.

``tests/data`` has all names of librdkafka 2.16 with their defaults (by
``rd_kafka_conf_properties_show``) and of Java's consumer, producer and admin client 4.4 (by
``configNames()``). Those of aiokafka and kafka-python are read from the installed packages.
"""

from __future__ import annotations

import inspect
import logging
import math
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.admin
import kafka
import pytest
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor

from trikafka.config import (
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    from_properties,
    settings_of,
)
from trikafka.config.property_names import JAVA, LIBRDKAFKA, PYTHON, RULES
from trikafka.config.security_properties import NAMES
from trikafka.errors import ConfigurationError

DATA = Path(__file__).parent.parent / "data"
OF_LIBRDKAFKA = [
    line.partition("=")[0::2]
    for line in (DATA / "librdkafka_properties.txt").read_text().splitlines()
]
OF_JAVA = (DATA / "java_properties.txt").read_text().split()
OF_AIOKAFKA = {
    name
    for client in (
        aiokafka.AIOKafkaConsumer,
        aiokafka.AIOKafkaProducer,
        aiokafka.admin.AIOKafkaAdminClient,
    )
    for name in inspect.signature(client).parameters
}
OF_KAFKA_PYTHON_2 = {
    "api_version_auto_timeout_ms",
    "legacy_iterator",
    "sock_chunk_bytes",
    "sock_chunk_buffer_count",
}
OF_KAFKA_PYTHON = OF_KAFKA_PYTHON_2 | {
    name
    for client in (kafka.KafkaConsumer, kafka.KafkaProducer, kafka.KafkaAdminClient)
    for name in client.DEFAULT_CONFIG
}


def warned(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(
        record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING
    )


def test_lists_are_whole() -> None:
    assert (len(OF_LIBRDKAFKA), len(OF_JAVA)) == (193, 147)
    assert {"consumer_timeout_ms", "max_batch_size"} <= OF_AIOKAFKA
    assert {"api_version", "proxy_url"} <= OF_KAFKA_PYTHON


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *OF_LIBRDKAFKA,
        *((name, "1") for name in OF_JAVA),
        *((name, 1) for name in sorted(OF_AIOKAFKA | OF_KAFKA_PYTHON)),
    ],
)
def test_each_property_has_a_place(
    name: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        found = from_properties({name: value})
    except ConfigurationError as error:
        said = str(error)
        assert name in said
        assert "unknown setting" not in said
        assert "did you mean" not in said
    else:
        said = warned(caplog)
        assert (
            found or said or name == "compression.level" or RULES[name].only or RULES[name].values
        )
        assert "no Kafka client's" not in said


def test_each_name_stands_once() -> None:
    tables = [*LIBRDKAFKA, *JAVA, *PYTHON, *NAMES]
    dotted = [name.replace("_", ".") for name in tables]
    assert sorted(dotted) == sorted(set(dotted))
    own = {
        name.replace("_", "."): setting
        for cls in (AdminConfig, ConsumerConfig, ProducerConfig)
        for name, setting in settings_of(cls).items()
    }
    # One of trikafka's own names is in the table only if some values are translated.
    assert all(RULES[name].values for name in RULES if name in own)
    assert {rule.setting for rule in RULES.values() if rule.setting} <= {
        name.replace(".", "_") for name in own
    }


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"message.timeout.ms": "300000"}, {"delivery_timeout_ms": 300_000}),
        ({"message.timeout.ms": "0"}, {"delivery_timeout_ms": math.inf}),
        ({"queue.buffering.max.kbytes": "1024"}, {"buffer_memory": 1_048_576}),
        ({"queue.buffering.max.ms": "0.5"}, {"linger_ms": 0.5}),
        ({"request.required.acks": "-1"}, {"acks": -1}),
        ({"compression.codec": "zstd"}, {"compression_type": "zstd"}),
        ({"compression.codec": "inherit"}, {}),
        (
            {"compression.type": "gzip", "compression.level": 4},
            {"compression_type": "gzip", "compression_gzip_level": 4},
        ),
        ({"compression.type": "zstd", "compression.level": "-1"}, {"compression_type": "zstd"}),
        ({"message.max.bytes": 2_000_000}, {"max_request_size": 2_000_000}),
        ({"enable.idempotence": "1"}, {"enable_idempotence": True}),
        ({"enable.idempotence": 1}, {"enable_idempotence": True}),
        ({"enable_idempotence": 0}, {"enable_idempotence": False}),
        ({"enable.idempotence": "t"}, {"enable_idempotence": True}),
        ({"enable.idempotence": "f"}, {"enable_idempotence": False}),
        ({"compression.gzip.level": "-1"}, {}),  # Java's default
        ({"enable.ssl.certificate.verification": "1"}, {}),
        ({"enable.sasl.oauthbearer.unsecure.jwt": "f"}, {}),
        ({"max_batch_size": 100}, {"batch_size": 100}),
        ({"connections.max.idle.ms": "-1"}, {"connections_max_idle_ms": math.inf}),
        ({"connections_max_idle_ms": None}, {"connections_max_idle_ms": math.inf}),  # aiokafka
        ({"receive.message.max.bytes": "1000"}, {"receive_message_max_bytes": 1000}),
        ({"sasl.oauthbearer.method": "default"}, {}),
        ({"security.protocol": "ssl", "ssl.ca.location": "probe"}, {"security_protocol": "SSL"}),
        ({"https.ca.location": "probe"}, {}),
        # Files for Java and librdkafka have some settings under both names.
        ({"compression.type": "gzip", "compression.codec": "gzip"}, {"compression_type": "gzip"}),
        (
            {"security.protocol": "SSL", "ssl.truststore.location": "c", "ssl.ca.location": "c"},
            {"security_protocol": "SSL", "ssl_cafile": "c"},
        ),
        *(
            (
                {"compression.type": codec, "compression.level": given},
                {"compression_type": codec, f"compression_{codec}_level": found},
            )
            for codec, given, found in (
                ("gzip", "0", 1),
                ("gzip", "12", 9),
                ("lz4", "0", 1),
                ("lz4", 12, 12),
                ("zstd", "0", 0),
                ("zstd", "12", 12),
            )
        ),
        # Defaults of kafka-python and aiokafka.
        ({"retries": math.inf}, {}),
        ({"compression_type": None, "client_id": None, "max_block_ms": 7}, {"max_block_ms": 7}),
        ({"key_serializer": None, "value_serializer": None, "proxy_url": None}, {}),
        ({"queue.buffering.max.kbytes": None}, {}),  # confluent-kafka takes its default
    ],
)
def test_producers_property_is_mapped(given: dict[str, Any], found: dict[str, Any]) -> None:
    assert from_properties({**given, "partitioner": "random"}, ProducerConfig) == {
        **found,
        "partitioner": "random",
    }
    ProducerConfig.build(from_properties(given, ProducerConfig))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        *(
            ({"auto.offset.reset": given}, {"auto_offset_reset": found})
            for given, found in (
                ("EARLIEST", "earliest"),  # librdkafka has no case here
                ("Latest", "latest"),
                ("smallest", "earliest"),
                ("beginning", "earliest"),
                ("largest", "latest"),
                ("end", "latest"),
                ("error", "none"),
                ("by_duration:PT1H", "by_duration:PT1H"),
            )
        ),
        ({"queued.max.messages.kbytes": "65536"}, {"fetch_buffer_bytes": 67_108_864}),
        ({"fetch.message.max.bytes": "1000"}, {"max_partition_fetch_bytes": 1000}),
        ({"fetch.wait.max.ms": "100"}, {"fetch_max_wait_ms": 100}),
        ({"metadata.broker.list": "a:1"}, {"bootstrap_servers": "a:1"}),
        ({"socket.timeout.ms": "9000"}, {"request_timeout_ms": 9000}),
        ({"topic.metadata.refresh.interval.ms": "-1"}, {}),
        ({"topic.metadata.refresh.interval.ms": "0"}, {}),
        ({"metadata.max.age.ms": "0"}, {"metadata_max_age_ms": 100}),
        ({"fetch.max.bytes": "0"}, {"fetch_max_bytes": 1}),
        ({"fetch_max_bytes": 0}, {"fetch_max_bytes": 1}),
        ({"max.partition.fetch.bytes": "0"}, {"max_partition_fetch_bytes": 1}),
        ({"auto.commit.interval.ms": "0"}, {"auto_commit_interval_ms": 1}),
        (
            {"auto.commit.interval.ms": "0", "queued.min.messages": "1"},
            {"auto_commit_interval_ms": math.inf},
        ),
        ({"client_rack": None, "group_id": None}, {"group_id": None}),
        (
            {
                "partition_assignment_strategy": [
                    RangePartitionAssignor,
                    RoundRobinPartitionAssignor,
                ]
            },
            {"partition_assignment_strategy": ("range", "roundrobin")},
        ),
        ({"group.protocol": "CONSUMER"}, {"group_protocol": "consumer"}),
        ({"isolation.level": "READ_COMMITTED"}, {"isolation_level": "read_committed"}),
        (
            {"sasl.oauthbearer.extensions": "a=1,b=x=y"},
            {"sasl_oauth_extensions": {"a": "1", "b": "x=y"}},
        ),
        # Java's maps of properties may have lists.
        (
            {
                "partition.assignment.strategy": [
                    "org.apache.kafka.clients.consumer.RangeAssignor",
                    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
                ]
            },
            {"partition_assignment_strategy": ("range", "cooperative-sticky")},
        ),
        ({"bootstrap.servers": ("a:1", "b:2")}, {"bootstrap_servers": "a:1,b:2"}),
        ({"bootstrap_servers": ["a:1"]}, {"bootstrap_servers": ["a:1"]}),
        (
            {"security.protocol": "SSL", "ssl.enabled.protocols": ["TLSv1.3"]},
            {"security_protocol": "SSL", "ssl_minimum_version": "TLSv1.3"},
        ),
        (
            {"security.protocol": "SSL", "ssl.cipher.suites": ["ECDHE+AESGCM"]},
            {"security_protocol": "SSL", "ssl_ciphers": "ECDHE+AESGCM"},
        ),
    ],
)
def test_consumers_property_is_mapped(given: dict[str, Any], found: dict[str, Any]) -> None:
    level = {"isolation.level": "read_uncommitted"}
    assert from_properties({**level, **given}, ConsumerConfig) == {
        "isolation_level": "read_uncommitted",
        **found,
    }
    if "sasl.oauthbearer.extensions" not in given:  # needs more settings
        ConsumerConfig.build(from_properties(given, ConsumerConfig))


@pytest.mark.parametrize(
    ("given", "setting", "unused"),
    [
        (
            {"topic.metadata.refresh.interval.ms": "5", "metadata.max.age.ms": "7"},
            {"metadata_max_age_ms": 7},
            "topic.metadata.refresh.interval.ms (metadata_max_age_ms is given)",
        ),
        (
            {"socket.timeout.ms": "5", "request.timeout.ms": "7"},
            {"request_timeout_ms": 7},
            "socket.timeout.ms (request_timeout_ms is given)",
        ),
    ],
)
def test_second_name_of_a_setting_yields(
    given: dict[str, str],
    setting: dict[str, int],
    unused: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert from_properties(given) == setting
    assert warned(caplog) == f"these properties were given but are not used: {unused}"


def test_same_value_under_two_names_counts_once() -> None:
    both = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.mechanisms": "PLAIN",
        "sasl.jaas.config": 'x.PlainLoginModule required username="u" password="p";',
        "sasl.username": "u",
        "sasl.password": "p",
    }
    assert from_properties(both) == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
    }
    with pytest.raises(ConfigurationError) as caught:
        from_properties({**both, "sasl.mechanisms": "SCRAM-SHA-256"})
    assert str(caught.value) == (
        "sasl_mechanism is given twice, the second time as 'sasl.mechanisms', with another value"
    )


@pytest.mark.parametrize(
    "partitioner",
    [
        "org.apache.kafka.clients.producer.internals.DefaultPartitioner",
        inspect.signature(aiokafka.AIOKafkaProducer).parameters["partitioner"].default,
        kafka.KafkaProducer.DEFAULT_CONFIG["partitioner"],
    ],
)
def test_others_default_partitioner_is_ours(partitioner: object) -> None:
    assert from_properties({"partitioner.class": partitioner}, ProducerConfig) == {}
    assert from_properties({"partitioner": partitioner}, ProducerConfig) == {}


@pytest.mark.parametrize(
    ("kind", "instead"),
    [
        ("UniformStickyPartitioner", "give partitioner.ignore.keys=true"),
        ("RoundRobinPartitioner", "give partitioner, a function of the topic, key and partitions"),
    ],
)
def test_partitioner_of_java_is_refused(kind: str, instead: str) -> None:
    given = f"org.apache.kafka.clients.producer.{kind}"
    with pytest.raises(ConfigurationError) as caught:
        from_properties({"partitioner.class": given}, ProducerConfig)
    assert str(caught.value) == f"partitioner.class={given!r}: {instead}"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ssl.client.auth", "a setting of brokers"),
        ("sasl.enabled.mechanisms", "a setting of brokers"),
        ("security.inter.broker.protocol", "a setting of brokers"),
        ("listener.security.protocol.map", "a setting of brokers"),
        ("listener.name.inner.scram-sha-512.sasl.jaas.config", "a setting of brokers"),
        ("connections.max.reauth.ms", "a setting of brokers"),
        ("internal.leave.group.on.close", "it is internal to Java"),
        ("socket.keepalive.enable", "connections_max_idle_ms ends idle connections"),
    ],
)
def test_unused_property_says_why(name: str, why: str, caplog: pytest.LogCaptureFixture) -> None:
    assert from_properties({name: "x"}) == {}
    assert warned(caplog) == f"these properties were given but are not used: {name} ({why})"


def test_prefix_is_no_hint(caplog: pytest.LogCaptureFixture) -> None:
    assert from_properties({"listeners": "x", "metric": "y"}) == {}
    assert warned(caplog).endswith("listeners (no Kafka client's); metric (no Kafka client's)")


def test_hint_ignores_case() -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean 'session\.timeout\.ms'\?$"):
        from_properties({"SESSION.TIMEOUT.MS": "1"})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("dr_cb", "await send(), or the ack that enqueue() returns"),
        ("rebalance_cb", "give subscribe() a RebalanceListener"),
        ("oauth_cb", "give sasl_oauth_token_provider, or the settings sasl_oauth_..."),
        ("ssl.curves.list", "give ssl_context"),
        ("socks5_proxy", "give dial, a function that opens a stream to an address"),
    ],
)
def test_refused_property_says_what_to_do(name: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        from_properties({name: "x"})
    assert str(caught.value) == f"{name!r} is not supported: {why}"


# --- ordinary configurations ----------------------------------------------------------------------

#: What a service that uses librdkafka gives its producer.
LIBRDKAFKA_PRODUCER: dict[str, Any] = {
    "metadata.broker.list": "a:9092,b:9092",
    "client.id": "orders",
    "security.protocol": "sasl_ssl",
    "sasl.mechanisms": "PLAIN",
    "sasl.username": "orders",
    "sasl.password": "s3cr3t",
    "ssl.ca.location": "/etc/ssl/ca.pem",
    "ssl.endpoint.identification.algorithm": "https",
    "enable.ssl.certificate.verification": "true",
    "broker.address.family": "v4",
    "api.version.request": "true",
    "socket.timeout.ms": "60000",
    "socket.keepalive.enable": "true",
    "socket.nagle.disable": "true",
    "reconnect.backoff.ms": "100",
    "reconnect.backoff.max.ms": "10000",
    "topic.metadata.refresh.interval.ms": "60000",
    "statistics.interval.ms": "15000",
    "log_level": 6,
    "queue.buffering.max.messages": "100000",
    "queue.buffering.max.kbytes": "65536",
    "queue.buffering.max.ms": "20",
    "batch.num.messages": "10000",
    "batch.size": "262144",
    "compression.codec": "lz4",
    "compression.level": "9",
    "message.max.bytes": "2000000",
    "message.timeout.ms": "30000",
    "message.send.max.retries": "10",
    "retry.backoff.ms": "200",
    "request.required.acks": "all",
    "max.in.flight": "1000",
    "delivery.report.only.error": "false",
}


def test_configuration_of_librdkafka_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    found = from_properties(LIBRDKAFKA_PRODUCER, ProducerConfig)
    assert found == {
        "bootstrap_servers": "a:9092,b:9092",
        "client_id": "orders",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "orders",
        "sasl_plain_password": "s3cr3t",
        "ssl_cafile": "/etc/ssl/ca.pem",
        "ssl_check_hostname": True,
        "reconnect_backoff_ms": 100,
        "reconnect_backoff_max_ms": 10_000,
        "metadata_max_age_ms": 60_000,
        "buffer_memory": 67_108_864,
        "linger_ms": 20,
        "batch_size": 262_144,
        "compression_type": "lz4",
        "compression_lz4_level": 9,
        "max_request_size": 2_000_000,
        "delivery_timeout_ms": 30_000,
        "request_timeout_ms": 29_980,
        "retries": 10,
        "retry_backoff_ms": 200,
        "acks": "all",
        "max_in_flight_requests_per_connection": 5,
        "partitioner": "consistent_random",
    }
    ProducerConfig.build(found)
    assert "partitioner='consistent_random'" in warned(caplog)
    assert "queue.buffering.max.messages" in warned(caplog)
    assert "s3cr3t" not in caplog.text


#: The base file that all Java programs of a company read.
JAVA_BASE = {
    "bootstrap.servers": "a:9092,b:9092",
    "security.protocol": "SSL",
    "ssl.truststore.location": "/etc/kafka/trust.p12",
    "ssl.truststore.type": "PKCS12",
    "ssl.truststore.password": "s3cr3t",
    "ssl.protocol": "TLSv1.3",
    "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
    "ssl.keymanager.algorithm": "SunX509",
    "client.dns.lookup": "use_all_dns_ips",
    "group.id": "orders",
    "group.protocol": "CONSUMER",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": "true",
    "auto.commit.interval.ms": "5000",
    "isolation.level": "read_committed",
    "max.poll.records": "500",
    "max.poll.interval.ms": "300000",
    "fetch.min.bytes": "1",
    "key.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
    "value.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
    "key.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
    "value.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
    "acks": "all",
    "linger.ms": "5",
    "compression.type": "zstd",
    "delivery.timeout.ms": "120000",
    "request.timeout.ms": "30000",
    "connections.max.idle.ms": "-1",
    "receive.buffer.bytes": "65536",
    "send.buffer.bytes": "131072",
    "metric.reporters": "io.example.Reporter",
    "interceptor.classes": "io.example.Interceptor",
    "enable.metrics.push": "true",
    "metadata.max.idle.ms": "300000",
    "schema.registry.url": "http://registry:8081",
    "orders.topic.partitions": "12",
}


@pytest.mark.parametrize("client", [AdminConfig, ConsumerConfig, ProducerConfig])
def test_base_file_of_java_is_taken(
    client: type[ClientConfig], caplog: pytest.LogCaptureFixture
) -> None:
    """Each client takes its own part. What Java ignores is a warning, the program's own included."""
    found = from_properties(JAVA_BASE, client)
    client.build(found)
    assert found["bootstrap_servers"] == "a:9092,b:9092"
    assert ("group_id" in found) == (client is ConsumerConfig)
    assert ("linger_ms" in found) == (client is ProducerConfig)
    assert "partitioner" not in found
    said = warned(caplog)
    assert "orders.topic.partitions (no Kafka client's)" in said
    assert "metric.reporters" in said
    assert "s3cr3t" not in said


@pytest.mark.parametrize(
    ("given", "client", "picked"),
    [
        ({"sasl.mechanisms": "PLAIN"}, ProducerConfig, True),
        ({"queue.buffering.max.ms": "5"}, None, True),
        ({"sasl.mechanisms": "PLAIN", "linger.ms": "5"}, None, True),
        ({"sasl.mechanisms": "PLAIN"}, None, False),  # of which client is not known
        ({"sasl.mechanisms": "PLAIN"}, AdminConfig, False),
        ({"linger.ms": "5"}, ProducerConfig, False),  # anybody's
        ({"ssl.ca.location": "ca.pem", "max.block.ms": "1"}, ProducerConfig, False),  # Java's
        ({"debug": "all", "partitioner": "murmur2_random"}, ProducerConfig, False),
        ({"debug": "all", "partitioner.ignore.keys": "true"}, ProducerConfig, False),
    ],
)
def test_librdkafkas_partitioner_is_picked(
    given: dict[str, str],
    client: type[ClientConfig] | None,
    picked: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = from_properties(given, client)
    assert (found.get("partitioner") == "consistent_random") == picked
    assert ("the properties are librdkafka's" in warned(caplog)) == picked


@pytest.mark.parametrize(
    ("given", "picked"),
    [
        ({"auto.offset.reset": "smallest", "queued.min.messages": "1"}, True),
        ({"sasl.mechanisms": "PLAIN"}, True),
        ({"sasl.mechanisms": "PLAIN", "isolation.level": "read_uncommitted"}, False),
        ({"group.id": "g"}, False),  # anybody's
        ({"sasl.mechanisms": "PLAIN", "default.api.timeout.ms": "1"}, False),  # Java's
    ],
)
def test_librdkafkas_isolation_is_picked(
    given: dict[str, str], picked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its consumer reads no aborted record by default."""
    found = from_properties(given, ConsumerConfig)
    assert (found.get("isolation_level") == "read_committed") == picked
    assert ("isolation_level='read_committed'" in warned(caplog)) == picked
