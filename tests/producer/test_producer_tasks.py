"""Compression in threads, and the tasks and the room that a producer leaves behind: none."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from producing import numbers, opened, ready, values
from trio.testing import MockClock as Clock

from trikafka.errors import DeliveryTimeoutError, PluginError
from trikafka.hooks import hookimpl
from trikafka.interfaces import ClientContext, Observer
from trikafka.testing import ScriptedCluster


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
async def test_compressed_batches_arrive_in_order(compression: str) -> None:
    """Large batches are compressed in a thread, small ones in the loop. In real time."""
    noise = random.Random(5)
    sent = [
        b"%04d" % number + noise.randbytes(noise.choice((10, 20_000))) * 3 for number in range(300)
    ]
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        async with opened(cluster, compression_type=compression, batch_size=200_000) as producer:
            acks = [
                await producer.enqueue("t", value, partition=number % 2)
                for number, value in enumerate(sent)
            ]
            await producer.flush()
            assert all(ack.done for ack in acks)
        assert values(cluster, 0) == sent[::2]
        assert values(cluster, 1) == sent[1::2]
        codecs = {batch.info.attributes & 7 for batch in cluster.partition("t", 0).batches}
        assert codecs == {{"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[compression]}


class SlowGzip:
    """A codec whose first large batch takes three seconds of virtual time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slow = True

    def compress(self, data: Any, level: int | None) -> bytes:
        if self._slow and len(data) > 100_000:
            self._slow = False
            trio.from_thread.run_sync(self._clock.jump, 3.0)
            trio.from_thread.run(trio.testing.wait_all_tasks_blocked, 0.05)
        return gzip.compress(data)

    def decompress(self, data: Any, limit: int) -> bytes:
        return gzip.decompress(data)


async def test_batch_expired_while_compressed_is_unsent(autojump_clock: Clock) -> None:
    """Its send() has raised, so a program may send the record again: it is in the log once then."""

    class Offers:
        @hookimpl
        def trikafka_compression(self, name: str) -> object | None:
            return SlowGzip(autojump_clock) if name == "gzip" else None

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings = {"compression_type": "gzip", "batch_size": 900_000, "plugins": [Offers()]}
        limits = {"delivery_timeout_ms": 2_000, "request_timeout_ms": 1_500, "linger_ms": 0}
        async with opened(cluster, **settings, **limits) as producer:
            large = random.Random(4).randbytes(500_000)
            with pytest.raises(DeliveryTimeoutError):
                await producer.send("t", large, partition=0)
            await producer.send("t", large, partition=0)
            await producer.send("t", b"last", partition=0)
        assert values(cluster, 0) == [large, b"last"]


async def test_compression_does_not_block_the_loop() -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings = {"compression_type": "gzip", "batch_size": 900_000, "linger_ms": 20}
        async with opened(cluster, **settings) as producer:
            await producer.send("t", b"first")
            text = bytes(random.Random(3).choices(b"abcdefgh ", k=80_000))
            for number in range(50):
                await producer.enqueue("t", b"%d" % number + text)
            ticks = 0
            async with trio.open_nursery() as nursery:

                async def tick() -> None:
                    nonlocal ticks
                    while True:
                        await trio.lowlevel.checkpoint()
                        ticks += 1

                nursery.start_soon(tick)
                await producer.flush()
                nursery.cancel_scope.cancel()
        assert ticks > 100
        assert len(values(cluster)) == 50


