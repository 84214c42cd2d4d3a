"""Reports of a throttle: seldom in the log, exactly in the statistics, in errors and ``health()``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import trio
from netting import NODE, metadata_request, open_parts, throttle
from trio.testing import MockClock as Clock

from trikafka import (
    BrokerThrottle,
    DeliveryTimeoutError,
    KafkaTimeoutError,
    TopicPartition,
    open_consumer,
    open_producer,
)
from trikafka._net.reminders import REMINDER
from trikafka._net.throttles import Throttles
from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster
from trikafka.types import Node

WHY = "after {}, by its quota {}request_percentage"
PRODUCE = WHY.format("Produce", "producer_byte_rate or ")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    """Return the log lines about brokers, at any level."""
    caplog.set_level(logging.DEBUG)
    return lambda: [
        (each.levelname, each.getMessage())
        for each in caplog.records
        if each.name == "trikafka.brokers"
    ]


def opened(cluster: ScriptedCluster, **settings: Any) -> Any:
    return open_producer(
        bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial, linger_ms=0, **settings
    )


async def test_throttle_is_logged_every_five_minutes(autojump_clock: Clock, lines: Any) -> None:
    """A quota in use for ten minutes: 2 s of each 10 s. The line has the total."""
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        throttle(cluster, 2000, api="Metadata", times=None)
        for _ in range(61):
            await parts.brokers.request(NODE, metadata_request())
            await trio.sleep_until(trio.current_time() // 10 * 10 + 10)
        assert [seen.time for seen in cluster.requests("Metadata")] == [
            10 * number for number in range(61)
        ]
    first = (
        "broker 0 at broker-0:9092 throttles this client: nothing is sent to it for 2 s "
        f"{WHY.format('Metadata', '')}"
    )
    later = (
        "broker 0 at broker-0:9092 has throttled this client for 60.0 s in the last "
        f"{REMINDER:.0f} s (30 responses asked for it), "
        "last for 2 s after Metadata, by its quota request_percentage"
    )
    assert lines() == [("WARNING", first), ("WARNING", later), ("WARNING", later)]


async def test_short_throttle_is_counted_and_not_logged(autojump_clock: Clock, lines: Any) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        throttle(cluster, 99, api="Metadata", times=3)
        for _ in range(4):
            await parts.brokers.request(NODE, metadata_request())
        assert trio.current_time() == pytest.approx(0.297)
        assert not lines()
        assert parts.brokers.throttles.statistics() == {
            0: BrokerThrottle(pytest.approx(0.297), 0.099, 0, 3, "Metadata")
        }
        assert not parts.brokers.throttles.now()


async def test_overlapping_throttles_count_once(autojump_clock: Clock) -> None:
    throttles = Throttles()
    throttles.throttled(NODE, "Fetch", 3)
    await trio.sleep(1)
    throttles.throttled(NODE, "Metadata", 1)  # over before the other is
    assert throttles.statistics()[0] == BrokerThrottle(1, 1, 2, 2, "Metadata")
    throttles.throttled(NODE, "Fetch", 4)
    assert throttles.statistics()[0] == BrokerThrottle(1, 4, 4, 3, "Fetch")
    await trio.sleep(10)
    assert throttles.statistics()[0] == BrokerThrottle(5, 4, 0, 3, "Fetch")


async def test_a_hundred_lost_brokers_are_remembered(autojump_clock: Clock) -> None:
    throttles = Throttles()
    for number in range(-1, 300):
        throttles.throttled(Node(number, "broker", 9092), "Fetch", 1)
    throttles.keep_only(frozenset({Node(7, "broker", 9092, "rack")}))
    assert set(throttles.statistics()) == {-1, 7, *range(200, 300)}


async def test_producer_reports_the_throttle(autojump_clock: Clock, lines: Any) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as producer:
        assert dict(producer.statistics().throttled) == {}
        throttle(cluster, 6000, api="Produce")
        await producer.send("t", b"a")
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send, "t", b"b")
            await trio.sleep(2)
            assert producer.statistics().throttled == {0: BrokerThrottle(2, 6, 4, 1, "Produce")}
            health = producer.health()
            assert (health.ok, health.reasons, health.oldest_unsent) == (True, (), 2)
            description = (
                "broker 0 at broker-0:9092 throttles this client: 4.0 s more, 2.0 s so far, "
                f"{PRODUCE}"
            )
            assert {node.node_id: how for node, how in health.throttled.items()} == {0: description}
        assert trio.current_time() - start == 6
        assert producer.statistics().throttled == {0: BrokerThrottle(6, 6, 0, 1, "Produce")}
        # The report holds for a moment longer, because the next throttle comes with the next
        # response.
        assert producer.health().throttled
        await trio.sleep(1)
        assert not producer.health().throttled
    text = (
        f"broker 0 at broker-0:9092 throttles this client: nothing is sent to it for 6 s {PRODUCE}"
    )
    assert lines() == [("WARNING", text)]


async def test_expired_record_names_the_throttle(autojump_clock: Clock) -> None:
    settings = {
        "delivery_timeout_ms": 3000,
        "request_timeout_ms": 3000,
        "max_in_flight_requests_per_connection": 1,
    }
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        opened(cluster, **settings, batch_size=0) as producer,
    ):
        throttle(cluster, 6000, api="Produce")
        await producer.send("t", b"a")
        errors = []

        async def expires(value: bytes) -> None:
            with pytest.raises(DeliveryTimeoutError) as caught:
                await producer.send("t", value)
            errors.append(caught.value)

        start = trio.current_time()
        # The first request has begun, and the second waits for its turn.
        async with trio.open_nursery() as nursery:
            for value in (b"b", b"c"):
                nursery.start_soon(expires, value)
        assert trio.current_time() - start == 3
        description = (
            f"broker 0 at broker-0:9092 throttles this client: 3.0 s more, 3.0 s so far, {PRODUCE}"
        )
        assert [str(error.last_error) for error in errors] == [description, description]
        assert all(
            description in str(error) and error.__cause__ is error.last_error for error in errors
        )
        assert {error.phase for error in errors} == {"in flight", "waiting"}


async def test_refused_record_keeps_its_cause(autojump_clock: Clock) -> None:
    settings = {
        "delivery_timeout_ms": 3000,
        "request_timeout_ms": 3000,
        "retry_backoff_ms": 60_000,
        "retry_backoff_max_ms": 60_000,
    }
    async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster, **settings) as producer:
        cluster.fail("Produce", ErrorCode.NOT_ENOUGH_REPLICAS)
        async with trio.open_nursery() as nursery:

            async def expires() -> None:
                with pytest.raises(DeliveryTimeoutError) as caught:
                    await producer.send("t", b"a", partition=0)
                assert (
                    getattr(caught.value.last_error, "code", None) == ErrorCode.NOT_ENOUGH_REPLICAS
                )

            nursery.start_soon(expires)
            await trio.sleep(1)
            throttle(cluster, 6000, api="Produce")
            await producer.send("t", b"b", partition=1)


async def test_cut_off_flush_names_the_throttle(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as producer:
        throttle(cluster, 6000, api="Produce")
        await producer.send("t", b"a")
        producer.send_nowait("t", b"b")
        with pytest.raises(KafkaTimeoutError) as caught:
            await producer.flush(timeout=2)
        description = (
            "Produce to broker-0:9092 (broker 0 at broker-0:9092 throttles this client: 4.0 s "
            f"more, 2.0 s so far, {PRODUCE})"
        )
        assert description in str(caught.value)


async def test_bad_health_names_the_throttle(autojump_clock: Clock) -> None:
    settings = {"request_timeout_ms": 1000, "delivery_timeout_ms": 60_000}
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster, **settings) as producer:
        throttle(cluster, 6000, api="Produce")
        await producer.send("t", b"a")
        producer.send_nowait("t", b"b")
        await trio.sleep(4)
        (reason,) = producer.health().reasons
        assert reason.startswith(
            "t-0: a record has had no outcome for 4 s (in flight): broker 0 at broker-0:9092 "
            "throttles this"
        )


async def test_consumer_reports_the_throttle(autojump_clock: Clock, lines: Any) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        open_consumer(bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial) as consumer,
    ):
        place = TopicPartition("t", 0)
        await consumer.end_offsets([place])
        throttle(cluster, 5000, api="ListOffsets")
        await consumer.end_offsets([place])
        with pytest.raises(KafkaTimeoutError) as caught:
            await consumer.end_offsets([place], timeout=2)
        assert "ListOffsets to broker-0:9092, which throttles this client" in str(caught.value)
        assert consumer.statistics().throttled == {0: BrokerThrottle(2, 5, 3, 1, "ListOffsets")}
        assert consumer.health().ok
        assert [node.node_id for node in consumer.health().throttled] == [0]
    why = WHY.format("ListOffsets", "")
    assert lines() == [
        (
            "WARNING",
            f"broker 0 at broker-0:9092 throttles this client: nothing is sent to it for 5 s {why}",
        )
    ]
