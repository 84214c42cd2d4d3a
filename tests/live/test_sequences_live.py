"""A real broker's handling of sequence numbers after losses, and the outcome of the records."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import kafka
import pytest
import trio
from cluster_waits import PATIENT, topic_made
from kafka.errors import KafkaError
from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
    ElectLeadersRequest,
)
from trikafka_broker import Broker, Cluster, Fault, FaultProxy, Rule
from trikafka_broker.proxy import PRODUCE

from benchmarks.soak import opened_at_last
from trikafka import (
    DeliveryTimeoutError,
    NewTopic,
    TopicPartition,
    TrikafkaError,
    open_admin,
    open_consumer,
    open_producer,
)
from trikafka._state.producer.sequences import FORGOTTEN_AFTER
from trikafka.error_codes import ErrorCode

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker
    from trikafka_broker.pytest_plugin import MakeKafkaCluster

    from trikafka import Ack, Producer


async def make_topic(bootstrap: str, replicas: int = 1, **config: str) -> str:
    name = f"sequences-{uuid.uuid4().hex[:8]}"
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        await topic_made(admin, name, NewTopic(1, replicas, config))
    return name


async def log_of(bootstrap: str, topic: str, count: int = 0) -> list[int]:
    """Return the numbers in partition 0, once there are ``count``.

    A leader that was just elected, or whose follower was frozen, may not know yet that the last
    records are committed: its end is then an earlier one.
    """
    async with open_consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        found: list[int] = []
        with trio.move_on_after(240):
            while len(found) < count:
                found += [int(record.value or b"") for record in await consumer.receive_batch()]
        end = (await consumer.end_offsets([place]))[place]
        while len(found) < end:
            found += [int(record.value or b"") for record in await consumer.receive_batch()]
        return found


async def until(condition: Callable[[], bool], limit: float = 240) -> None:
    with trio.fail_after(limit):
        while True:
            if condition():
                return
            await trio.sleep(0.002)


def refusal(producer: Producer) -> int | None:
    """Return the code by which the last attempt of the oldest record was refused."""
    oldest = producer._manager.accumulator.oldest()
    return None if oldest is None else getattr(oldest.error, "code", None)


async def fate(ack: Ack) -> str:
    try:
        await ack.wait()
    except TrikafkaError as error:
        return type(error).__name__
    return "delivered"


@pytest.mark.parametrize(
    "fault", [Fault.LOSE_RESPONSE, Fault.LOSE_REQUEST, Fault.DAMAGE_RESPONSE, Fault.DAMAGE_REQUEST]
)
async def test_fault_before_many_batches_loses_nothing(
    kafka_broker: KafkaBroker, fault: Fault
) -> None:
    """Each fault of a request leaves the batches behind it delivered, in order."""
    bootstrap = kafka_broker.bootstrap_servers
    topic = await make_topic(bootstrap)
    async with FaultProxy.open(bootstrap.split(",")) as proxy:
        async with open_producer(
            bootstrap_servers=bootstrap, dial=proxy.dial, batch_size=0, linger_ms=0
        ) as producer:
            await producer.send(topic, b"0")
            proxy.add(Rule(fault, after=1))
            acks = [await producer.enqueue(topic, b"%d" % number) for number in range(1, 60)]
            with trio.fail_after(240):
                assert {await fate(ack) for ack in acks} == {"delivered"}
        assert proxy.counts[fault.value] == 1
    assert await log_of(bootstrap, topic) == list(range(60))


async def test_late_bytes_double_no_record(kafka_broker: KafkaBroker) -> None:
    """Late bytes of an old connection between a refusal and the new epoch double no record."""
    # Both records may expire before, on a machine that stands still.
    for _ in range(5):
        if await late_bytes_arrived(kafka_broker):
            return
    raise AssertionError("no bytes were late in five attempts")


async def late_bytes_arrived(kafka_broker: KafkaBroker) -> bool:
    """Lose record 1, so that 2 is refused; then let the broker read 1 and 2 once more.

    Return whether it read them late.
    """
    bootstrap, port = kafka_broker.bootstrap_servers, kafka_broker.port
    topic = await make_topic(bootstrap)
    settings = {
        "request_timeout_ms": 2_500,
        "delivery_timeout_ms": 3_000,
        "batch_size": 0,
        "linger_ms": 0,
        "retry_backoff_ms": 400,
    }
    async with FaultProxy.open(bootstrap.split(",")) as proxy:
        async with contextlib.AsyncExitStack() as stack:
            producer = await opened_at_last(
                stack,
                lambda: open_producer(bootstrap_servers=bootstrap, dial=proxy.dial, **settings),
            )
            before = -50  # the limit of 3 s is short for a busy machine
            while await fate(await producer.enqueue(topic, b"%d" % before)) != "delivered":
                before += 1
            proxy.hold(port)
            first = await producer.enqueue(topic, b"1")
            await trio.sleep(1.5)
            second = await producer.enqueue(topic, b"2")
            await trio.sleep(0.5)
            arrive = trio.Event()
            proxy.add(Rule(Fault.LATE_REQUEST, until=arrive))
            proxy.release(port)
            await until(lambda: proxy.counts[Fault.LATE_REQUEST.value] == 1 or second.done)
            if not proxy.counts[Fault.LATE_REQUEST.value]:
                return False
            proxy.hold(port)
            with pytest.raises(DeliveryTimeoutError):
                await first.wait()
            passed = proxy.passed[PRODUCE]
            proxy.release(port)
            # The second record reaches the broker, which will refuse it, or expires as well.
            await until(lambda: proxy.passed[PRODUCE] > passed or second.done)
            await trio.sleep(0.1)
            arrive.set()
            outcome = await fate(second)
            last = 3
            while await fate(await producer.enqueue(topic, b"%d" % last)) != "delivered":
                last += 1
    found = await log_of(bootstrap, topic)
    assert found == sorted(set(found)), "doubled, or out of order"
    assert before in found
    assert found[-1] == last
    assert outcome != "delivered" or 2 in found
    return True


async def test_truncated_log_keeps_later_records(make_kafka_cluster: MakeKafkaCluster) -> None:
    """After an unclean election later records are written once and in order.

    The new leader lacks records that only the old one had, although they were acknowledged.
    """
    cluster = Cluster(await trio.to_thread.run_sync(lambda: make_kafka_cluster(brokers=3)))
    bootstrap = cluster.bootstrap_servers
    topic = await make_topic(
        bootstrap, 3, **{"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    )
    await trio.to_thread.run_sync(_place, bootstrap, topic, [0, 1])
    old, other, _ = cluster.brokers
    await wait_for_leader(bootstrap, topic, 0)
    async with open_producer(
        bootstrap_servers=bootstrap, request_timeout_ms=15_000, delivery_timeout_ms=480_000
    ) as producer:
        for number in range(10):
            await producer.send(topic, b"%d" % number)
        await other.kill()
        with trio.fail_after(240):
            for number in range(10, 20):
                await producer.send(topic, b"%d" % number)  # only the old leader has them
        await old.kill()
        waiting = [await producer.enqueue(topic, b"%d" % number) for number in range(20, 30)]
        await other.start()
        with trio.fail_after(240):
            assert {await fate(ack) for ack in waiting} == {"delivered"}
        await old.start()
        with trio.fail_after(240):
            for number in range(30, 40):
                await producer.send(topic, b"%d" % number)
    found = await log_of(bootstrap, topic, 30)
    assert found == [*range(10), *range(20, 40)]


def _place(bootstrap: str, topic: str, replicas: list[int]) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    try:
        admin.alter_partition_reassignments({kafka.TopicPartition(topic, 0): replicas})
        while admin.list_partition_reassignments():
            time.sleep(0.05)
        with contextlib.suppress(KafkaError):  # it is the leader already
            admin.elect_leaders(0, {topic: [0]}, raise_errors=False)
    finally:
        admin.close()


async def wait_for_leader(bootstrap: str, topic: str, node: int | None, in_sync: int = 2) -> None:
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        with trio.fail_after(240):
            while True:
                # There is one, as soon as the broker knows the topic.
                for partition in (await admin.list_topics()).get(topic, ()):
                    if (
                        node in (None, partition.leader)
                        and len(partition.in_sync_replicas) == in_sync
                    ):
                        return
                await trio.sleep(0.05)


async def elect(asked: Broker, topic: str, replicas: list[int]) -> None:
    """Make the first of ``replicas`` the leader.

    Only the broker ``asked`` is contacted: others may be frozen.
    """
    topics = AlterPartitionReassignmentsRequest.ReassignableTopic
    placed = [
        topics(
            name=topic,
            partitions=[topics.ReassignablePartition(partition_index=0, replicas=replicas)],
        )
    ]
    order = AlterPartitionReassignmentsRequest(timeout_ms=20_000, topics=placed)
    elected = [ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[0])]
    election = ElectLeadersRequest(election_type=0, topic_partitions=elected, timeout_ms=20_000)
    with trio.fail_after(240):
        # A controller that was just elected may refuse at first.
        for request in (order, election):
            while (await ask(asked, request)).error_code:  # noqa: ASYNC110
                await trio.sleep(0.05)


async def ask(broker: Broker, request: Any) -> Any:
    async with open_admin(bootstrap_servers=broker.sync.bootstrap_servers) as admin:
        (node,) = [
            node for node in (await admin.describe_cluster()).nodes if node.port == broker.sync.port
        ]
        return await admin._brokers.request(node, request)


async def size_at(broker: Broker, topic: str) -> int:
    """Return the size in bytes of a replica's log of partition 0, committed or not."""
    places = [DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=[0])]
    response = await ask(broker, DescribeLogDirsRequest(topics=places))
    return sum(
        part.partition_size
        for found in response.results
        for each in found.topics
        for part in each.partitions
    )


