"""TLS and SASL against a real broker: mechanisms, refusals, errors, expiring sessions (KIP-368)."""

from __future__ import annotations

import logging
import subprocess
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from cluster_waits import PATIENT, topic_reported
from trikafka_broker import KafkaCluster
from trikafka_broker.pytest_plugin import _open
from trikafka_broker.security import PASSWORD, unsecured_token
from trikafka_broker.settings import write_properties

import trikafka
from trikafka import AuthenticationError, BootstrapError, ConfigurationError, HandshakeError

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
#: In seconds, of SCRAM-SHA-512 alone. Connections authenticate again when 85 % of it are over. A
#: process that stands still for the rest loses the connection, which loses no record either.
SESSION = 3.0


@pytest.fixture(scope="module")
def secured(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Run a broker with TLS and SASL at one port, and mutual TLS at another."""
    properties = {
        **PATIENT,
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.secured.scram-sha-512.connections.max.reauth.ms": int(SESSION * 1000),
    }
    options: Any = {
        "tls": True,
        "sasl": ["plain", "scram", "oauth"],
        "listeners": {"MTLS": "SSL"},
        "properties": properties,
    }
    with _open(request.config, options) as cluster:
        yield cluster


async def create(cluster: KafkaCluster, topic: str, partitions: int = 1) -> None:
    async with trikafka.open_admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topics({topic: trikafka.NewTopic(partitions, 1)})
        await topic_reported(admin, topic, partitions)


async def round_trip(topic: str, settings: dict[str, Any], count: int = 200) -> None:
    async with trikafka.open_producer(**settings) as producer:
        acks = [await producer.enqueue(topic, b"%d" % number) for number in range(count)]
        await producer.flush()
        assert all(ack.done for ack in acks)
    async with trikafka.open_consumer(
        topic, group_id=f"of {topic}", auto_offset_reset="earliest", **settings
    ) as consumer:
        values = []
        async for record in consumer:
            values.append(record.value)
            if len(values) == count:
                break
    assert values == [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_each_mechanism_works_over_tls(secured: KafkaCluster, mechanism: str) -> None:
    with trio.fail_after(400):
        await create(secured, f"by-{mechanism}")
        await round_trip(f"by-{mechanism}", secured.client_settings(mechanism))


async def test_large_records_pass_over_tls(secured: KafkaCluster) -> None:
    settings = secured.client_settings("PLAIN")
    with trio.fail_after(400):
        await create(secured, "large")
        async with trikafka.open_producer(linger_ms=50, **settings) as producer:
            values = [bytes([number]) * 900_000 for number in range(40)]
            async with trio.open_nursery() as nursery:
                for value in values:
                    nursery.start_soon(producer.send, "large", value)
        async with trikafka.open_consumer(**settings) as consumer:
            consumer.assign([trikafka.TopicPartition("large", 0)])
            consumer.seek_to_beginning()
            seen = [(await anext(aiter(consumer))).value for _ in values]
    assert sorted(seen) == values


def mutual(cluster: KafkaCluster, **more: Any) -> dict[str, Any]:
    """Return settings for the port that requires a certificate."""
    return {
        "bootstrap_servers": cluster.bootstrap_servers_of("MTLS"),
        "security_protocol": "SSL",
        "ssl_cafile": str(cluster.security_directory / "ca.pem"),
        **more,
    }


async def test_mutual_tls_takes_files_and_text(secured: KafkaCluster) -> None:
    client = secured.security_directory / "client.pem"
    with trio.fail_after(400):
        await create(secured, "mutual")
        await round_trip("mutual", mutual(secured, ssl_certfile=str(client)))
        texts = {
            "ssl_certfile": client.read_text(),
            "ssl_cafile": (secured.security_directory / "ca.pem").read_text(),
        }
        async with trikafka.open_admin(**mutual(secured, **texts)) as admin:
            assert "mutual" in await admin.list_topics()


async def test_stores_are_read_as_by_java(secured: KafkaCluster, tmp_path: Path) -> None:
    """Java's tool and trikafka read one properties file with PKCS12 stores and an odd password."""
    password, folder = "p=w:x\\y #!", secured.security_directory

    def run(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True)

    client, trust = str(tmp_path / "client.p12"), str(tmp_path / "trust.p12")
    made = ("-in", f"{folder}/client.pem", "-out", client, "-passout", f"pass:{password}")
    run("openssl", "pkcs12", "-export", "-name", "client", *made)
    run(
        "keytool",
        "-importcert",
        "-noprompt",
        "-file",
        f"{folder}/ca.pem",
        "-keystore",
        trust,
        "-storepass",
        password,
    )
    properties = {
        "security.protocol": "SSL",
        "ssl.truststore.location": trust,
        "ssl.truststore.password": password,
        "ssl.keystore.location": client,
        "ssl.keystore.password": password,
        "ssl.key.password": password,
        "ssl.enabled.protocols": "TLSv1.3",
    }
    file = tmp_path / "client.properties"
    write_properties(
        file, {"ssl.truststore.type": "PKCS12", "ssl.keystore.type": "PKCS12", **properties}
    )
    servers = secured.bootstrap_servers_of("MTLS")
    with trio.fail_after(400):
        await create(secured, "stored")
        settings = trikafka.from_properties(file)
        assert settings["ssl_password"] == password
        async with trikafka.open_admin(**settings, bootstrap_servers=servers) as admin:
            assert "stored" in await admin.list_topics()
        arguments = ["--bootstrap-server", servers, "--command-config", str(file), "--list"]
        listed = await trio.to_thread.run_sync(
            lambda: secured.run_tool("org.apache.kafka.tools.TopicCommand", *arguments, timeout=240)
        )
    assert "stored" in listed.stdout.split()


async def test_missing_certificate_is_explained(secured: KafkaCluster) -> None:
    with (
        trio.fail_after(240),
        pytest.raises(HandshakeError, match=r"asks for (one|a client certificate).*ssl_certfile"),
    ):
        async with trikafka.open_admin(**mutual(secured)):
            pass


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (
            {"sasl_plain_password": "not-it-7d1f"},
            AuthenticationError,
            r"refused the credentials of user 'alice' \(PLAIN\)",
        ),
        (
            {"sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_password": "not-it-7d1f"},
            AuthenticationError,
            "user 'alice'",
        ),
        ({"ssl_cafile": None}, HandshakeError, r"authority that is not trusted .*set ssl_cafile"),
        (
            {"security_protocol": "SASL_PLAINTEXT", "ssl_cafile": None},
            BootstrapError,
            r"protocol without TLS: set security_protocol",
        ),
        (
            {
                "security_protocol": "SSL",
                "sasl_mechanism": None,
                "sasl_plain_username": None,
                "sasl_plain_password": None,
            },
            BootstrapError,
            r"may want SASL",
        ),
    ],
    ids=["password", "scram-password", "authority", "plain-text", "no-sasl"],
)
async def test_wrong_settings_are_explained(
    secured: KafkaCluster,
    caplog: pytest.LogCaptureFixture,
    change: dict[str, Any],
    error: type[Exception],
    says: str,
) -> None:
    settings = {**secured.client_settings("PLAIN"), **change}
    # A client that tried again until it has no time left would need a minute.
    with (
        caplog.at_level(logging.DEBUG),
        trio.fail_after(45),
        pytest.raises(error, match=says) as caught,
    ):
        async with trikafka.open_producer(**settings):
            pass
    said = "".join(traceback.format_exception(caught.value))
    assert "not-it-7d1f" not in said.replace(str(change), "") + repr(caught.value) + caplog.text
    assert PASSWORD not in caplog.text


