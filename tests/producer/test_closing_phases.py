"""The phases in the error of a record that is left at a close past its limit."""

from __future__ import annotations

import pytest
import trio
from producing import opened, ready
from trio.testing import MockClock as Clock

from trikafka import BrokerResponseError, DeliveryTimeoutError, KafkaConnectionError
from trikafka._api.producer.ack import Ack
from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster


async def left_behind(ack: Ack) -> DeliveryTimeoutError:
    with pytest.raises(DeliveryTimeoutError, match="close did not finish within 3 s") as caught:
        await ack.wait()
    assert sum(caught.value.seconds.values()) == pytest.approx(4)
    return caught.value


async def test_phase_is_waiting_for_a_connection(autojump_clock: Clock) -> None:
    async with ready(close_timeout_ms=3_000) as (cluster, producer):
        cluster.stop(0)
        await trio.testing.wait_all_tasks_blocked()
        ack = await producer.enqueue("t", b"x")
        await trio.sleep(1)
    error = await left_behind(ack)
    assert (error.phase, error.maybe_written, error.attempts) == (
        "waiting for a connection",
        False,
        0,
    )
    assert error.seconds == {"waiting for a connection": pytest.approx(4)}
    assert isinstance(error.__cause__, KafkaConnectionError)


async def test_phase_is_backoff(autojump_clock: Clock) -> None:
    async with ready(
        close_timeout_ms=3_000, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000
    ) as (cluster, producer):
        cluster.fail("Produce", ErrorCode.NOT_ENOUGH_REPLICAS)
        ack = await producer.enqueue("t", b"x")
        await trio.sleep(1)
    error = await left_behind(ack)
    assert (error.phase, error.maybe_written, error.attempts) == ("backoff", False, 1)
    assert error.seconds == {"backoff": pytest.approx(4)}
    assert isinstance(error.__cause__, BrokerResponseError)
    assert error.__cause__.code == ErrorCode.NOT_ENOUGH_REPLICAS


async def test_phase_is_waiting_for_a_leader(autojump_clock: Clock) -> None:
    async with ready(close_timeout_ms=3_000, metadata_max_age_ms=500) as (cluster, producer):
        cluster.move_leader("t", 0, None)
        await trio.sleep(1)
        ack = await producer.enqueue("t", b"x")
        await trio.sleep(1)
    error = await left_behind(ack)
    assert (error.phase, error.maybe_written) == ("waiting for a leader", False)


async def test_phase_is_waiting_for_a_producer_id(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.fail("InitProducerId", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=None)
        async with opened(cluster, close_timeout_ms=3_000) as producer:
            ack = await producer.enqueue("t", b"x")
            await trio.sleep(1)
    error = await left_behind(ack)
    assert (error.phase, error.maybe_written) == ("waiting for a producer id", False)
    assert "COORDINATOR_LOAD_IN_PROGRESS" in str(error)


async def test_failed_close_names_no_negative_limit(autojump_clock: Clock) -> None:
    """A block that an error ends has no time left, and says so."""
    ack: Ack | None = None
    with pytest.raises(LookupError):  # noqa: PT012
        async with ready(close_timeout_ms=0) as (cluster, producer):
            cluster.stop(0)
            ack = await producer.enqueue("t", b"x")
            raise LookupError
    assert ack is not None
    with pytest.raises(DeliveryTimeoutError, match="close did not finish within 0 s"):
        await ack.wait()
