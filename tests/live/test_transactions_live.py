"""Transactions against a real Kafka: fenced, expired, and with a killed coordinator.

librdkafka and our consumer read them.
"""

# ruff: noqa: PT012 (it is a whole block of a transaction that raises)

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import trio
from cluster_waits import PATIENT, settled, topic_made, topic_reported
from kafka.protocol.producer import InitProducerIdRequest
from trikafka_broker.trio_api import Cluster

import trikafka
from benchmarks.librdkafka import read_topic
from trikafka import NewTopic, TopicPartition
from trikafka.error_codes import ErrorCode
from trikafka.errors import (
    AuthorizationError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionUndecidedError,
    UnsupportedVersionError,
)

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker
    from trikafka_broker.pytest_plugin import MakeKafkaCluster


class Own(Exception):
    """An error of the program."""


async def make_topic(bootstrap: str, partitions: int = 3) -> str:
    name = f"transactions-{uuid.uuid4().hex[:8]}"
    replicas = min(3, len(bootstrap.split(",")))
    async with trikafka.open_admin(bootstrap_servers=bootstrap) as admin:
        await topic_made(admin, name, NewTopic(partitions, replicas))
    return name


async def by_librdkafka(
    bootstrap: str, topic: str, isolation: str = "read_committed"
) -> list[bytes]:
    await settled(bootstrap)
    messages = await trio.to_thread.run_sync(read_topic, bootstrap, topic, isolation)
    return sorted(message.value() or b"" for message in messages)


async def by_ourselves(bootstrap: str, topic: str) -> list[bytes | None]:
    await settled(bootstrap)
    settings: dict[str, Any] = {"bootstrap_servers": bootstrap, "isolation_level": "read_committed"}
    async with trikafka.open_consumer(**settings, auto_offset_reset="earliest") as consumer:
        tps = [
            TopicPartition(topic, info.partition) for info in await consumer.partitions_for(topic)
        ]
        consumer.assign(tps)
        values: list[bytes | None] = []
        async for batch in consumer.batches(until=await consumer.end_offsets(tps)):
            values += [record.value for record in batch]
        return sorted(value or b"" for value in values)


@pytest.fixture
async def place(kafka_broker: KafkaBroker) -> AsyncIterator[tuple[str, str]]:
    with trio.fail_after(300):
        yield kafka_broker.bootstrap_servers, await make_topic(kafka_broker.bootstrap_servers)


async def test_aborted_records_are_never_read(place: tuple[str, str]) -> None:
    bootstrap, topic = place
    async with trikafka.open_producer(
        bootstrap_servers=bootstrap, transactional_id=topic
    ) as producer:
        for number in range(10):
            async with producer.transaction():
                for part in range(3):
                    await producer.enqueue(topic, b"%d-%d" % (number, part), partition=part)
            with pytest.raises(Own):
                async with producer.transaction():
                    await producer.send(topic, b"aborted", partition=number % 3)
                    raise Own
    wanted = sorted(b"%d-%d" % (number, part) for number in range(10) for part in range(3))
    assert await by_librdkafka(bootstrap, topic) == wanted
    assert await by_ourselves(bootstrap, topic) == wanted
    assert (await by_librdkafka(bootstrap, topic, "read_uncommitted")).count(b"aborted") == 10


async def test_table_is_all_or_nothing(place: tuple[str, str]) -> None:
    import pyarrow as pa

    bootstrap, topic = place
    table = pa.table({"value": [b"%06d" % number for number in range(100_000)]})
    async with trikafka.open_producer(
        bootstrap_servers=bootstrap, transactional_id=topic, compression_type="lz4"
    ) as producer:
        with pytest.raises(Own):
            async with producer.transaction():
                await producer.send_arrow(topic, table)
                raise Own
        assert await by_librdkafka(bootstrap, topic) == []
        async with producer.transaction():
            await producer.send_arrow(topic, table)
    assert await by_librdkafka(bootstrap, topic) == [b"%06d" % number for number in range(100_000)]


