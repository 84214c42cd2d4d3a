"""How runs of tasks end where they went on for ever, or ended as they should not: what a review found, each failed before."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from tasking import cluster_of, committed, consumer_of, producer_of, running, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka import Record, TransactionAbortableError
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
async def test_what_is_refused_for_good_ends_the_run_though_another_record_is_told(
    autojump_clock: Clock, code: int, dead_letter: str | None
) -> None:
    calls = 0

    async def handler(record: Record) -> None:
        nonlocal calls
        calls += 1
        await producer.enqueue("out", record.value)
        await trio.sleep(0.1)

    async with cluster_of(1, records=5, topics={"out": 1, "dead": 1}) as cluster:
        cluster.fail("Produce", code, None, topic="out")
        async with producer_of(cluster, transactional_id="x") as producer, consumer_of(cluster) as consumer:
            with trio.fail_after(60), pytest.raises(TransactionAbortableError) as raised:
                await trikafka.run_tasks(consumer, handler, producer=producer, dead_letter=dead_letter)
        assert committed(cluster) is None
    assert any(getattr(cause, "code", None) == code for cause in causes_of(raised.value))
    assert calls == 6, "three rounds of two records: the second is told of the first one's"


@pytest.mark.parametrize("code", CODES)
async def test_what_is_refused_for_good_and_waited_for_is_dead(autojump_clock: Clock, code: int) -> None:
    """Its own handler hears of it, so the others of its rounds are no reason to end."""

    async def handler(record: Record) -> None:
        ack = await producer.enqueue("out" if record.offset % 2 else "fine", record.value)
        await trio.sleep(0.1)
        await ack.wait()

    async with cluster_of(2, records=8, topics={"out": 1, "fine": 1, "dead": 1}) as cluster:
        cluster.fail("Produce", code, None, topic="out")
        async with producer_of(cluster, transactional_id="x") as producer, consumer_of(cluster) as consumer:
            async with running(consumer, handler, producer=producer, dead_letter="dead", concurrency=3):
                await until(lambda: committed(cluster, 0) == committed(cluster, 1) == 8, limit=120)


@pytest.mark.parametrize("code", CODES)
async def test_by_hand_it_ends_at_once(autojump_clock: Clock, code: int) -> None:
    async def handler(batch: Any, txn: Any) -> None:
        await producer.enqueue("out", b"x")

    async with cluster_of(1, records=1, topics={"out": 1}) as cluster:
        cluster.fail("Produce", code, None, topic="out")
        async with producer_of(cluster, transactional_id="x") as producer, consumer_of(cluster) as consumer:
            with trio.fail_after(60), pytest.raises(TransactionAbortableError):
                await partial(trikafka.process, consumer, producer, handler)()
