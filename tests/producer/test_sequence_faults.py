"""Faults by which a producer's sequence numbers and the broker's could differ.

No acknowledged record is lost or doubled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any

import pytest
import trio
from producing import numbers, ready, values
from trio.testing import MockClock as Clock

from trikafka import DeliveryTimeoutError, TrikafkaError
from trikafka._api.producer.ack import Ack
from trikafka._api.producer.producer import Producer
from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster, faults

Default = Callable[[], Awaitable[Any]]


async def enqueue_apart(
    producer: Producer, count: int, *, first: int = 0, pause: float = 0.01
) -> list[Ack]:
    """Enqueue records, each in a batch of its own, with a pause after each."""
    acks = []
    for value in numbers(first + count)[first:]:
        acks.append(await producer.enqueue("t", value, partition=0))
        await trio.sleep(pause)
    return acks


async def fates(acks: list[Ack]) -> list[str]:
    """Return for each record "delivered" or the name of its error."""
    found = []
    for ack in acks:
        try:
            await ack.wait()
            found.append("delivered")
        except TrikafkaError as error:
            found.append(type(error).__name__)
    return found


def lose_response(cluster: ScriptedCluster) -> None:
    """Have the broker carry out the next Produce request and send no response.

    Later requests are answered.
    """

    async def carry_out(request: Any, default: Default) -> None:
        await default()

    cluster.on("Produce", carry_out, times=1)


def lose_request(cluster: ScriptedCluster) -> None:
    """Have the broker neither carry out nor answer the next Produce request."""

    async def lose(request: Any, default: Default) -> None:
        pass

    cluster.on("Produce", lose, times=1)


def cut_response(cluster: ScriptedCluster) -> None:
    cluster.damage("Produce", change=faults.cut)


def misname_response(cluster: ScriptedCluster) -> None:
    cluster.damage("Produce", change=faults.strange_id)


@pytest.mark.parametrize(
    ("fault", "behind"),
    [
        *product([lose_response, lose_request], [0, 1, 4, 5, 6, 20]),
        *product([cut_response, misname_response], [0, 3, 10]),
    ],
)
async def test_single_fault_doubles_nothing(
    fault: Callable[[ScriptedCluster], None], behind: int, autojump_clock: Clock
) -> None:
    async with ready(request_timeout_ms=5_000) as (cluster, producer):
        fault(cluster)
        with trio.fail_after(60):
            acks = await enqueue_apart(producer, 1 + behind)
            assert await fates(acks) == ["delivered"] * (1 + behind)
        assert values(cluster) == numbers(1 + behind)


# --- what a partition's log does ------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", [1, 5])
async def test_truncated_log_begins_a_new_epoch(in_flight: int, autojump_clock: Clock) -> None:
    """After an unclean election the new leader lacks acknowledged records.

    Later records are written once and in order.
    """
    async with ready(nodes=2, max_in_flight_requests_per_connection=in_flight) as (
        cluster,
        producer,
    ):
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


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    ],
)
@pytest.mark.parametrize("after", [False, True])
async def test_former_leader_costs_no_epoch(
    code: ErrorCode, after: bool, autojump_clock: Clock
) -> None:
    """Metadata is requested again, and the batch is sent again with the same numbers."""
    async with ready(nodes=2) as (cluster, producer):
        cluster.fail("Produce", code, times=2, after=after)
        with trio.fail_after(60):
            acks = await enqueue_apart(producer, 10)
            assert await fates(acks) == ["delivered"] * 10
        assert values(cluster) == numbers(10)
        epochs = {batch.info.producer_epoch for batch in cluster.partition("t", 0).batches}
        assert epochs == {0}


async def test_forgotten_producer_begins_a_new_epoch(autojump_clock: Clock) -> None:
    """UNKNOWN_PRODUCER_ID (KIP-360): the refused batch and its followers begin a new epoch."""
    async with ready() as (cluster, producer):
        cluster.delay("Produce", 0.05, times=None)
        acks = await enqueue_apart(producer, 3)
        cluster.partition("t", 0).producers.clear()
        cluster.fail("Produce", ErrorCode.UNKNOWN_PRODUCER_ID, times=4)
        acks += await enqueue_apart(producer, 7, first=3)
        with trio.fail_after(60):
            assert await fates(acks) == ["delivered"] * 10
        assert values(cluster) == numbers(10)


# --- what expired ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["request", "response"])
async def test_batches_behind_expired_are_written_once(lost: str, autojump_clock: Clock) -> None:
    """The first of several batches in flight expires, and the broker may have it.

    The batches behind it are younger and were on the same connection. Without the first one they
    are refused and continue in a new epoch. The first one is not sent again, since its error was
    raised.
    """

    async def swallow(request: Any, default: Default) -> None:
        if lost == "response":
            await default()
        await trio.sleep(2.5)
        cluster.disconnect()

    quick = {"retry_backoff_ms": 20, "retry_backoff_max_ms": 20, "reconnect_backoff_max_ms": 20}
    async with ready(request_timeout_ms=2_900, delivery_timeout_ms=3_000, **quick) as (
        cluster,
        producer,
    ):
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
        assert found == [DeliveryTimeoutError.__name__] + ["delivered"] * 4
        assert values(cluster) == numbers(9)[0 if lost == "response" else 1 :]


@pytest.mark.parametrize("trouble", ["refused", "lost"])
@pytest.mark.parametrize("silent", [1, 3_600, 100_000])
async def test_first_batch_after_a_silence_goes_alone(
    trouble: str, silent: float, autojump_clock: Clock
) -> None:
    """A broker forgets a producer after ``producer.id.expiration.ms`` and then takes any number.

    If the first batch is refused, the next one must not be in the log before it.
    """

    async def lose(request: Any, default: Default) -> None:
        pass

    # The watch for stalls looks around every few seconds: in a day that is a lot.
    async with ready(request_timeout_ms=5_000, stall_warning_ms=600_000) as (cluster, producer):
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
