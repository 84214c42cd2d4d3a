"""Limits of runs of tasks: refused records, handlers that close their consumer, topics, unsettled
transactions.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from tasking import cluster_of, committed, consumer_of, producer_of, running, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka import (
    IllegalStateError,
    KafkaTimeoutError,
    NewTopic,
    Record,
    TopicsNotReadyError,
    TransactionAbortableError,
)
from trikafka.error_codes import ErrorCode


def causes_of(error: BaseException | None) -> list[BaseException]:
    found = []
    while error is not None:
        found.append(error)
        error = error.__cause__
    return found


CODES = [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_RECORD]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("dead_letter", [None, "dead"])
async def test_refused_record_ends_the_run(
    autojump_clock: Clock, code: int, dead_letter: str | None
) -> None:
    """Also where the error reaches another record of the transaction."""
    calls = 0

    async def handler(record: Record) -> None:
        nonlocal calls
        calls += 1
        await producer.enqueue("out", record.value)
        await trio.sleep(0.1)

    async with cluster_of(1, records=5, topics={"out": 1, "dead": 1}) as cluster:
        cluster.fail("Produce", code, None, topic="out")
        async with (
            producer_of(cluster, transactional_id="x") as producer,
            consumer_of(cluster) as consumer,
        ):
            with trio.fail_after(60), pytest.raises(TransactionAbortableError) as raised:
                await trikafka.run_tasks(
                    consumer, handler, producer=producer, dead_letter=dead_letter
                )
        assert committed(cluster) is None
    assert any(getattr(cause, "code", None) == code for cause in causes_of(raised.value))
    assert calls == 6, "three rounds of two records: the second gets the error of the first one's"


@pytest.mark.parametrize("code", CODES)
async def test_awaited_refusal_is_a_dead_letter(autojump_clock: Clock, code: int) -> None:
    """Its own handler gets the error, so other records of its rounds do not end the run."""

    async def handler(record: Record) -> None:
        ack = await producer.enqueue("out" if record.offset % 2 else "fine", record.value)
        await trio.sleep(0.1)
        await ack.wait()

    async with cluster_of(2, records=8, topics={"out": 1, "fine": 1, "dead": 1}) as cluster:
        cluster.fail("Produce", code, None, topic="out")
        async with (
            producer_of(cluster, transactional_id="x") as producer,
            consumer_of(cluster) as consumer,
        ):
            async with running(
                consumer, handler, producer=producer, dead_letter="dead", concurrency=3
            ):
                await until(lambda: committed(cluster, 0) == committed(cluster, 1) == 8, limit=120)


@pytest.mark.parametrize("code", CODES)
async def test_refused_record_ends_process(autojump_clock: Clock, code: int) -> None:
    async def handler(batch: Any, txn: Any) -> None:
        await producer.enqueue("out", b"x")

    async with cluster_of(1, records=1, topics={"out": 1}) as cluster:
        cluster.fail("Produce", code, None, topic="out")
        async with (
            producer_of(cluster, transactional_id="x") as producer,
            consumer_of(cluster) as consumer,
        ):
            with trio.fail_after(60), pytest.raises(TransactionAbortableError):
                await partial(trikafka.process, consumer, producer, handler)()


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("call", ["aclose", "unsubscribe"])
@pytest.mark.parametrize("concurrency", [1, 4])
async def test_handler_must_not_close_its_consumer(
    autojump_clock: Clock, concurrency: int, call: str, transactional: bool
) -> None:
    """It would wait for itself: for 14.5 seconds, with finished records not committed."""

    async def handler(record: Record) -> None:
        if record.offset == 3:
            await trio.sleep(0.5)
            async with trio.open_nursery() as nursery:  # also in a task of its own
                nursery.start_soon(getattr(consumer, call))

    async with (
        cluster_of(1, records=10) as cluster,
        consumer_of(cluster) as consumer,
        producer_of(cluster, transactional_id="x") as txn,
    ):
        begun = trio.current_time()
        options: Any = {"producer": txn} if transactional else {}
        with trio.fail_after(60), pytest.raises(ExceptionGroup) as raised:
            await trikafka.run_tasks(consumer, handler, concurrency=concurrency, **options)
        assert raised.group_contains(IllegalStateError, match="run_tasks")
        assert trio.current_time() - begun < 8
        assert transactional or committed(cluster) == 3
        with trio.fail_after(10):
            await getattr(consumer, call)()


async def test_handler_may_let_another_task_close(autojump_clock: Clock) -> None:
    async with (
        cluster_of(1, records=10) as cluster,
        consumer_of(cluster) as consumer,
        trio.open_nursery() as outer,
    ):

        async def handler(record: Record) -> None:
            if record.offset == 3:
                outer.start_soon(consumer.aclose)
                await trio.sleep(0.5)

        with trio.fail_after(60):
            await trikafka.run_tasks(consumer, handler)
        assert committed(cluster) == 4


async def test_closing_aborts_the_open_transaction(autojump_clock: Clock) -> None:
    """As docs/tasks.md says. A signal has it committed."""
    seen: list[int] = []

    async def handler(record: Record) -> None:
        seen.append(record.offset)
        await trio.sleep(0.5)

    async with (
        cluster_of(1, records=10) as cluster,
        producer_of(cluster, transactional_id="x") as producer,
    ):
        async with consumer_of(cluster) as consumer, trio.open_nursery() as nursery:

            async def close() -> None:
                await until(lambda: len(seen) == 3)
                await consumer.aclose()

            nursery.start_soon(close)
            with trio.fail_after(60):
                await trikafka.run_tasks(consumer, handler, producer=producer)
        assert committed(cluster) is None


@pytest.mark.parametrize("busy", ["handler", "topics"])
async def test_closing_ends_a_busy_transactional_run(autojump_clock: Clock, busy: str) -> None:
    """A handler has ``close_timeout_ms``, and nothing waits for topics."""

    async def handler(record: Record) -> None:
        await trio.sleep(3_600)

    async with (
        cluster_of(1, records=3) as cluster,
        producer_of(cluster, transactional_id="x") as producer,
        consumer_of(cluster, close_timeout_ms=5_000) as consumer,
        trio.open_nursery() as nursery,
    ):

        async def close() -> None:
            await trio.sleep(3)
            await consumer.aclose()

        cluster.silence("CreateTopics")
        nursery.start_soon(close)
        with trio.fail_after(3.1 if busy == "topics" else 8.1):
            await trikafka.run_tasks(
                consumer,
                handler,
                producer=producer,
                topics={"new": NewTopic(1)} if busy == "topics" else None,
            )
    assert committed(cluster) is None


@pytest.mark.parametrize("timeout", [5.0, None])
async def test_time_for_topics_includes_joining(
    autojump_clock: Clock, timeout: float | None
) -> None:
    async with cluster_of(1) as cluster:
        cluster.fail("FindCoordinator", ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
        async with consumer_of(
            cluster, max_poll_interval_ms=40_000, session_timeout_ms=6_000
        ) as consumer:
            begun = trio.current_time()
            with trio.fail_after(300), pytest.raises(TopicsNotReadyError) as raised:
                await trikafka.ensure_topics(consumer, {"out": NewTopic(1)}, timeout=timeout)
            least = 5 if timeout else 60  # 40 s for joining, 20 for the topics
            assert least <= trio.current_time() - begun < least + 2
            assert set(raised.value.problems) == {"out"}
        assert not cluster.requests("CreateTopics")


@pytest.mark.parametrize("task_timeout_ms", [60_000, 5_000])
async def test_settling_has_the_time_of_a_task(autojump_clock: Clock, task_timeout_ms: int) -> None:
    settings: dict[str, Any] = {
        "default_api_timeout_ms": 2_000,
        "request_timeout_ms": 1_000,
        "close_timeout_ms": 1_000,
    }
    silent = True

    async def handler(record: Record) -> None:
        await producer.enqueue("out", record.value)

    async with (
        cluster_of(1, records=5, topics={"out": 1}) as cluster,
        consumer_of(cluster) as consumer,
    ):
        async with producer_of(cluster, transactional_id="x", **settings) as producer:
            cluster.silence("EndTxn", after=True, where=lambda request: silent)
            with pytest.raises(KafkaTimeoutError), trio.fail_after(100):
                await trikafka.run_tasks(
                    consumer, handler, producer=producer, task_timeout_ms=1_000
                )
            begun = trio.current_time()
            run = partial(
                trikafka.run_tasks,
                consumer,
                handler,
                producer=producer,
                task_timeout_ms=task_timeout_ms,
            )
            if task_timeout_ms < 20_000:
                with pytest.raises(KafkaTimeoutError) as raised, trio.fail_after(100):
                    await run()
                assert isinstance(raised.value.__cause__, KafkaTimeoutError)
                assert trio.current_time() - begun > task_timeout_ms / 1000
                silent = False
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                await trio.sleep(20)
                silent = False
                await until(lambda: committed(cluster) == 5)
                nursery.cancel_scope.cancel()
