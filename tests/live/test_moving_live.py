"""A cluster of three moves to other ports under a producer and a consumer (KIP-899).

Only its bootstrap name stays the same.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from cluster_waits import topic_made
from trikafka_broker import BrokerError

import trikafka
from trikafka import NewTopic

if TYPE_CHECKING:
    from trikafka_broker.cluster import KafkaCluster
    from trikafka_broker.pytest_plugin import MakeKafkaCluster


class Name:
    """A name server for one name, ``boot``, with its current address."""

    def __init__(self) -> None:
        self.place = ("", 0)
        self.asked = 0

    def leads_to(self, cluster: KafkaCluster) -> None:
        self.place = (cluster.brokers[0].host, cluster.brokers[0].port)

    async def dial(self, host: str, port: int) -> trio.abc.Stream:
        if host == "boot":
            self.asked += 1
            host, port = self.place
        return await trio.open_tcp_stream(host, port)


def moved_to_other_ports(opened: Callable[..., KafkaCluster], old: set[int]) -> KafkaCluster:
    """Open the cluster on other ports: on others again if another program takes one of them."""
    for _ in range(9):
        with suppress(BrokerError):
            return opened(port=three_free_ports(old))
    return opened(port=three_free_ports(old))


def three_free_ports(old: set[int]) -> int:
    """Return the first of three consecutive free ports, none of them one of ``old``."""
    while True:
        with ExitStack() as held, suppress(OSError):
            first = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            for port in (first + 1, first + 2):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            if not old & {first, first + 1, first + 2}:
                return int(first)


async def test_clients_follow_a_moved_cluster(
    make_kafka_cluster: MakeKafkaCluster, tmp_path: Path
) -> None:
    name = Name()
    # The move takes longer than the short session of other tests: a member that has lost its
    # session delivers again.
    session = {
        "group.consumer.max.session.timeout.ms": 300_000,
        "group.consumer.session.timeout.ms": 300_000,
    }
    opened = partial(
        make_kafka_cluster, brokers=3, directory=tmp_path / "cluster", properties=session
    )
    seen: list[list[int]] = [[], [], []]
    written = [0, 0, 0]
    finish, finished = trio.Event(), trio.Event()
    settings: dict[str, Any] = {"bootstrap_servers": "boot:1", "dial": name.dial}

    async def produce() -> None:
        # Three brokers may take longer to stop and start than a record lives by default.
        async with trikafka.open_producer(**settings, delivery_timeout_ms=480_000) as producer:
            while not finish.is_set():
                for partition in range(3):
                    await producer.send("t", b"%d" % written[partition], partition=partition)
                    written[partition] += 1
                await trio.sleep(0.02)
        finished.set()

    async def consume() -> None:
        async with trikafka.open_consumer(
            "t", group_id="g", auto_offset_reset="earliest", **settings
        ) as consumer:
            async for record in consumer:
                seen[record.partition].append(int(record.value or b""))

    async def more(count: int) -> None:
        """Wait until each partition has delivered this many more records."""
        before = [len(each) for each in seen]
        while any(len(each) < was + count for each, was in zip(seen, before, strict=True)):  # noqa: ASYNC110
            await trio.sleep(0.05)

    with trio.fail_after(500):
        cluster = await trio.to_thread.run_sync(opened)
        old = {broker.port for broker in cluster.brokers}
        name.leads_to(cluster)
        async with trikafka.open_admin(**settings) as admin:
            await topic_made(admin, "t", NewTopic(3, 3))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            nursery.start_soon(consume)
            await more(20)
            asked = name.asked
            await trio.to_thread.run_sync(cluster.close)
            moved = await trio.to_thread.run_sync(moved_to_other_ports, opened, old)
            name.leads_to(moved)
            with trio.fail_after(240):
                await more(20)
            assert name.asked > asked
            finish.set()
            with trio.fail_after(240):
                await finished.wait()
                while any(len(each) < count for each, count in zip(seen, written, strict=True)):  # noqa: ASYNC110
                    await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
    assert seen == [list(range(count)) for count in written]
