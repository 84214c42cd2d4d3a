"""What a real broker does with an idempotent producer's numbers when something is lost, and what becomes of the records."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import kafka
import pytest
import trio
from kafka.errors import KafkaError
from trikafka_broker import Cluster, Fault, FaultProxy, Rule
from trikafka_broker.proxy import PRODUCE

from trikafka import (
    DeliveryTimeoutError,
    NewTopic,
    TopicPartition,
    TrikafkaError,
    open_admin,
    open_consumer,
    open_producer,
)
from trikafka._state.sequences import FORGOTTEN_AFTER

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker
    from trikafka_broker.pytest_plugin import MakeKafkaCluster

    from trikafka import Ack


async def make_topic(bootstrap: str, replicas: int = 1, **config: str) -> str:
    name = f"sequences-{uuid.uuid4().hex[:8]}"
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics({name: NewTopic(1, replicas, config)})
    return name


async def log_of(bootstrap: str, topic: str) -> list[int]:
    """The numbers that partition 0 holds."""
    async with open_consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        end = (await consumer.end_offsets([place]))[place]
        found: list[int] = []
        while len(found) < end:
            found += [int(record.value or b"") for record in await consumer.receive_batch()]
        return found


async def until(condition: Callable[[], bool], limit: float = 60) -> None:
    with trio.fail_after(limit):
        while True:
            if condition():
                return
            await trio.sleep(0.002)


async def fate(ack: Ack) -> str:
    try:
        await ack.wait()
    except TrikafkaError as error:
        return type(error).__name__
    return "delivered"


@pytest.mark.parametrize("fault", [Fault.LOSE_RESPONSE, Fault.LOSE_REQUEST, Fault.DAMAGE_RESPONSE, Fault.DAMAGE_REQUEST])
async def test_one_fault_with_many_batches_behind_it(kafka_broker: KafkaBroker, fault: Fault) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic = await make_topic(bootstrap)
    async with FaultProxy.open(bootstrap.split(",")) as proxy:
        async with open_producer(bootstrap_servers=bootstrap, dial=proxy.dial, batch_size=0, linger_ms=0) as producer:
            await producer.send(topic, b"0")
            proxy.add(Rule(fault, after=1))
            acks = [await producer.enqueue(topic, b"%d" % number) for number in range(1, 60)]
            with trio.fail_after(60):
                assert {await fate(ack) for ack in acks} == {"delivered"}
        assert proxy.counts[fault.value] == 1
    assert await log_of(bootstrap, topic) == list(range(60))


async def test_bytes_of_a_closed_connection_between_the_refusal_and_the_new_epoch(kafka_broker: KafkaBroker) -> None:
    """A gap (1 is lost), 2 is refused, then the broker reads the old connection's 1 and 2: nothing stands twice."""
    bootstrap, port = kafka_broker.bootstrap_servers, kafka_broker.port
    topic = await make_topic(bootstrap)
    settings = {"request_timeout_ms": 2_500, "delivery_timeout_ms": 3_000, "batch_size": 0, "linger_ms": 0, "retry_backoff_ms": 400}
    async with FaultProxy.open(bootstrap.split(",")) as proxy:
        async with open_producer(bootstrap_servers=bootstrap, dial=proxy.dial, **settings) as producer:
            await producer.send(topic, b"0")
            proxy.hold(port)
            first = await producer.enqueue(topic, b"1")
            await trio.sleep(1.5)
            second = await producer.enqueue(topic, b"2")
            await trio.sleep(0.5)
            arrive = trio.Event()
            proxy.add(Rule(Fault.LATE_REQUEST, until=arrive))
            proxy.release(port)
            await until(lambda: proxy.counts[Fault.LATE_REQUEST.value] == 1)
            proxy.hold(port)
            with pytest.raises(DeliveryTimeoutError):
                await first.wait()
            passed = proxy.passed[PRODUCE]
            proxy.release(port)
            await until(lambda: proxy.passed[PRODUCE] > passed or second.done)  # it will be refused; or its time is over, too
            await trio.sleep(0.1)
            arrive.set()
            outcome = await fate(second)
            await producer.send(topic, b"3")
    found = await log_of(bootstrap, topic)
    assert found == sorted(set(found)), "doubled, or out of order"
    assert found[0] == 0
    assert found[-1] == 3
    assert outcome != "delivered" or 2 in found


