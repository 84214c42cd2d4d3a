"""Members of the consumer protocol (KIP-848) in a real Kafka: ours, Java's, librdkafka's."""

from __future__ import annotations

import functools
import signal
import sys
import textwrap
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
import trio
from cluster_waits import PATIENT, topic_reported
from test_groups_live import PARTITIONS, Stage, in_time, until
from trikafka_broker.cluster import KafkaCluster
from trikafka_broker.settings import DEFAULT_JVM_OPTIONS
from trikafka_broker.trio_api import Cluster

from trikafka import (
    ConfigResource,
    NewTopic,
    RebalanceListener,
    SubscriptionPattern,
    TopicPartition,
    open_admin,
    open_consumer,
    open_producer,
)

if TYPE_CHECKING:
    from trikafka._api.consumer.consumer import Consumer

#: Heartbeats that are short enough for a test. A session is long enough for members that live on a
#: busy machine; the groups of members that are killed have a shorter one of their own.
QUICK = PATIENT | {
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "30000",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.heartbeat.interval.ms": "300",
}


@pytest.fixture(scope="module")
def quick_broker() -> Iterator[KafkaCluster]:
    """Return one real broker, shared by the tests of this file."""
    with KafkaCluster(properties=QUICK) as cluster:
        cluster.start()
        yield cluster


class History(RebalanceListener):
    """A listener that records the changes of all members in one list.

    It checks that no member gets a partition that another member still has.
    """

    def __init__(
        self, owners: dict[int, str], name: str, noted: list[tuple[str, str, list[int]]]
    ) -> None:
        self.owners = owners
        self.name = name
        self.noted = noted

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("assigned", partitions)
        for tp in partitions:
            assert tp.partition not in self.owners, (
                f"{self.name} got {tp}, which {self.owners[tp.partition]} still has"
            )
            self.owners[tp.partition] = self.name

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("revoked", partitions)
        for tp in partitions:
            assert self.owners.pop(tp.partition) == self.name

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("lost", partitions)
        for tp in partitions:
            if self.owners.get(tp.partition) == self.name:
                del self.owners[tp.partition]

    def _note(self, what: str, partitions: Sequence[TopicPartition]) -> None:
        self.noted.append((self.name, what, sorted(tp.partition for tp in partitions)))


