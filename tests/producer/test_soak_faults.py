"""What soaks through a fault proxy have found: nothing acknowledged is lost or doubled, whatever gets lost on the way.

Each test is one way in which a number of an idempotent producer gets out of step with what the broker has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from producing import numbers, ready, values
from trio.testing import MockClock as Clock

from trikafka import DeliveryTimeoutError, OutOfOrderSequenceError, TrikafkaError
from trikafka._api.ack import Ack
from trikafka._api.producer import Producer
from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster, faults

Default = Callable[[], Awaitable[Any]]


async def enqueue_apart(producer: Producer, count: int, *, first: int = 0, pause: float = 0.01) -> list[Ack]:
    """Records, each a batch of its own, with a pause after each."""
    acks = []
    for value in numbers(first + count)[first:]:
        acks.append(await producer.enqueue("t", value, partition=0))
        await trio.sleep(pause)
    return acks


async def fates(acks: list[Ack]) -> list[str]:
    """What became of each record: delivered, or the name of its error."""
    found = []
    for ack in acks:
        try:
            await ack.wait()
            found.append("delivered")
        except TrikafkaError as error:
            found.append(type(error).__name__)
    return found


def lose_response(cluster: ScriptedCluster) -> None:
    """The broker carries the next Produce out and sends no response; what comes after it is answered."""

    async def carry_out(request: Any, default: Default) -> None:
        await default()

    cluster.on("Produce", carry_out, times=1)


@pytest.mark.parametrize("behind", [0, 1, 4, 5, 6, 20])
async def test_a_response_that_is_lost_alone_doubles_nothing(behind: int, autojump_clock: Clock) -> None:
    async with ready(request_timeout_ms=5_000) as (cluster, producer):
        lose_response(cluster)
        with trio.fail_after(60):
            acks = await enqueue_apart(producer, 1 + behind)
            assert await fates(acks) == ["delivered"] * (1 + behind)
        assert values(cluster) == numbers(1 + behind)


@pytest.mark.parametrize("behind", [1, 4, 5, 6, 20])
async def test_a_request_that_is_lost_alone_doubles_nothing(behind: int, autojump_clock: Clock) -> None:
    async def lose(request: Any, default: Default) -> None:
        pass

    async with ready(request_timeout_ms=5_000) as (cluster, producer):
        cluster.on("Produce", lose, times=1)
        with trio.fail_after(60):
            acks = await enqueue_apart(producer, 1 + behind)
            assert await fates(acks) == ["delivered"] * (1 + behind)
        assert values(cluster) == numbers(1 + behind)


@pytest.mark.parametrize("behind", [0, 3, 10])
@pytest.mark.parametrize("change", ["cut", "strange_id"])
async def test_a_damaged_response_is_a_lost_connection(change: str, behind: int, autojump_clock: Clock) -> None:
    async with ready(request_timeout_ms=5_000) as (cluster, producer):
        cluster.damage("Produce", change=getattr(faults, change))
        with trio.fail_after(60):
            acks = await enqueue_apart(producer, 1 + behind)
            assert await fates(acks) == ["delivered"] * (1 + behind)
        assert values(cluster) == numbers(1 + behind)


# --- what a partition's log does ------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", [1, 5])
async def test_a_log_truncated_under_us_begins_a_new_epoch(in_flight: int, autojump_clock: Clock) -> None:
    """An unclean election: the new leader lacks records that were acknowledged. What follows is written once and in order."""
    async with ready(nodes=2, max_in_flight_requests_per_connection=in_flight) as (cluster, producer):
        cluster.delay("Produce", 0.05, times=None, after=True)
        acks = await enqueue_apart(producer, 20, pause=0.02)
        await producer.flush()
        async with trio.open_nursery() as nursery:

            async def go_on() -> None:
                acks.extend(await enqueue_apart(producer, 20, first=20))

            nursery.start_soon(go_on)
            await trio.sleep(0.05)
            partition = cluster.partition("t", 0)
            partition.truncate_to(11)
            cluster.move_leader("t", 0, 1)
        with trio.fail_after(60):
            assert await fates(acks) == ["delivered"] * 40
        kept = values(cluster)
        assert sorted(set(kept)) == kept, "doubled, or out of order"
        assert kept[-15:] == numbers(40)[-15:]
        assert len(kept) < 40
        assert cluster.partition("t", 0).batches[-1].info.producer_epoch == 1


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH])
@pytest.mark.parametrize("after", [False, True])
async def test_a_leader_that_is_not_one_any_more(code: ErrorCode, after: bool, autojump_clock: Clock) -> None:
    """Not the leader, a fenced leader epoch, and epochs that are unknown: looked up anew, sent again with the same numbers."""
    async with ready(nodes=2) as (cluster, producer):
        cluster.fail("Produce", code, times=2, after=after)
        with trio.fail_after(60):
            acks = await enqueue_apart(producer, 10)
            assert await fates(acks) == ["delivered"] * 10
        assert values(cluster) == numbers(10)
        epochs = {batch.info.producer_epoch for batch in cluster.partition("t", 0).batches}
        assert epochs == {0}


async def test_a_broker_that_forgot_the_producer(autojump_clock: Clock) -> None:
    """UNKNOWN_PRODUCER_ID (KIP-360): the first batch that is refused begins a new epoch, with those behind it."""
    async with ready() as (cluster, producer):
        cluster.delay("Produce", 0.05, times=None)
        acks = await enqueue_apart(producer, 3)
        cluster.partition("t", 0).producers.clear()
        cluster.fail("Produce", ErrorCode.UNKNOWN_PRODUCER_ID, times=4)
        acks += await enqueue_apart(producer, 7, first=3)
        with trio.fail_after(60):
            assert await fates(acks) == ["delivered"] * 10
        assert values(cluster) == numbers(10)


# --- what expired ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["request", "response"])
async def test_what_stands_behind_an_expired_batch_is_written_once(lost: str, autojump_clock: Clock) -> None:
    """The first of several batches in flight expires, and the broker has it or has it not.

    If it has, those behind it, which are younger, go on. If it has not, it may still come, for all that we know, with those behind
    it: they were on the same connection and are not sent again.
    """

    async def swallow(request: Any, default: Default) -> None:
        if lost == "response":
            await default()
        await trio.sleep(2.5)
        cluster.disconnect()

    quick = {"retry_backoff_ms": 20, "retry_backoff_max_ms": 20, "reconnect_backoff_max_ms": 20}
    async with ready(request_timeout_ms=2_900, delivery_timeout_ms=3_000, **quick) as (cluster, producer):
        cluster.on("Produce", swallow, times=1)
        with trio.fail_after(60):
            began = trio.current_time()
            first = await producer.enqueue("t", b"000", partition=0)
            await trio.sleep(0.3)
            acks = [first, *await enqueue_apart(producer, 4, first=1, pause=0.05)]
            rule = cluster.drop("Produce", times=None)
            with pytest.raises(DeliveryTimeoutError):
                await first.wait()
            assert trio.current_time() - began == pytest.approx(3)
            rule.remove()
            found = await fates(acks)
            more = await enqueue_apart(producer, 4, first=5)
            assert await fates(more) == ["delivered"] * 4
        fate = "delivered" if lost == "response" else OutOfOrderSequenceError.__name__
        assert found == [DeliveryTimeoutError.__name__] + [fate] * 4
        assert values(cluster) == numbers(9)[0 if lost == "response" else 5 :]


@pytest.mark.parametrize("trouble", ["refused", "lost"])
@pytest.mark.parametrize("silent", [1, 3_600, 100_000])
async def test_after_a_long_silence_the_first_batch_goes_alone(trouble: str, silent: float, autojump_clock: Clock) -> None:
    """A broker forgets a producer that was silent for long (``producer.id.expiration.ms``), and then takes any number: if the first
    of several batches is refused, the next one must not be in the log before it.
    """

    async def lose(request: Any, default: Default) -> None:
        pass

    async with ready(request_timeout_ms=5_000) as (cluster, producer):
        await trio.sleep(silent)
        if silent > 1:
            cluster.partition("t", 0).producers.clear()
        cluster.delay("Produce", 0.05, times=None)
        if trouble == "refused":
            cluster.fail("Produce", ErrorCode.NOT_ENOUGH_REPLICAS)
        else:
            cluster.on("Produce", lose, times=1)
        with trio.fail_after(60):
            acks = await enqueue_apart(producer, 10)
            assert await fates(acks) == ["delivered"] * 10
        assert values(cluster) == numbers(10)
