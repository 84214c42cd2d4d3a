"""Our consumers in groups of a real Kafka, with Java's and librdkafka's members, and with kills."""

from __future__ import annotations

import functools
import signal
import sys
import textwrap
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
import trio
from cluster_waits import topic_reported
from trikafka_broker.cluster import KafkaCluster
from trikafka_broker.settings import DEFAULT_JVM_OPTIONS
from trikafka_broker.trio_api import Cluster

from trikafka import NewTopic, open_admin, open_consumer, open_producer

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker

PARTITIONS = 6
STRATEGIES = ["range", "cooperative-sticky"]


def in_time(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Fail a test that hangs."""

    @functools.wraps(test)
    async def limited(**fixtures: Any) -> None:
        with trio.fail_after(400):
            await test(**fixtures)

    return limited


async def until(true: Callable[[], bool]) -> None:
    """Poll until the condition holds: some of the events happen in other processes."""
    while not true():  # noqa: ASYNC110
        await trio.sleep(0.02)


class Stage:
    """A topic with a steady writer, a group that reads it, and the records seen by each member."""

    def __init__(self, bootstrap: str, topic: str, strategy: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.strategy = strategy
        self.written = 0
        self.seen: dict[str, list[int]] = {}
        self.silent = trio.Event()

    async def write(self) -> None:
        async with open_producer(bootstrap_servers=self.bootstrap) as producer:
            while not self.silent.is_set():
                ack = None
                for _ in range(PARTITIONS):
                    ack = await producer.enqueue(
                        self.topic, b"%d" % self.written, partition=self.written % PARTITIONS
                    )
                    self.written += 1
                if ack is not None:
                    await ack.wait()
                # Each record costs brokers and members; a hundred a second are enough.
                await trio.sleep(0.06)

    def note(self, name: str, value: bytes | None) -> None:
        self.seen.setdefault(name, []).append(int(value or b""))

    @property
    def counts(self) -> Counter[int]:
        return Counter(number for seen in self.seen.values() for number in seen)

    def settings(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap,
            "group_id": self.topic,
            "auto_offset_reset": "earliest",
            "partition_assignment_strategy": [self.strategy],
            "session_timeout_ms": 45_000,
            "heartbeat_interval_ms": 300,
            "auto_commit_interval_ms": 200,
        } | more

    async def read(self, name: str, enough: Callable[[], bool] = lambda: False) -> None:
        """Run a member of ours until it has seen enough."""
        async with open_consumer(self.topic, **self.settings()) as consumer:
            while not enough():
                for record in await consumer.receive_batch(timeout=0.2):
                    self.note(name, record.value)

    async def more(self, name: str, count: int = 50) -> None:
        """Wait until ``name`` has seen this many more records."""
        before = len(self.seen.get(name, ()))
        await until(lambda: len(self.seen.get(name, ())) >= before + count)

    async def all_seen(self) -> None:
        """Stop writing, and wait until each record was seen."""
        self.silent.set()
        await until(lambda: len(self.counts) >= self.written)


@asynccontextmanager
async def stage_of(bootstrap: str, strategy: str) -> AsyncIterator[tuple[Stage, trio.Nursery]]:
    topic = f"groups-{uuid.uuid4().hex[:8]}"
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics({topic: NewTopic(PARTITIONS, 1)})
        await topic_reported(admin, topic, PARTITIONS)
    stage = Stage(bootstrap, topic, strategy)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.write)
        yield stage, nursery
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("strategy", STRATEGIES)
@in_time
async def test_member_takes_over_from_one_that_leaves(
    kafka_broker: KafkaBroker, strategy: str
) -> None:
    async with stage_of(kafka_broker.bootstrap_servers, strategy) as (stage, nursery):
        nursery.start_soon(stage.read, "stays")
        await stage.more("stays")
        await stage.read("leaves", lambda: len(stage.seen.get("leaves", ())) > 100)
        await stage.more("stays", 100)
        await stage.all_seen()
        assert set(stage.counts.values()) == {1}  # nothing missed, nothing twice


@pytest.mark.parametrize("strategy", STRATEGIES)
@in_time
async def test_five_members_see_everything_once(kafka_broker: KafkaBroker, strategy: str) -> None:
    async with stage_of(kafka_broker.bootstrap_servers, strategy) as (stage, nursery):
        nursery.start_soon(stage.read, "stays")
        for number in range(4):
            name = f"guest {number}"
            nursery.start_soon(
                stage.read, name, lambda name=name: len(stage.seen.get(name, ())) > 50
            )
            await trio.sleep(0.3)
        for number in range(4):
            await until(lambda name=f"guest {number}": len(stage.seen.get(name, ())) > 50)  # type: ignore[misc]
        await stage.more("stays", 100)
        await stage.all_seen()
        assert set(stage.counts.values()) == {1}


_JAVA = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


@pytest.fixture
def cluster(kafka_broker_cluster: KafkaCluster) -> Cluster:
    """Return the cluster of the shared broker, which starts Java's clients."""
    return Cluster(kafka_broker_cluster)


@asynccontextmanager
async def java_member(cluster: Cluster, stage: Stage) -> AsyncIterator[None]:
    """Run Kafka's console consumer; SIGTERM at the end makes it leave the group."""
    properties = {
        "partition.assignment.strategy": _JAVA[stage.strategy],
        "heartbeat.interval.ms": "300",
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": "200",
    }
    given = [
        part
        for key, value in properties.items()
        for part in ("--command-property", f"{key}={value}")
    ]
    command = cluster.java_command(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(
            "--bootstrap-server",
            stage.bootstrap,
            "--topic",
            stage.topic,
            "--group",
            stage.topic,
            *given,
        ),
        jvm_options=DEFAULT_JVM_OPTIONS,
    )

    async def listen(process: trio.Process) -> None:
        assert process.stdout is not None
        rest = b""
        async for data in process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                stage.note("java", line)

    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            functools.partial(
                trio.run_process, command, capture_stdout=False, stdout=-1, check=False
            )
        )
        nursery.start_soon(listen, process)
        try:
            yield
        finally:
            # SIGINT would be ignored where the tests run in the background.
            process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("strategy", STRATEGIES)
