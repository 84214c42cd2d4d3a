"""One group of our, Java's and librdkafka's members, with joins, leaves, kills and a restart.

Each member commits after it has handled records, so no record is missed. A record is handled twice
only if a member died or lost its session between the two steps, or a foreign client continued after
its partition was revoked. Java's and librdkafka's clients do that in a rolling restart.
"""

from __future__ import annotations

import functools
import json
import sys
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from cluster_waits import PATIENT
from trikafka_broker.settings import DEFAULT_JVM_OPTIONS
from trikafka_broker.trio_api import Cluster

import trikafka
from benchmarks.soak import create_known

if TYPE_CHECKING:
    from trikafka_broker.pytest_plugin import MakeKafkaCluster

PARTITIONS = 6
#: The time until a killed member of the consumer protocol is removed. The broker alone decides on
#: its session: 45 s by default. Each step may take 5 s more.
#:
#: librdkafka waits for the response of a heartbeat as long as the interval is. If a response comes
#: later, it ignores the assignment in it and never asks for it again, so the group waits for that
#: member's rebalance timeout (``max.poll.interval.ms`` in ``mixed_member.py``). With an interval of
#: 0.3 s a busy machine made that happen.
QUICK = {
    "group.consumer.min.session.timeout.ms": "12000",
    "group.consumer.session.timeout.ms": "12000",
    "group.consumer.min.heartbeat.interval.ms": "3000",
    "group.consumer.heartbeat.interval.ms": "3000",
}
MEMBER = Path(__file__).with_name("mixed_member.py")
JAVA = {"range": "RangeAssignor", "cooperative-sticky": "CooperativeStickyAssignor"}
Place = tuple[int, int]


class Stage:
    """A topic with a steady writer, the members of one group, and the records handled by each."""

    def __init__(self, cluster: Cluster, protocol: str, strategy: str) -> None:
        self.cluster = cluster
        self.protocol = protocol
        self.strategy = strategy
        self.topic = f"mixed-{uuid.uuid4().hex[:8]}"
        self.written: dict[int, int] = {}
        self.handled: dict[str, list[Place]] = defaultdict(list)
        #: The records whose commit came after the member's session.
        self.late: set[Place] = set()
        self.silent = trio.Event()
        self.is_mixed = trio.Event()

    async def write(self) -> None:
        async with trikafka.open_producer(
            bootstrap_servers=self.cluster.bootstrap_servers
        ) as producer:
            while not self.silent.is_set():
                acks = [
                    await producer.enqueue(self.topic, b"x", partition=partition)
                    for partition in range(PARTITIONS)
                ]
                for partition, ack in enumerate(acks):
                    sent = await ack.wait()
                    assert sent.offset is not None
                    self.written[partition] = sent.offset + 1
                await trio.sleep(0.1)

    def note(self, name: str, partition: int, offsets: Iterable[int]) -> None:
        self.handled[name] += [(partition, offset) for offset in offsets]

    async def until(self, true: Callable[[], bool], what: str, limit: float = 240) -> None:
        """Poll until the condition holds: the events happen in other processes."""
        with trio.move_on_after(limit):
            while not true():  # noqa: ASYNC110
                await trio.sleep(0.02)
            return
        handled = {name: len(places) for name, places in self.handled.items()}
        raise AssertionError(
            f"not within {limit} s: {what} of {self.protocol}; handled: {handled}; "
            f"the group: {await self.group()}"
        )

    async def group(self) -> str:
        """Describe the group, to find the member that it waits for."""
        with trio.move_on_after(30), suppress(trikafka.TrikafkaError):
            async with trikafka.open_admin(
                bootstrap_servers=self.cluster.bootstrap_servers
            ) as admin:
                return str(await admin.describe_groups([self.topic]))
        return "it could not be described within 30 s"

    async def more(self, name: str, count: int = 20) -> None:
        before = len(self.handled[name])
        await self.until(
            lambda: len(self.handled[name]) >= before + count, f"{name} handles {count} more"
        )

    def everything(self) -> set[Place]:
        return {
            (partition, offset) for partition, end in self.written.items() for offset in range(end)
        }

    def seen(self) -> set[Place]:
        return {place for handled in self.handled.values() for place in handled}

    def doubles(self, *names: str) -> list[Place]:
        """Return the records that members of these names alone have handled more than once."""
        by_place: dict[Place, int] = defaultdict(int)
        foreign = {
            place
            for name, handled in self.handled.items()
            if name not in names
            for place in handled
        }
        for name in names:
            for place in self.handled[name]:
                by_place[place] += 1
        excused = foreign | self.late
        return [place for place, count in by_place.items() if count > 1 and place not in excused]

    # Members.

    async def ours(self, name: str, leave: trio.Event) -> None:
        """Run a member of ours until it has to leave."""
        settings: Any = {"group_protocol": "consumer"}
        if self.protocol == "classic":
            settings = {
                "partition_assignment_strategy": [self.strategy],
                "heartbeat_interval_ms": 300,
            }
        settings |= {
            "bootstrap_servers": self.cluster.bootstrap_servers,
            "group_id": self.topic,
            "auto_offset_reset": "earliest",
        }
        async with trikafka.open_consumer(
            self.topic, enable_auto_commit=False, **settings
        ) as consumer:
            while not leave.is_set():
                batch = await consumer.receive_batch(timeout=0.2)
                if batch:
                    self.note(name, batch.partition, batch.offsets)
                    # On a machine that stands still for longer than a session, each member of the
                    # group may lose it.
                    try:
                        await consumer.commit()
                    except trikafka.CommitFailedError:
                        self.late |= {(batch.partition, offset) for offset in batch.offsets}

    @asynccontextmanager
    async def process(
        self, name: str, command: list[str], read: Callable[[str, bytes], None]
    ) -> AsyncIterator[trio.Process]:
        """Run a member in a process of its own, which is killed at the end."""

        async def listen(process: trio.Process) -> None:
            assert process.stdout is not None
            rest = b""
            async for data in process.stdout:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    read(name, line)

        async with trio.open_nursery() as nursery:
            process = await nursery.start(
                functools.partial(trio.run_process, command, stdout=-1, check=False)
            )
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
        return [
            sys.executable,
            str(MEMBER),
            kind,
            self.cluster.bootstrap_servers,
            self.topic,
            *protocol,
        ]

    def java(self) -> list[str]:
        given = [
            "--bootstrap-server",
            self.cluster.bootstrap_servers,
            "--topic",
            self.topic,
            "--group-id",
            self.topic,
            "--verbose",
        ]
        given += ["--reset-policy", "earliest", "--group-protocol", self.protocol]
        if self.protocol == "classic":
            given += ["--session-timeout", "6000"]
            given += [
                "--assignment-strategy",
                f"org.apache.kafka.clients.consumer.{JAVA[self.strategy]}",
            ]
        tool = "org.apache.kafka.tools.VerifiableConsumer"
        return list(self.cluster.java_command(tool, *given, jvm_options=DEFAULT_JVM_OPTIONS))

    async def live(self, restarted: trio.Event) -> None:
        """Let members join, leave and be killed.

        When all kinds are there, the coordinator is restarted. Then all but ``b`` leave.
        """
        leave_a, leave_b = trio.Event(), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.write)
            nursery.start_soon(self.ours, "a", leave_a)
            await self.more("a")
            async with self.process("java", self.java(), self.read_java):
                await self.more("java")
                async with self.process("librdkafka", self.python("librdkafka"), self.read_member):
                    await self.more("librdkafka")
                    async with self.process("killed", self.python("ours"), self.read_member):
                        await self.more("killed")
                    # It was killed: its partitions are reassigned after its session.
                    nursery.start_soon(self.ours, "b", leave_b)
                    await self.more("b")
                    self.is_mixed.set()
                    await restarted.wait()
                    await self.more("b")
            leave_a.set()
            await self.more("b", 60)
            self.silent.set()
            await self.until(lambda: self.everything() <= self.seen(), "every record is handled")
            leave_b.set()


