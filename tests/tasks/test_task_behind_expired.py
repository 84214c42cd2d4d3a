"""A record that fails because it is behind an expired one: a timeout of its task, not the end of
the run.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tasking import cluster_of, committed, consumer_of, producer_of, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka import DeliveryTimeoutError, KafkaTimeoutError, Record
from trikafka.errors import ErrorCode, OutOfOrderSequenceError, from_code
from trikafka.tasks.timer import timeout_in


def behind(cause: Exception | None) -> OutOfOrderSequenceError:
    """Return an out-of-order error with this cause."""
    error = from_code(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "t-0, 1 record")
    assert isinstance(error, OutOfOrderSequenceError)
    error.__cause__ = cause
    return error


def test_error_behind_an_expiry_is_a_timeout() -> None:
    expired = KafkaTimeoutError("send", 1)
    assert timeout_in(behind(expired)) is expired
    assert timeout_in(ExceptionGroup("", [behind(expired)])) is expired
    assert timeout_in(behind(None)) is None
    assert timeout_in(behind(ValueError())) is None


async def test_task_behind_an_expiry_is_retried(autojump_clock: Clock) -> None:
    """Task 0's record expires on a lost connection, with those of tasks 1 and 2 behind it.

    Those are delivered in a new epoch, and the record of task 0 once, by its second attempt. Task 3
    writes elsewhere.
    """
    quick = {"retry_backoff_ms": 20, "retry_backoff_max_ms": 20, "reconnect_backoff_max_ms": 20}
    raised: list[tuple[int, Exception]] = []
    tried: list[tuple[int, float]] = []

    async def swallow(request: Any, default: Any) -> None:
        await trio.sleep(2.5)
        cluster.disconnect()

    async with cluster_of(4, records=1, topics={"out": 2}) as cluster:
        async with (
            producer_of(
                cluster, request_timeout_ms=2_900, delivery_timeout_ms=3_000, **quick
            ) as producer,
            consumer_of(cluster) as consumer,
        ):
            for partition in range(2):
                await producer.send("out", b"first", partition=partition)
            cluster.on("Produce", swallow, times=1)

            async def handle(record: Record) -> None:
                number = record.partition
                if not any(each == number for each, _ in tried):
                    await trio.sleep((0, 0.6, 0.65, 4)[number])
                tried.append((number, trio.current_time()))
                try:
                    await producer.send(
                        "out", b"task %d" % number, partition=1 if number == 3 else 0
                    )
                except Exception as error:
                    raised.append((number, error))
                    raise

            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: trikafka.run_tasks(consumer, handle))
                await until(lambda: len(tried) == 3)
                rule = cluster.drop("Produce", times=None)
                await until(lambda: bool(raised))
                rule.remove()
                await until(lambda: all(committed(cluster, number) == 1 for number in range(4)))
                nursery.cancel_scope.cancel()
        kinds = {number: type(error) for number, error in raised}
        assert kinds == {0: DeliveryTimeoutError}
        assert sorted(number for number, _ in tried) == [0, 0, 1, 2, 3]
        written = [record.value for number in range(2) for record in cluster.records("out", number)]
        expected = [b"first", b"first", b"task 0", b"task 1", b"task 2", b"task 3"]
        assert sorted(filter(None, written)) == expected


@pytest.mark.parametrize("limit_ms", [0])
async def test_timeout_is_raised_past_its_limit(limit_ms: int, autojump_clock: Clock) -> None:
    expired = KafkaTimeoutError("send", 1)

    async def handle(record: Record) -> None:
        raise behind(expired)

    async with cluster_of(1, records=1) as cluster, consumer_of(cluster) as consumer:
        with pytest.raises(KafkaTimeoutError) as caught:
            await trikafka.run_tasks(consumer, handle, task_timeout_ms=limit_ms)
        assert caught.value is expired
