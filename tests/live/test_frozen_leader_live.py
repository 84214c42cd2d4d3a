"""Three real brokers, one of them stopped (SIGSTOP).

The partitions and groups that it led work again six seconds after the election.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from cluster_waits import topic_made
from trikafka_broker.cluster import KafkaCluster
from trikafka_broker.trio_api import Cluster

import trikafka
from trikafka import NewTopic, TopicPartition

#: Seconds after the election in which all goes on; the virtual-time tests are exact. On an idle
#: machine it takes up to 5.4 s, which is too close to the aim to insist on it beside other tests.
AIM = 6.0
#: Without a look at the other brokers it would go on after 27 s. A machine that stands still may
#: take as long, but not each time: the best of some attempts counts.
LIMIT = 20.0
ATTEMPTS = 4
#: A transaction may also have to wait for the new coordinator: if that sent its markers to the
#: frozen broker, it sends them again after its own request timeout of 30 s.
LIMIT_OF_MARKERS = 60.0
#: After this time (ms) without a heartbeat a broker is fenced, and others are elected.
SESSION_MS = 3000


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Run three brokers for the tests of this file, which freeze them."""
    version = request.config.getoption("--kafka-version")
    properties = {
        "broker.session.timeout.ms": SESSION_MS,
        "broker.heartbeat.interval.ms": 500,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
        "auto.leader.rebalance.enable": "false",
    }
    with KafkaCluster(
        brokers=3,
        properties=properties,
        **({"version": version} if version else {}),
    ) as started:
        started.start()
        yield Cluster(started)


async def leader_of(bootstrap: str, topic: str, *, besides: int | None = None) -> int:
    """Return the leader of the topic's only partition, once it is not ``besides``."""
    async with trikafka.open_admin(bootstrap_servers=bootstrap) as admin:
        while True:
            for part in (await admin.list_topics(include_internal=True)).get(topic, ()):
                if part.leader not in (None, besides):
                    return int(part.leader)
            await trio.sleep(0.05)


def others(cluster: Cluster, frozen: int) -> str:
    return ",".join(
        broker.bootstrap_servers for broker in cluster.brokers if broker.node_id != frozen
    )


@asynccontextmanager
async def frozen(cluster: Cluster, node: int, topic: str) -> AsyncIterator[float]:
    """Freeze a broker that leads ``topic`` until another one leads it; return the time of that."""
    broker = next(broker for broker in cluster.brokers if broker.node_id == node)
    await broker.freeze()
    try:
        with trio.fail_after(240):
            await leader_of(others(cluster, node), topic, besides=node)
        yield trio.current_time()
    finally:
        await broker.thaw()
        await settled(cluster)


async def check_resumed(
    what: str, attempt: Callable[[], Awaitable[float]], limit: float = LIMIT
) -> None:
    """Report the seconds from the election to the first work after it, and check their limit."""
    took = []
    while not took or (took[-1] > limit and len(took) < ATTEMPTS):
        took.append(await attempt())
        print(f"{what} went on {took[-1]:.1f} s after the election (aim: {AIM:g} s)")
    assert took[-1] <= limit, took


async def markers_written(cluster: Cluster, transactional_id: str) -> None:
    """Wait until the coordinator has finished the last transaction.

    A commit returns when the decision is in the log. A coordinator that is frozen before it has
    sent the markers leaves them to the next one, and the next transaction waits for these.
    """
    async with trikafka.open_admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        with trio.fail_after(240):
            while True:
                found = await admin.describe_transactions([transactional_id])
                if found[transactional_id].state == "CompleteCommit":
                    return
                await trio.sleep(0.05)


