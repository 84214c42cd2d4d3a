"""Acks outside of a Trio task: the outcome without a wait, and the function that is called with it."""

from __future__ import annotations

import pytest
import trio
from producing import ready, values
from trio.testing import MockClock as Clock

from trikafka import ErrorCode, TopicPartition
from trikafka.errors import AuthorizationError


async def test_callback_comes_with_the_outcome(autojump_clock: Clock) -> None:
    async with ready() as (_, producer):
        acks = [producer.send_nowait("t", b"%d" % number) for number in range(3)]
        offsets: list[int | None] = []
        for ack in acks:
            with pytest.raises(trio.WouldBlock):
                ack.result()
            ack.when_done(lambda ack=ack: offsets.append(ack.result().offset))  # type: ignore[misc]
        assert offsets == []
        await acks[-1].wait()
        assert offsets == [1, 2, 3]
        acks[0].when_done(lambda: offsets.append(None))
        assert offsets[-1] is None, "at once, where the outcome is known"


async def test_failed_record_calls_back_with_its_error(autojump_clock: Clock) -> None:
    async with ready() as (cluster, producer):
        cluster.fail("Produce", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        ack = producer.send_nowait("t", b"refused")
        done: list[object] = []
        ack.when_done(lambda: done.append(ack.done))
        await producer.flush()
        assert done == [True]
        with pytest.raises(AuthorizationError):
            ack.result()


async def test_split_batch_calls_back_once_a_record(autojump_clock: Clock) -> None:
    async with ready(linger_ms=100) as (cluster, producer):
        cluster.fail("Produce", ErrorCode.MESSAGE_TOO_LARGE, 1)
        acks = [producer.send_nowait("t", b"%d" % number) for number in range(10)]
        offsets: list[int | None] = []
        for ack in acks:
            ack.when_done(lambda ack=ack: offsets.append(ack.result().offset))  # type: ignore[misc]
        await producer.flush()
        assert producer.statistics().batches_split == 1
        assert sorted(offset or 0 for offset in offsets) == list(range(1, 11))
        assert values(cluster) == [b"%d" % number for number in range(10)]
        assert acks[0].partition == TopicPartition("t", 0)
