"""Real brokers as a user sees them: they serve, stop, die, freeze and restart."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from broker_waiting import eventually, processes_naming
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from trikafka_broker import (
    Broker,
    BrokerError,
    BrokerStartError,
    Cluster,
    KafkaBroker,
    KafkaCluster,
)
from trikafka_broker import cluster as cluster_module
from trikafka_broker.probe import answers, registered_brokers
from trikafka_broker.pytest_plugin import _open, _open_shared
from trikafka_broker.settings import TOOLS_VERSION, ClusterOptions

CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TOPICS = "org.apache.kafka.tools.TopicCommand"
SHARED_CLUSTER = """
from trikafka_broker import KafkaCluster

KafkaCluster.start = lambda cluster: None

def test_it(kafka_cluster):
    assert kafka_cluster.settings.brokers == 3
    assert kafka_cluster.settings.properties == {"broker.session.timeout.ms": "18000"}
"""


def create_topic(cluster: KafkaCluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1)])[topic].result()


def topics_of(cluster: KafkaCluster) -> set[str]:
    return set(
        AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        .list_topics(timeout=240)
        .topics
    )


def produce(cluster: KafkaCluster, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(240) == 0


def consume(cluster: KafkaCluster, topic: str, count: int) -> str:
    where = ["--bootstrap-server", cluster.bootstrap_servers, "--topic", topic]
    return cluster.run_tool(
        CONSUMER, *where, "--from-beginning", "--max-messages", str(count), timeout=240
    ).stdout


@pytest.mark.trio
async def test_broker_serves_and_leaves_nothing(temporary: Path) -> None:
    async with Cluster.open() as cluster:
        (broker,) = cluster.brokers
        assert broker.alive
        assert eventually(lambda: answers(broker.host, broker.port))
        assert cluster.bootstrap_servers == f"127.0.0.1:{broker.port}"
        assert cluster.directory.parent == temporary
        pid = broker.pid
    assert not broker.alive
    assert pid is not None
    assert not Path(f"/proc/{pid}").exists()
    assert list(temporary.iterdir()) == []
    assert eventually(lambda: not processes_naming(str(temporary)))
    with pytest.raises(BrokerError, match="not open"):
        cluster.directory  # noqa: B018


@pytest.fixture(scope="module")
def own(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Return a broker with properties of its own, which tests kill and freeze."""
    properties = {
        "num.partitions": 7,
        "auto.create.topics.enable": True,
        "offsets.topic.num.partitions": 3,
    }
    options: ClusterOptions = {"properties": properties, "listeners": {"SECOND": "PLAINTEXT"}}
    with _open(request.config, options) as cluster:
        yield cluster


@pytest.mark.trio
async def test_restart_after_a_kill_keeps_port_and_data(own: KafkaCluster) -> None:
    broker = Broker(own.brokers[0])
    create_topic(own, "kept")
    produce(own, "kept", "one", "two")
    port, pid = broker.port, broker.pid
    await broker.kill()
    assert not broker.alive
    assert not answers(broker.host, port)
    await broker.start()
    assert broker.port == port
    assert broker.pid != pid
    assert consume(own, "kept", 2) == "one\ntwo\n"


@pytest.mark.trio
async def test_frozen_broker_accepts_without_response(own: KafkaCluster) -> None:
    """A frozen broker accepts connections and does not respond, until it thaws or restarts."""
    broker = Broker(own.brokers[0])
    pid = broker.pid
    await broker.freeze()
    assert broker.alive
    assert broker.frozen
    stream = await trio.open_tcp_stream(broker.host, broker.port)
    await stream.aclose()
    assert not answers(broker.host, broker.port, timeout=0.5)
    await broker.thaw()
    assert eventually(lambda: answers(broker.host, broker.port))
    await broker.freeze()
    await broker.restart()
    assert broker.pid != pid
    assert not broker.frozen
    assert eventually(lambda: registered_brokers(broker.host, broker.port) == {0})


