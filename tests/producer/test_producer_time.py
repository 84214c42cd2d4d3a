"""Exact times of a producer in virtual time: linger, delivery timeout, max_block, request timeout,
backoff, close.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio
from producing import fill, numbers, opened, ready, values
from trio.testing import MockClock as Clock

from trikafka.errors import (
    DeliveryTimeoutError,
    KafkaTimeoutError,
    UnknownTopicOrPartitionError,
)
from trikafka.testing import ScriptedCluster


async def test_full_batch_does_not_linger(autojump_clock: Clock) -> None:
    async with ready(linger_ms=50, batch_size=1_000) as (_, producer):
        start = trio.current_time()
        await producer.send("t", b"alone")
        assert trio.current_time() - start == pytest.approx(0.05)
        start = trio.current_time()
        acks = [producer.send_nowait("t", b"x" * 300) for _ in range(4)]
        await acks[0].wait()
        assert trio.current_time() == start
        await acks[3].wait()
        assert trio.current_time() - start == pytest.approx(0.05)


async def test_flush_ends_the_linger(autojump_clock: Clock) -> None:
    async with ready(linger_ms=5_000) as (_, producer):
        start = trio.current_time()
        ack = producer.send_nowait("t", b"x")
        await producer.flush()
        assert ack.done
        assert trio.current_time() == start


async def test_record_fails_at_its_delivery_timeout(
    autojump_clock: Clock,
) -> None:
    async with ready(delivery_timeout_ms=7_000, request_timeout_ms=2_000) as (cluster, producer):
        cluster.stop(0)
        start = trio.current_time()
        with pytest.raises(DeliveryTimeoutError) as caught:
            await producer.send("t", b"x")
        assert trio.current_time() - start == pytest.approx(7)
        assert caught.value.limit == 7
        assert producer.statistics().buffer_used == 0


async def test_expired_batch_leaves_its_request_running(
    autojump_clock: Clock,
) -> None:
    """KIP-91: the outcome is known at the delivery timeout; the request keeps its own timeout."""
    async with ready(delivery_timeout_ms=10_000, request_timeout_ms=9_000) as (cluster, producer):
        cluster.fail("Produce", 19, times=1)
        cluster.delay("Produce", 6, times=2)
        start = trio.current_time()
        with pytest.raises(DeliveryTimeoutError, match="NOT_ENOUGH_REPLICAS") as caught:
            await producer.send("t", b"late")
        assert caught.value.attempts == 2
        assert trio.current_time() - start == pytest.approx(10)
        assert producer.statistics().requests_in_flight == 1
        assert producer.statistics().buffer_used > 0
        metadata = await producer.send("t", b"next")
        assert 12.08 <= trio.current_time() - start <= 12.12
        assert values(cluster) == [b"late", b"next"]
        assert metadata.offset == 2
        assert producer.statistics().buffer_used == 0
        epochs = {batch.info.producer_epoch for batch in cluster.partition("t", 0).batches}
        assert epochs == {0}, (
            "the broker reported the expired batch as written, so its number is no gap"
        )


async def test_frozen_broker_is_left_at_request_timeout(
    autojump_clock: Clock,
) -> None:
    async with ready(request_timeout_ms=4_000) as (cluster, producer):
        cluster.freeze(0)
        ack = await producer.enqueue("t", b"x")
        await trio.sleep(3.99)
        dials = len(cluster.dials)
        await trio.sleep(0.2)
        assert len(cluster.dials) > dials
        cluster.thaw(0)
        await ack.wait()
        assert values(cluster) == [b"x"], "the frozen broker took it twice; its number gave it away"


async def test_enqueue_waits_for_room_until_max_block(autojump_clock: Clock) -> None:
    async with ready(buffer_memory=2_000, max_block_ms=1_500, batch_size=500) as (
        cluster,
        producer,
    ):
        cluster.freeze(0)
        accepted = fill(producer)
        start = trio.current_time()
        with pytest.raises(KafkaTimeoutError, match="no room in buffer_memory") as caught:
            await producer.enqueue("t", b"z" * 300)
        assert trio.current_time() - start == pytest.approx(1.5)
        assert (caught.value.call, caught.value.limit) == ("enqueue", 1.5)
        cluster.thaw(0)
        await producer.enqueue("t", b"y" * 300)
        await producer.flush()
        assert values(cluster) == [b"x" * 300] * accepted + [b"y" * 300]


async def test_room_is_given_in_order_of_request(
    autojump_clock: Clock,
) -> None:
    """A full buffer ends the linger."""
    async with ready(buffer_memory=1_000, batch_size=500, linger_ms=60_000) as (cluster, producer):
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            for value in numbers(9):
                nursery.start_soon(producer.enqueue, "t", value + b"x" * 250)
                await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == start, "only a full buffer cuts the linger short"
        await producer.flush()
        assert [value[:3] for value in values(cluster) if value] == numbers(9)


async def test_small_record_does_not_overtake_for_room(
    autojump_clock: Clock,
) -> None:
    async with ready(buffer_memory=1_000, linger_ms=0) as (cluster, producer):
        cluster.freeze(0)
        await producer.enqueue("t", b"x" * 600)
        accepted: list[bytes] = []

        async def enqueue(value: bytes) -> None:
            await producer.enqueue("t", value)
            accepted.append(value)

        async with trio.open_nursery() as nursery:
            for value in (b"l" * 700, b"s"):
                nursery.start_soon(enqueue, value)
                await trio.testing.wait_all_tasks_blocked()
            assert accepted == [], "the small one would fit"
            cluster.thaw(0)
        assert accepted == [b"l" * 700, b"s"]


async def test_unknown_topic_is_an_error_soon(autojump_clock: Clock) -> None:
    async with ready() as (_, producer):
        start = trio.current_time()
        with pytest.raises(UnknownTopicOrPartitionError, match="'nowhere'"):
            await producer.send("nowhere", b"x")
        assert 3 <= trio.current_time() - start <= 4.5
        with pytest.raises(UnknownTopicOrPartitionError, match="no partition 5"):
            await producer.send("t", b"x", partition=5)
        assert await producer.partitions_for("nowhere") == []
        with pytest.raises(trio.WouldBlock):
            producer.send_nowait("nowhere", b"x")


async def test_new_topic_is_waited_for(autojump_clock: Clock) -> None:
    async with ready() as (cluster, producer), trio.open_nursery() as nursery:
        nursery.start_soon(producer.send, "new", b"x")
        await trio.sleep(2)
        cluster.create_topic("new")
    assert [record.value for record in cluster.records("new", 0)] == [b"x"]


async def test_missing_metadata_ends_at_max_block(autojump_clock: Clock) -> None:
    async with ready(max_block_ms=2_500) as (cluster, producer):
        cluster.create_topic("other")
        cluster.freeze(0)
        start = trio.current_time()
        with pytest.raises(KafkaTimeoutError):
            await producer.send("other", b"x")
        assert trio.current_time() - start == pytest.approx(2.5)
        cluster.thaw(0)
        await producer.send("other", b"x")


async def test_max_block_0_tries_once(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        opened(cluster, max_block_ms=0) as producer,
    ):
        await producer.send("t", b"x")
        assert values(cluster) == [b"x"]


async def test_retry_backoff_grows(autojump_clock: Clock) -> None:
    async with ready() as (cluster, producer):
        cluster.fail("Produce", 19, times=3)
        start = trio.current_time()
        await producer.send("t", b"x")
        times = [seen.time - start for seen in cluster.requests("Produce")[1:]]
        waits = [later - earlier for earlier, later in pairwise(times)]
        assert len(waits) == 3
        for wait, expected in zip(waits, (0.1, 0.2, 0.4), strict=True):
            assert 0.8 * expected <= wait <= 1.2 * expected + 0.001
        assert producer.statistics().batches_retried == 3


async def test_flush_raises_at_its_timeout(autojump_clock: Clock) -> None:
    async with ready() as (cluster, producer):
        cluster.freeze(0)
        ack = producer.send_nowait("t", b"x")
        start = trio.current_time()
        with pytest.raises(KafkaTimeoutError, match="flush"):
            await producer.flush(timeout=0.5)
        assert trio.current_time() - start == pytest.approx(0.5)
        with pytest.raises(ValueError, match="timeout"):
            await producer.flush(timeout=-1)
        cluster.thaw(0)
        await ack.wait()


async def test_flush_with_timeout_0_has_a_round_trip(autojump_clock: Clock) -> None:
    async with ready(linger_ms=5_000) as (_, producer):
        ack = producer.send_nowait("t", b"x")
        await producer.flush(timeout=0)
        assert ack.done


# --- the way out ----------------------------------------------------------------------------------


async def test_exit_flushes(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        async with opened(cluster, linger_ms=60_000) as producer:
            acks = [await producer.enqueue("t", value) for value in numbers(20)]
            start = trio.current_time()
        assert trio.current_time() == start
        assert [(await ack.wait()).offset for ack in acks] == list(range(20))
        assert cluster.connections() == 0


async def test_exit_fails_records_at_its_limit(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        async with opened(cluster, close_timeout_ms=3_000) as producer:
            await producer.send("t", b"first")
            cluster.freeze(0)
            ack = await producer.enqueue("t", b"x")
            start = trio.current_time()
        assert trio.current_time() - start == pytest.approx(3)
        with pytest.raises(DeliveryTimeoutError, match="close did not finish within 3 s"):
            await ack.wait()
        assert producer.statistics().buffer_used == 0


async def test_exception_is_raised_after_a_flush(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(KeyError):  # noqa: PT012
            async with opened(cluster, linger_ms=60_000) as producer:
                await producer.enqueue("t", b"x")
                raise KeyError("mine")
        assert values(cluster) == [b"x"]


@pytest.mark.parametrize(("frozen", "limit"), [(False, 0.0), (True, 1.0)])
async def test_cancelled_exit_flushes_for_a_second(
    frozen: bool, limit: float, autojump_clock: Clock
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with trio.CancelScope() as scope:
            async with opened(cluster, linger_ms=60_000) as producer:
                ack = await producer.enqueue("t", b"x")
                if frozen:
                    cluster.freeze(0)
                start = trio.current_time()
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert trio.current_time() - start == pytest.approx(limit)
        assert ack.done
        assert producer.statistics().buffer_used == 0
        assert cluster.connections() == 0


async def test_closed_producer_refuses_calls(autojump_clock: Clock) -> None:
    async with ready(linger_ms=60_000) as (cluster, producer):
        ack = producer.send_nowait("t", b"x")
        await producer.aclose()
        assert ack.done
        await producer.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert cluster.connections() == 0
        for call in (
            lambda: producer.send("t", b"x"),
            lambda: producer.enqueue("t", b"x"),
            producer.flush,
            lambda: producer.partitions_for("t"),
        ):
            with pytest.raises(trio.ClosedResourceError):
                await call()
        with pytest.raises(trio.ClosedResourceError):
            producer.send_nowait("t", b"x")
        with pytest.raises(ValueError, match="timeout"):
            await producer.aclose(timeout=-1)


async def test_closing_wakes_waiters_for_room(autojump_clock: Clock) -> None:
    async with ready(buffer_memory=1_000) as (cluster, producer):
        cluster.freeze(0)
        assert fill(producer) > 0

        async def wait() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await producer.enqueue("t", b"x" * 300)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await producer.aclose(timeout=0)
        assert producer.statistics().tasks_waiting == 0


async def test_closing_refuses_waiting_records(
    autojump_clock: Clock,
) -> None:
    """Records that were accepted before are delivered."""
    async with ready(buffer_memory=1_000) as (cluster, producer):
        cluster.delay("Produce", 1)
        accepted = fill(producer)
        refused = 0

        async def late() -> None:
            nonlocal refused
            with pytest.raises(trio.ClosedResourceError):
                await producer.enqueue("t", b"y" * 300)
            refused += 1

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(late)
            await trio.testing.wait_all_tasks_blocked()
            start = trio.current_time()
            await producer.aclose()
        assert trio.current_time() - start >= 1
        assert refused == 3
        assert values(cluster) == [b"x" * 300] * accepted


async def test_aclose_with_timeout_0_has_a_round_trip(autojump_clock: Clock) -> None:
    async with ready(linger_ms=5_000) as (cluster, producer):
        producer.send_nowait("t", b"x")
        await producer.aclose(timeout=0)
        assert values(cluster) == [b"x"]
