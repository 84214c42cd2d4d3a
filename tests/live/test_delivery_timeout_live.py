"""``delivery_timeout_ms`` (KIP-91) against a frozen broker, and a proxy with faults."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from cluster_waits import topic_reported
from trikafka_broker import Cluster, Fault, FaultProxy, Rule
from trikafka_broker.pytest_plugin import _open

from benchmarks.soak import opened_at_last
from trikafka import (
    DeliveryTimeoutError,
    NewTopic,
    Producer,
    TopicPartition,
    open_admin,
    open_consumer,
    open_producer,
)

LIMIT = 1.5
#: How late the outcome may be, in seconds, on a busy machine; the virtual-time tests are exact. A
#: record without this limit would wait for two minutes.
LATE = 90.0


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Run one broker, which the tests of this file freeze; topic ``t`` has two partitions."""
    with _open(request.config, {}) as started:
        trio.run(_make_topic, started.bootstrap_servers)
        yield Cluster(started)


async def _make_topic(bootstrap: str) -> None:
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics({"t": NewTopic(2, 1)})
        await topic_reported(admin, "t", 2)


async def delivered(producer: Producer, value: bytes, partition: int) -> bytes:
    """Send a record until one is delivered, despite any standstill; return its value."""
    with trio.fail_after(240):
        for attempt in itertools.count():
            with suppress(DeliveryTimeoutError):
                await producer.send("t", last := b"%s %d" % (value, attempt), partition=partition)
                break
    return last


@asynccontextmanager
async def writing(cluster: Cluster, **settings: Any) -> AsyncIterator[Producer]:
    """Open a producer that has delivered a record and gives the next ones ``LIMIT`` seconds."""
    given = {
        "delivery_timeout_ms": LIMIT * 1000,
        "request_timeout_ms": 1_000,
        "linger_ms": 0,
        "batch_size": 0,
    } | settings
    async with AsyncExitStack() as stack:
        producer = await opened_at_last(
            stack, lambda: open_producer(bootstrap_servers=cluster.bootstrap_servers, **given)
        )
        await delivered(producer, b"first", 0)
        await delivered(producer, b"first", 1)
        yield producer


async def expires(producer: Producer, value: bytes, partition: int, what: str) -> None:
    """Send a record that is not delivered; check the time of its error."""
    before = trio.current_time()
    with pytest.raises(DeliveryTimeoutError):
        await producer.send("t", value, partition=partition)
    assert LIMIT - 0.005 <= trio.current_time() - before < LIMIT + LATE, what


async def all_expire(producer: Producer, count: int, what: str = "") -> None:
    """Expire several records in two partitions, each in its own batch, in flight and waiting."""
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(expires, producer, b"%d" % number, number % 2, what)
            await trio.sleep(0.01)


async def log_of(cluster: Cluster, partition: int) -> list[bytes | None]:
    async with open_consumer(
        bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        place = TopicPartition("t", partition)
        consumer.assign([place])
        end = (await consumer.end_offsets([place]))[place]
        found: list[bytes | None] = []
        while len(found) < end:
            found += [record.value for record in await consumer.receive_batch()]
        return found


@pytest.mark.parametrize("in_flight", [1, 5])
async def test_records_expire_at_a_frozen_broker(cluster: Cluster, in_flight: int) -> None:
    broker = cluster.brokers[0]
    async with writing(cluster, max_in_flight_requests_per_connection=in_flight) as producer:
        await broker.freeze()
        try:
            await all_expire(producer, 12)
        finally:
            await broker.thaw()
        marker = await delivered(producer, b"after the frost %d" % in_flight, 0)
    found = await log_of(cluster, 0)
    assert found.count(marker) == 1


TROUBLES = ("silence", "no connection", "every connection cut", "responses lost", "requests lost")


async def test_records_expire_behind_a_faulty_proxy(cluster: Cluster) -> None:
    """Records expire in time behind a proxy with each kind of fault.

    Each fault has a proxy and a producer of its own: all at once take no longer than one.
    """
    async with trio.open_nursery() as nursery:
        for what in TROUBLES:
            nursery.start_soon(behind_a_proxy, cluster, what, name=what)


async def behind_a_proxy(cluster: Cluster, what: str) -> None:
    port = cluster.brokers[0].port
    async with FaultProxy.open(cluster.bootstrap_servers.split(",")) as proxy:
        async with writing(cluster, dial=proxy.dial) as producer:
            match what:
                case "silence":
                    proxy.hold(port)
                case "no connection":
                    proxy.hold(port)
                    proxy.cut()
                case "every connection cut":
                    proxy.add(Rule(Fault.CUT_BEFORE_RESPONSE, times=1_000))
                case "responses lost":
                    proxy.add(Rule(Fault.LOSE_RESPONSE, times=1_000))
                case _:
                    proxy.add(Rule(Fault.LOSE_REQUEST, times=1_000))
            await all_expire(producer, 8, what)
            proxy.forget()
            proxy.release(port)
            last = await delivered(producer, what.encode(), 1)
    found = await log_of(cluster, 1)
    assert found.count(last) == 1, what
