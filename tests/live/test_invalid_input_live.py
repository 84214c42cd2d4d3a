"""Bad input over real sockets: one clear typed error, soon, from every kind of client."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio

import trikafka
from trikafka import (
    BootstrapError,
    ConfigurationError,
    TopicPartition,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker

Opener = Callable[..., Any]
CLIENTS: list[Opener] = [trikafka.open_consumer, trikafka.open_producer, trikafka.open_admin]
each_client = pytest.mark.parametrize("client", CLIENTS, ids=["consumer", "producer", "admin"])
#: In seconds: shorter than a call's wait for an unreachable broker, and longer than a busy machine
#: takes.
SOON = 45.0


async def refused(client: Opener, error: type[Exception], says: str, **settings: Any) -> Exception:
    """Open a client with settings that cannot work, and check that it fails soon."""
    before = trio.current_time()
    with pytest.raises(error, match=says) as caught:
        async with client(**settings):
            raise AssertionError("it opened")
    assert trio.current_time() - before < SOON
    return caught.value


@asynccontextmanager
async def serving(handler: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[str]:
    """Run a server on a free port; yield its address."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, handler, listeners)
        yield f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@each_client
@pytest.mark.parametrize(
    ("servers", "says"),
    [
        ("localhost", "'localhost' has no port; write it as 'host:port'"),
        ("localhost:kafka", "'kafka' is not a number from 1 to 65535"),
        ("", "must name at least one 'host:port'"),
        (None, "must be text or a sequence of texts"),
        (9092, "must be text or a sequence of texts"),
    ],
)
async def test_invalid_address_is_refused(client: Opener, servers: Any, says: str) -> None:
    await refused(client, ConfigurationError, says, bootstrap_servers=servers)


@each_client
async def test_unknown_setting_is_refused(client: Opener) -> None:
    await refused(
        client,
        ConfigurationError,
        "did you mean 'bootstrap_servers'",
        bootstrap_server="localhost:9092",
    )


@each_client
async def test_refused_connection_is_reported(client: Opener) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        error = await refused(
            client,
            BootstrapError,
            "no bootstrap address could be reached: ",
            bootstrap_servers=address,
        )
    assert f"cannot connect to {address}: Connection refused" in str(error)
    assert isinstance(error.__cause__, trikafka.KafkaConnectionError)


@each_client
async def test_unresolved_host_is_reported(client: Opener) -> None:
    error = await refused(
        client, BootstrapError, "could be reached", bootstrap_servers="no-such-host.invalid:9092"
    )
    assert "no-such-host.invalid:9092" in str(error)


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "ä" * 70])
async def test_invalid_host_is_reported(host: str) -> None:
    await refused(
        trikafka.open_consumer, BootstrapError, "could be reached", bootstrap_servers=f"{host}:9092"
    )


@each_client
async def test_closed_connection_is_reported(client: Opener) -> None:
    async def close(stream: trio.SocketStream) -> None:
        await stream.aclose()

    async with serving(close) as address:
        await refused(
            client, BootstrapError, f"lost the connection to {address}", bootstrap_servers=address
        )


@each_client
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x15\x03\x03\x00\x02\x02\x50",
        b"\x00" * 8,
    ],
    ids=["http", "ssh", "tls", "zeros"],
)
async def test_foreign_protocol_is_reported(client: Opener, answer: bytes) -> None:
    async def talk(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(answer)
        await trio.sleep_forever()

    async with serving(talk) as address:
        error = await refused(
            client,
            BootstrapError,
            "no bootstrap address answered as a Kafka broker",
            bootstrap_servers=address,
        )
        assert f"{address} does not speak Kafka's protocol" in str(error)
        assert isinstance(error.__cause__, trikafka.ProtocolError)


async def test_one_bad_address_is_harmless(kafka_broker: KafkaBroker) -> None:
    async with serving(lambda stream: stream.aclose()) as bad:
        servers = f"{bad},no-such-host.invalid:1,{kafka_broker.bootstrap_servers}"
        async with trikafka.open_consumer(bootstrap_servers=servers) as consumer:
            assert isinstance(await consumer.list_topics(), dict)


async def test_missing_topic_is_an_error(kafka_broker: KafkaBroker) -> None:
    none = TopicPartition("no-such-topic", 0)
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers}

    async def look_up() -> None:
        async with trikafka.open_consumer(**settings) as consumer:
            assert await consumer.partitions_for("no-such-topic") == []
            with pytest.raises(UnknownTopicOrPartitionError, match="topic 'no-such-topic'"):
                await consumer.end_offsets([none])

    async def produce() -> None:
        async with trikafka.open_producer(**settings) as producer:
            assert await producer.partitions_for("no-such-topic") == []
            with pytest.raises(UnknownTopicOrPartitionError, match="topic 'no-such-topic'"):
                await producer.send("no-such-topic", b"v")

    async def delete() -> None:
        async with trikafka.open_admin(**settings) as admin:
            with pytest.raises(UnknownTopicOrPartitionError, match="no-such-topic"):
                await admin.delete_topics(["no-such-topic"])

    with trio.fail_after(400):
        async with trio.open_nursery() as nursery:
            for work in (look_up, produce, delete):
                nursery.start_soon(work)


async def test_invalid_topic_name_is_refused(kafka_broker: KafkaBroker) -> None:
    async with trikafka.open_consumer(bootstrap_servers=kafka_broker.bootstrap_servers) as consumer:
        with pytest.raises(
            ConfigurationError, match="topic 'no such/topic' has ' ', '/' in its name"
        ):
            await consumer.end_offsets([TopicPartition("no such/topic", 0)])


async def test_missing_group_id_is_an_error(kafka_broker: KafkaBroker) -> None:
    settings = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    with pytest.raises(ConfigurationError, match="needs a group_id"):
        async with trikafka.open_consumer("t", **settings):
            raise AssertionError("it opened")
    async with trikafka.open_consumer(**settings) as consumer:
        with pytest.raises(ConfigurationError, match="group_id"):
            await consumer.commit()
        with pytest.raises(ConfigurationError, match="group_id"):
            await consumer.committed([TopicPartition("t", 0)])
