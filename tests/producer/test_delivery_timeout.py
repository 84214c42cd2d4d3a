"""KIP-91: the exact expiry of batches in virtual time, and the phases that the error names."""

from __future__ import annotations

import copy
import itertools
import logging
import math
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow
import pytest
import trio
from producing import numbers, opened, ready, values
from trio.testing import MockClock as Clock

from trikafka import (
    BrokerResponseError,
    ConfigurationError,
    DeliveryTimeoutError,
    KafkaConnectionError,
    Producer,
    RecordMetadata,
)
from trikafka._net.deadlines import GRACE
from trikafka.config import ProducerConfig
from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster

QUICK = {"delivery_timeout_ms": 7_000, "request_timeout_ms": 5_000}


async def expires(producer: Producer, after: float = 7, **fields: Any) -> DeliveryTimeoutError:
    """Send a record that expires after ``after`` seconds; return its error."""
    start = trio.current_time()
    with pytest.raises(DeliveryTimeoutError) as caught:
        await producer.send("t", b"x", **fields)
    assert trio.current_time() - start == pytest.approx(after)
    error = caught.value
    assert (error.topic, error.partition, error.limit) == ("t", fields.get("partition", 0), after)
    assert sum(error.seconds.values()) == pytest.approx(after)
    assert error.phase in error.seconds
    return error


# --- where the time went --------------------------------------------------------------------------


async def test_phase_is_in_flight(autojump_clock: Clock) -> None:
    async with ready(**QUICK) as (cluster, producer):
        cluster.fail("Produce", ErrorCode.NOT_ENOUGH_REPLICAS)
        cluster.delay("Produce", 4.9)
        error = await expires(producer)
        assert (error.phase, error.maybe_written, error.attempts) == ("in flight", True, 2)
        assert error.seconds["in flight"] == pytest.approx(6.9, abs=0.05)
        assert str(error).endswith("; the record may nevertheless be in the log")


async def test_frozen_broker_ends_as_no_connection(autojump_clock: Clock) -> None:
    """The attempt has its whole request_timeout_ms.

    Then the connection is lost and no dial succeeds.
    """
    async with ready(**QUICK) as (cluster, producer):
        cluster.freeze(0)
        error = await expires(producer)
        assert (error.phase, error.maybe_written, error.attempts) == (
            "waiting for a connection",
            True,
            1,
        )
        assert error.seconds["in flight"] == pytest.approx(5)
        assert error.seconds["backoff"] == pytest.approx(0.1, rel=0.25)
        assert error.seconds["waiting for a connection"] == pytest.approx(1.9, rel=0.05)
        assert "no response while waiting for ApiVersions to broker-0:9092" in str(error.last_error)
        assert error.__cause__ is error.last_error


async def test_phase_is_no_connection(autojump_clock: Clock) -> None:
    async with ready(**QUICK) as (cluster, producer):
        cluster.stop(0)
        await trio.testing.wait_all_tasks_blocked()
        error = await expires(producer)
        assert (error.attempts, error.maybe_written) == (0, False)
        assert error.phase in ("waiting for a connection", "waiting for a leader")
        assert error.seconds == {error.phase: pytest.approx(7)}
        assert "the record is not in the log" in str(error)
        assert isinstance(error.last_error, KafkaConnectionError)


async def test_phase_is_backoff_after_a_refusal(autojump_clock: Clock) -> None:
    async with ready(**QUICK, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000) as (
        cluster,
        producer,
    ):
        cluster.fail("Produce", ErrorCode.NOT_ENOUGH_REPLICAS)
        error = await expires(producer)
        assert (error.phase, error.seconds, error.attempts) == ("backoff", {"backoff": 7}, 1)
        assert not error.maybe_written
        assert "NOT_ENOUGH_REPLICAS" in str(error)
        cause = error.__cause__
        assert isinstance(cause, BrokerResponseError)
        assert cause.code == ErrorCode.NOT_ENOUGH_REPLICAS


async def test_phase_is_no_leader(autojump_clock: Clock) -> None:
    async with ready(**QUICK, metadata_max_age_ms=500) as (cluster, producer):
        cluster.move_leader("t", 0, None)
        await trio.sleep(1)
        error = await expires(producer)
        assert (error.phase, error.seconds) == (
            "waiting for a leader",
            {"waiting for a leader": pytest.approx(7)},
        )
        assert not error.maybe_written


async def test_phase_is_no_producer_id(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster, **QUICK) as producer:
        cluster.fail("InitProducerId", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=None)
        error = await expires(producer)
        assert error.phase == "waiting for a producer id"
        assert error.seconds == {"waiting for a producer id": pytest.approx(7)}
        assert not error.maybe_written
        assert "COORDINATOR_LOAD_IN_PROGRESS" in str(error)


