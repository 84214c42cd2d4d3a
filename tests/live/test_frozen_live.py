"""A real broker is stopped (SIGSTOP) or restarted during every call of the consumer (seed 000).

Calls one by one, without time too, are in test_deadlines_live.py, and what is logged of a frozen
broker in tests/net/test_silent_brokers.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from cluster_waits import topic_reported
from trikafka_broker.cluster import KafkaCluster
from trikafka_broker.trio_api import Cluster

import trikafka
from trikafka import Consumer, KafkaTimeoutError, NewTopic, TopicPartition, TrikafkaError

LIMIT = 0.4
#: How late a call may be, in seconds. The virtual-time tests check the exact bound; here the machine
#: may be busy. A call that does not keep its limit would take a request's 30 s at least.
TOLERANCE = 25.0
#: How often a call is made until its error has a cause. A process that stands still for the whole
#: limit of a call, between two of its lines, ends the call before anything was tried.
TRIES = 20
T = TopicPartition("t", 0)
VALUES = [b"%d" % number for number in range(10)]

Call = Callable[[Consumer], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "beginning_offsets": lambda consumer: consumer.beginning_offsets([T], timeout=LIMIT),
    "end_offsets": lambda consumer: consumer.end_offsets([T], timeout=LIMIT),
    "offsets_for_times": lambda consumer: consumer.offsets_for_times({T: 0}, timeout=LIMIT),
    "committed": lambda consumer: consumer.committed([T], timeout=LIMIT),
    "commit": lambda consumer: consumer.commit({T: 3}, timeout=LIMIT),
    "position": lambda consumer: consumer.position(T, timeout=LIMIT),
    "partitions_for": lambda consumer: consumer.partitions_for("other", timeout=LIMIT),
    "list_topics": lambda consumer: consumer.list_topics(timeout=LIMIT),
    "receive_batch": lambda consumer: consumer.receive_batch(timeout=LIMIT),
}


class Dials:
    """A dial function that counts the connections of a client."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, host: str, port: int) -> trio.abc.Stream:
        self.count += 1
        return await trio.open_tcp_stream(host, port)


