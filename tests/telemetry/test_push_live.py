"""Metrics pushed to a real broker, whose receiver (``TelemetryReporter.java``) writes them to files."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from otlp_messages import Decoded
from test_push import REQUIRED
from trikafka_broker import KafkaCluster, fetch_jars
from trikafka_broker.java import find_java
from trikafka_broker.pytest_plugin import MakeKafkaCluster
from trikafka_broker.settings import DEFAULT_JVM_OPTIONS

import trikafka
from trikafka import ConfigResource, NewTopic

CONSUMER, PRODUCER = "org.apache.kafka.consumer.", "org.apache.kafka.producer."
LIMIT = 240.0


def agent(directory: Path) -> Path:
    """Compile the receiver into a jar that the broker loads as an agent."""
    source = Path(__file__).with_name("TelemetryReporter.java")
    compiler = [str(find_java()), "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    classes = directory / "classes"
    jars = os.pathsep.join(map(str, sorted(Path(fetch_jars()).glob("*.jar"))))
    subprocess.run(
        [*compiler, "-nowarn", "-Xlint:-removal", "-cp", jars, "-d", str(classes), str(source)],
        check=True,
        timeout=400,
    )
    jar = directory / "receiver.jar"
    with zipfile.ZipFile(jar, "w") as packed:
        manifest = "Manifest-Version: 1.0\nPremain-Class: TelemetryReporter\n"
        packed.writestr("META-INF/MANIFEST.MF", manifest)
        for file in classes.iterdir():
            packed.write(file, file.name)
    return jar


class Received(NamedTuple):
    """A payload that the broker gave to its receiver."""

    client: str
    terminating: bool
    payload: Decoded


def received(directory: Path) -> list[Received]:
    found = []
    for file in sorted(directory.glob("*.otlp")):
        _, client, terminating = file.stem.split("-")
        found.append(Received(client, terminating == "true", Decoded(file.read_bytes())))
    return found


@pytest.fixture
def receiver(tmp_path: Path) -> Path:
    directory = tmp_path / "received"
    directory.mkdir()
    return directory


@pytest.fixture
def kafka_receiving(
    tmp_path: Path, receiver: Path, make_kafka_cluster: MakeKafkaCluster
) -> KafkaCluster:
    """A broker with a receiver of metrics."""
    return make_kafka_cluster(
        properties={
            "metric.reporters": "TelemetryReporter",
            "broker.session.timeout.ms": 18_000,
        },
        jvm_options=[
            *DEFAULT_JVM_OPTIONS,
            f"-javaagent:{agent(tmp_path)}",
            f"-Dtelemetry.directory={receiver}",
        ],
    )


def of_newest_consumer(payloads: list[Received]) -> list[Received]:
    """Return the payloads of the consumer whose first one is the latest."""
    consumers: dict[str, list[Received]] = {}
    for each in payloads:
        if "group_id" in each.payload.resource:
            consumers.setdefault(each.client, []).append(each)
    return list(consumers.values())[-1] if consumers else []


async def wait_subscribed(servers: str) -> None:
    """Wait until clients get the subscription; a broker learns of it a moment later."""
    while True:
        async with trikafka.open_producer(bootstrap_servers=servers) as producer:
            await producer.client_instance_id()
            push = producer.statistics().metrics_push
            if push is not None and push.metrics:
                return
        await trio.sleep(0.2)


async def work_until_all_is_seen(servers: str, receiver: Path) -> None:
    """Run a producer and a consumer until each metric has come, and five pushes of the consumer."""
    before = len(received(receiver))
    async with (
        trikafka.open_producer(bootstrap_servers=servers) as producer,
        trikafka.open_consumer(
            "t",
            bootstrap_servers=servers,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
    ):
        assert await producer.client_instance_id() != await consumer.client_instance_id()
        with trio.fail_after(LIMIT):
            seen: set[str] = set()
            payloads: list[Received] = []
            pushed = False
            while not (seen >= REQUIRED and len(of_newest_consumer(payloads)) >= 5 and pushed):
                await producer.send("t", b"1")
                await consumer.receive()
                await consumer.commit()
                await trio.sleep(0.02)
                payloads = received(receiver)[before:]
                seen = {name for each in payloads for name in each.payload.metrics}
                # The broker may have refused the last push, one that came too early.
                push = consumer.statistics().metrics_push
                pushed = push is not None and push.last_error is None and push.pushes >= 4


async def test_broker_receives_required_metrics(
    kafka_receiving: KafkaCluster, receiver: Path
) -> None:
    servers = kafka_receiving.bootstrap_servers
    with trio.fail_after(4 * LIMIT):
        async with trikafka.open_admin(bootstrap_servers=servers) as admin:
            await admin.create_topics({"t": NewTopic(1)})
            while "t" not in await admin.list_topics():  # noqa: ASYNC110
                await trio.sleep(0.05)
            await admin.alter_configs(
                {ConfigResource("client_metrics", "all"): {"metrics": "*", "interval.ms": "300"}}
            )
        await wait_subscribed(servers)
        # A close waits a second for the last push, and a machine may stand still for longer.
        for _ in range(10):
            await work_until_all_is_seen(servers, receiver)
            with trio.move_on_after(3):
                while not of_newest_consumer(received(receiver))[-1].terminating:  # noqa: ASYNC110
                    await trio.sleep(0.05)
                break
    payloads = received(receiver)
    consumers = of_newest_consumer(payloads)
    assert {name for each in payloads for name in each.payload.metrics} == REQUIRED
    assert len({each.client for each in payloads}) >= 2
    assert consumers[-1].terminating
    assert not any(each.terminating for each in consumers[:-1])
    assert any(each.payload.resource.get("group_member_id") for each in consumers)
    # The figures move, and the deltas of the broker follow each other without a gap.
    latency = [
        value
        for each in consumers
        for value in each.payload.metrics.get(f"{CONSUMER}node.request.latency.avg", {}).values()
    ]
    assert all(value > 0 for value in latency)
    assert len(set(latency)) > 1
    total = f"{CONSUMER}connection.creation.total"
    points = [each.payload.points[total][0] for each in consumers]
    assert {each.payload.sums[total] for each in consumers} == {(1, True)}
    assert [point.start_time for point in points[1:]] == [point.time for point in points[:-1]]
    assert sum(point.as_double for point in points) >= 3
    assigned = [
        each.payload.value(f"{CONSUMER}coordinator.assigned.partitions") for each in consumers
    ]
    assert 1 in assigned
