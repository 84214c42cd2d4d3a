"""Deadlines of every consumer call that reaches the network, in exact virtual time (seed 000)."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio
from trio.testing import MockClock as Clock
from trio.testing import wait_all_tasks_blocked

import trikafka
from trikafka import Consumer, TopicPartition
from trikafka.errors import (
    KafkaTimeoutError,
    RequestTimedOutError,
    TrikafkaError,
    UnknownTopicOrPartitionError,
)
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable

TP = TopicPartition("t", 0)
GRACE = 0.025


@dataclass(frozen=True)
class Case:
    """A call, the API that it needs, and a check of its result for a topic with three records."""

    name: str
    api: str
    call: Callable[..., Awaitable[Any]]
    result: Callable[[Any], bool]

    def __str__(self) -> str:
        return self.name


CASES = [
    Case(
        "beginning_offsets",
        "ListOffsets",
        lambda c, **k: c.beginning_offsets([TP], **k),
        lambda r: r == {TP: 0},
    ),
    Case(
        "end_offsets",
        "ListOffsets",
        lambda c, **k: c.end_offsets([TP], **k),
        lambda r: r == {TP: 3},
    ),
    Case(
        "offsets_for_times",
        "ListOffsets",
        lambda c, **k: c.offsets_for_times({TP: 0}, **k),
        lambda r: r[TP].offset == 0,
    ),
    Case(
        "committed", "OffsetFetch", lambda c, **k: c.committed([TP], **k), lambda r: r == {TP: None}
    ),
    Case("commit", "OffsetCommit", lambda c, **k: c.commit({TP: 2}, **k), lambda r: r is None),
    Case("position", "OffsetFetch", lambda c, **k: c.position(TP, **k), lambda r: r == 0),
    Case(
        "partitions_for",
        "Metadata",
        lambda c, **k: c.partitions_for("t", **k),
        lambda r: len(r) == 1,
    ),
    Case("list_topics", "Metadata", lambda c, **k: c.list_topics(**k), lambda r: list(r) == ["t"]),
]
each_call = pytest.mark.parametrize("case", CASES, ids=str)


@asynccontextmanager
async def opened(**settings: Any) -> AsyncIterator[tuple[ScriptedCluster, Consumer]]:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.append("t", 0, [b"a", b"b", b"c"])
        settings = {"enable_auto_commit": False, "auto_offset_reset": "earliest"} | settings
        async with trikafka.open_consumer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial, group_id="g", **settings
        ) as consumer:
            yield cluster, consumer


def prepare(case: Case, consumer: Consumer) -> None:
    if case.name == "position":
        consumer.assign([TP])


async def nothing_left(cluster: ScriptedCluster, consumer: Consumer) -> None:
    """Check that the same consumer goes on with the connections that it has."""
    cluster.thaw(0)
    await trio.sleep(5)
    dials = len(cluster.dials)
    for case in CASES:
        prepare(case, consumer)
        result = await case.call(consumer)
        # These two see the commit that was made meanwhile.
        assert case.result(result) or case.name in ("committed", "position"), (
            case.name,
            result,
        )
    assert len(cluster.dials) <= dials + 3  # general, coordinator, fetch: each of them once at most


@each_call
async def test_healthy_broker_answers_at_once(autojump_clock: Clock, case: Case) -> None:
    async with opened() as (_, consumer):
        prepare(case, consumer)
        assert case.result(await case.call(consumer))
        assert case.result(await case.call(consumer)) or case.name == "committed"
        assert trio.current_time() == 0


@each_call
@pytest.mark.parametrize("timeout", [0, 0.7, 5])
async def test_frozen_broker_ends_the_call_at_its_limit(
    autojump_clock: Clock, case: Case, timeout: float
) -> None:
    async with opened() as (cluster, consumer):
        cluster.freeze(0)
        prepare(case, consumer)
        before = trio.current_time()
        with pytest.raises(KafkaTimeoutError) as caught:
            await case.call(consumer, timeout=timeout)
        took = trio.current_time() - before
        assert timeout - 1e-9 <= took <= timeout + GRACE + 1e-9
        error = caught.value
        assert (error.call, error.limit) == (case.name, timeout)
        assert error.attempts >= 1
        assert isinstance(error.last_error, RequestTimedOutError)
        assert error.__cause__ is error.last_error
        assert str(error).startswith(f"{case.name} did not finish within {timeout:g} s (")
        await nothing_left(cluster, consumer)


@each_call
async def test_two_hundred_calls_keep_their_limits(autojump_clock: Clock, case: Case) -> None:
    async with opened() as (cluster, consumer):
        cluster.freeze(0)
        prepare(case, consumer)
        before, ends, errors = trio.current_time(), [], []

        async def one() -> None:
            with pytest.raises(KafkaTimeoutError) as caught:
                await case.call(consumer, timeout=0.7)
            ends.append(trio.current_time() - before)
            errors.append(caught.value)

        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(one)
        assert len(ends) == 200
        assert max(ends) <= 0.7 + GRACE + 1e-9
        assert (
            len({id(error) for error in errors})
            == len({id(error.last_error) for error in errors})
            == 200
        )
        await nothing_left(cluster, consumer)


@each_call
async def test_zero_timeout_takes_one_response(autojump_clock: Clock, case: Case) -> None:
    """A call without any time makes one request and uses its response."""
    async with opened() as (cluster, consumer):
        prepare(case, consumer)
        count = len(cluster.requests(case.api))
        assert case.result(await case.call(consumer, timeout=0))
        assert len(cluster.requests(case.api)) >= count + 1


@each_call
async def test_retriable_error_is_retried(autojump_clock: Clock, case: Case) -> None:
    async with opened() as (cluster, consumer):
        prepare(case, consumer)
        code = {"Metadata": 5, "ListOffsets": 6}.get(case.api, 16)
        if case.name == "list_topics":
            cluster.drop("Metadata", times=4)
        else:
            cluster.fail(case.api, code, times=3)
        assert case.result(await case.call(consumer, timeout=10))
        assert 0 < trio.current_time() < 3


@each_call
async def test_lost_connection_is_reopened(autojump_clock: Clock, case: Case) -> None:
    async with opened() as (cluster, consumer):
        prepare(case, consumer)
        cluster.drop(case.api, times=2)
        assert case.result(await case.call(consumer, timeout=10))
        assert trio.current_time() < 2


@pytest.mark.parametrize("case", [case for case in CASES if case.api == "ListOffsets"], ids=str)
async def test_request_timeouts_leave_time_for_retries(autojump_clock: Clock, case: Case) -> None:
    """The second example of seed 000.

    Requests of 30 s within a limit of 70 s are sent at 0, 30 and 60 s.
    """
    async with opened(request_timeout_ms=30_000, retry_backoff_ms=0, reconnect_backoff_ms=0) as (
        cluster,
        consumer,
    ):
        cluster.delay("ListOffsets", math.inf)
        with pytest.raises(KafkaTimeoutError) as caught:
            await case.call(consumer, timeout=70)
        assert [seen.time for seen in cluster.requests("ListOffsets")] == [0, 30, 60]
        assert (trio.current_time(), caught.value.attempts) == (70, 3)


@each_call
@pytest.mark.parametrize("timeout", [-1, math.nan, -math.inf, True, "1"])
async def test_invalid_timeout_is_refused_at_once(
    autojump_clock: Clock, case: Case, timeout: Any
) -> None:
    async with opened() as (cluster, consumer):
        await wait_all_tasks_blocked()
        count = len(cluster.log)
        with pytest.raises(
            ValueError, match="timeout must be a number of seconds, at least 0, not"
        ):
            await case.call(consumer, timeout=timeout)
        assert len(cluster.log) == count


@each_call
async def test_users_scope_cancels_at_once(autojump_clock: Clock, case: Case) -> None:
    async with opened() as (cluster, consumer):
        cluster.freeze(0)
        prepare(case, consumer)
        before = trio.current_time()
        with trio.move_on_after(0.123) as scope:
            await case.call(consumer)
        assert scope.cancelled_caught
        assert trio.current_time() == pytest.approx(before + 0.123)
        await nothing_left(cluster, consumer)


@each_call
async def test_every_await_can_be_cancelled(autojump_clock: Clock, case: Case) -> None:
    async def scenario(given: tuple[ScriptedCluster, Consumer]) -> None:
        await case.call(given[1])

    @asynccontextmanager
    async def setup() -> AsyncIterator[tuple[ScriptedCluster, Consumer]]:
        async with opened() as (cluster, consumer):
            cluster.delay("Metadata", 0.2)
            cluster.delay("FindCoordinator", 0.2)
            cluster.fail(case.api, 7, times=1)
            prepare(case, consumer)
            yield cluster, consumer

    async def check(given: tuple[ScriptedCluster, Consumer]) -> None:
        await nothing_left(*given)

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 1


@each_call
async def test_closing_ends_a_call_with_closed(autojump_clock: Clock, case: Case) -> None:
    outcomes: list[BaseException] = []

    async def call(consumer: Consumer) -> None:
        try:
            await case.call(consumer)
        except Exception as error:
            outcomes.append(error)

    async with trio.open_nursery() as outside:
        async with opened() as (cluster, consumer):
            cluster.freeze(0)
            prepare(case, consumer)
            outside.start_soon(call, consumer)
            await trio.sleep(0.3)
        ended = trio.current_time()
    assert [type(error) for error in outcomes if isinstance(error, trio.ClosedResourceError)], (
        outcomes
    )
    assert trio.current_time() <= ended + 1
    with pytest.raises(trio.ClosedResourceError):
        await case.call(consumer)


# -- those with rules of their own
# ----------------------------------------------------------------------------------------


async def test_expired_receive_batch_is_empty(autojump_clock: Clock) -> None:
    async with opened() as (cluster, consumer):
        cluster.freeze(0)
        consumer.assign([TP])
        batch = await consumer.receive_batch(timeout=0.7)
        assert (len(batch), trio.current_time()) == (0, 0.7)
        assert len(await consumer.receive_batch(timeout=0)) == 0
        assert trio.current_time() == pytest.approx(0.7, abs=1e-9)
        with pytest.raises(ValueError, match="timeout"):
            await consumer.receive_batch(timeout=-1)
        cluster.thaw(0)
        assert [record.value for record in await consumer.receive_batch(timeout=20)] == [
            b"a",
            b"b",
            b"c",
        ]


@pytest.mark.parametrize("timeout", [0, 0.7, None])
async def test_close_keeps_its_limit_on_a_frozen_broker(
    autojump_clock: Clock, timeout: float | None
) -> None:
    async with opened(close_timeout_ms=3000) as (cluster, consumer):
        consumer.subscribe(["t"])
        await consumer.receive()
        cluster.freeze(0)
        before = trio.current_time()
        await consumer.aclose(timeout=timeout)
        limit = 3.0 if timeout is None else timeout
        assert trio.current_time() - before <= limit + 2 * GRACE + 1e-9
        await consumer.aclose()
        await wait_all_tasks_blocked()
        assert cluster.connections() == 0
    assert trio.current_time() - before <= limit + 1


async def test_block_end_keeps_its_limit(autojump_clock: Clock) -> None:
    """The broker is frozen when the block ends."""
    async with opened(close_timeout_ms=3000) as (cluster, consumer):
        consumer.subscribe(["t"])
        await consumer.receive()
        cluster.freeze(0)
        before = trio.current_time()
    assert trio.current_time() - before <= 3 + 2 * GRACE


async def test_cancelled_block_ends_within_a_second(autojump_clock: Clock) -> None:
    """The broker is frozen when the block is cancelled."""
    before = 0.0
    with trio.CancelScope() as scope:
        async with opened() as (cluster, consumer):
            consumer.subscribe(["t"])
            await consumer.receive()
            cluster.freeze(0)
            before = trio.current_time()
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() - before <= 1 + 2 * GRACE


async def test_missing_topic_and_partition_are_named(autojump_clock: Clock) -> None:
    none = TopicPartition("none", 0)
    async with opened() as (cluster, consumer):
        assert await consumer.partitions_for("none") == []
        assert trio.current_time() == 0
        for call in (
            consumer.end_offsets([none]),
            consumer.beginning_offsets([TP, none]),
            consumer.offsets_for_times({none: 0}),
        ):
            before = trio.current_time()
            with pytest.raises(UnknownTopicOrPartitionError, match="topic 'none'"):
                await call
            assert trio.current_time() - before < 4.5
        with pytest.raises(KafkaTimeoutError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await consumer.end_offsets([none], timeout=1)
        with pytest.raises(
            UnknownTopicOrPartitionError, match=r"t-5 \(the topic has 1 partition\)"
        ):
            await consumer.end_offsets([TopicPartition("t", 5)])
        assert len(cluster.requests("Metadata")) < 120


async def test_unrepresentable_value_is_refused(autojump_clock: Clock) -> None:
    async with opened() as (_, consumer):
        for call in (
            consumer.commit({TP: 2**63}),
            consumer.offsets_for_times({TP: 2**63}),
            consumer.committed([TopicPartition("t", 2**31)]),
        ):
            with pytest.raises((ValueError, TrikafkaError)):
                await call
        assert case_is_fine(await consumer.end_offsets([TP]))


def case_is_fine(result: Any) -> bool:
    return bool(result == {TP: 3})


async def test_frozen_broker_fails_only_its_part(autojump_clock: Clock) -> None:
    """The call fails for one frozen broker of several.

    The responses of the others are kept for the next call.
    """
    async with ScriptedCluster(nodes=3, topics={"t": 3}) as cluster:
        tps = [TopicPartition("t", number) for number in range(3)]
        async with trikafka.open_consumer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as consumer:
            assert await consumer.end_offsets(tps) == dict.fromkeys(tps, 0)
            cluster.freeze(1)
            with pytest.raises(KafkaTimeoutError, match="ListOffsets to broker-1:9092"):
                await consumer.end_offsets(tps, timeout=0.7)
            assert trio.current_time() == pytest.approx(0.7, abs=GRACE)
            count = len(cluster.requests("ListOffsets", node=0))
            cluster.thaw(1)
            cluster.fail("ListOffsets", 6, times=2, node=1)
            assert await consumer.end_offsets(tps) == dict.fromkeys(tps, 0)
            assert len(cluster.requests("ListOffsets", node=0)) == count + 1


@each_call
async def test_old_broker_is_supported(autojump_clock: Clock, case: Case) -> None:
    old: dict[Any, Any] = {
        "ListOffsets": (0, 1),
        "OffsetFetch": (0, 1),
        "OffsetCommit": (0, 2),
        "Metadata": (0, 1),
        "FindCoordinator": (0, 0),
        "ApiVersions": (0, 0),
        "Fetch": (0, 4),
    }
    async with ScriptedCluster(topics={"t": 1}, api_versions=old) as cluster:
        cluster.append("t", 0, [b"a", b"b", b"c"])
        async with trikafka.open_consumer(
            bootstrap_servers=cluster.bootstrap_servers,
            dial=cluster.dial,
            group_id="g",
            auto_offset_reset="earliest",
        ) as consumer:
            prepare(case, consumer)
            assert case.result(await case.call(consumer))
            if case.name == "position":
                assert [record.value for record in await consumer.receive_batch(timeout=5)] == [
                    b"a",
                    b"b",
                    b"c",
                ]


@each_call
async def test_every_call_has_a_checkpoint(autojump_clock: Clock, case: Case) -> None:
    """A call runs a checkpoint even if its result is known already."""
    async with opened() as (_, consumer):
        prepare(case, consumer)
        await case.call(consumer)
        with trio.testing.assert_checkpoints():
            await case.call(consumer)
        with trio.CancelScope() as scope:
            scope.cancel()
            await case.call(consumer)
        assert scope.cancelled_caught


@pytest.mark.parametrize("offset", [None, 5])
async def test_missing_partition_causes_few_requests(
    autojump_clock: Clock, offset: int | None
) -> None:
    async with opened() as (cluster, consumer):
        consumer.assign([TopicPartition("none", 0)])
        if offset is not None:
            consumer.seek(TopicPartition("none", 0), offset)
        while trio.current_time() < 60:
            with pytest.raises(trikafka.UnknownTopicOrPartitionError):
                await consumer.receive_batch(timeout=60)
        assert len(cluster.requests("Metadata")) < 200