async def active_controller(broker: Broker) -> int:
    metadata = DescribeQuorumRequest.TopicData(
        topic_name="__cluster_metadata",
        partitions=[DescribeQuorumRequest.TopicData.PartitionData(partition_index=0)],
    )
    response = await ask(broker, DescribeQuorumRequest(topics=[metadata]))
    leader: int = response.topics[0].partitions[0].leader_id
    return leader


async def test_record_of_a_lost_leader_may_be_written(
    make_kafka_cluster: MakeKafkaCluster,
) -> None:
    """A leader that loses its role while it waits for a follower answers NOT_LEADER_OR_FOLLOWER.

    It has written the record, and its successor has the record: so the record may be in the log.
    """
    # After the session the leader does not wait for the frozen one: a new one must be elected before,
    # also on a busy machine.
    cluster = Cluster(
        await trio.to_thread.run_sync(lambda: make_kafka_cluster(brokers=3, properties=PATIENT))
    )
    # The controller must not be frozen, since it moves leaders.
    number = await active_controller(cluster.brokers[0])
    old = cluster.brokers[number]
    new = cluster.brokers[number - 1]
    frozen = cluster.brokers[number - 2]
    replicas = [broker.sync.node_id for broker in (old, new, frozen)]
    topic = await make_topic(cluster.bootstrap_servers, 3)
    await wait_for_leader(cluster.bootstrap_servers, topic, None, 3)
    await elect(old, topic, replicas)
    await wait_for_leader(cluster.bootstrap_servers, topic, replicas[0], 3)
    async with FaultProxy.open(cluster.bootstrap_servers.split(",")) as proxy:
        async with open_producer(
            bootstrap_servers=old.sync.bootstrap_servers,
            dial=proxy.dial,
            request_timeout_ms=60_000,
            close_timeout_ms=0,
        ) as producer:
            await producer.send(topic, b"0")
            await frozen.freeze()
            proxy.hold(new.sync.port)
            before = await size_at(new, topic)
            ack = await producer.enqueue(topic, b"1")
            with trio.fail_after(240):
                while await size_at(new, topic) == before:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            await elect(old, topic, [replicas[1], replicas[0], replicas[2]])
            await until(lambda: refusal(producer) == ErrorCode.NOT_LEADER_OR_FOLLOWER)
        with pytest.raises(TrikafkaError) as caught:
            await ack.wait()
        await frozen.thaw()
    assert caught.value.maybe_written
    assert await log_of(cluster.bootstrap_servers, topic, 2) == [0, 1]


