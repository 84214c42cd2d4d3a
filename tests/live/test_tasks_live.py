"""``run_tasks`` on real brokers: a frozen leader, exactly once with dead letters, the worker."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from cluster_waits import PATIENT, settled, topic_made, topic_reported
from trikafka_broker import Cluster
from trikafka_broker.cluster import KafkaCluster

import trikafka
from trikafka import NewTopic, Record, TopicPartition

ROOT = Path(__file__).parents[2]
COUNT = 200
FIRST = 20  #: of each partition, before a broker is frozen


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Run three brokers."""
    with KafkaCluster(brokers=3, properties=PATIENT) as started:
        started.start()
        yield Cluster(started)


async def filled(cluster: Cluster, topic: str, partitions: int = 3, copies: int = 1) -> None:
    """Make a topic with ``COUNT`` records in each partition."""
    async with trikafka.open_admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await topic_made(admin, topic, NewTopic(partitions, copies))
    async with trikafka.open_producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(COUNT):
            for part in range(partitions):
                await producer.enqueue(
                    topic, b"%d-%d" % (part, number), key=b"k%d" % (number % 7), partition=part
                )


def settings_of(cluster: Cluster, group_id: str) -> dict[str, Any]:
    given: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "group_id": group_id,
        "auto_offset_reset": "earliest",
    }
    return given | {"enable_auto_commit": False, "auto_commit_interval_ms": 200}


async def leaders_of(
    admin: trikafka.Admin, topic: str, group_id: str
) -> tuple[dict[int, int | None], int | None]:
    """Return the node that leads each partition of a topic, and that which leads a group.

    The latter leads the group's partition of ``__consumer_offsets``. A broker may learn later than
    the others of a new topic, and a partition has no leader while its broker's session is over.
    """
    hashed = 0
    for letter in group_id:
        hashed = (31 * hashed + ord(letter)) & 0xFFFFFFFF
    with trio.fail_after(240):
        while True:
            known = await admin.list_topics(include_internal=True)
            found = [info for name in (topic, "__consumer_offsets") for info in known.get(name, ())]
            if known.keys() >= {topic, "__consumer_offsets"} and all(
                info.leader is not None for info in found
            ):
                break
            await trio.sleep(0.05)
    partitions = known["__consumer_offsets"]
    return (
        {info.partition: info.leader for info in known[topic]},
        partitions[(hashed & 0x7FFFFFFF) % len(partitions)].leader,
    )


async def until(true: Any, limit: float = 240) -> None:
    with trio.fail_after(limit):
        while not true():  # noqa: ASYNC110
            await trio.sleep(0.02)