async def coordinator_of_all(cluster: Cluster) -> int:
    """Return the node that leads the only partition of ``__consumer_offsets``."""
    async with trikafka.open_admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        while True:  # a broker may learn late of an election
            known = (await admin.list_topics(include_internal=True)).get("__consumer_offsets", [])
            for partition in known:
                if partition.leader is not None:
                    return partition.leader
            await trio.sleep(0.05)


async def test_mixed_groups_survive_all_events(
    make_kafka_cluster: MakeKafkaCluster,
) -> None:
    """One group of each protocol survives all events, on the same three brokers.

    The broker that is restarted coordinates both groups, and leads partitions of both topics.
    """
    properties = {
        "offsets.topic.replication.factor": "3",
        "offsets.topic.num.partitions": "1",
        "min.insync.replicas": "1",
    }
    properties |= PATIENT | QUICK
    cluster = Cluster(make_kafka_cluster(brokers=3, properties=properties))
    stages = [Stage(cluster, "classic", "cooperative-sticky"), Stage(cluster, "consumer", "")]
    restarted = trio.Event()
    with trio.fail_after(1200):
        async with trikafka.open_admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await create_known(
                admin, {stage.topic: trikafka.NewTopic(PARTITIONS, 3) for stage in stages}
            )
        async with trio.open_nursery() as nursery:
            for stage in stages:
                nursery.start_soon(stage.live, restarted)
            for stage in stages:
                await stage.is_mixed.wait()
            coordinator = await coordinator_of_all(cluster)
            broker = cluster.brokers[coordinator]
            await broker.stop()
            for stage in stages:
                await stage.more("a", 5)
            await broker.start()
            for stage in stages:
                await stage.more("a", 5)
            restarted.set()
    for stage in stages:
        assert not stage.doubles("a", "b"), stage.protocol