class Scene(Stage):
    """A topic with a writer, and a group that reads it.

    Members use the consumer protocol unless they name another one.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(bootstrap, topic, "range")
        self.owners: dict[int, str] = {}
        self.noted: list[tuple[str, str, list[int]]] = []

    def settings(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap,
            "group_id": self.topic,
            "group_protocol": "consumer",
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
        } | more

    async def member(
        self,
        name: str,
        leave: Callable[[], bool] = lambda: False,
        topics: Any = None,
        **settings: Any,
    ) -> None:
        """Run a member of ours that commits processed records, until it has to leave."""
        async with open_consumer(**self.settings(**settings)) as consumer:
            consumer.subscribe(topics or [self.topic], History(self.owners, name, self.noted))
            while not leave():
                for record in await consumer.receive_batch(timeout=0.1):
                    self.note(name, record.value)
                await consumer_commits(consumer)

    async def spread(self, *counts: int) -> None:
        """Wait until the partitions are spread over this many members."""
        await until(
            lambda: (
                sorted(list(self.owners.values()).count(name) for name in set(self.owners.values()))
                == sorted(counts)
            )
        )


async def has_type(scene: Scene, wanted: str) -> None:
    """Wait until the broker lists the group with this type."""
    async with open_admin(bootstrap_servers=scene.bootstrap) as admin:
        while True:
            kinds = {group.group_id: group.type for group in await admin.list_groups()}
            if kinds[scene.topic] == wanted:
                return
            await trio.sleep(0.1)


async def consumer_commits(consumer: Consumer) -> None:
    if consumer.assignment() and consumer.statistics().generation >= 0:
        await consumer.commit()


@asynccontextmanager
async def scene_of(bootstrap: str) -> AsyncIterator[tuple[Scene, trio.Nursery]]:
    topic = f"modern-{uuid.uuid4().hex[:8]}"
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics({topic: NewTopic(PARTITIONS, 1)})
        await topic_reported(admin, topic, PARTITIONS)
    scene = Scene(bootstrap, topic)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.write)
        yield scene, nursery
        nursery.cancel_scope.cancel()


@in_time
async def test_three_members_see_everything_once(
    quick_broker: KafkaCluster,
) -> None:
    """Three members join and leave, and each record is seen once."""
    async with scene_of(quick_broker.bootstrap_servers) as (scene, nursery):
        leave = [trio.Event() for _ in range(3)]
        nursery.start_soon(scene.member, "a", leave[0].is_set)
        await scene.more("a")
        nursery.start_soon(scene.member, "b", leave[1].is_set)
        await scene.spread(3, 3)
        nursery.start_soon(scene.member, "c", leave[2].is_set)
        await scene.spread(2, 2, 2)
        await scene.more("c")
        kept = {number for number, owner in scene.owners.items() if owner == "a"}
        assert all(
            kept.isdisjoint(numbers)
            for name, what, numbers in scene.noted
            if (name, what) == ("a", "revoked")
        )
        leave[1].set()
        await scene.spread(3, 3)
        leave[2].set()
        await scene.spread(6)
        await scene.more("a", 100)
        await scene.all_seen()
        leave[0].set()
        await until(lambda: not scene.owners)
        assert set(scene.counts.values()) == {1}  # nothing missed, nothing twice
        assert not [noted for noted in scene.noted if noted[1] == "lost"]


@asynccontextmanager
async def java_member(cluster: Cluster, scene: Scene, protocol: str) -> AsyncIterator[None]:
    """Run Kafka's console consumer; SIGTERM at the end makes it leave the group."""
    properties = {
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": "200",
    }
    if protocol == "classic":
        properties["heartbeat.interval.ms"] = "300"
    given = [
        part
        for key, value in properties.items()
        for part in ("--command-property", f"{key}={value}")
    ]
    command = cluster.java_command(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(
            "--bootstrap-server",
            scene.bootstrap,
            "--topic",
            scene.topic,
            "--group",
            scene.topic,
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
                scene.note("java", line)

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
            process.send_signal(signal.SIGTERM)


@in_time
async def test_group_is_shared_with_java(quick_broker: KafkaCluster) -> None:
    """Our members and Java's share a group, in which Java's use the consumer protocol.

    Our first member is a classic one, so Java's makes the broker convert the running group to the
    new protocol. Our second one uses the new protocol. The other way round is in
    test_group_with_java_is_converted_and_back, and a group of classic members alone in
    test_groups_live.py.
    """
    cluster = Cluster(quick_broker)
    async with scene_of(cluster.bootstrap_servers) as (scene, nursery):
        java_is_there = trio.Event()
        classic: dict[str, Any] = {"group_protocol": "classic", "heartbeat_interval_ms": 300}
        nursery.start_soon(
            functools.partial(scene.member, "first", java_is_there.is_set, **classic)
        )
        await scene.more("first")
        async with java_member(cluster, scene, "consumer"):
            await scene.more("java", 50)
            java_is_there.set()
            await scene.more("java", 150)  # it has taken over our partitions
            await has_type(scene, "consumer")
            nursery.start_soon(scene.member, "second")
            await scene.more("second", 50)
            await scene.more("java", 50)
        await scene.more("second", 150)
        await scene.all_seen()
        doubled = {number for number, count in scene.counts.items() if count > 1}
        assert doubled <= set(scene.seen["java"])  # it commits at an interval; we after each batch
        assert not set(scene.seen["first"]) & set(scene.seen["second"])


async def librdkafka_member(scene: Scene, leave: Callable[[], bool]) -> None:
    def run() -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": scene.bootstrap,
                "group.id": scene.topic,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
            }
        )
        consumer.subscribe([scene.topic])
        while not leave():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                trio.from_thread.run_sync(scene.note, "librdkafka", message.value())
        consumer.close()

    await trio.to_thread.run_sync(run)


