"""Fetches from real brokers: in racks (KIP-392), during restarts, with many partitions."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import trio
from cluster_waits import topic_made
from trikafka_broker.trio_api import Cluster

from trikafka import NewTopic, TopicPartition, open_admin, open_consumer, open_producer

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker
    from trikafka_broker.pytest_plugin import MakeKafkaCluster


def in_time(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Fail a test that hangs."""

    @functools.wraps(test)
    async def limited(**fixtures: Any) -> None:
        with trio.fail_after(400):
            await test(**fixtures)

    return limited


async def topic_of(
    bootstrap: str, partitions: int, replicas: int
) -> tuple[str, list[TopicPartition]]:
    topic = f"fetching-{uuid.uuid4().hex[:8]}"
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        await topic_made(admin, topic, NewTopic(partitions, replicas))
    return topic, [TopicPartition(topic, number) for number in range(partitions)]


def nodes_asked(consumer: Any) -> set[int]:
    """Return the brokers that the consumer currently fetches from."""
    plan = consumer._parts.manager("fetch")._plan
    return {node for node, session in plan.sessions.items() if session.wanted}


@in_time
async def test_replica_in_the_rack_is_read(
    make_kafka_cluster: MakeKafkaCluster,
) -> None:
    """The replica in the rack is read, and another one after its broker was killed."""
    selector = {
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    }
    cluster = Cluster(make_kafka_cluster(brokers=3, racks=("a", "b", "c"), properties=selector))
    bootstrap = cluster.bootstrap_servers
    topic, tps = await topic_of(bootstrap, 3, 3)
    async with open_producer(bootstrap_servers=bootstrap) as producer:

        async def write(name: str) -> None:
            for number in range(30):
                await producer.send(topic, f"{name} {number}".encode(), partition=number % 3)

        await write("first")
        async with open_consumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", client_rack="b"
        ) as consumer:
            consumer.assign(tps)
            with trio.fail_after(240):
                got = sorted([(await consumer.receive()).value for _ in range(30)])
            assert got == sorted(f"first {number}".encode() for number in range(30))
            with trio.fail_after(240):
                while nodes_asked(consumer) != {1}:
                    await consumer.receive_batch(timeout=0.1)
            await cluster.brokers[1].kill()
            await write("second")
            with trio.fail_after(240):
                got = sorted([(await consumer.receive()).value for _ in range(30)])
            assert got == sorted(f"second {number}".encode() for number in range(30))
            # A leader that does not know of the broker's end yet names it once more.
            with trio.fail_after(240):
                while 1 in nodes_asked(consumer):
                    await consumer.receive_batch(timeout=0.1)


@in_time
async def test_fetches_survive_restarts(
    make_kafka_cluster: MakeKafkaCluster,
) -> None:
    """Fetches survive the restart of all brokers at once; of one in test_consumer_live.py."""
    cluster = Cluster(make_kafka_cluster(brokers=3))
    bootstrap = cluster.bootstrap_servers
    topic, tps = await topic_of(bootstrap, 3, 3)
    written = [0, 0, 0]
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}

    async def write(silent: trio.Event) -> None:
        async with open_producer(
            bootstrap_servers=bootstrap, delivery_timeout_ms=300_000
        ) as producer:
            while not silent.is_set():
                for number in range(3):
                    await producer.send(topic, b"%d" % written[number], partition=number)
                    written[number] += 1
                await trio.sleep(0.05)
        over.set()

    async def read(consumer: Any) -> None:
        async for record in consumer:
            seen[record.partition].append(int(record.value))

    async def more() -> None:
        """Wait until each partition has delivered a new record."""
        before = [len(seen[number]) for number in range(3)]
        with trio.fail_after(240):
            while any(len(seen[number]) < before[number] + 10 for number in range(3)):  # noqa: ASYNC110
                await trio.sleep(0.02)

    silent, over = trio.Event(), trio.Event()
    async with (
        open_consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer,
        trio.open_nursery() as nursery,
    ):
        consumer.assign(tps)
        nursery.start_soon(write, silent)
        nursery.start_soon(read, consumer)
        await more()
        await cluster.stop()
        await cluster.start()
        await more()
        silent.set()
        with trio.fail_after(240):
            await over.wait()  # a record may be read before its writer has the ack
            while any(len(seen[number]) < written[number] for number in range(3)):  # noqa: ASYNC110
                await trio.sleep(0.02)
        nursery.cancel_scope.cancel()
    for number in range(3):
        wrong = [(at, value) for at, value in enumerate(seen[number]) if at != value]
        assert (wrong[:5], len(seen[number])) == ([], written[number])


@in_time
async def test_fetch_of_500_partitions_is_incremental(kafka_broker: KafkaBroker) -> None:
    """With 500 partitions a fetch session reports only changes."""
    bootstrap = kafka_broker.bootstrap_servers
    topic, tps = await topic_of(bootstrap, 500, 1)
    async with (
        open_producer(bootstrap_servers=bootstrap) as producer,
        open_consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign(tps)
        for number in range(20):
            await producer.send(topic, b"%d" % number, partition=number * 7 % 500)
            assert (await consumer.receive()).value == b"%d" % number
        session = consumer._parts.manager("fetch")._plan.sessions[0]
        await consumer.receive_batch(timeout=1)
        # No change is left to report once the broker leads all of these partitions. It may have
        # ended an earlier session for the sake of another client's.
        with trio.fail_after(240):
            while session._id <= 0 or session._changed:
                await consumer.receive_batch(timeout=0.5)