async def test_phase_is_waiting_behind_others(autojump_clock: Clock) -> None:
    """The first batch is sent again after its request timeout, expires in flight, and keeps its
    place.
    """
    async with ready(
        **QUICK, max_in_flight_requests_per_connection=1, enable_idempotence=False
    ) as (cluster, producer):
        cluster.delay("Produce", 6.9)
        await producer.enqueue("t", b"before")
        await trio.sleep(0.5)
        error = await expires(producer)
        assert (error.phase, error.seconds) == ("waiting", {"waiting": pytest.approx(7)})
        assert (error.attempts, error.maybe_written) == (0, False)
        assert str(error.__cause__) == "waiting; the leader is broker 0"


async def test_late_turn_counts_as_waiting(autojump_clock: Clock) -> None:
    settings = {
        "request_timeout_ms": 7_000,
        "delivery_timeout_ms": 7_000,
        "max_in_flight_requests_per_connection": 1,
    }
    async with ready(**settings) as (cluster, producer):
        cluster.delay("Produce", 6.9)
        await producer.enqueue("t", b"before")
        await trio.sleep(0.5)
        error = await expires(producer)
        assert (error.phase, error.attempts, error.maybe_written) == ("in flight", 1, True)
        assert error.seconds == {"waiting": pytest.approx(6.4), "in flight": pytest.approx(0.6)}


def test_error_can_be_copied_and_pickled() -> None:
    error = DeliveryTimeoutError(
        "send",
        7,
        2,
        None,
        topic="t",
        partition=3,
        phase="backoff",
        seconds={"backoff": 7},
        maybe_written=True,
    )
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert str(twin) == str(error)
        assert (twin.topic, twin.partition, twin.phase, twin.seconds, twin.maybe_written) == (
            "t",
            3,
            "backoff",
            {"backoff": 7},
            True,
        )
        assert (twin.call, twin.limit, twin.attempts) == ("send", 7, 2)


# --- what expires, and what does not --------------------------------------------------------------


async def test_one_in_flight_expires_in_order(autojump_clock: Clock) -> None:
    async with ready(**QUICK, batch_size=0, max_in_flight_requests_per_connection=1) as (
        cluster,
        producer,
    ):
        cluster.freeze(0)
        expired: list[tuple[int, float]] = []
        began = trio.current_time()

        async def one(number: int) -> None:
            with pytest.raises(DeliveryTimeoutError):
                await producer.send("t", b"%d" % number)
            expired.append((number, trio.current_time() - began))

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(one, number)
                await trio.sleep(0.25)
        assert expired == [(number, pytest.approx(7 + 0.25 * number)) for number in range(5)]


async def test_tasks_run_while_many_batches_expire(autojump_clock: Clock) -> None:
    count, seen = 20_000, [0]
    async with ready(**QUICK, batch_size=0, buffer_memory=2**26, close_timeout_ms=0) as (
        cluster,
        producer,
    ):
        cluster.freeze(0)
        began = trio.current_time()
        acks = [producer.send_nowait("t", b"") for _ in range(count)]
        await trio.sleep_until(began + 7)
        for _ in range(100):
            seen.append(producer.statistics().batches_expired)
            await trio.lowlevel.checkpoint()
        assert all(ack.done for ack in acks)
    assert seen[-1] == count
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 2_000, (
        "in one step of the loop"
    )


async def test_request_timeout_does_not_expire_a_batch(autojump_clock: Clock) -> None:
    """Each attempt ends after a second, and the batch is retried until a response is in time."""
    async with ready(delivery_timeout_ms=60_000, request_timeout_ms=1_000) as (cluster, producer):
        cluster.delay("Produce", 1.5, times=5)
        start = trio.current_time()
        await producer.send("t", b"x")
        assert 5 <= trio.current_time() - start < 60
        assert producer.statistics().batches_retried >= 4
        assert values(cluster) == [b"x"]


async def test_expired_request_keeps_its_connection(
    autojump_clock: Clock,
) -> None:
    """The connection of an expired batch waits for the whole request timeout."""
    async with ready(delivery_timeout_ms=5_000, request_timeout_ms=4_000) as (cluster, producer):
        cluster.fail("Produce", ErrorCode.NOT_ENOUGH_REPLICAS)
        cluster.delay("Produce", 3.99, times=2)
        start = trio.current_time()
        await expires(producer, 5)
        connections = cluster.connections()
        with trio.fail_after(20):
            await producer.send("t", b"y")  # waits for what became of the one before
        assert trio.current_time() - start == pytest.approx(2 * 3.99 + 0.1, abs=0.05)
        assert cluster.connections() == connections, "the connection was kept"
        assert values(cluster) == [b"x", b"y"]