async def test_no_task_and_no_room_is_left(autojump_clock: Clock) -> None:
    async with ready(nodes=2, partitions=4) as (cluster, producer):

        async def round_of_trouble() -> int:
            cluster.fail("Produce", 19)
            cluster.drop("Produce", after=True)
            async with trio.open_nursery() as nursery:
                for value in numbers(20):
                    nursery.start_soon(producer.send, "t", value)
            await trio.testing.wait_all_tasks_blocked()
            statistics = producer.statistics()
            assert (
                statistics.buffer_used,
                statistics.batches_waiting,
                statistics.requests_in_flight,
            ) == (0, 0, 0)
            return trio.lowlevel.current_statistics().tasks_living

        # The first rounds open connections: to each of the two brokers one for metadata and one for
        # records.
        early = [await round_of_trouble() for _ in range(20)]
        late = [await round_of_trouble() for _ in range(20)]
        assert max(late) <= max(early)


async def test_endless_enqueue_lets_other_tasks_run() -> None:
    async with ready(linger_ms=0) as (cluster, producer), trio.open_nursery() as nursery:

        async def flood() -> None:
            while True:
                await producer.enqueue("t", b"x")

        nursery.start_soon(flood)
        with trio.fail_after(240):
            await cluster.seen("Produce", 5)
        nursery.cancel_scope.cancel()


async def test_statistics_and_reprs_are_as_documented(autojump_clock: Clock) -> None:
    async with ready(linger_ms=1_000) as (_, producer):
        ack = producer.send_nowait("t", b"x")
        assert (ack.partition, ack.done) == (("t", 0), False)
        assert repr(ack) == "<trikafka.Ack t-0 waiting>"
        assert producer.statistics().batches_waiting == 1
        assert producer.statistics().buffer_used > 0
        await ack.wait()
        assert repr(ack) == "<trikafka.Ack t-0 done>"
        assert repr(producer) == "<trikafka.Producer client_id='trikafka'>"
    assert repr(producer) == "<trikafka.Producer client_id='trikafka' closed>"


class Evens:
    """Keys with an even number go to partition 0, everything else to the last partition."""

    @hookimpl
    def trikafka_partitioner(self, name: str) -> object | None:
        return self.choose if name == "evens" else None

    def choose(self, topic: str, key: bytes | None, partitions: Sequence[int]) -> int:
        assert topic == "t"
        if key == b"wrong":
            return 99
        return 0 if key is not None and int(key) % 2 == 0 else partitions[-1]


async def test_partitioner_of_a_plugin_is_used(autojump_clock: Clock) -> None:
    async with ready(partitions=3, plugins=[Evens()], partitioner="evens") as (cluster, producer):
        for number in range(6):
            await producer.send("t", b"%d" % number, key=b"%d" % number)
        await producer.send("t", b"no key")
        await producer.send("t", b"explicit", key=b"1", partition=1)
        assert [values(cluster, number) for number in range(3)] == [
            [b"0", b"2", b"4"],
            [b"explicit"],
            [b"1", b"3", b"5", b"no key"],
        ]
        with pytest.raises(PluginError, match="99 of 3"):
            await producer.send("t", b"x", key=b"wrong")


class Watcher(Observer):
    def __init__(self) -> None:
        self.seen: list[str] = []

    @hookimpl
    def trikafka_observer(self) -> Observer:
        return self

    def opened(self, context: ClientContext) -> None:
        self.seen.append("opened")

    def closed(self) -> None:
        self.seen.append("closed")


async def test_observer_sees_open_and_close(autojump_clock: Clock) -> None:
    watcher = Watcher()
    async with ready(plugins=[watcher]) as (_, producer):
        assert watcher.seen == ["opened"]
        await producer.aclose()
    assert watcher.seen == ["opened", "closed"]


async def test_hundred_requests_in_flight_complete(autojump_clock: Clock) -> None:
    settings = {
        "enable_idempotence": False,
        "max_in_flight_requests_per_connection": 100,
        "batch_size": 1,
    }
    async with (
        ScriptedCluster(nodes=1, topics={"t": 1}) as cluster,
        opened(cluster, **settings) as producer,
    ):
        await producer.send("t", b"first")
        cluster.delay("Produce", 0.05)
        acks = [await producer.enqueue("t", b"x") for _ in range(300)]
        for ack in acks:
            await ack.wait()