async def test_forgotten_producer_continues(make_kafka_cluster: MakeKafkaCluster) -> None:
    """A producer that was silent for longer than brokers remember it continues (KIP-360).

    A record that is lost then is not written twice. The connection ends with it, so that no limit
    of a request is needed: with a short one, a busy client would send a written record again to a
    broker that has forgotten it.
    """
    forgetful = {
        **PATIENT,
        "producer.id.expiration.ms": 300,
        "producer.id.expiration.check.interval.ms": 100,
    }
    cluster = Cluster(
        await trio.to_thread.run_sync(lambda: make_kafka_cluster(properties=forgetful))
    )
    bootstrap = cluster.bootstrap_servers
    topic = await make_topic(bootstrap)
    settings = {"batch_size": 0, "linger_ms": 0}
    async with FaultProxy.open(bootstrap.split(",")) as proxy:
        async with open_producer(
            bootstrap_servers=bootstrap, dial=proxy.dial, **settings
        ) as producer:
            for first in (0, 20):
                if first:
                    await trio.sleep(FORGOTTEN_AFTER + 0.5)
                proxy.add(Rule(Fault.CUT_REQUEST))
                acks = [
                    await producer.enqueue(topic, b"%d" % number)
                    for number in range(first, first + 20)
                ]
                with trio.fail_after(240):
                    assert {await fate(ack) for ack in acks} == {"delivered"}
        assert proxy.counts[Fault.CUT_REQUEST.value] == 2
    assert await log_of(bootstrap, topic) == list(range(40))