async def until(true: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    with trio.fail_after(240):
        while not true():  # noqa: ASYNC110
            await trio.sleep(0.05)


async def settled(cluster: Cluster) -> None:
    """Wait until each broker says that all are in the cluster again, and in sync.

    A broker that was thawed answers at first from its old state, in which it is in sync. The others
    say so only once it follows the new leaders.
    """
    for broker in cluster.brokers:
        address = broker.bootstrap_servers

        async def dial(host: str, port: int, address: str = address) -> trio.abc.Stream:
            if f"{host}:{port}" != address:
                raise ConnectionRefusedError("another broker is asked by itself")
            return await trio.open_tcp_stream(host, port)

        async with trikafka.open_admin(bootstrap_servers=address, dial=dial) as admin:
            with trio.fail_after(240):
                while True:
                    topics = await admin.list_topics(include_internal=True)
                    parts = [part for parts in topics.values() for part in parts]
                    if all(len(part.in_sync_replicas) == 3 for part in parts):
                        break
                    await trio.sleep(0.1)


async def made(cluster: Cluster) -> str:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    async with trikafka.open_admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await topic_made(admin, topic, NewTopic(1, 3))
    return topic


async def read_all(cluster: Cluster, topic: str, count: int) -> list[bytes | None]:
    """Return all values of the topic's partition, once there are ``count``.

    A broker that thaws believes for a moment that it still leads: it answers with the end of the
    log as it was before, and refuses only when it has read what the controller decided. So the end
    is asked for after the expected records have come, from a leader that has them.
    """
    tp = TopicPartition(topic, 0)
    async with trikafka.open_consumer(
        bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([tp])
        found: list[bytes | None] = []
        with trio.move_on_after(240):
            while len(found) < count:
                found += [record.value for record in await consumer.receive_batch(timeout=1)]
            end = (await consumer.end_offsets([tp]))[tp]
            while await consumer.position(tp) < end:
                found += [record.value for record in await consumer.receive_batch(timeout=1)]
        return found


async def test_clients_follow_the_new_leader(cluster: Cluster) -> None:
    """A consumer and an idempotent producer follow the leader that replaces a frozen one."""
    await check_resumed("reading", lambda: leader_followed(cluster))


async def leader_followed(cluster: Cluster) -> float:
    """Freeze the leader under a reader and a writer; return the seconds until both go on."""
    topic = await made(cluster)
    node = await leader_of(cluster.bootstrap_servers, topic)
    settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers}
    got: list[bytes | None] = []
    enough = trio.Event()
    delivered = written = 0
    async with (
        trikafka.open_producer(**settings, linger_ms=0) as producer,
        trikafka.open_consumer(**settings, auto_offset_reset="earliest") as consumer,
        trio.open_nursery() as nursery,
    ):

        async def read() -> None:
            async for record in consumer:
                got.append(record.value)

        async def write(value: bytes) -> None:
            nonlocal delivered
            await producer.send(topic, value)
            delivered += 1

        async def write_on() -> None:
            nonlocal written
            while not enough.is_set():
                nursery.start_soon(write, b"%d" % written)
                written += 1
                await trio.sleep(0.05)

        consumer.assign([TopicPartition(topic, 0)])
        nursery.start_soon(read)
        nursery.start_soon(write_on)
        await trio.sleep(2)
        async with frozen(cluster, node, topic) as elected:
            before = len(got)
            await until(lambda: len(got) > before)
            took = trio.current_time() - elected
        enough.set()
        await until(lambda: len(got) == delivered == written)
        nursery.cancel_scope.cancel()
    assert sorted(got, key=lambda value: int(value or b"-1")) == [
        b"%d" % number for number in range(written)
    ]
    assert got == await read_all(cluster, topic, written)
    return took


@pytest.mark.parametrize(
    ("kind", "internal"), [("group", "__consumer_offsets"), ("transaction", "__transaction_state")]
)
async def test_work_of_a_frozen_coordinator_continues(
    cluster: Cluster, kind: str, internal: str
) -> None:
    limit = LIMIT if kind == "group" else LIMIT_OF_MARKERS
    await check_resumed(kind, lambda: work_continued(cluster, kind, internal), limit)


async def work_continued(cluster: Cluster, kind: str, internal: str) -> float:
    """Freeze the coordinator between two pieces of work; return the seconds until the second."""
    topic = await made(cluster)
    settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers}
    place = TopicPartition(topic, 0)
    ended: list[float] = []
    async with (
        trikafka.open_consumer(**settings, group_id=topic, enable_auto_commit=False) as consumer,
        trikafka.open_producer(**settings, linger_ms=0, transactional_id=topic) as producer,
    ):

        async def work(number: int) -> None:
            if kind == "group":
                await consumer.commit({place: number})
            else:
                async with producer.transaction():
                    await producer.send(topic, b"%d" % number)
            ended.append(trio.current_time())

        consumer.assign([place])
        await work(0)
        if kind == "transaction":
            await markers_written(cluster, topic)
        node = await leader_of(cluster.bootstrap_servers, internal)
        async with frozen(cluster, node, internal) as elected, trio.open_nursery() as nursery:
            nursery.start_soon(work, 1)
            await until(lambda: len(ended) == 2)
        if kind == "group":
            committed = (await consumer.committed([place]))[place]
            assert committed is not None
            assert committed.offset == 1
        else:
            assert await read_all(cluster, topic, 2) == [b"0", b"1"]
    return ended[1] - elected


async def test_broker_that_thaws_keeps_its_partitions(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that is frozen for two seconds keeps its partitions.

    No record is lost or doubled.
    """
    topic = await made(cluster)
    node = await leader_of(cluster.bootstrap_servers, topic)
    broker = next(broker for broker in cluster.brokers if broker.node_id == node)
    async with trikafka.open_producer(
        bootstrap_servers=cluster.bootstrap_servers, linger_ms=0
    ) as producer:
        await producer.send(topic, b"0")
        await broker.freeze()
        acks = [await producer.enqueue(topic, b"%d" % number) for number in range(1, 20)]
        await trio.sleep(SESSION_MS / 1000 - 1.5)
        await broker.thaw()
        with trio.fail_after(240):
            for ack in acks:
                await ack.wait()
    assert await read_all(cluster, topic, 20) == [b"%d" % number for number in range(20)]
