"""Topics that come and go: a producer that runs for weeks keeps nothing of the deleted ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from accumulating import Bench
from producing import ready, values
from trio.testing import MockClock as Clock

from trikafka._state.producer.sequences import ProducerIdentity
from trikafka.errors import ErrorCode, KafkaConnectionError

#: Longer (seconds) than the default of ``metadata_max_age_ms``.
_LONG = 600


def kept(bench: Bench) -> list[str]:
    """Return the partitions of which the accumulator knows anything."""
    found = bench.accumulator._queues
    rows = bench.accumulator.producer._partitions
    return sorted({str(place) for place in (*found._queues, *rows, *found._blocked_since)})


async def test_deleted_topics_are_not_asked_for(autojump_clock: Clock) -> None:
    async with ready() as (cluster, producer):
        for number in range(5):
            cluster.create_topic(f"d{number}", 1)
            await producer.send(f"d{number}", b"x")
            cluster.delete_topic(f"d{number}")
        await trio.sleep(2 * _LONG)
        before = len(cluster.requests("Metadata"))
        await trio.sleep(_LONG)
        asked = cluster.requests("Metadata")[before:]
        assert {topic.name for seen in asked for topic in seen.request.topics} == {"t"}
        assert len(asked) <= 3


@pytest.mark.parametrize("times", [1, 2])
async def test_stale_responses_forget_no_topic(autojump_clock: Clock, times: int) -> None:
    """Each alone, with good ones in between."""

    async def lag(_: Any, respond: Callable[[], Awaitable[Any]]) -> Any:
        response = await respond()
        for topic in response.topics:
            topic.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topic.partitions = []
        return response

    async with ready() as (cluster, producer):
        for _ in range(times):
            stale = cluster.on("Metadata", lag, times=1)
            await trio.sleep(360)
            assert stale.used == 1
        producer.send_nowait("t", b"later")
        await producer.flush()
        assert values(cluster) == [b"later"]


async def test_topic_with_waiting_batches_is_not_forgotten(autojump_clock: Clock) -> None:
    async with ready(delivery_timeout_ms=1_200_000, linger_ms=5_000) as (cluster, producer):
        producer.send_nowait("t", b"kept")
        cluster.delete_topic("t")
        await trio.sleep(500)
        cluster.create_topic("t", 1)
        await trio.sleep(20)
        assert values(cluster) == [b"kept"]


async def test_topic_that_returns_is_found_again(autojump_clock: Clock) -> None:
    async with ready() as (cluster, producer):
        cluster.delete_topic("t")
        await trio.sleep(_LONG)
        cluster.create_topic("t", 1)
        await producer.send("t", b"again")
        assert values(cluster) == [b"again"]


@pytest.mark.parametrize("idempotent", [True, False])
def test_forgotten_topic_leaves_nothing_behind(idempotent: bool) -> None:
    bench = Bench(0, None, idempotent=idempotent)
    bench.prove(0)
    assert kept(bench) == ["t-0", "t-1"]
    bench.accumulator.forget_topic("t")
    assert kept(bench) == []


def test_waiting_batches_keep_their_partition() -> None:
    bench = Bench(0, 0)
    bench.prove(0)
    bench.fill(1, 1)
    bench.accumulator.forget_topic("t")
    assert kept(bench) == ["t-1"]
    bench.now += 61
    assert bench.accumulator.completion.expire(bench.now, 10) == 1
    assert kept(bench) == []


def test_batch_in_flight_keeps_its_partition() -> None:
    bench = Bench(0)
    (batch,) = bench.fill(1)
    bench.drain()
    bench.accumulator.forget_topic("t")
    bench.now += 61
    bench.accumulator.completion.expire(bench.now, 10)
    assert kept(bench) == ["t-0"]
    bench.accumulator.completion.refused(batch, KafkaConnectionError("lost"), bench.now)
    assert kept(bench) == []


def test_batches_of_a_forgotten_topic_can_be_flushed() -> None:
    bench = Bench(0)
    bench.prove()
    (batch,) = bench.fill(1)
    bench.drain()
    bench.accumulator.completion.succeeded(batch, 1, None)
    bench.accumulator.forget_topic("t")
    bench.accumulator.flush_batches([batch])


def test_returned_partition_has_a_newer_epoch() -> None:
    """The metadata may have been wrong, and its broker may know the last numbers."""
    bench = Bench(0, 0)
    bench.prove(0)
    bench.prove(1)
    bench.accumulator.update_topic("t", [0])
    bench.accumulator.update_topic("t", [0, 0])
    returned, stayed = *bench.fill(1, 1), *bench.fill(1, 0)
    bench.drain()
    assert (returned.identity, returned.sequence) == (ProducerIdentity(1000, 1), 0)
    assert (stayed.identity, stayed.sequence) == (ProducerIdentity(1000, 0), 1)