async def test_frozen_leader_delays_its_partition_only(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(cluster, "frozen")
    done = Counter[int]()
    stuck: int | None = None
    frozen = trio.Event()
    async with (
        trikafka.open_admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
        trikafka.open_consumer("frozen", **settings_of(cluster, "freezing")) as consumer,
        trio.open_nursery() as nursery,
    ):

        async def handler(record: Record) -> None:
            if done[record.partition] == FIRST:
                await frozen.wait()
            await trio.sleep(0.01)
            limit = 0.3 if record.partition == stuck else 60
            await consumer.end_offsets([TopicPartition("frozen", record.partition)], timeout=limit)
            done[record.partition] += 1

        nursery.start_soon(trikafka.run_tasks, consumer, handler)
        await until(lambda: list(done.values()) == [FIRST] * 3)
        led, coordinator = await leaders_of(admin, "frozen", "freezing")
        assert sorted(leader for leader in led.values() if leader is not None) == [0, 1, 2]
        stuck, leader = next((part, node) for part, node in led.items() if node != coordinator)
        assert leader is not None
        broker = cluster.brokers[leader]
        await broker.freeze()
        try:
            frozen.set()
            others = [part for part in led if part != stuck]
            await until(lambda: all(done[part] == COUNT for part in others))
            assert done[stuck] == FIRST
            await until(
                lambda: any(
                    f"the task of frozen-{stuck} is skipped" in line and "end_offsets" in line
                    for line in caplog.messages
                )
            )
            assert not [
                line
                for line in caplog.messages
                if any(f"the task of frozen-{part} is skipped" in line for part in others)
            ]
        finally:
            await broker.thaw()
        await until(lambda: done[stuck] == COUNT)
        nursery.cancel_scope.cancel()
    assert done == Counter(dict.fromkeys(range(3), COUNT))


async def test_ctrl_c_loses_no_finished_work(cluster: Cluster) -> None:
    """Ctrl-C in a handler loses no finished work.

    The signal arrives while the handler runs, and Trio raises there. The next member does not have
    to wait for the end of a session, which is longer than the test waits.
    """
    await filled(cluster, "interrupted", partitions=1)
    seen: list[int] = []
    settings = settings_of(cluster, "interrupting") | {
        "auto_commit_interval_ms": 600_000,
        "session_timeout_ms": 300_000,
    }

    async def handler(record: Record) -> None:
        seen.append(record.offset)
        if record.offset == 50:
            signal.raise_signal(signal.SIGINT)

    with trio.fail_after(240), pytest.raises(KeyboardInterrupt):
        async with trikafka.open_consumer("interrupted", **settings) as consumer:
            await trikafka.run_tasks(consumer, handler)
    assert seen == list(range(51))
    async with trikafka.open_consumer("interrupted", **settings) as consumer:
        with trio.fail_after(240):
            assert (await consumer.receive()).offset == 50


async def hanging(cluster: Cluster, protocol: str) -> None:
    """Run one worker whose handlers all hang, and another member beside it.

    The other member has no partitions at first.
    """
    name = f"hanging-{protocol}"
    await filled(cluster, name, partitions=2)
    settings = settings_of(cluster, name) | {
        "group_protocol": protocol,
        "max_poll_interval_ms": 10_000,
    }
    if protocol == "classic":
        settings |= {"session_timeout_ms": 10_000}
    let_go = trio.Event()
    held = Counter[int]()
    done = Counter[int]()

    async def handler(record: Record) -> None:
        held[record.partition] += 1
        await let_go.wait()
        done[record.partition] += 1

    async with trikafka.open_consumer(name, **settings) as stuck, trio.open_nursery() as nursery:
        nursery.start_soon(trikafka.run_tasks, stuck, handler)
        await until(lambda: len(held) == 2)
        await until(lambda: stuck.statistics().state == "stale")
        async with trikafka.open_consumer(name, **settings) as other:
            with trio.fail_after(240):
                seen = set[int]()
                while seen != {0, 1}:
                    seen.add((await other.receive()).partition)
            assert stuck.statistics().state == "stale"
            let_go.set()
            with trio.move_on_after(60):
                while stuck.statistics().state != "stable":
                    await other.receive_batch(0.1)
        # The record in progress is delivered again. More records are if the coordinator moves.
        await until(lambda: all(done[partition] > COUNT for partition in (0, 1)))
        nursery.cancel_scope.cancel()


async def test_hanging_worker_loses_its_partitions(cluster: Cluster) -> None:
    async with trio.open_nursery() as nursery:
        for protocol in ("classic", "consumer"):
            nursery.start_soon(hanging, cluster, protocol)


@pytest.mark.parametrize("transactional", [False, True])
async def test_largest_record_becomes_a_dead_letter(
    cluster: Cluster, transactional: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The largest record that its topic allows becomes a dead letter.

    The dead-letter topic allows no larger records.
    """
    name = f"largest-{transactional}"
    most = {"max.message.bytes": "20000"}
    async with trikafka.open_admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topics(
            {name: NewTopic(1, 1, most), f"{name}-dead": NewTopic(1, 1, most)}
        )
        await topic_reported(admin, name, 1)
    async with trikafka.open_producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        size = 20_000
        while True:
            try:
                await producer.send(name, b"x" * size)
            except trikafka.RecordTooLargeError:
                size -= 1
            else:
                break
        await producer.send(name, b"small")
    done = trio.Event()

    async def handler(record: Record) -> None:
        if record.value == b"end":
            done.set()
            return
        raise ValueError("no good")

    given: dict[str, Any] = {"transactional_id": name} if transactional else {}
    async with (
        trikafka.open_producer(bootstrap_servers=cluster.bootstrap_servers, **given) as producer,
        trikafka.open_consumer(name, **settings_of(cluster, name)) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(
            partial(
                trikafka.run_tasks, consumer, handler, producer=producer, dead_letter=f"{name}-dead"
            )
        )
        async with trikafka.open_producer(bootstrap_servers=cluster.bootstrap_servers) as other:
            await other.send(name, b"end")
        with trio.fail_after(240):
            await done.wait()
            # A cancellation before that would abort the dead letters' transaction.
            await has_committed(cluster, f"{name}-dead", 2)
        nursery.cancel_scope.cancel()
    large, small = await read_committed(cluster, f"{name}-dead")
    assert large.value is not None
    assert size / 2 < len(large.value) < size
    assert dict(large.headers)["trikafka.truncated"] == b"%d" % size
    assert dict(large.headers)["trikafka.offset"] == b"0"
    assert small.value == b"small"
    assert f"offset 0 of {name}-0 is too large for {name}-dead" in caplog.text


async def has_committed(cluster: Cluster, topic: str, count: int) -> None:
    """Wait until a reader of committed records receives this many from partition 0."""
    settings: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "isolation_level": "read_committed",
    }
    async with trikafka.open_consumer(**settings, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        for _ in range(count):
            await consumer.receive()


async def read_committed(cluster: Cluster, topic: str) -> list[Record]:
    await settled(cluster.bootstrap_servers)
    settings: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "isolation_level": "read_committed",
    }
    async with trikafka.open_consumer(**settings, auto_offset_reset="earliest") as consumer:
        tps = [
            TopicPartition(topic, info.partition) for info in await consumer.partitions_for(topic)
        ]
        consumer.assign(tps)
        with trio.fail_after(240):
            return [
                record
                async for batch in consumer.batches(until=await consumer.end_offsets(tps))
                for record in batch
            ]


async def test_dead_letters_are_exactly_once(cluster: Cluster) -> None:
    """Dead letters are exactly once.

    There are two members, one of them cut off four times. Each eleventh record fails after its copy
    was sent.
    """
    await filled(cluster, "source", copies=3)

    async def member(name: str, *lives: float) -> None:
        for life in (*lives, math.inf):
            with trio.move_on_after(life):
                async with (
                    trikafka.open_producer(
                        bootstrap_servers=cluster.bootstrap_servers, transactional_id=name
                    ) as producer,
                    trikafka.open_consumer("source", **settings_of(cluster, "copying")) as consumer,
                ):

                    async def handler(record: Record) -> None:
                        await producer.enqueue("copies", record.value, partition=record.partition)
                        await trio.sleep(0.01)
                        if record.offset % 11 == 5:
                            raise ValueError("no good")

                    topics = {"copies": NewTopic(3, 3), "dead": NewTopic(1, 3)}
                    await trikafka.run_tasks(
                        consumer,
                        handler,
                        producer=producer,
                        dead_letter="dead",
                        topics=topics,
                        concurrency=2,
                    )

    async with (
        trikafka.open_consumer(**settings_of(cluster, "copying")) as watcher,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(member, "one")
        nursery.start_soon(member, "two", 3, 3, 3, 3)
        tps = [TopicPartition("source", part) for part in range(3)]
        with trio.fail_after(300):
            while any(  # noqa: ASYNC110
                at is None or at.offset < COUNT for at in (await watcher.committed(tps)).values()
            ):
                await trio.sleep(0.2)
        nursery.cancel_scope.cancel()
    every = {b"%d-%d" % (part, number): number for part in range(3) for number in range(COUNT)}
    copies = Counter(record.value for record in await read_committed(cluster, "copies"))
    dead = await read_committed(cluster, "dead")
    assert copies == Counter(value for value, number in every.items() if number % 11 != 5)
    assert Counter(record.value for record in dead) == Counter(
        value for value, number in every.items() if number % 11 == 5
    )
    for record in dead:
        headers = dict(record.headers)
        assert record.value == b"%s-%s" % (
            headers["trikafka.partition"],
            headers["trikafka.offset"],
        )
        assert (headers["trikafka.error"], headers["trikafka.message"]) == (
            b"ValueError",
            b"no good",
        )


def test_page_shows_the_example_unchanged() -> None:
    text = (ROOT / "docs/tasks.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    shown = (ROOT / "examples/worker.py").read_text(encoding="utf-8").partition('"""\n\n')[2]
    shown = shown.replace('os.environ.get("KAFKA", "localhost:9092")', '"localhost:9092"').replace(
        "import os\n", ""
    )
    assert blocks[0] == shown


async def test_example_handles_each_order_once(cluster: Cluster) -> None:
    """The example handles each order once although it is stopped half way.

    Each customer's orders are in order, and two invalid ones are dead letters.
    """
    servers = cluster.bootstrap_servers
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await admin.create_topics({"orders": NewTopic(3, 3)})
        await topic_reported(admin, "orders", 3)
    lines: list[str] = []
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with trio.fail_after(240):
        for number in range(2):
            # A process that has nothing to do would get the signal before it has a handler.
            await order(servers, range(number * 150, (number + 1) * 150))
            environment = {**os.environ, "PYTHONPATH": path, "KAFKA": servers}
            command = [sys.executable, str(ROOT / "examples/worker.py")]
            process = await trio.lowlevel.open_process(
                command, stdout=subprocess.PIPE, env=environment
            )
            assert process.stdout is not None
            try:
                text = b""
                while not _enough(lines, text, number):
                    chunk = await process.stdout.receive_some()
                    assert chunk, text
                    text += chunk
                process.send_signal(signal.SIGTERM)
                async for chunk in process.stdout:
                    text += chunk
                assert await process.wait() == 0
            finally:
                process.kill()
            said = text.decode().splitlines()
            assert said[-1] == "stopped in order"
            lines += said[:-1]
    items = [line.split()[2:] for line in lines]
    assert sorted(int(item) for _, item in items) == [
        number for number in range(300) if number not in (7, 150)
    ]
    for customer in range(10):
        mine = [int(item) for name, item in items if name == f"c{customer}"]
        assert mine == sorted(mine)
    dead = await read_committed(cluster, "orders.dead")
    assert [record.value for record in dead] == [b"{not json"] * 2
    assert all(
        dict(record.headers)["trikafka.error"] == b"json.decoder.JSONDecodeError" for record in dead
    )


async def order(servers: str, numbers: range) -> None:
    """Write orders, of which 7 and 150 are invalid."""
    async with trikafka.open_producer(bootstrap_servers=servers) as producer:
        for number in numbers:
            customer = f"c{number % 10}"
            value = (
                b"{not json"
                if number in (7, 150)
                else json.dumps({"customer": customer, "item": number}).encode()
            )
            await producer.enqueue("orders", value, key=customer.encode())


def _enough(before: list[str], text: bytes, number: int) -> bool:
    return len(before) + text.count(b"\n") >= (298 if number else 60)