@in_time
async def test_group_is_shared_with_librdkafka(quick_broker: KafkaCluster) -> None:
    """The group has long heartbeats.

    librdkafka waits for a response as long as the interval is. It never asks again for an
    assignment in a response that came later, or joins again and reads records twice.
    """
    async with scene_of(quick_broker.bootstrap_servers) as (scene, nursery):
        await set_of_group(
            quick_broker.bootstrap_servers, scene.topic, "heartbeat.interval.ms", 8_000
        )
        leave_first, leave_theirs = trio.Event(), trio.Event()
        nursery.start_soon(scene.member, "first", leave_first.is_set)
        await scene.more("first")
        nursery.start_soon(librdkafka_member, scene, leave_theirs.is_set)
        try:
            await scene.more("librdkafka", 50)
            leave_first.set()
            await scene.more("librdkafka", 150)
            nursery.start_soon(scene.member, "second")
            await scene.more("second", 50)
            await scene.more("librdkafka", 50)
        finally:
            leave_theirs.set()
        await scene.more("second", 150)
        await scene.all_seen()
        assert set(scene.counts.values()) == {1}


@in_time
async def test_group_is_converted_and_back(
    quick_broker: KafkaCluster,
) -> None:
    """A running group is converted to the new protocol and back.

    Two classic members are replaced one after the other by two of the new protocol, and these by
    two classic ones.
    """
    async with scene_of(quick_broker.bootstrap_servers) as (scene, nursery):
        leave: dict[str, trio.Event] = {}
        classic: dict[str, Any] = {"group_protocol": "classic", "heartbeat_interval_ms": 300}
        classic["partition_assignment_strategy"] = ["cooperative-sticky"]
        names = []
        for name, settings in [
            ("c1", classic),
            ("c2", classic),
            ("n1", {}),
            ("n2", {}),
            ("c3", classic),
            ("c4", classic),
        ]:
            leave[name] = trio.Event()
            nursery.start_soon(
                functools.partial(scene.member, name, leave[name].is_set, **settings)
            )
            names.append(name)
            if len(names) > 2:
                await scene.more(name, 50)
                leave[names.pop(0)].set()
            await scene.spread(*([3, 3] if len(names) == 2 else [6]))
            await scene.more(name)
        await scene.all_seen()
        assert set(scene.counts.values()) == {1}
        assert not [noted for noted in scene.noted if noted[1] == "lost"]


@in_time
async def test_group_with_java_is_converted_and_back(
    quick_broker: KafkaCluster,
) -> None:
    """A group with Java's classic member is converted to the new protocol and back.

    Our classic member beside it is replaced by one of the new protocol, and that by a classic one.
    """
    cluster = Cluster(quick_broker)
    async with scene_of(cluster.bootstrap_servers) as (scene, nursery):
        leave: dict[str, trio.Event] = {}
        classic: dict[str, Any] = {"group_protocol": "classic", "heartbeat_interval_ms": 300}

        async def replace(old: str | None, new: str, **settings: Any) -> None:
            leave[new] = trio.Event()
            nursery.start_soon(functools.partial(scene.member, new, leave[new].is_set, **settings))
            await scene.more(new, 50)
            if old is not None:
                leave[old].set()

        await replace(None, "c1", **classic)
        async with java_member(cluster, scene, "classic"):
            await scene.more("java", 50)
            for old, new, settings in (("c1", "n1", {}), ("n1", "c2", classic)):
                await replace(old, new, **settings)
                await scene.spread(3)
                await has_type(scene, "consumer" if new == "n1" else "classic")
                await scene.more("java", 50)
                await scene.more(new, 50)
        await scene.spread(6)
        await scene.all_seen()
        doubled = {number for number, count in scene.counts.items() if count > 1}
        assert doubled <= set(scene.seen["java"])  # it commits at an interval; we after each batch
        assert not [noted for noted in scene.noted if noted[1] == "lost"]