async def fill(bootstrap: str, topic: str = "t") -> None:
    async with trikafka.open_admin(bootstrap_servers=bootstrap) as admin:
        topics = {topic: NewTopic(1, 1), f"{topic}-other": NewTopic(2, 1)}
        await admin.create_topics(topics)
        for name, new in topics.items():
            await topic_reported(admin, name, new.partitions)
    async with trikafka.open_producer(bootstrap_servers=bootstrap) as producer:
        for value in VALUES:
            await producer.enqueue(topic, value)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Run one broker for the tests of this file, which freeze and restart it.

    Topic ``t`` is filled.
    """
    version = request.config.getoption("--kafka-version")
    options = {"version": version} if version else {}
    with KafkaCluster(**options) as started:
        started.start()
        trio.run(fill, started.bootstrap_servers)
        yield Cluster(started)


@asynccontextmanager
async def reading(bootstrap: str, **settings: Any) -> AsyncIterator[Consumer]:
    """Open a consumer that has read the topic to its end and has all its connections."""
    settings = {
        "group_id": "g",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    } | settings
    async with trikafka.open_consumer(bootstrap_servers=bootstrap, **settings) as consumer:
        consumer.assign([T])
        consumer.seek_to_beginning([T])
        found: list[bytes | None] = []
        while len(found) < len(VALUES):
            found += [record.value for record in await consumer.receive_batch()]
        assert found == VALUES
        await consumer.commit({T: 1})
        await consumer.end_offsets([T])
        yield consumer


async def timed(name: str, consumer: Consumer) -> float:
    """Make a call whose broker is frozen, until its error has a cause; return the longest time."""
    longest = 0.0
    for _ in range(TRIES):
        before = trio.current_time()
        cause: BaseException | None = None
        if name == "receive_batch":
            assert len(await CALLS[name](consumer)) == 0
        else:
            with pytest.raises(KafkaTimeoutError) as caught:
                await CALLS[name](consumer)
            assert caught.value.call == name
            cause = caught.value.__cause__
        took = trio.current_time() - before
        assert took >= LIMIT - 0.001
        longest = max(longest, took)
        if name == "receive_batch" or cause is not None:
            break
    assert name == "receive_batch" or isinstance(cause, TrikafkaError)
    return longest


def living_tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def test_each_call_keeps_its_limit(cluster: Cluster) -> None:
    """Each call ends at its limit while the broker is frozen, and the consumer continues."""
    broker, dials = cluster.brokers[0], Dials()
    async with reading(cluster.bootstrap_servers, dial=dials) as consumer:
        for _ in range(2):
            connections = dials.count
            await broker.freeze()
            try:
                consumer.seek_to_end([T])  # its position has to be looked up again
                assert await timed("position", consumer) < LIMIT + TOLERANCE
                await trio.testing.wait_all_tasks_blocked()
                tasks = living_tasks()
                took = await two_hundred_at_once(consumer)
                late = {name: max(times) for name, times in took.items()}
                assert max(late.values()) < LIMIT + TOLERANCE, late
                # Look-ups that calls share, heartbeats and dials come and go while the broker is
                # frozen. A call that leaves its task behind would leave 200 here.
                await trio.testing.wait_all_tasks_blocked()
                assert living_tasks() <= tasks + 20
            finally:
                await broker.thaw()
            await goes_on(consumer)
            # Existing connections survive a frozen broker. A client that dialled again would do so
            # for many of the 600 calls.
            assert dials.count - connections <= 10


async def two_hundred_at_once(consumer: Consumer) -> dict[str, list[float]]:
    """Make 200 of the calls at a time, of all kinds (one task receives)."""
    took: dict[str, list[float]] = {name: [] for name in CALLS}
    names = [name for name in CALLS if name != "receive_batch"]

    async def one(name: str) -> None:
        took[name].append(await timed(name, consumer))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one, "receive_batch")
        for number in range(200):
            nursery.start_soon(one, names[number % len(names)])
    assert sum(len(times) for times in took.values()) == 201
    return took


async def goes_on(consumer: Consumer) -> None:
    """Check that all slots are free again: hundreds of calls succeed, and records are read."""
    with trio.fail_after(240):
        async with trio.open_nursery() as nursery:
            for _ in range(150):
                nursery.start_soon(consumer.end_offsets, [T])
                nursery.start_soon(consumer.committed, [T])
        assert await consumer.beginning_offsets([T]) == {T: 0}
        assert (await consumer.offsets_for_times({T: 0}))[T] is not None
        await consumer.commit({T: 7})
        committed = await consumer.committed([T])
        assert committed[T] is not None
        assert committed[T].offset == 7
        assert len(await consumer.partitions_for("t-other")) == 2
        assert {"t", "t-other"} <= set(await consumer.list_topics())
        assert await consumer.position(T) == len(VALUES)
        consumer.seek(T, 8)
        found: list[bytes | None] = []
        while len(found) < 2:
            found += [record.value for record in await consumer.receive_batch()]
        assert found == VALUES[8:]


@pytest.mark.parametrize("subscribed", [True, False])
async def test_closing_keeps_its_limit(cluster: Cluster, subscribed: bool) -> None:
    tasks, broker = living_tasks(), cluster.brokers[0]
    settings = {
        "group_id": f"g{subscribed}",
        "auto_offset_reset": "earliest",
        "bootstrap_servers": cluster.bootstrap_servers,
    }
    async with trikafka.open_consumer(*(["t"] if subscribed else []), **settings) as consumer:
        if not subscribed:
            consumer.assign([T])
        assert (await consumer.receive()).value == VALUES[0]
        await broker.freeze()
        try:
            before = trio.current_time()
            await consumer.aclose(timeout=LIMIT)
            assert trio.current_time() - before < LIMIT + TOLERANCE
        finally:
            await broker.thaw()
    with trio.fail_after(240):
        while living_tasks() > tasks:  # noqa: ASYNC110
            await trio.sleep(0.05)


async def test_calls_survive_a_restart(cluster: Cluster) -> None:
    bootstrap = cluster.bootstrap_servers
    answered = dict.fromkeys(CALLS, 0)
    restarted = trio.Event()

    async def again_and_again(name: str, call: Call, consumer: Consumer) -> None:
        more = 3
        while more:
            more -= restarted.is_set()
            await call(consumer)
            answered[name] += 1

    endless: dict[str, Call] = {
        "beginning_offsets": lambda consumer: consumer.beginning_offsets([T], timeout=240),
        "end_offsets": lambda consumer: consumer.end_offsets([T], timeout=240),
        "offsets_for_times": lambda consumer: consumer.offsets_for_times({T: 0}, timeout=240),
        "committed": lambda consumer: consumer.committed([T], timeout=240),
        "commit": lambda consumer: consumer.commit({T: 3}, timeout=240),
        "partitions_for": lambda consumer: consumer.partitions_for("t-other", timeout=240),
        "list_topics": lambda consumer: consumer.list_topics(timeout=240),
    }
    async with reading(bootstrap) as consumer:
        with trio.fail_after(400):
            async with trio.open_nursery() as nursery:
                for name, call in endless.items():
                    nursery.start_soon(again_and_again, name, call, consumer)
                await cluster.brokers[0].restart()
                restarted.set()
        assert all(answered[name] > 3 for name in endless)
        async with trikafka.open_producer(bootstrap_servers=bootstrap) as producer:
            await producer.send("t-other", b"after", partition=0)
        consumer.assign([TopicPartition("t-other", 0)])
        assert (await consumer.receive()).value == b"after"