async def test_newer_producer_fences_the_older(place: tuple[str, str]) -> None:
    bootstrap, topic = place
    settings: dict[str, Any] = {"bootstrap_servers": bootstrap, "transactional_id": topic}
    async with trikafka.open_producer(**settings) as old:
        with pytest.raises(ProducerFencedError):
            async with old.transaction():
                await old.send(topic, b"old")
                async with trikafka.open_producer(**settings) as new, new.transaction():
                    await new.send(topic, b"new")
        with pytest.raises(ProducerFencedError):
            async with old.transaction():
                pass
    assert await by_librdkafka(bootstrap, topic) == [b"new"]


async def test_record_refused_at_the_commit_aborts(kafka_broker: KafkaBroker) -> None:
    """A record that is refused while the commit begins fails the transaction.

    The refusal arrives in another step of the commit each time. Leaving the block raises it, and
    the next transaction works.
    """
    bootstrap, topic = kafka_broker.bootstrap_servers, f"transactions-{uuid.uuid4().hex[:8]}"
    async with trikafka.open_admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics({topic: NewTopic(1, 1, config={"max.message.bytes": "1000"})})
        await topic_reported(admin, topic, 1)
    async with trikafka.open_producer(
        bootstrap_servers=bootstrap, transactional_id=topic, linger_ms=0
    ) as producer:
        for number in range(30):
            with trio.fail_after(240):
                with pytest.raises(TransactionAbortableError):
                    async with producer.transaction():
                        await producer.enqueue(topic, b"x" * 10_000)
                        for _ in range(number % 6 + 1):
                            await trio.lowlevel.checkpoint()
                async with producer.transaction():
                    await producer.enqueue(topic, b"%02d" % number)
    assert await by_ourselves(bootstrap, topic) == [b"%02d" % number for number in range(30)]