_VICTIM = """
    import sys, trio, trikafka

    async def main(bootstrap, topic, *instance):
        settings = dict(bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest", group_protocol="consumer")
        settings["enable_auto_commit"] = False  # of what it has printed the test sees only a part
        if instance:
            settings["group_instance_id"] = instance[0]
        async with trikafka.open_consumer(topic, **settings) as consumer:
            async for record in consumer:
                print(record.value.decode(), flush=True)

    trio.run(main, *sys.argv[1:])
"""


async def start_victim(
    scene: Scene, nursery: trio.Nursery, *arguments: str
) -> tuple[trio.Process, list[int]]:
    """Start a process with a member, and wait until it has printed some records."""
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(_VICTIM),
        scene.bootstrap,
        scene.topic,
        *arguments,
    ]
    victim = await nursery.start(
        functools.partial(trio.run_process, command, stdout=-1, check=False)
    )
    printed = b""
    while printed.count(b"\n") < 50:
        printed += await victim.stdout.receive_some()
    return victim, [int(line) for line in printed.split(b"\n")[:-1]]


@in_time
async def test_killed_member_is_replaced(
    quick_broker: KafkaCluster,
) -> None:
    async with scene_of(quick_broker.bootstrap_servers) as (scene, nursery):
        await set_session(quick_broker.bootstrap_servers, scene.topic, 16_000)
        nursery.start_soon(scene.member, "stays")
        await scene.more("stays")
        victim, _ = await start_victim(scene, nursery)
        await until(lambda: len(scene.owners) == 3)
        kills = trio.current_time()
        victim.kill()
        await until(lambda: len(scene.owners) == 6)
        # Of the session of 16 s a part has passed, if the member stood still before it was killed. A
        # member that leaves would be replaced after its next heartbeat.
        assert trio.current_time() - kills > 2
        await scene.all_seen()


@in_time
async def test_static_member_keeps_its_partitions(
    quick_broker: KafkaCluster,
) -> None:
    async with scene_of(quick_broker.bootstrap_servers) as (scene, nursery):
        nursery.start_soon(functools.partial(scene.member, "stays", group_instance_id="one"))
        await scene.more("stays")
        had: list[list[int]] = []
        for number in range(3):  # the member is back before its session ends, and stays at last
            leave = trio.Event()
            nursery.start_soon(
                functools.partial(scene.member, "restarts", leave.is_set, group_instance_id="two")
            )
            await scene.spread(3, 3)
            await scene.more("restarts")
            had.append(
                sorted(number for number, owner in scene.owners.items() if owner == "restarts")
            )
            if number < 2:
                leave.set()
                await until(lambda: "restarts" not in scene.owners.values())
        assert had[0] == had[1] == had[2]
        assert [what for name, what, _ in scene.noted if name == "stays"] == ["assigned", "revoked"]
        await scene.all_seen()
        assert set(scene.counts.values()) == {1}


