"""Tasks of partitions that are reassigned or closed, and errors that end or repeat a record."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

import pytest
import trio
from tasking import Values, cluster_of, committed, consumer_of, producer_of, running, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka import AuthorizationError, Record, RetryPolicy, TransactionAbortableError
from trikafka.error_codes import ErrorCode
from trikafka.errors import RecordTooLargeError


async def test_reassigned_partition_waits_for_handler(
    autojump_clock: Clock,
) -> None:
    """A handler of the first task does not end.

    The second task ends before it began. The third waits for the first.
    """
    held = trio.Event()
    seen: list[tuple[int, int]] = []

    async def handler(record: Record) -> None:
        if record.partition == 0 and record.offset == 2 and not held.is_set():
            held.set()
            await trio.sleep_forever()
        seen.append((record.partition, record.offset))

    async with (
        cluster_of(2, records=5) as cluster,
        consumer_of(cluster, max_poll_interval_ms=20_000) as consumer,
    ):
        async with running(consumer, handler):
            await until(held.is_set)
            for _ in range(2):
                async with consumer_of(cluster) as other:
                    with trio.move_on_after(40):
                        while True:
                            await other.receive_batch(1)
            await trio.sleep(120)
            assert [offset for partition, offset in seen if partition == 0] == [0, 1]


async def test_stop_waits_for_an_earlier_handler(autojump_clock: Clock) -> None:
    """The partition went and came back while its first handler was at work."""
    ended: list[float] = []

    async def handler(record: Record) -> None:
        await trio.sleep(30)
        ended.append(trio.current_time())

    settings: dict[str, Any] = {"max_poll_interval_ms": 10_000, "session_timeout_ms": 6_000}
    async with (
        cluster_of(1, records=5) as cluster,
        consumer_of(cluster, close_timeout_ms=40_000, **settings) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(partial(trikafka.run_tasks, consumer, handler, stop_on=[signal.SIGTERM]))
        await trio.sleep(1)
        async with consumer_of(cluster, **settings) as other:
            with trio.move_on_after(9):
                await other.receive_batch()
        await trio.sleep(6)
        assert consumer.assignment()
        signal.raise_signal(signal.SIGTERM)
    assert ended == [pytest.approx(30, abs=1)]


@pytest.mark.parametrize("when", [0.33, 20.0])
async def test_closing_ends_a_transactional_run(autojump_clock: Clock, when: float) -> None:
    handler = Values(0.05)
    async with (
        cluster_of(1, records=20) as cluster,
        producer_of(cluster, transactional_id="x") as producer,
    ):
        async with (
            consumer_of(cluster, auto_commit_interval_ms=100) as consumer,
            trio.open_nursery() as nursery,
        ):

            async def close() -> None:
                await trio.sleep(when)
                await consumer.aclose()

            nursery.start_soon(close)
            with trio.fail_after(60):
                await trikafka.run_tasks(consumer, handler, producer=producer)
        assert when < 1 or committed(cluster) == 20


@pytest.mark.parametrize("error", [trio.BrokenResourceError, trio.ClosedResourceError])
async def test_policy_may_retry_closed_resources(
    autojump_clock: Clock, error: type[Exception]
) -> None:
    calls: list[int] = []

    async def handler(record: Record) -> None:
        calls.append(record.offset)
        if len(calls) == 2:
            raise error("the connection to a database")

    async with cluster_of(1, records=5) as cluster, consumer_of(cluster) as consumer:
        async with running(consumer, handler, retry=RetryPolicy(error)):
            await until(lambda: committed(cluster) == 5)
    assert calls == [0, 1, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, AuthorizationError),
        (ErrorCode.MESSAGE_TOO_LARGE, RecordTooLargeError),
    ],
)
@pytest.mark.parametrize("by_hand", [False, True])
async def test_refused_record_is_not_repeated(
    autojump_clock: Clock, code: int, cause: type[Exception], by_hand: bool
) -> None:
    calls = 0

    async def handler(*_: Any) -> None:
        nonlocal calls
        calls += 1
        await producer.enqueue("out", b"x")

    async with cluster_of(1, records=1, topics={"out": 1, "dead": 1}) as cluster:
        cluster.fail("Produce", code, None, topic="out")
        async with (
            producer_of(cluster, transactional_id="x") as producer,
            consumer_of(cluster) as consumer,
        ):
            run: Any = partial(trikafka.process, consumer, producer, handler)
            if not by_hand:
                run = partial(
                    trikafka.run_tasks, consumer, handler, producer=producer, dead_letter="dead"
                )
            with trio.fail_after(60), pytest.raises(TransactionAbortableError) as raised:
                await run()
    causes: list[BaseException | None] = [raised.value]
    while causes[-1] is not None:
        causes.append(causes[-1].__cause__)
    assert any(isinstance(each, cause) for each in causes)
    assert calls == 1