async def test_long_transaction_is_aborted(place: tuple[str, str]) -> None:
    bootstrap, topic = place
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "transactional_id": topic,
        "transaction_timeout_ms": 8_000,
    }
    async with trikafka.open_producer(**settings) as producer:
        with pytest.raises(TransactionAbortableError):
            async with producer.transaction():
                await producer.send(topic, b"late")
                while True:
                    await trio.sleep(0.5)
                    await producer.send(topic, b"later")
        in_time = False
        while not in_time:
            began = trio.current_time()
            try:
                async with producer.transaction():
                    await producer.send(topic, b"in time")
                in_time = True
            except TransactionAbortableError:
                # This one may be too long, too, on a machine that stands still.
                assert trio.current_time() - began > 7
    assert await by_librdkafka(bootstrap, topic) == [b"in time"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_offsets_are_committed_with_the_records(
    place: tuple[str, str], protocol: Any
) -> None:
    bootstrap, topic = place
    target = await make_topic(bootstrap)
    async with trikafka.open_producer(bootstrap_servers=bootstrap) as plain:
        for number in range(100):
            await plain.enqueue(topic, b"%02d" % number)
    group: dict[str, Any] = {
        "group_id": topic,
        "group_protocol": protocol,
        "enable_auto_commit": False,
    }
    group |= {
        "bootstrap_servers": bootstrap,
        "auto_offset_reset": "earliest",
        "isolation_level": "read_committed",
    }
    async with (
        trikafka.open_producer(bootstrap_servers=bootstrap, transactional_id=topic) as producer,
        trikafka.open_consumer(topic, **group) as consumer,
    ):
        count = 0
        async for batch in consumer.batches():
            async with producer.transaction() as txn:
                for record in batch:
                    await producer.enqueue(target, record.value)
                await txn.send_offsets(consumer)
            count += len(batch)
            if count == 100:
                break
        committed = await consumer.committed([TopicPartition(topic, part) for part in range(3)])
        assert sum(at.offset for at in committed.values() if at is not None) == 100
    assert await by_librdkafka(bootstrap, target) == [b"%02d" % number for number in range(100)]


async def coordinator(bootstrap: str) -> int:
    """Return the node that leads the only partition with the states of transactions."""
    async with trikafka.open_admin(bootstrap_servers=bootstrap) as admin:
        while True:
            known = (await admin.list_topics(include_internal=True)).get("__transaction_state", [])
            for partition in known:
                if partition.leader is not None:
                    return partition.leader
            await trio.sleep(0.05)


async def test_killed_coordinator_breaks_no_promise(
    make_kafka_cluster: MakeKafkaCluster,
) -> None:
    """Killing the coordinator breaks no promise.

    Records of a reported commit are there, those of a reported abort are not, and an undecided
    transaction is settled.
    """
    kafka = make_kafka_cluster(brokers=3, properties={"transaction.state.log.num.partitions": 1})
    cluster = Cluster(kafka)
    bootstrap = cluster.bootstrap_servers
    with trio.fail_after(600):
        topic = await make_topic(bootstrap)
        wanted: list[bytes] = []
        killed = 0
        async with trikafka.open_producer(
            bootstrap_servers=bootstrap, transactional_id=topic
        ) as producer:
            async with trio.open_nursery() as nursery:
                stop = trio.Event()

                async def kill_twice() -> None:
                    nonlocal killed
                    for _ in range(2):
                        await commits(20)
                        broker = cluster.brokers[await coordinator(bootstrap)]
                        await broker.kill()
                        killed += 1
                        await trio.sleep(2)
                        await broker.start()
                        await commits(20)
                    stop.set()

                async def commits(more: int) -> None:
                    most = len(wanted) + 2 * more
                    while len(wanted) < most:  # noqa: ASYNC110
                        await trio.sleep(0.05)

                nursery.start_soon(kill_twice)
                number = 0
                while not stop.is_set():
                    number += 1
                    value = b"%05d" % number
                    try:
                        async with producer.transaction() as txn:
                            await producer.enqueue(topic, value, partition=number % 3)
                            await producer.enqueue(topic, value, partition=(number + 1) % 3)
                            await producer.flush()  # so that mostly the commit is cut off
                            try:
                                await txn.commit(timeout=0.2 if number % 4 else 30)
                            except TransactionUndecidedError:
                                await txn.commit(timeout=240)
                        wanted += [value, value]
                    except (TransactionAbortableError, trikafka.KafkaTimeoutError):
                        pass  # certainly not committed
        assert (
            killed == 2
            # how many commits were undecided is a matter of chance: test_transactions.py has them
            # one by one
        )
        assert len(wanted) > 100
        assert await by_librdkafka(bootstrap, topic) == sorted(wanted)


async def code_of_keeping_it(bootstrap: str, name: str) -> int:
    """Return the coordinator's code for keeping the prepared transaction (KIP-939)."""
    fields = {
        "transactional_id": name,
        "transaction_timeout_ms": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    request = InitProducerIdRequest(**fields, enable2_pc=True, keep_prepared_txn=True)
    async with trikafka.open_producer(bootstrap_servers=bootstrap) as producer:
        (node,) = producer._metadata.snapshot.nodes.values()
        code: int = (await producer._context.brokers.request(node, request)).error_code
        return code


_PREPARES = """
import sys, trio, trikafka

async def main(bootstrap, topic):
    settings = {"bootstrap_servers": bootstrap, "transactional_id": topic, "two_phase_commit": True}
    async with trikafka.open_producer(**settings) as producer, producer.transaction() as txn:
        await producer.send(topic, b"kept")
        print(await txn.prepare(), flush=True)
        await trio.sleep_forever()

trio.run(main, *sys.argv[1:])
"""


async def prepared_by_a_program_that_is_killed(bootstrap: str, topic: str) -> str:
    """Prepare a transaction in another process and SIGKILL it; return its stored text."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", _PREPARES, bootstrap, topic], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    text = b""
    while not text.endswith(b"\n"):
        text += (read := await process.stdout.receive_some())
        assert read, "it has ended"
    process.kill()
    assert await process.wait() == -signal.SIGKILL
    return text.decode().strip()


async def test_prepared_transaction_is_committed_later(
    make_kafka_cluster: MakeKafkaCluster,
) -> None:
    unstable = {
        **PATIENT,
        "transaction.two.phase.commit.enable": "true",
        "unstable.api.versions.enable": "true",
    }
    bootstrap = make_kafka_cluster(properties=unstable).bootstrap_servers
    with trio.fail_after(400):
        topic = await make_topic(bootstrap)
        settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "transactional_id": topic,
            "two_phase_commit": True,
        }
        prepared = await prepared_by_a_program_that_is_killed(bootstrap, topic)
        assert await by_librdkafka(bootstrap, topic) == []
        assert await code_of_keeping_it(bootstrap, topic) == ErrorCode.UNSUPPORTED_VERSION, (
            "docs/transactions.md says so"
        )
        async with (
            trikafka.open_producer(**settings, commit_prepared=prepared) as producer,
            producer.transaction() as txn,
        ):
            await producer.send(topic, b"forgotten")
            await txn.prepare()
        async with trikafka.open_producer(**settings) as producer, producer.transaction():
            await producer.send(topic, b"last")
        assert await by_librdkafka(bootstrap, topic) == [b"kept", b"last"]


async def test_two_phases_need_the_brokers_permission(place: tuple[str, str]) -> None:
    with pytest.raises((AuthorizationError, UnsupportedVersionError), match="two_phase_commit"):
        async with trikafka.open_producer(
            bootstrap_servers=place[0], transactional_id=place[1], two_phase_commit=True
        ):
            pass


async def test_forgotten_id_aborts_the_transaction(
    make_kafka_cluster: MakeKafkaCluster,
) -> None:
    """A forgotten transactional id aborts the transaction; the next one has a new producer id.

    The producer is fenced if another one has used the id since.
    """
    expiry = {
        **PATIENT,
        "transactional.id.expiration.ms": 15_000,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 200,
    }
    bootstrap = make_kafka_cluster(properties=expiry).bootstrap_servers
    with trio.fail_after(300):
        topic = await make_topic(bootstrap)
        settings: dict[str, Any] = {"bootstrap_servers": bootstrap, "transactional_id": topic}
        async with (
            trikafka.open_producer(**settings) as producer,
            trikafka.open_admin(bootstrap_servers=bootstrap) as admin,
        ):

            async def forgotten() -> None:
                while await admin.list_transactions():  # noqa: ASYNC110
                    await trio.sleep(0.1)

            async def send(value: bytes) -> None:
                async with producer.transaction():
                    await producer.send(topic, value)

            await send(b"first")
            await forgotten()
            with pytest.raises(
                TransactionAbortableError, match=r"transactional\.id\.expiration\.ms"
            ):
                await send(b"lost")
            await send(b"next")
            await forgotten()
            async with trikafka.open_producer(**settings) as other:
                with pytest.raises(TransactionAbortableError):
                    await send(b"of the older one")
                with pytest.raises(ProducerFencedError):
                    await send(b"of the older one")
                async with other.transaction():
                    await other.send(topic, b"of the newer one")
        assert await by_librdkafka(bootstrap, topic) == [b"first", b"next", b"of the newer one"]


async def test_producer_survives_a_version_upgrade(make_kafka_cluster: MakeKafkaCluster) -> None:
    """A cluster with transaction.version below 2 is raised to 2 while the producer works."""
    bootstrap = make_kafka_cluster(properties=PATIENT).bootstrap_servers
    async with trikafka.open_admin(bootstrap_servers=bootstrap) as admin:
        with trio.fail_after(240):
            await admin.update_features({"transaction.version": 1}, downgrade="safe")
    with trio.fail_after(400):
        topic = await make_topic(bootstrap)
        async with trikafka.open_producer(
            bootstrap_servers=bootstrap, transactional_id=topic
        ) as producer:
            for number in range(6):
                if number == 3:
                    async with trikafka.open_admin(bootstrap_servers=bootstrap) as admin:
                        await admin.update_features({"transaction.version": 2})
                async with producer.transaction():
                    for part in range(3):
                        await producer.enqueue(topic, b"%d" % number, partition=part)
                with pytest.raises(Own):
                    async with producer.transaction():
                        await producer.send(topic, b"aborted")
                        raise Own
        async with (
            trikafka.open_producer(bootstrap_servers=bootstrap, transactional_id=topic) as producer,
            producer.transaction(),
        ):
            await producer.send(topic, b"6")
        assert await by_librdkafka(bootstrap, topic) == sorted(
            [b"%d" % number for number in range(6)] * 3 + [b"6"]
        )