@pytest.fixture(scope="module")
def three(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Return three brokers, which a test starts, and perhaps kills or stops.

    They are opened as those of the fixture `kafka_cluster`, which would run until the session ends.

    The limit of a stop is out of reach, so that a busy machine does not look like a broker that
    waits for it.
    """
    with _open_shared(request.config, {"brokers": 3, "stop_timeout": 300}) as cluster:
        yield cluster


def test_three_brokers_find_each_other(three: KafkaCluster) -> None:
    three.start()
    assert len(three.bootstrap_servers.split(",")) == 3
    for broker in three.brokers:
        assert eventually(
            lambda broker=broker: registered_brokers(broker.host, broker.port) == {0, 1, 2}
        )
        assert broker.log_file.exists()


def test_killed_brokers_restart_together(three: KafkaCluster) -> None:
    three.start()
    before = three.bootstrap_servers
    for broker in three.brokers:
        broker.kill()
    three.start()
    assert three.bootstrap_servers == before
    for broker in three.brokers:
        assert eventually(
            lambda broker=broker: registered_brokers(broker.host, broker.port) == {0, 1, 2}
        )


def test_brokers_stop_together(three: KafkaCluster) -> None:
    """The brokers of a cluster stop together, and do not wait for each other.

    The last ones have no majority that would let them go.
    """
    three.start()
    began = time.monotonic()
    three.stop()
    assert time.monotonic() - began < 200
    assert not any(broker.alive for broker in three.brokers)


def test_shared_cluster_has_three_patient_brokers(tmp_path: Path) -> None:
    """The fixture `kafka_cluster`, without the processes of brokers."""
    (tmp_path / "test_it.py").write_text(SHARED_CLUSTER)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_shared_broker_may_stand_still(kafka_broker: KafkaBroker) -> None:
    """Its session is long: no test kills it, and none should notice that it stood still."""
    assert "broker.session.timeout.ms = 18000" in kafka_broker.log_file.read_text()


def test_fixture_works_in_a_synchronous_test(kafka_broker: KafkaBroker) -> None:
    assert eventually(lambda: answers(kafka_broker.host, kafka_broker.port))


def test_fixture_works_in_an_asyncio_program(kafka_broker: KafkaBroker) -> None:
    async def connect() -> None:
        _, writer = await asyncio.open_connection(kafka_broker.host, kafka_broker.port)
        writer.close()
        await writer.wait_closed()

    asyncio.run(connect())


@pytest.mark.trio
async def test_fixture_works_in_a_trio_test(kafka_broker: KafkaBroker) -> None:
    stream = await trio.open_tcp_stream(kafka_broker.host, kafka_broker.port)
    await stream.aclose()


def test_given_directory_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A given directory keeps its data and logs, and is opened again when its brokers have ended.

    Before that a second cluster is refused, and leaves all as it is: it would write to the metadata
    of the first before Kafka notices.
    """
    monkeypatch.setattr(cluster_module, "_LOCKED_WITHIN", 0.0)
    directory, logs = tmp_path / "here", tmp_path / "logs"
    with KafkaCluster(directory=directory, logs=logs) as cluster:
        port = cluster.brokers[0].port
        files = [directory / "ports.json", directory / "broker-0" / "server.properties"]
        before = [file.read_text() for file in files]
        with pytest.raises(BrokerError, match=r"Other brokers run in .*: end them first"):
            KafkaCluster(directory=directory).start()
        assert [file.read_text() for file in files] == before
        create_topic(cluster, "kept")
    assert "Kafka Server started" in (logs / "broker-0.log").read_text()
    with KafkaCluster(directory=directory, logs=logs) as cluster:
        assert cluster.brokers[0].port == port
        assert "kept" in topics_of(cluster)
    with pytest.raises(BrokerError, match="holds the data of 1 broker, not 3"):
        KafkaCluster(directory=directory, brokers=3).start()


def test_properties_override_the_defaults(own: KafkaCluster) -> None:
    """Given properties override the defaults, and further listeners get ports."""
    log = own.brokers[0].log_file.read_text()
    assert "num.partitions = 7" in log
    assert "auto.create.topics.enable = true" in log
    assert "offsets.topic.num.partitions = 3" in log
    host, port = own.bootstrap_servers_of("SECOND").split(":")
    assert int(port) != own.brokers[0].port
    assert eventually(lambda: registered_brokers(host, int(port)) == {0})


def test_failed_start_names_the_cause(temporary: Path) -> None:
    cluster = KafkaCluster(properties={"num.network.threads": "many"})
    with pytest.raises(BrokerStartError, match=r"num\.network\.threads") as caught:
        cluster.start()
    assert caught.value.log_file.exists()
    assert str(caught.value.log_file) in str(caught.value)
    assert eventually(lambda: not processes_naming(str(temporary)))


def test_used_port_is_named(kafka_broker: KafkaBroker, temporary: Path) -> None:
    with pytest.raises(BrokerError, match=f"Port {kafka_broker.port} cannot be used"):
        KafkaCluster(port=kafka_broker.port).start()
    assert list(temporary.iterdir()) == []


@pytest.mark.trio
async def test_cancelled_start_leaves_nothing(temporary: Path) -> None:
    began = time.monotonic()
    with trio.move_on_after(1.2) as scope:
        async with Cluster.open(properties={"controller.quorum.voters": "0@127.0.0.1:1"}):
            pytest.fail("a broker without a quorum came up")
    assert scope.cancelled_caught
    assert time.monotonic() - began < 200
    assert list(temporary.iterdir()) == []
    assert eventually(lambda: not processes_naming(str(temporary)))


def test_failed_tool_is_an_error(kafka_broker_cluster: KafkaCluster) -> None:
    with pytest.raises(BrokerError, match="TopicCommand exited with code 1"):
        kafka_broker_cluster.run_tool(
            *(TOPICS, "--bootstrap-server", kafka_broker_cluster.bootstrap_servers, "--create"),
            timeout=240,
        )
    done = subprocess.run(
        kafka_broker_cluster.java_command(TOPICS, "--version"),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.stdout.strip() == TOOLS_VERSION  # Maven has none of the cluster's own version


def test_classes_of_the_cluster_are_its_own(kafka_broker_cluster: KafkaCluster) -> None:
    command = kafka_broker_cluster.java_command("kafka.tools.StorageTool", "version-mapping")
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert "share.version=2" in done.stdout
