"""The main paths against the oldest supported broker, the default version, and the one before.

``--kafka-version`` selects another; ``make test-brokers`` runs these tests against one release of
each line.
"""

from __future__ import annotations

import functools
import os
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import trio
from cluster_waits import PATIENT, topic_reported
from trikafka_broker.cluster import KafkaCluster
from trikafka_broker.settings import (
    DEFAULT_JVM_OPTIONS,
    DEFAULT_VERSION,
    OLDEST_VERSION,
    TOOLS_VERSION,
)

import trikafka
from trikafka import (
    Consumer,
    DetachedTransaction,
    NewTopic,
    OffsetSpec,
    SubscriptionPattern,
    TelemetryNotSupportedError,
    TopicPartition,
    UnsupportedVersionError,
)

DEFAULT = "the default version"


def in_time(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Fail a test that hangs."""

    @functools.wraps(test)
    async def limited(**fixtures: Any) -> None:
        with trio.fail_after(400):
            await test(**fixtures)

    return limited


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = metafunc.config.getoption("--kafka-version")
    if "broker" in metafunc.fixturenames:
        versions = [chosen] if chosen else [OLDEST_VERSION, DEFAULT, TOOLS_VERSION]
        metafunc.parametrize("broker", versions, indirect=True, scope="module")


#: Some records have old times, and a broker deletes what is older than its retention.
KEPT = {"retention.ms": -1}


class Broker:
    """A broker of some version."""

    def __init__(self, bootstrap: str, version: str) -> None:
        self.bootstrap = bootstrap
        self.version = tuple(int(number) for number in version.split(".")[:2])

    def fresh(self) -> str:
        return f"versions-{uuid.uuid4().hex[:8]}"

    async def topic(self, partitions: int = 2) -> str:
        name = self.fresh()
        async with trikafka.open_admin(bootstrap_servers=self.bootstrap) as admin:
            await admin.create_topics({name: NewTopic(partitions, 1, KEPT)})
            # A busy broker may take longer than a producer waits for a topic that does not exist.
            await topic_reported(admin, name, partitions)
        return name

    async def fill(self, topic: str, count: int, partitions: int = 2) -> None:
        async with trikafka.open_producer(bootstrap_servers=self.bootstrap) as producer:
            for number in range(count):
                await producer.enqueue(topic, b"%d" % number, partition=number % partitions)


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Start a broker of each version. The one of the default version is shared with other tests."""
    if request.param == DEFAULT:
        shared = request.getfixturevalue("kafka_broker")
        yield Broker(shared.bootstrap_servers, DEFAULT_VERSION)
    else:
        # To write an archive of classes takes longer than it saves a version that starts once. The
        # tools of the default version are those of another one, which starts often.
        once = [] if request.param == TOOLS_VERSION else ["-Xshare:auto"]
        options = [*DEFAULT_JVM_OPTIONS, *once]
        with KafkaCluster(
            version=request.param, properties=PATIENT, jvm_options=options
        ) as cluster:
            yield Broker(cluster.bootstrap_servers, request.param)


async def values(consumer: Consumer, count: int) -> list[bytes]:
    return [(await consumer.receive()).value or b"" for _ in range(count)]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@in_time
async def test_produced_records_are_read(broker: Broker, compression: str) -> None:
    topic = await broker.topic()
    async with trikafka.open_producer(
        bootstrap_servers=broker.bootstrap, compression_type=compression
    ) as producer:
        acks = [
            await producer.enqueue(
                topic, b"%d" % number * 50, key=b"k", headers=[("h", b"v")], partition=0
            )
            for number in range(300)
        ]
        assert [(await ack.wait()).offset for ack in acks] == list(range(300))
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap,
        "auto_offset_reset": "earliest",
    }
    async with trikafka.open_consumer(**settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        records = [await consumer.receive() for _ in range(300)]
    assert [record.value for record in records] == [b"%d" % number * 50 for number in range(300)]
    assert {(record.key, tuple(record.headers)) for record in records} == {(b"k", (("h", b"v"),))}


@pytest.mark.parametrize("acks", [0, 1])
@in_time
async def test_records_are_sent_without_idempotence(broker: Broker, acks: Any) -> None:
    topic = await broker.topic()
    await broker.fill(topic, 1)  # with acks=0 no error reports that a partition has no leader yet
    async with trikafka.open_producer(
        bootstrap_servers=broker.bootstrap, acks=acks, enable_idempotence=False
    ) as producer:
        for number in range(1, 20):
            written = await producer.send(topic, b"%d" % number, partition=0)
            assert written.offset == (number if acks else None)
    async with trikafka.open_consumer(
        bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert await values(consumer, 20) == [b"%d" % number for number in range(20)]


@in_time
async def test_group_uses_the_brokers_newest_protocol(broker: Broker) -> None:
    topic = await broker.topic()
    group = topic
    await broker.fill(topic, 100)
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
    }
    async with (
        trikafka.open_admin(bootstrap_servers=broker.bootstrap) as admin,
        AsyncExitStack() as stack,
    ):
        first = await stack.enter_async_context(trikafka.open_consumer(topic, **settings))
        assert sorted(map(int, await values(first, 100))) == list(range(100))
        await first.commit()
        second = await stack.enter_async_context(trikafka.open_consumer(topic, **settings))
        while len(first.assignment()) != 1 or len(second.assignment()) != 1:
            await first.receive_batch(timeout=0.05)
            await second.receive_batch(timeout=0.05)
        while True:  # a member confirms its assignment a moment later
            described = (await admin.describe_groups([group]))[group]
            if described.state == "Stable":
                break
            await trio.sleep(0.05)
        assert len(described.members) == 2
        listed = {found.group_id: found for found in await admin.list_groups()}[group]
        if broker.version >= (4, 0):
            assert listed.type == "consumer"
        else:
            assert listed.type in (None, "classic")
        await broker.fill(topic, 10)
        got = [*await values(first, 5), *await values(second, 5)]
        assert sorted(map(int, got)) == list(range(10))
    async with trikafka.open_admin(bootstrap_servers=broker.bootstrap) as admin:
        committed = await admin.list_group_offsets(group)  # on leaving, all processed records
        assert {tp.partition: at.offset for tp, at in committed.items()} == {0: 55, 1: 55}
        await admin.delete_groups([group])
        assert await admin.list_group_offsets(group) == {}


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@in_time
async def test_classic_protocol_works(broker: Broker, assignor: str) -> None:
    topic = await broker.topic()
    await broker.fill(topic, 20)
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap,
        "group_id": topic,
        "auto_offset_reset": "earliest",
    }
    settings |= {
        "group_protocol": "classic",
        "partition_assignment_strategy": [assignor],
        "group_instance_id": "one",
    }
    async with trikafka.open_consumer(topic, **settings) as consumer:
        assert sorted(map(int, await values(consumer, 20))) == list(range(20))
        await consumer.commit()
        found = await consumer.committed([TopicPartition(topic, 0)])
        assert found[TopicPartition(topic, 0)] == trikafka.OffsetAndMetadata(10, 0, "")