@in_time
async def test_group_is_shared_with_java(cluster: Cluster, strategy: str) -> None:
    """Java's member joins second, sees ours join, outlives them, and leaves while others read."""
    async with stage_of(cluster.bootstrap_servers, strategy) as (stage, nursery):
        until_java_is_there = trio.Event()
        nursery.start_soon(stage.read, "first", until_java_is_there.is_set)
        await stage.more("first")
        async with java_member(cluster, stage):
            await stage.more("java", 50)
            until_java_is_there.set()
            await stage.more("java", 150)  # it has taken over our partitions
            nursery.start_soon(stage.read, "second")
            await stage.more("second", 50)
            await stage.more("java", 50)
        await stage.more("second", 150)
        await stage.all_seen()
        doubled = {number for number, count in stage.counts.items() if count > 1}
        if strategy == "cooperative-sticky":
            # The Java client commits before it joins again, and continues to read. Records that it
            # reads until it releases the partitions are read again by the next owner. Records of
            # partitions that our members release are not.
            doubled -= set(stage.seen["java"]) - set(stage.seen["first"])
        assert not doubled


async def librdkafka_member(stage: Stage, leave: Callable[[], bool]) -> None:
    def run() -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": stage.bootstrap,
                "group.id": stage.topic,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": stage.strategy,
                "session.timeout.ms": 45_000,
                "heartbeat.interval.ms": 300,
                "auto.commit.interval.ms": 200,
            }
        )
        consumer.subscribe([stage.topic])
        while not leave():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                trio.from_thread.run_sync(stage.note, "librdkafka", message.value())
        consumer.close()

    await trio.to_thread.run_sync(run)


@pytest.mark.parametrize("strategy", STRATEGIES)
@in_time
async def test_group_is_shared_with_librdkafka(kafka_broker: KafkaBroker, strategy: str) -> None:
    async with stage_of(kafka_broker.bootstrap_servers, strategy) as (stage, nursery):
        leave_first, leave_theirs = trio.Event(), trio.Event()
        nursery.start_soon(stage.read, "first", leave_first.is_set)
        await stage.more("first")
        nursery.start_soon(librdkafka_member, stage, leave_theirs.is_set)
        try:
            await stage.more("librdkafka", 50)
            leave_first.set()
            await stage.more("librdkafka", 150)
            nursery.start_soon(stage.read, "second")
            await stage.more("second", 50)
            await stage.more("librdkafka", 50)
        finally:
            leave_theirs.set()
        await stage.more("second", 150)
        await stage.all_seen()
        assert set(stage.counts.values()) == {1}


_VICTIM = """
    import sys, trio, trikafka

    async def main(bootstrap, topic, strategy):
        settings = dict(bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest", session_timeout_ms=10_000)
        settings["enable_auto_commit"] = False  # of what it has printed the test sees only a part
        async with trikafka.open_consumer(topic, partition_assignment_strategy=[strategy], **settings) as consumer:
            async for record in consumer:
                print(record.value.decode(), flush=True)

    trio.run(main, *sys.argv[1:])
"""


@in_time
async def test_killed_member_is_replaced(kafka_broker: KafkaBroker) -> None:
    """A killed member is replaced; in test_mixed_groups_live.py with the other strategy."""
    strategy = "range"
    async with stage_of(kafka_broker.bootstrap_servers, strategy) as (stage, nursery):
        nursery.start_soon(stage.read, "stays")
        await stage.more("stays")
        command = [
            sys.executable,
            "-c",
            textwrap.dedent(_VICTIM),
            stage.bootstrap,
            stage.topic,
            strategy,
        ]
        victim = await nursery.start(
            functools.partial(trio.run_process, command, stdout=-1, check=False)
        )
        assert victim.stdout is not None
        printed = b""
        while printed.count(b"\n") < 50:
            printed += await victim.stdout.receive_some()
        victim.kill()
        for line in printed.split(b"\n")[:-1]:
            stage.note("killed", line)
        await stage.more("stays", 50)
        await stage.all_seen()