async def test_a_log_truncated_by_an_unclean_election(make_kafka_cluster: MakeKafkaCluster) -> None:
    """The new leader lacks what the old one had acknowledged alone; what follows is written once and in order."""
    cluster = Cluster(await trio.to_thread.run_sync(lambda: make_kafka_cluster(brokers=3)))
    bootstrap = cluster.bootstrap_servers
    topic = await make_topic(bootstrap, 3, **{"min.insync.replicas": "1", "unclean.leader.election.enable": "true"})
    await trio.to_thread.run_sync(_place, bootstrap, topic, [0, 1])
    old, other, _ = cluster.brokers
    await wait_for_leader(bootstrap, topic, 0)
    async with open_producer(bootstrap_servers=bootstrap, request_timeout_ms=3_000) as producer:
        for number in range(10):
            await producer.send(topic, b"%d" % number)
        await other.kill()
        with trio.fail_after(60):
            for number in range(10, 20):
                await producer.send(topic, b"%d" % number)  # the old leader has them alone
        await old.kill()
        waiting = [await producer.enqueue(topic, b"%d" % number) for number in range(20, 30)]
        await other.start()
        with trio.fail_after(60):
            assert {await fate(ack) for ack in waiting} == {"delivered"}
        await old.start()
        with trio.fail_after(60):
            for number in range(30, 40):
                await producer.send(topic, b"%d" % number)
    found = await log_of(bootstrap, topic)
    assert found == [*range(10), *range(20, 40)]


def _place(bootstrap: str, topic: str, replicas: list[int]) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    try:
        admin.alter_partition_reassignments({kafka.TopicPartition(topic, 0): replicas})
        while admin.list_partition_reassignments():
            pass
        with contextlib.suppress(KafkaError):  # it is the leader already
            admin.elect_leaders(0, {topic: [0]}, raise_errors=False)
    finally:
        admin.close()


async def wait_for_leader(bootstrap: str, topic: str, node: int) -> None:
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        with trio.fail_after(60):
            while True:
                (partition,) = (await admin.list_topics())[topic]
                if partition.leader == node and len(partition.in_sync_replicas) == 2:
                    return
                await trio.sleep(0.05)


async def test_a_broker_that_forgets_producers(make_kafka_cluster: MakeKafkaCluster) -> None:
    """A producer that was silent for longer than brokers remember it goes on; what is lost then does not stand twice (KIP-360)."""
    forgetful = {"producer.id.expiration.ms": 300, "producer.id.expiration.check.interval.ms": 100}
    cluster = Cluster(await trio.to_thread.run_sync(lambda: make_kafka_cluster(properties=forgetful)))
    bootstrap = cluster.bootstrap_servers
    topic = await make_topic(bootstrap)
    settings = {"batch_size": 0, "linger_ms": 0, "request_timeout_ms": 2_000}
    async with FaultProxy.open(bootstrap.split(",")) as proxy:
        async with open_producer(bootstrap_servers=bootstrap, dial=proxy.dial, **settings) as producer:
            for first in (0, 20):
                if first:
                    await trio.sleep(FORGOTTEN_AFTER + 0.5)
                proxy.add(Rule(Fault.LOSE_REQUEST))
                acks = [await producer.enqueue(topic, b"%d" % number) for number in range(first, first + 20)]
                with trio.fail_after(60):
                    assert {await fate(ack) for ack in acks} == {"delivered"}
        assert proxy.counts[Fault.LOSE_REQUEST.value] == 2
    assert await log_of(bootstrap, topic) == list(range(40))
