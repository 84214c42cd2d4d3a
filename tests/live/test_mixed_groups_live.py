"""One group of ours, Java's and librdkafka's members, while members come, leave and are killed and three brokers are restarted.

Each member commits after it has handled records. So no record is missed; and a record is handled twice only where a member died
between the two, or a foreign client went on after its partition was taken away (Java's and librdkafka's do in a rolling restart).
"""

from __future__ import annotations

import functools
import json
import sys
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trikafka_broker.settings import DEFAULT_JVM_OPTIONS
from trikafka_broker.trio_api import Cluster

import trikafka

if TYPE_CHECKING:
    from trikafka_broker.pytest_plugin import MakeKafkaCluster

PARTITIONS = 6
#: Of a killed member of the consumer protocol, whose session the broker alone decides on: 45 s by default, and 5 s for each step.
QUICK = {
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.heartbeat.interval.ms": "300",
}
MEMBER = Path(__file__).with_name("mixed_member.py")
JAVA = {"range": "RangeAssignor", "cooperative-sticky": "CooperativeStickyAssignor"}
Place = tuple[int, int]


async def until(true: Callable[[], bool], what: str, limit: float = 60) -> None:
    """Look again and again, for what is waited for happens in other processes."""
    with trio.move_on_after(limit):
        while not true():  # noqa: ASYNC110
            await trio.sleep(0.02)
        return
    raise AssertionError(f"not within {limit} s: {what}")


class Stage:
    """A topic that is written to all the time, the members of one group that read it, and who has handled what."""

    def __init__(self, cluster: Cluster, protocol: str, strategy: str) -> None:
        self.cluster, self.protocol, self.strategy = cluster, protocol, strategy
        self.topic = f"mixed-{uuid.uuid4().hex[:8]}"
        self.written: dict[int, int] = {}
        self.handled: dict[str, list[Place]] = defaultdict(list)
        self.silent = trio.Event()

    async def write(self) -> None:
        async with trikafka.open_producer(bootstrap_servers=self.cluster.bootstrap_servers) as producer:
            while not self.silent.is_set():
                for partition in range(PARTITIONS):
                    sent = await producer.send(self.topic, b"x", partition=partition)
                    assert sent.offset is not None
                    self.written[partition] = sent.offset + 1
                await trio.sleep(0.05)

    def note(self, name: str, partition: int, offsets: Iterable[int]) -> None:
        self.handled[name] += [(partition, offset) for offset in offsets]

    async def more(self, name: str, count: int = 20) -> None:
        before = len(self.handled[name])
        await until(lambda: len(self.handled[name]) >= before + count, f"{name} handles {count} more")

    def everything(self) -> set[Place]:
        return {(partition, offset) for partition, end in self.written.items() for offset in range(end)}

    def seen(self) -> set[Place]:
        return {place for handled in self.handled.values() for place in handled}

    def doubles(self, *names: str) -> list[Place]:
        """What members of these names alone have handled more than once."""
        by_place: dict[Place, int] = defaultdict(int)
        foreign = {place for name, handled in self.handled.items() if name not in names for place in handled}
        for name in names:
            for place in self.handled[name]:
                by_place[place] += 1
        return [place for place, count in by_place.items() if count > 1 and place not in foreign]

    # Members.

    async def ours(self, name: str, leave: trio.Event) -> None:
        """A member of ours, until it is told to leave."""
        settings: Any = {"group_protocol": "consumer"}
        if self.protocol == "classic":
            settings = {"partition_assignment_strategy": [self.strategy], "session_timeout_ms": 6000, "heartbeat_interval_ms": 300}
        settings |= {"bootstrap_servers": self.cluster.bootstrap_servers, "group_id": self.topic, "auto_offset_reset": "earliest"}
        async with trikafka.open_consumer(self.topic, enable_auto_commit=False, **settings) as consumer:
            while not leave.is_set():
                batch = await consumer.receive_batch(timeout=0.2)
                if batch:
                    self.note(name, batch.partition, batch.offsets)
                    await consumer.commit()

    @asynccontextmanager
    async def process(self, name: str, command: list[str], read: Callable[[str, bytes], None]) -> AsyncIterator[trio.Process]:
        """A member in a process of its own; killed on the way out."""

        async def listen(process: trio.Process) -> None:
            assert process.stdout is not None
            rest = b""
            async for data in process.stdout:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    read(name, line)

        async with trio.open_nursery() as nursery:
            process = await nursery.start(functools.partial(trio.run_process, command, stdout=-1, check=False))
            nursery.start_soon(listen, process)
            try:
                yield process
            finally:
                process.kill()

    def read_member(self, name: str, line: bytes) -> None:
        partition, *offsets = map(int, line.split())
        self.note(name, partition, offsets)

    def read_java(self, name: str, line: bytes) -> None:
        event = json.loads(line) if line.startswith(b"{") else {}
        if event.get("name") == "record_data":
            self.note(name, event["partition"], [event["offset"]])

    def python(self, kind: str) -> list[str]:
        protocol = [self.protocol, self.strategy]
        return [sys.executable, str(MEMBER), kind, self.cluster.bootstrap_servers, self.topic, *protocol]

    def java(self) -> list[str]:
        given = ["--bootstrap-server", self.cluster.bootstrap_servers, "--topic", self.topic, "--group-id", self.topic, "--verbose"]
        given += ["--reset-policy", "earliest", "--group-protocol", self.protocol]
        if self.protocol == "classic":
            given += ["--session-timeout", "6000"]
            given += ["--assignment-strategy", f"org.apache.kafka.clients.consumer.{JAVA[self.strategy]}"]
        tool = "org.apache.kafka.tools.VerifiableConsumer"
        return list(self.cluster.java_command(tool, *given, jvm_options=DEFAULT_JVM_OPTIONS))


@pytest.mark.parametrize(("protocol", "strategy"), [("classic", "cooperative-sticky"), ("consumer", "")])
async def test_a_mixed_group_through_joins_leaves_kills_and_a_rolling_restart(
    make_kafka_cluster: MakeKafkaCluster, protocol: str, strategy: str
) -> None:
    properties = {"offsets.topic.replication.factor": "3", "offsets.topic.num.partitions": "4", "min.insync.replicas": "1"} | QUICK
    cluster = Cluster(make_kafka_cluster(brokers=3, properties=properties))
    stage = Stage(cluster, protocol, strategy)
    leave_a, leave_b = trio.Event(), trio.Event()
    with trio.fail_after(180):
        async with trikafka.open_admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.create_topics({stage.topic: trikafka.NewTopic(PARTITIONS, 3)})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.write)
            nursery.start_soon(stage.ours, "a", leave_a)
            await stage.more("a")
            async with stage.process("java", stage.java(), stage.read_java):
                await stage.more("java")
                async with stage.process("librdkafka", stage.python("librdkafka"), stage.read_member):
                    await stage.more("librdkafka")
                    async with stage.process("killed", stage.python("ours"), stage.read_member):
                        await stage.more("killed")
                    # It was killed: its partitions come back after its session.
                    nursery.start_soon(stage.ours, "b", leave_b)
                    await stage.more("b")
                    for broker in cluster.brokers:
                        await broker.stop()
                        await stage.more("a", 5)
                        await broker.start()
                        await stage.more("a", 5)
                    await stage.more("b")
            leave_a.set()
            await stage.more("b", 60)
            stage.silent.set()
            await until(lambda: stage.everything() <= stage.seen(), "every record was handled")
            leave_b.set()
        assert not stage.doubles("a", "b")
