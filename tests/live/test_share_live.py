"""Share groups on a real Kafka: redelivery, members that are killed, and Java's share consumer."""

from __future__ import annotations

import functools
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import trio
from cluster_waits import topic_reported
from trikafka_broker import KafkaBroker, KafkaCluster

import trikafka
from trikafka import ConfigResource, NewTopic

ROOT = Path(__file__).parents[2]


def in_time(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Fail a test that hangs."""

    @functools.wraps(test)
    async def limited(**fixtures: Any) -> None:
        with trio.fail_after(400):
            await test(**fixtures)

    return limited


async def a_queue(
    servers: str, count: int, partitions: int = 2, lock_seconds: int = 60
) -> tuple[str, str]:
    """Return a new topic with records ``0``, ``1`` ..., and a group that begins at the first."""
    topic = f"share-{uuid.uuid4().hex[:8]}"
    group = f"{topic}-workers"
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await admin.create_topics({topic: NewTopic(partitions, 1)})
        await topic_reported(admin, topic, partitions)
        resource = ConfigResource("group", group)
        await admin.alter_configs(
            {
                resource: {
                    "share.auto.offset.reset": "earliest",
                    "share.record.lock.duration.ms": str(lock_seconds * 1000),
                }
            }
        )
        # The controller has the settings first. The group's first member must find them.
        known: str | None = None
        while known != "earliest":
            found = (await admin.describe_configs([resource]))[resource]
            known = found["share.auto.offset.reset"].value
    async with trikafka.open_producer(bootstrap_servers=servers) as producer:
        for number in range(count):
            await producer.enqueue(topic, b"%d" % number, partition=number % partitions)
    return topic, group


@in_time
async def test_records_are_accepted_released_rejected(kafka_broker: KafkaBroker) -> None:
    servers = kafka_broker.bootstrap_servers
    topic, group = await a_queue(servers, 100)
    accepted: dict[int, int] = {}
    async with trikafka.open_share_consumer(
        topic, group_id=group, bootstrap_servers=servers, value_deserializer=int
    ) as queue:
        rejected = set[int]()
        async for delivery in queue:
            number = delivery.record.value
            async with delivery:
                if number % 10 == 0 and delivery.delivery_count < 3:
                    delivery.release()
                elif number % 10 == 1:
                    delivery.reject("an odd one")
                    rejected.add(number)
                else:
                    accepted[number] = delivery.delivery_count
            if len(accepted) + len(rejected) == 100:
                break
        await queue.flush()
        statistics = queue.statistics()
    assert {number: count for number, count in accepted.items() if count > 1} == dict.fromkeys(
        range(0, 100, 10), 3
    )
    assert rejected == set(range(1, 100, 10))
    assert (statistics.accepted, statistics.released, statistics.rejected) == (90, 20, 10)
    assert (statistics.failed, statistics.lost) == (0, 0)


@in_time
async def test_batches_are_acknowledged_by_mask(kafka_broker: KafkaBroker) -> None:
    servers = kafka_broker.bootstrap_servers
    topic, group = await a_queue(servers, 60)
    seen: dict[bytes, int] = {}
    async with (
        trikafka.open_share_consumer(topic, group_id=group, bootstrap_servers=servers) as queue,
        aclosing(queue.batches()) as batches,
    ):
        async for batch in batches:
            table = batch.to_arrow()
            counts = table.column("delivery_count").to_pylist()
            assert counts == list(batch.delivery_counts)
            mask = []
            for value, count in zip(table.column("value").to_pylist(), counts, strict=True):
                mask.append(int(value) % 5 != 0 or count > 1)
                if mask[-1]:
                    seen[value] = count
            batch.acknowledge(mask)
            await batch.acknowledged()
            if len(seen) == 60:
                break
    assert sorted(value for value, count in seen.items() if count > 1) == sorted(
        b"%d" % number for number in range(0, 60, 5)
    )


@in_time
async def test_a_lock_is_renewed_past_its_time(kafka_broker: KafkaBroker) -> None:
    servers = kafka_broker.bootstrap_servers
    topic, group = await a_queue(servers, 1, partitions=1, lock_seconds=15)
    async with trikafka.open_share_consumer(
        topic, group_id=group, bootstrap_servers=servers
    ) as queue:
        async with await queue.receive() as delivery:
            first = delivery.deadline
            while trio.current_time() < first + 1:  # noqa: ASYNC110  # the lock would have ended
                await trio.sleep(0.5)
            assert delivery.deadline > trio.current_time()
        await delivery.acknowledged()
        assert queue.statistics().accepted == 1


@in_time
async def test_a_killed_member_loses_nothing(kafka_broker: KafkaBroker) -> None:
    servers = kafka_broker.bootstrap_servers
    # With one partition: the group's assignor gives each member one, also to a dead member until
    # its session ends.
    topic, group = await a_queue(servers, 200, partitions=1, lock_seconds=15)
    program = f"""
import trio, trikafka

async def main():
    async with trikafka.open_share_consumer({topic!r}, group_id={group!r},
                                            bootstrap_servers={servers!r}) as queue:
        held = [await queue.receive() for _ in range(20)]
        print("holds", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""
    member = await trio.lowlevel.open_process(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert member.stdout is not None
    async with member.stdout:
        said = b""
        while not said.endswith(b"\n"):
            said += await member.stdout.receive_some()
        assert said == b"holds\n"
        member.send_signal(signal.SIGKILL)
        await member.wait()
    accepted = set[bytes]()
    async with trikafka.open_share_consumer(
        topic, group_id=group, bootstrap_servers=servers
    ) as queue:
        most = 1
        async for delivery in queue:
            async with delivery:
                accepted.add(delivery.record.value or b"")
                most = max(most, delivery.delivery_count)
            if len(accepted) == 200:
                break
        await queue.flush()
    assert most > 1


@in_time
async def test_java_and_trikafka_share_a_group(kafka_broker_cluster: KafkaCluster) -> None:
    servers = kafka_broker_cluster.bootstrap_servers
    topic, group = await a_queue(servers, 400)
    printed: list[str] = []

    def java() -> None:
        done = kafka_broker_cluster.run_tool(
            "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
            *("--bootstrap-server", servers, "--topic", topic, "--group", group),
            *("--max-messages", "50"),
            timeout=300,
        )
        printed.extend(re.findall(r"^\d+$", done.stdout, re.MULTILINE))

    ours = set[str]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, java)
        async with trikafka.open_share_consumer(
            topic, group_id=group, bootstrap_servers=servers, acquire="records", max_in_flight=5
        ) as queue:
            while len(ours | set(printed)) < 400:
                # Java takes its time to start, and needs 50 records, perhaps of one partition.
                if len(ours) >= 100 and not printed:
                    await trio.sleep(0.05)
                    continue
                with trio.move_on_after(0.5):
                    async with await queue.receive() as delivery:
                        ours.add((delivery.record.value or b"").decode())
            await queue.flush()
    assert len(set(printed)) == 50
    # Java acknowledges what it has printed at its next poll or its close.
    assert ours | set(printed) == {str(number) for number in range(400)}
