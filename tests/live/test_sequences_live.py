"""What a real broker does with an idempotent producer's numbers when something is lost, and what becomes of the records."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import kafka
import pytest
import trio
from kafka.errors import KafkaError
from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
    ElectLeadersRequest,
)
from trikafka_broker import Broker, Cluster, Fault, FaultProxy, Rule
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


async def wait_for_leader(bootstrap: str, topic: str, node: int | None, in_sync: int = 2) -> None:
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        with trio.fail_after(60):
            while True:
                for partition in (await admin.list_topics()).get(topic, ()):  # one, once the broker has heard of it
                    if node in (None, partition.leader) and len(partition.in_sync_replicas) == in_sync:
                        return
                await trio.sleep(0.05)


async def elect(asked: Broker, topic: str, replicas: list[int]) -> None:
    """Have the first of ``replicas`` lead. Only the broker ``asked`` is spoken to: others may be frozen."""
    topics = AlterPartitionReassignmentsRequest.ReassignableTopic
    placed = [topics(name=topic, partitions=[topics.ReassignablePartition(partition_index=0, replicas=replicas)])]
    order = AlterPartitionReassignmentsRequest(timeout_ms=20_000, topics=placed)
    elected = [ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[0])]
    election = ElectLeadersRequest(election_type=0, topic_partitions=elected, timeout_ms=20_000)
    assert (await ask(asked, order)).error_code == 0
    assert (await ask(asked, election)).error_code == 0


async def ask(broker: Broker, request: Any) -> Any:
    async with open_admin(bootstrap_servers=broker.sync.bootstrap_servers) as admin:
        (node,) = [node for node in (await admin.describe_cluster()).nodes if node.port == broker.sync.port]
        return await admin._brokers.request(node, request)


async def size_at(broker: Broker, topic: str) -> int:
    """The bytes of the log of partition 0 that a replica has, whether they are committed or not."""
    places = [DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=[0])]
    response = await ask(broker, DescribeLogDirsRequest(topics=places))
    return sum(part.partition_size for found in response.results for each in found.topics for part in each.partitions)


async def active_controller(broker: Broker) -> int:
    metadata = DescribeQuorumRequest.TopicData(
        topic_name="__cluster_metadata", partitions=[DescribeQuorumRequest.TopicData.PartitionData(partition_index=0)]
    )
    response = await ask(broker, DescribeQuorumRequest(topics=[metadata]))
    leader: int = response.topics[0].partitions[0].leader_id
    return leader


async def test_a_leader_that_is_deposed_while_it_waits_for_a_follower(make_kafka_cluster: MakeKafkaCluster) -> None:
    """It says NOT_LEADER_OR_FOLLOWER of what it has written and its successor has: so the record may be in the log."""
    session = {"broker.session.timeout.ms": 9_000}  # after which the frozen one is waited for no more
    cluster = Cluster(await trio.to_thread.run_sync(lambda: make_kafka_cluster(brokers=3, properties=session)))
    number = await active_controller(cluster.brokers[0])  # not to be frozen, for it moves leaders
    old, new, frozen = cluster.brokers[number], cluster.brokers[number - 1], cluster.brokers[number - 2]
    replicas = [broker.sync.node_id for broker in (old, new, frozen)]
    topic = await make_topic(cluster.bootstrap_servers, 3)
    await wait_for_leader(cluster.bootstrap_servers, topic, None, 3)
    await elect(old, topic, replicas)
    await wait_for_leader(cluster.bootstrap_servers, topic, replicas[0], 3)
    async with FaultProxy.open(cluster.bootstrap_servers.split(",")) as proxy:
        async with open_producer(
            bootstrap_servers=old.sync.bootstrap_servers,
            dial=proxy.dial,
            request_timeout_ms=14_000,
            delivery_timeout_ms=15_000,
            close_timeout_ms=0,
        ) as producer:
            await producer.send(topic, b"0")
            await frozen.freeze()
            proxy.hold(new.sync.port)
            before = await size_at(new, topic)
            ack = await producer.enqueue(topic, b"1")
            with trio.fail_after(10):
                while await size_at(new, topic) == before:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            await elect(old, topic, [replicas[1], replicas[0], replicas[2]])
            with pytest.raises(DeliveryTimeoutError) as caught, trio.fail_after(60):
                await ack.wait()
            await frozen.thaw()
    assert caught.value.seconds["in flight"] < 13, "the old leader has answered"
    assert caught.value.maybe_written
    assert await log_of(cluster.bootstrap_servers, topic) == [0, 1]


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