@in_time
async def test_look_ups_work(broker: Broker) -> None:
    topic = await broker.topic()
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with trikafka.open_producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(5):
            await producer.send(topic, b"x", partition=0, timestamp=1_000_000_000_000 + number)
    async with trikafka.open_consumer(bootstrap_servers=broker.bootstrap) as consumer:
        assert await consumer.beginning_offsets([tp, other]) == {tp: 0, other: 0}
        assert await consumer.end_offsets([tp, other]) == {tp: 5, other: 0}
        found = (await consumer.offsets_for_times({tp: 1_000_000_000_003}))[tp]
        assert found is not None
        assert (found.offset, found.timestamp) == (3, 1_000_000_000_003)
        assert [info.partition for info in await consumer.partitions_for(topic)] == [0, 1]
        assert await consumer.partitions_for("versions-none") == []


@in_time
async def test_fetch_session_has_two_partitions(broker: Broker) -> None:
    topic = await broker.topic()
    async with trikafka.open_consumer(
        bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        for _ in range(3):
            await broker.fill(topic, 10)
            assert len(await values(consumer, 10)) == 10
        (session,) = consumer._parts.manager("fetch")._plan.sessions.values()  # type: ignore[attr-defined]
        while session._id <= 0:  # the broker may have ended it for the sake of another client's
            await consumer.receive_batch(timeout=0.5)
        consumer.assign([TopicPartition(topic, 1)])  # one leaves the session
        consumer.seek(TopicPartition(topic, 1), 14)
        assert await values(consumer, 1) == [b"9"]


@in_time
async def test_admin_calls_work(broker: Broker) -> None:
    name = broker.fresh()
    async with trikafka.open_admin(bootstrap_servers=broker.bootstrap) as admin:
        assert len((await admin.describe_cluster()).nodes) == 1
        await admin.create_topics({name: NewTopic(2, 1, {"retention.ms": 3_600_000})})
        with pytest.raises(trikafka.TopicAlreadyExistsError):
            await admin.create_topics({name: NewTopic(2)})
        await topic_reported(admin, name, 2)
        assert await admin.topic_configs([name]) == {name: {"retention.ms": "3600000"}}
        await admin.create_partitions({name: 3})
        await topic_reported(admin, name, 3)
        assert [info.partition for info in (await admin.list_topics())[name]] == [0, 1, 2]
        tp = TopicPartition(name, 2)
        latest = (await admin.list_offsets({tp: OffsetSpec.LATEST}))[tp]
        assert latest is not None
        # A broker that stood still for long was fenced, and leads in a later epoch than 0.
        assert (latest.offset, latest.timestamp) == (0, None)
        assert latest.leader_epoch in range(10)
        with pytest.raises(trikafka.GroupIdNotFoundError, match="versions-none"):
            await admin.describe_groups(["versions-none"])
        with pytest.raises(trikafka.TrikafkaError, match="versions-none"):
            await admin.delete_groups(["versions-none"])
        await admin.delete_topics([name])
        with pytest.raises(trikafka.UnknownTopicOrPartitionError, match=name):
            await admin.delete_topics([name])


@in_time
async def test_foreign_transactions_are_read(broker: Broker) -> None:
    topic = await broker.topic()
    tp = TopicPartition(topic, 0)

    def produce() -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap, "transactional.id": topic}
        )
        producer.init_transactions(240)
        for number, end in enumerate(
            (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction)
        ):
            producer.begin_transaction()
            producer.produce(topic, b"%d" % number, partition=0)
            producer.flush(240)
            end(240)

    await trio.to_thread.run_sync(produce)
    async with trikafka.open_admin(bootstrap_servers=broker.bootstrap) as admin:
        assert topic in [found.transactional_id for found in await admin.list_transactions()]
        assert (await admin.describe_transactions([topic]))[topic].state.startswith(
            ("Complete", "PrepareCommit")
        )
        assert len((await admin.describe_producers([tp]))[tp]) >= 1
    settings: dict[str, Any] = {
        "auto_offset_reset": "earliest",
        "isolation_level": "read_committed",
    }
    async with trikafka.open_consumer(bootstrap_servers=broker.bootstrap, **settings) as consumer:
        consumer.assign([tp])
        assert await values(consumer, 2) == [b"0", b"2"]