@in_time
async def test_killed_static_member_waits(
    quick_broker: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A killed static member that starts again waits until its earlier session has ended.

    The coordinator waits for that session. The program gets no error.
    """
    async with scene_of(quick_broker.bootstrap_servers) as (scene, nursery):
        await set_session(quick_broker.bootstrap_servers, scene.topic, 16_000)
        victim, _ = await start_victim(scene, nursery, "one")
        victim.kill()
        async with open_consumer(
            scene.topic, **scene.settings(group_instance_id="one")
        ) as consumer:
            await consumer.receive()
            await until(lambda: consumer.health().ok)
        (line,) = [
            each.getMessage()
            for each in caplog.records
            if "still holds group_instance_id" in each.getMessage()
        ]
        assert "up to 16 s" in line, "the session of the group, not the default"


class Deaf(trio.abc.Stream):
    """A connection without heartbeats of the consumer protocol once ``deaf`` is set.

    After one such heartbeat it sends nothing at all.
    """

    def __init__(self, inner: trio.abc.Stream, deaf: trio.Event) -> None:
        self._inner = inner
        self._deaf = deaf
        self._swallows = False

    async def send_all(self, data: Any) -> None:
        self._swallows |= self._deaf.is_set() and bytes(data[4:6]) == b"\0\x44"
        if self._swallows:
            await trio.lowlevel.checkpoint()
        else:
            await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._inner.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._inner.aclose()


async def set_session(bootstrap: str, group: str, milliseconds: int) -> None:
    await set_of_group(bootstrap, group, "session.timeout.ms", milliseconds)


async def set_of_group(bootstrap: str, group: str, setting: str, milliseconds: int) -> None:
    """Give one group a time of its own, as kafka-configs.sh does.

    Return once the broker has it, too. A member that asked before that would take the default.
    """
    resource, name = ConfigResource("group", group), f"consumer.{setting}"
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        await admin.alter_configs({resource: {name: milliseconds}})
        while True:
            found = (await admin.describe_configs([resource]))[resource]
            if found[name].value == str(milliseconds):
                return
            await trio.sleep(0.02)


@in_time
async def test_cut_off_member_stops_in_time(quick_broker: KafkaCluster) -> None:
    """A member that lost the coordinator stops before another member gets its partitions.

    The group is configured with a session of 6 s. The member that is cut off handles no record that
    the other member handles.
    """
    deaf = trio.Event()
    handled: dict[str, list[tuple[float, bytes]]] = {"cut": [], "other": []}

    async def dial(host: str, port: int) -> trio.abc.Stream:
        return Deaf(await trio.open_tcp_stream(host, port), deaf)

    async def work(name: str, **more: Any) -> None:
        async with open_consumer(scene.topic, **scene.settings(**more)) as consumer:
            async for record in consumer:
                handled[name].append((trio.current_time(), record.value or b""))

    async with scene_of(quick_broker.bootstrap_servers) as (scene, nursery):
        await set_session(quick_broker.bootstrap_servers, scene.topic, 6_000)
        nursery.start_soon(functools.partial(work, "cut", dial=dial))
        await until(lambda: len(handled["cut"]) > 100)
        deaf.set()
        nursery.start_soon(work, "other")
        await until(lambda: len(handled["other"]) > 100)
        await trio.sleep_until(handled["other"][0][0] + 2)
        first = handled["other"][0][0]
        late = [value for at, value in handled["cut"] if at >= first]
        assert not set(late) & {value for _, value in handled["other"]}
        assert not late, "records that were written after the other member had taken over"
        nursery.cancel_scope.cancel()


@in_time
async def test_pattern_of_the_broker_finds_new_topics(quick_broker: KafkaCluster) -> None:
    prefix = f"re-{uuid.uuid4().hex[:6]}"
    bootstrap = quick_broker.bootstrap_servers

    async def make(name: str) -> None:
        async with open_admin(bootstrap_servers=bootstrap) as admin:
            await admin.create_topics({name: NewTopic(2, 1)})
            await topic_reported(admin, name, 2)
        async with open_producer(bootstrap_servers=bootstrap) as producer:
            await producer.send(name, name.encode())

    await make(f"{prefix}-one")
    await make(f"not-{prefix}")
    async with open_consumer(
        bootstrap_servers=bootstrap, group_id=prefix, auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe(SubscriptionPattern(f"{prefix}-.*"))
        assert (await consumer.receive()).value == f"{prefix}-one".encode()
        await make(f"{prefix}-two")
        assert (await consumer.receive()).value == f"{prefix}-two".encode()
        assert consumer.subscription() == {f"{prefix}-one", f"{prefix}-two"}