async def test_plain_port_is_explained(secured: KafkaCluster) -> None:
    settings = {**secured.client_settings("PLAIN"), "bootstrap_servers": secured.bootstrap_servers}
    with (
        trio.fail_after(240),
        pytest.raises((BootstrapError, HandshakeError), match=r"(may|does) not speak TLS"),
    ):
        async with trikafka.open_admin(**settings):
            pass


async def test_unknown_mechanism_names_the_offered_ones(secured: KafkaCluster) -> None:
    class Conversation:
        def first(self) -> bytes:
            raise AssertionError("the broker does not offer it")

        respond = first

    class Own:
        @trikafka.hooks.hookimpl
        def trikafka_sasl(self, mechanism: str) -> Any:
            return (lambda node: Conversation()) if mechanism == "OWN" else None

    settings = {**secured.client_settings("PLAIN"), "sasl_mechanism": "OWN", "plugins": [Own()]}
    with (
        trio.fail_after(240),
        pytest.raises(
            AuthenticationError, match=r"does not offer OWN; it offers: .*PLAIN.*SCRAM-SHA-256"
        ),
    ):
        async with trikafka.open_admin(**settings):
            pass
    with pytest.raises(ConfigurationError, match="no plugin offers 'OTHER'"):
        async with trikafka.open_admin(**{**settings, "sasl_mechanism": "OTHER"}):
            pass