@in_time
async def test_transaction_is_ended_by_another_program(broker: Broker) -> None:
    """The coordinator accepts a repeated end of a transaction, and not the opposite end.

    It accepts none after the time-out. All of this holds in both versions of the protocol.
    """
    topic = await broker.topic()

    async def detach(value: bytes, timeout_ms: int = 240_000) -> DetachedTransaction:
        name, servers = f"{topic}-{value.decode()}", broker.bootstrap
        async with trikafka.open_producer(
            bootstrap_servers=servers, transactional_id=name, transaction_timeout_ms=timeout_ms
        ) as producer:
            async with producer.transaction() as txn:
                await producer.send(topic, value, partition=0)
                await txn.send_offsets({TopicPartition(topic, 0): 1}, trikafka.GroupMetadata(name))
                return await txn.detach()

    async with trikafka.open_admin(bootstrap_servers=broker.bootstrap) as admin:
        while True:
            with suppress(trikafka.TrikafkaError):  # aborted in time, on a machine that stood still
                late = await detach(b"late", 5_000)
                break
        kept, dropped, fenced = [await detach(value) for value in (b"kept", b"dropped", b"fenced")]
        assert kept.version == (2 if broker.version >= (4, 0) else 1)
        second = await detach(b"fenced")
        for _ in range(3):
            await admin.end_transaction(kept, commit=True)
            await admin.end_transaction(dropped, commit=False)
        for transaction, commit in ((kept, False), (dropped, True), (fenced, True)):
            with pytest.raises(trikafka.TransactionNotOpenError, match="not open any more"):
                await admin.end_transaction(transaction, commit=commit)
        await admin.end_transaction(second, commit=True)
        async with trikafka.open_producer(
            bootstrap_servers=broker.bootstrap, transactional_id=f"{topic}-own"
        ) as producer:
            async with producer.transaction() as txn:
                await producer.send(topic, b"own", partition=0)
                ended = await txn.detach()
                await txn.commit()
            async with producer.transaction():
                await producer.send(topic, b"next", partition=0)
                with pytest.raises(trikafka.TransactionNotOpenError, match="not open any more"):
                    # Previously this committed the next transaction in version 1.
                    await admin.end_transaction(ended, commit=True)
                await producer.send(topic, b"and the last", partition=0)
        while (await admin.describe_transactions([late.transactional_id]))[  # noqa: ASYNC110
            late.transactional_id
        ].state != "CompleteAbort":
            await trio.sleep(0.1)
        with pytest.raises(trikafka.TransactionNotOpenError, match="not open any more"):
            await admin.end_transaction(late, commit=True)
        while any(  # noqa: ASYNC110
            found.transactional_id.startswith(topic)
            for found in await admin.list_transactions(states=["PrepareCommit", "PrepareAbort"])
        ):
            await trio.sleep(0.02)
        assert list(await admin.list_group_offsets(kept.transactional_id)) == [
            TopicPartition(topic, 0)
        ]
        assert await admin.list_group_offsets(late.transactional_id) == {}
    settings: dict[str, Any] = {
        "auto_offset_reset": "earliest",
        "isolation_level": "read_committed",
    }
    async with trikafka.open_consumer(bootstrap_servers=broker.bootstrap, **settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert await values(consumer, 5) == [b"kept", b"fenced", b"own", b"next", b"and the last"]


async def consumer_protocol(broker: Broker, topic: str) -> None:
    settings: dict[str, Any] = {
        "group_id": topic,
        "group_protocol": "consumer",
        "auto_offset_reset": "earliest",
    }
    async with trikafka.open_consumer(
        topic, bootstrap_servers=broker.bootstrap, **settings
    ) as consumer:
        await consumer.receive()


async def pattern_of_the_broker(broker: Broker, topic: str) -> None:
    settings: dict[str, Any] = {"group_id": topic, "auto_offset_reset": "earliest"}
    async with trikafka.open_consumer(bootstrap_servers=broker.bootstrap, **settings) as consumer:
        consumer.subscribe(SubscriptionPattern(topic))
        await consumer.receive()


async def transactions_by_duration(broker: Broker, topic: str) -> None:
    async with trikafka.open_admin(bootstrap_servers=broker.bootstrap) as admin:
        await admin.list_transactions(longer_than=900)


async def transactions_by_pattern(broker: Broker, topic: str) -> None:
    async with trikafka.open_admin(bootstrap_servers=broker.bootstrap) as admin:
        await admin.list_transactions(pattern="x.*")


async def fenced_brokers(broker: Broker, topic: str) -> None:
    async with trikafka.open_admin(bootstrap_servers=broker.bootstrap) as admin:
        await admin.describe_cluster(fenced_brokers=True)


async def reassignment_of_as_many(broker: Broker, topic: str) -> None:
    async with trikafka.open_admin(bootstrap_servers=broker.bootstrap) as admin:
        await admin.alter_partition_reassignments(
            {TopicPartition(topic, 0): [0]}, allow_replication_factor_change=False
        )


async def share_groups(broker: Broker, topic: str) -> None:
    async with trikafka.open_admin(bootstrap_servers=broker.bootstrap) as admin:
        assert await admin.list_share_group_offsets(["none"]) == {"none": {}}


@pytest.mark.parametrize(
    ("call", "release"),
    [
        (fenced_brokers, "4.0"),
        (reassignment_of_as_many, "4.1"),
        (share_groups, "4.2"),
        (consumer_protocol, "4.0"),
        (pattern_of_the_broker, "4.0"),
        (transactions_by_duration, "3.8"),
        (transactions_by_pattern, "4.1"),
    ],
)
@in_time
async def test_unsupported_call_names_the_release(
    broker: Broker, call: Callable[[Broker, str], Awaitable[None]], release: str
) -> None:
    topic = await broker.topic()
    await broker.fill(topic, 2)
    if broker.version >= tuple(map(int, release.split("."))):
        await call(broker, topic)
    else:
        with pytest.raises(UnsupportedVersionError, match=rf"Kafka {release} or newer"):
            await call(broker, topic)


@in_time
async def test_share_groups_work_or_name_the_release(broker: Broker) -> None:
    topic, group = await broker.topic(1), broker.fresh()
    settings: Any = {"group_id": group, "bootstrap_servers": broker.bootstrap}
    if broker.version < (4, 2):
        async with trikafka.open_share_consumer(topic, **settings) as queue:
            with pytest.raises(UnsupportedVersionError, match=r"needs Kafka 4\.2 or newer"):
                await queue.receive()
        return
    async with trikafka.open_admin(bootstrap_servers=broker.bootstrap) as admin:
        resource = trikafka.ConfigResource("group", group)
        await admin.alter_configs({resource: {"share.auto.offset.reset": "earliest"}})
        while True:  # the controller has it before the broker
            entry = (await admin.describe_configs([resource]))[resource]["share.auto.offset.reset"]
            if entry.value == "earliest":
                break
            await trio.sleep(0.02)
    await broker.fill(topic, 20, 1)
    async with trikafka.open_share_consumer(topic, **settings) as queue:
        counts = []
        while sum(count == 2 for count in counts) < 20:
            async with await queue.receive() as delivery:
                counts.append(delivery.delivery_count)
                if delivery.delivery_count == 1:
                    delivery.release()
        await queue.flush()
        assert queue.statistics().accepted == queue.statistics().released == 20


@in_time
async def test_instance_id_needs_telemetry(broker: Broker) -> None:
    async with trikafka.open_admin(bootstrap_servers=broker.bootstrap) as admin:
        with pytest.raises(TelemetryNotSupportedError, match=r"Kafka 3\.7 or newer"):
            await admin.client_instance_id()


async def test_feature_levels_survive_restarts(tmp_path: Path) -> None:
    """A cluster of the default version has all features after each kind of start.

    The kinds are a formatted directory, copies of a template for two nodes, and a directory that
    an earlier start has left.
    """
    # No earlier run has left a template of these properties.
    properties = {"queued.max.requests": 1000 + os.getpid()}
    starts = ((tmp_path / "formatted", 1), (tmp_path / "copied", 2), (tmp_path / "formatted", 1))
    topics: dict[Path, set[str]] = defaultdict(set)
    with trio.fail_after(600):
        for directory, brokers in starts:
            cluster = KafkaCluster(directory=directory, brokers=brokers, properties=properties)
            await trio.to_thread.run_sync(cluster.start)
            try:
                broker = Broker(cluster.bootstrap_servers, DEFAULT_VERSION)
                topic = await broker.topic()
                await broker.fill(topic, 2)
                await consumer_protocol(broker, topic)
                topics[directory].add(topic)
                async with trikafka.open_admin(bootstrap_servers=broker.bootstrap) as admin:
                    features = (await admin.describe_features()).features
                    assert features["group.version"].level == 1
                    assert features["share.version"].level == 2
                    for kept in topics[directory]:
                        await topic_reported(admin, kept, 2)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(cluster.close)


@in_time
async def test_admin_call_or_the_release_that_has_it(broker: Broker) -> None:
    user, directory = broker.fresh(), "MvDxzVmcRsaTz33bUuRU6A"
    endpoint = trikafka.VoterEndpoint("CONTROLLER", "localhost", 9)
    async with trikafka.open_admin(bootstrap_servers=broker.bootstrap) as admin:
        password = {user: trikafka.ScramPassword("x")}
        #: The release, the call, and the codes with which a plain broker refuses it.
        calls: list[tuple[tuple[int, int], Callable[[], Awaitable[Any]], set[str]]] = [
            ((3, 5), lambda: admin.alter_user_scram_credentials(password), set()),
            ((3, 5), admin.describe_user_scram_credentials, set()),
            ((3, 6), admin.create_delegation_token, {"DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"}),
            ((3, 7), lambda: admin.list_config_resources(["client_metrics"]), set()),
            ((4, 1), admin.list_config_resources, set()),
            (
                (3, 9),
                lambda: admin.add_raft_voter(7, directory, [endpoint]),
                {"UNSUPPORTED_VERSION"},
            ),
            ((3, 9), lambda: admin.remove_raft_voter(7, directory), {"UNSUPPORTED_VERSION"}),
            ((4, 4), lambda: admin.unregister_controller(7), {"CONTROLLER_ID_NOT_REGISTERED"}),
            ((0, 0), lambda: admin.unregister_broker(7), {"BROKER_ID_NOT_REGISTERED"}),
            ((0, 0), admin.describe_acls, {"SECURITY_DISABLED"}),
            ((0, 0), admin.describe_client_quotas, set()),
            ((0, 0), admin.describe_features, set()),
            ((0, 0), admin.describe_metadata_quorum, set()),
            ((0, 0), lambda: admin.force_terminate_transaction(user), set()),
        ]
        for release, call, codes in calls:
            if broker.version < release:
                needs = rf"needs Kafka {release[0]}\.{release[1]} or newer"
                with pytest.raises(UnsupportedVersionError, match=needs):
                    await call()
            elif codes:
                with pytest.raises(trikafka.BrokerResponseError) as caught:
                    await call()
                assert caught.value.name in codes
            else:
                await call()
