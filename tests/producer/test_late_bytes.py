"""Bytes of a closed connection that the broker reads late, after the first of its batches has
expired. The expired batch left a gap before the batches behind it, so the broker refuses those.
Under a new epoch they would be doubled if the late bytes arrived then. So they keep their numbers
for a while after the first refusal.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from producing import ready, values
from trio.testing import MockClock as Clock

from trikafka import DeliveryTimeoutError, TrikafkaError
from trikafka._api.producer.ack import Ack
from trikafka._state.producer.sequences import LATE_BYTES
from trikafka.testing import ScriptedCluster

Default = Callable[[], Awaitable[Any]]


class LateBytes:
    """Produce requests that are withheld from the broker, whose connection is cut. :meth:`arrive`
    delivers them.
    """

    def __init__(self, cluster: ScriptedCluster, count: int) -> None:
        self._cluster = cluster
        self._kept: list[Default] = []
        self._count = count
        self.cut = trio.Event()
        cluster.on("Produce", self._keep, times=count)

    async def _keep(self, request: Any, default: Default) -> None:
        self._kept.append(default)
        if len(self._kept) == self._count:
            self._cluster.disconnect()
            self.cut.set()

    async def arrive(self) -> None:
        for default in self._kept:
            await default()
        self._kept.clear()


async def fate(ack: Ack) -> str:
    try:
        await ack.wait()
    except TrikafkaError as error:
        return type(error).__name__
    return "delivered"


@pytest.mark.parametrize("late_by", [-1.0, 0.0, 0.05, 0.1, 0.2, 0.3, 1.0, math.inf])
async def test_late_bytes_double_nothing(late_by: float, autojump_clock: Clock) -> None:
    """``late_by`` is in seconds after the first refusal; -1 means before it."""
    quick = {"retry_backoff_ms": 20, "retry_backoff_max_ms": 20, "reconnect_backoff_max_ms": 20}
    async with ready(request_timeout_ms=2_000, delivery_timeout_ms=3_000, **quick) as (
        cluster,
        producer,
    ):
        late = LateBytes(cluster, 3)
        first = await producer.enqueue("t", b"1")
        await trio.sleep(0.5)
        second = await producer.enqueue("t", b"2")
        await trio.sleep(0.5)
        third = await producer.enqueue("t", b"3")
        never = cluster.drop("Produce", times=None)  # until the first one has expired
        await late.cut.wait()
        await trio.sleep(0.1)
        fourth = await producer.enqueue("t", b"4")  # never sent so far
        with trio.fail_after(60):
            with pytest.raises(DeliveryTimeoutError):
                await first.wait()
            asked = trio.Event()

            async def answer(request: Any, default: Default) -> Any:
                if late_by < 0:
                    await late.arrive()
                asked.set()
                return await default()

            cluster.on("Produce", answer, times=1)
            never.remove()
            async with trio.open_nursery() as nursery:

                async def arrive() -> None:
                    await asked.wait()
                    await trio.sleep(late_by)
                    await late.arrive()

                if 0 <= late_by < math.inf:
                    nursery.start_soon(arrive)
                found = [await fate(ack) for ack in (second, third, fourth)]
            await producer.send("t", b"5")
        there = [int(value) for value in values(cluster) if value]
        assert there == ([1] if late_by < LATE_BYTES else []) + [2, 3, 4, 5]
        assert found == ["delivered"] * 3


async def test_new_leader_gets_the_batch_at_once(autojump_clock: Clock) -> None:
    """The former leader can no longer write what it reads late."""
    quick = {"retry_backoff_ms": 20, "retry_backoff_max_ms": 20, "reconnect_backoff_max_ms": 20}
    async with ready(nodes=2, request_timeout_ms=2_000, delivery_timeout_ms=3_000, **quick) as (
        cluster,
        producer,
    ):
        late = LateBytes(cluster, 2)
        first = await producer.enqueue("t", b"1")
        await trio.sleep(0.5)
        second = await producer.enqueue("t", b"2")
        await late.cut.wait()
        cluster.stop(0)
        with trio.fail_after(60):
            with pytest.raises(DeliveryTimeoutError):
                await first.wait()
            cluster.move_leader("t", 0, 1)
            cluster.start(0)
            assert await fate(second) == "delivered"
            await late.arrive()
            await producer.send("t", b"3")
        assert values(cluster) == [b"2", b"3"]