async def test_plugin_mechanism_connects(secured: KafkaCluster) -> None:
    asked: list[str] = []

    class Conversation:
        def first(self) -> bytes:
            return f"n,,\1auth=Bearer {unsecured_token()}\1\1".encode()

        async def respond(self, challenge: bytes) -> bytes | None:
            await trio.lowlevel.checkpoint()
            return None

    class Own:
        @trikafka.hooks.hookimpl
        def trikafka_sasl(self, mechanism: str) -> Any:
            def make(node: Any) -> Conversation:
                asked.append(node.host)
                return Conversation()

            return make if mechanism == "OAUTHBEARER" else None

    settings = {**secured.client_settings("OAUTHBEARER"), "plugins": [Own()]}
    with trio.fail_after(400):
        async with trikafka.open_admin(**settings) as admin:
            await admin.list_topics()
    assert set(asked) == {"127.0.0.1"}


def renewed(client: trikafka.Producer[Any, Any] | trikafka.Consumer[Any, Any]) -> bool:
    """Return whether a connection has authenticated again."""
    return any(
        each.state == "ready" and "reauthenticating" in each.seconds
        for each in client.statistics().connections
    )


async def test_sessions_that_expire_lose_nothing(secured: KafkaCluster) -> None:
    settings = secured.client_settings("SCRAM-SHA-512")
    asked = 0

    async def credentials() -> tuple[str, str]:
        nonlocal asked
        asked += 1
        await trio.lowlevel.checkpoint()
        return name, password

    name, password = settings.pop("sasl_plain_username"), settings.pop("sasl_plain_password")
    settings["sasl_credentials"] = credentials
    await create(secured, "sessions", 3)
    written, seen = 0, set()
    with trio.fail_after(400):
        async with (
            trikafka.open_producer(linger_ms=0, **settings) as producer,
            trikafka.open_consumer(
                "sessions", group_id="sessions", auto_offset_reset="earliest", **settings
            ) as consumer,
        ):
            while asked < 12 or not (renewed(producer) and renewed(consumer)):
                await producer.send("sessions", b"%d" % written)
                written += 1
                async for record in consumer:
                    assert record.value not in seen
                    seen.add(record.value)
                    if len(seen) == written:
                        break
                await trio.sleep(0.01)
    assert seen == {b"%d" % number for number in range(written)}


async def test_java_and_librdkafka_share_the_settings(
    secured: KafkaCluster, tmp_path: Path
) -> None:
    """Java, librdkafka and trikafka connect by the settings of Java and of librdkafka."""
    from confluent_kafka import Consumer

    await create(secured, "others")
    async with trikafka.open_producer(**secured.client_settings("PLAIN")) as producer:
        await producer.send("others", b"for all")
    config = {
        **secured.librdkafka_settings("SCRAM-SHA-256"),
        "group.id": "others",
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(config)
    try:
        consumer.subscribe(["others"])
        with trio.fail_after(240):
            while True:  # a poll may also return an error that librdkafka retries
                message = await trio.to_thread.run_sync(consumer.poll, 1.0)
                if message is not None and message.error() is None:
                    break
    finally:
        consumer.close()
    assert message.value() == b"for all"
    async with trikafka.open_admin(
        **trikafka.from_properties(secured.librdkafka_settings("PLAIN"))
    ) as admin:
        assert "others" in await admin.list_topics()
    async with trikafka.open_admin(
        **trikafka.from_properties(secured.java_settings("PLAIN"))
    ) as admin:
        assert "others" in await admin.list_topics()
    file = tmp_path / "client.properties"
    file.write_text(
        "".join(f"{key}={value}\n" for key, value in secured.java_settings("SCRAM-SHA-256").items())
    )
    arguments = [
        "--bootstrap-server",
        secured.bootstrap_servers_of("SECURED"),
        "--command-config",
        str(file),
        "--list",
    ]
    listed = await trio.to_thread.run_sync(
        lambda: secured.run_tool("org.apache.kafka.tools.TopicCommand", *arguments, timeout=240)
    )
    assert "others" in listed.stdout.split()
