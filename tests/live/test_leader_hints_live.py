"""Leaders of real brokers move under a producer: records go to the leader that a refusal names.

No metadata request is needed (KIP-951).
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import kafka
import trio
from cluster_waits import PATIENT, topic_reported

import trikafka
from trikafka import NewTopic, TopicPartition
from trikafka.error_codes import ErrorCode
from trikafka.interfaces import ProducerObserver

if TYPE_CHECKING:
    from trikafka_broker.pytest_plugin import MakeKafkaCluster

_METADATA = 3


class Counted(trio.abc.HalfCloseableStream):
    """A stream that counts its outgoing requests by the number of their API."""

    def __init__(self, inner: trio.SocketStream, apis: Counter[int]) -> None:
        self._inner = inner
        self._apis = apis
        self._pending = bytearray()

    async def send_all(self, data: Any) -> None:
        self._pending += data
        while len(self._pending) >= 6:
            size, api = struct.unpack_from(">ih", self._pending)
            if len(self._pending) < size + 4:
                break
            self._apis[api] += 1
            del self._pending[: size + 4]
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._inner.receive_some(max_bytes)

    async def send_eof(self) -> None:
        await self._inner.send_eof()

    async def aclose(self) -> None:
        await self._inner.aclose()


class Retried(ProducerObserver):
    """A plugin that counts the reasons of retried batches."""

    def __init__(self) -> None:
        self.codes: Counter[object] = Counter()

    @trikafka.hookimpl
    def trikafka_observer(self, context: object) -> ProducerObserver:
        return self

    def batch_retried(self, event: trikafka.BatchEvent) -> None:
        self.codes[getattr(event.error, "code", None)] += 1


def leader_of(admin: kafka.KafkaAdminClient, topic: str) -> int:
    """Return the leader of partition 0; -1 if the broker that is asked does not know the topic."""
    (described,) = admin.describe_topics([topic])
    return int(described["partitions"][0]["leader_id"]) if described["partitions"] else -1


def move(bootstrap: str, topic: str, replicas: list[int]) -> None:
    """Make the first of these the leader, by the tools of another client."""
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    try:
        admin.alter_partition_reassignments(
            {kafka.TopicPartition(topic, 0): replicas}, timeout_ms=60_000
        )
        # A replica that is not in sync is not elected, nor before the new order is known.
        while leader_of(admin, topic) != replicas[0]:
            admin.elect_leaders(0, {topic: [0]}, timeout_ms=60_000, raise_errors=False)
            time.sleep(0.05)
    finally:
        admin.close()


async def test_moved_leader_needs_no_metadata_request(make_kafka_cluster: MakeKafkaCluster) -> None:
    bootstrap = make_kafka_cluster(brokers=2, properties=PATIENT).bootstrap_servers
    apis: Counter[int] = Counter()
    retried = Retried()

    async def dial(host: str, port: int) -> trio.abc.Stream:
        return Counted(await trio.open_tcp_stream(host, port), apis)

    async with trikafka.open_admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics({"moves": NewTopic(1, 2)})
        await topic_reported(admin, "moves", 1)
    with trio.fail_after(300):
        async with trikafka.open_producer(
            bootstrap_servers=bootstrap, dial=dial, plugins=[retried], linger_ms=0
        ) as producer:
            written = 0
            # an old leader that does not know the new one yet gives no hint: one of several moves
            # is enough
            hinted = False
            for _ in range(30):
                await producer.send("moves", b"%d" % written)
                written += 1
                metadata = producer._metadata
                seen = metadata.snapshot
                leader = seen.leader(TopicPartition("moves", 0)).node_id
                other = next(number for number in seen.nodes if number != leader)
                asked, before = apis[_METADATA], retried.codes[ErrorCode.NOT_LEADER_OR_FOLLOWER]
                await trio.to_thread.run_sync(move, bootstrap, "moves", [other, leader])
                # Until the old leader refuses, or the producer has noticed the move on its own.
                while (
                    retried.codes[ErrorCode.NOT_LEADER_OR_FOLLOWER] == before
                    and apis[_METADATA] == asked
                ):
                    await producer.send("moves", b"%d" % written)
                    written += 1
                hinted = apis[_METADATA] == asked
                if hinted:
                    assert metadata.snapshot.leader(TopicPartition("moves", 0)).node_id == other
                    break
                # So the next round begins with a leader that is known.
                await producer.send("moves", b"%d" % written)
                written += 1
            assert hinted, "no old leader said who leads, and where that is"
    settings: trikafka.ConsumerSettings = {
        "bootstrap_servers": bootstrap,
        "auto_offset_reset": "earliest",
    }
    place = TopicPartition("moves", 0)
    found: list[bytes | None] = []
    async with trikafka.open_consumer(**settings) as consumer:
        consumer.assign([place])
        async for batch in consumer.batches(until=await consumer.end_offsets([place])):
            found += [record.value for record in batch]
    assert found == [b"%d" % number for number in range(written)]