async def test_infinite_timeout_never_expires(autojump_clock: Clock) -> None:
    async with ready(delivery_timeout_ms=math.inf, close_timeout_ms=1_000) as (cluster, producer):
        cluster.freeze(0)
        found: list[RecordMetadata] = []

        async def send() -> None:
            found.append(await producer.send("t", b"x"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.sleep(2_000)
            assert not found
            cluster.thaw(0)
        assert values(cluster) == [b"x"]


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("retries", [1, 3])
async def test_exhausted_retries_fail_at_once(
    retries: int, idempotent: bool, autojump_clock: Clock
) -> None:
    async with ready(retries=retries, enable_idempotence=idempotent) as (cluster, producer):
        cluster.fail("Produce", ErrorCode.NOT_ENOUGH_REPLICAS, times=1 + retries)
        start = trio.current_time()
        with pytest.raises(BrokerResponseError, match="NOT_ENOUGH_REPLICAS"):
            await producer.send("t", b"x")
        assert trio.current_time() - start < 2
        assert len(cluster.requests("Produce")) == 1 + 1 + retries  # the first is of `ready`
        await producer.send("t", b"y")
        assert values(cluster) == [b"y"]


def test_idempotence_needs_retries() -> None:
    assert not ProducerConfig.build({"bootstrap_servers": "a:1", "retries": 0}).enable_idempotence
    with pytest.raises(ConfigurationError, match="needs retries"):
        ProducerConfig.build({"bootstrap_servers": "a:1", "retries": 0, "enable_idempotence": True})


# --- settings -------------------------------------------------------------------------------------


def test_conflicting_timeouts_are_named() -> None:
    settings = {
        "bootstrap_servers": "a:1",
        "delivery_timeout_ms": 1_000,
        "linger_ms": 100,
        "request_timeout_ms": 901,
    }
    with pytest.raises(ConfigurationError) as caught:
        ProducerConfig.build(settings)
    for part in ("delivery_timeout_ms (1000)", "linger_ms (100)", "request_timeout_ms (901)"):
        assert part in str(caught.value)
    assert ProducerConfig.build(settings | {"request_timeout_ms": 900}), (
        "retry_backoff_ms does not count, as in Java's client"
    )


@pytest.mark.parametrize(
    ("settings", "bound"),
    [
        ({"max_in_flight_requests_per_connection": 6}, "at most 5"),
        ({"max_in_flight_requests_per_connection": 101}, "at most 5"),
        (
            {"max_in_flight_requests_per_connection": 101, "enable_idempotence": False},
            "at most 100",
        ),
        ({"max_in_flight_requests_per_connection": 101, "acks": 1}, "at most 100"),
        ({"max_in_flight_requests_per_connection": 0}, "at least 1"),
    ],
)
def test_requests_in_flight_have_one_bound(settings: dict[str, Any], bound: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ProducerConfig.build({"bootstrap_servers": "a:1"} | settings)
    assert bound in str(caught.value)
    assert str(caught.value).count("at most") + str(caught.value).count("at least") == 1


@pytest.mark.parametrize("acks", [0, 1])
def test_lower_acks_turn_idempotence_off(acks: int) -> None:
    """With enable_idempotence=True they are an error."""
    assert ProducerConfig.build({"bootstrap_servers": "a:1"}).enable_idempotence
    assert not ProducerConfig.build({"bootstrap_servers": "a:1", "acks": acks}).enable_idempotence
    with pytest.raises(ConfigurationError, match="needs acks='all'"):
        ProducerConfig.build({"bootstrap_servers": "a:1", "acks": acks, "enable_idempotence": True})


async def test_acks_1_needs_no_producer_id(autojump_clock: Clock) -> None:
    async with ready(acks=1) as (cluster, producer):
        await producer.send("t", b"x")
        assert values(cluster) == [b"x"]
        assert not cluster.requests("InitProducerId")


# --- at the close ---------------------------------------------------------------------------------


async def test_records_left_at_close_name_their_phase(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        async with opened(cluster, close_timeout_ms=3_000) as producer:
            await producer.send("t", b"first", partition=0)
            cluster.freeze(0)
            sent = await producer.enqueue("t", b"x", partition=0)
            await trio.sleep(1)
            cluster.move_leader("t", 1, None)
            waits = await producer.enqueue("t", b"y", partition=1)
        with pytest.raises(DeliveryTimeoutError, match="close did not finish within 3 s") as caught:
            await sent.wait()
        assert (caught.value.phase, caught.value.maybe_written, caught.value.partition) == (
            "in flight",
            True,
            0,
        )
        assert caught.value.seconds == {"in flight": pytest.approx(4)}
        with pytest.raises(DeliveryTimeoutError, match="close did not finish within 3 s") as caught:
            await waits.wait()
        assert (caught.value.partition, caught.value.seconds["in flight"]) == (1, pytest.approx(3))


async def test_many_failures_are_one_line_a_topic(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Other tasks run while 20,000 batches fail at the close."""
    turns = 0
    over = trio.Event()

    async def others() -> None:
        nonlocal turns
        await trio.sleep(GRACE)
        while not over.is_set():
            turns += 1
            await trio.lowlevel.checkpoint()

    async with ScriptedCluster(topics={"t": 2, "u": 1}) as cluster:
        async with opened(cluster, batch_size=0) as producer:
            await producer.send("t", b"first", partition=0)
            await producer.send("u", b"first")
            cluster.freeze(0)
            for number in range(20_000):
                producer.send_nowait(
                    "u" if number % 10 == 0 else "t",
                    b"x",
                    partition=0 if number % 10 == 0 else number % 2,
                )
            caplog.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(others)
                await producer.aclose(timeout=0)
                over.set()
        assert turns >= 20
        lines = [
            record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING
        ]
        assert sorted(line.split(" were")[0] for line in lines) == [
            "18000 records in 18000 batches for topic t (partitions 0, 1)",
            "2000 records in 2000 batches for topic u (partitions 0)",
        ]
        assert producer.statistics().buffer_used == 0


async def test_expiries_are_logged_once_a_second(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ready(**QUICK, batch_size=0) as (cluster, producer):
        cluster.freeze(0)
        caplog.clear()
        start = trio.current_time()
        for value in numbers(100):
            producer.send_nowait("t", value)
            await trio.sleep(0.025)
        await trio.sleep_until(start + 12)
        failure_lines = [
            record.getMessage()
            for record in caplog.records
            if "not delivered" in record.getMessage()
        ]
        assert 3 <= len(failure_lines) <= 4
        assert sum(int(line.split()[0]) for line in failure_lines) == 100
        assert producer.statistics().batches_expired == 100


async def _send(producer: Producer, started: trio.Event) -> None:
    started.set()
    await producer.send("t", b"1")


async def _wait(producer: Producer, started: trio.Event) -> None:
    ack = await producer.enqueue("t", b"1")
    started.set()
    await ack.wait()


@pytest.mark.parametrize("call", [_send, _wait])
async def test_failure_after_a_cancel_is_logged(
    call: Callable[[Producer, trio.Event], Awaitable[None]],
    autojump_clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The delivery goes on, and no task is left that could raise its failure."""
    async with ready(linger_ms=1_000) as (cluster, producer):
        cluster.fail("Produce", ErrorCode.TOPIC_AUTHORIZATION_FAILED, 1)
        started = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, producer, started)
            await started.wait()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await trio.sleep(2)
        assert "1 record for t-0 was not delivered" in caplog.text


async def test_failure_of_a_second_wait_is_raised(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, too: the cancelled task may have been another one."""
    async with ready(linger_ms=1_000) as (cluster, producer):
        cluster.fail("Produce", ErrorCode.TOPIC_AUTHORIZATION_FAILED, 1)
        ack = await producer.enqueue("t", b"1")
        with trio.move_on_after(0.1):
            await ack.wait()
        with pytest.raises(BrokerResponseError):
            await ack.wait()
        await trio.sleep(2)
        assert "1 record for t-0 was not delivered" in caplog.text


async def test_failure_beside_a_later_wait_is_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The cancelled task and the one that waits have records in the same batch."""
    async with ready(linger_ms=1_000) as (cluster, producer):
        cluster.fail("Produce", ErrorCode.TOPIC_AUTHORIZATION_FAILED, 1)
        with trio.move_on_after(0.1):
            await producer.send("t", b"1")
        ack = await producer.enqueue("t", b"2")
        with pytest.raises(BrokerResponseError):
            await ack.wait()
        await trio.sleep(2)
        assert "2 records for t-0 were not delivered" in caplog.text


async def test_failure_after_a_cancelled_table_is_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    table = pyarrow.table({"value": [b"x"] * 10})
    async with ready(linger_ms=1_000) as (cluster, producer):
        cluster.fail("Produce", ErrorCode.TOPIC_AUTHORIZATION_FAILED, 1)
        cluster.delay("Produce", 1)
        with trio.move_on_after(0.5) as scope:
            await producer.send_arrow("t", table)
        assert scope.cancelled_caught
        await trio.sleep(5)
        assert "10 records for t-0 were not delivered" in caplog.text
