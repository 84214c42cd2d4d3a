"""Bytes of a closed connection that the broker reads late: between its refusal of a batch and that batch's new epoch.

A batch that was lost leaves a gap; the one behind it is refused as out of order. If now the old connection's bytes arrive, they
fill the gap and bring a copy of the batch behind it. Sent again under a new epoch, that would stand twice. So it is not: whether
its old copy was written cannot be known, and that is what its error says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from producing import ready, values
from trio.testing import MockClock as Clock

from trikafka import DeliveryTimeoutError, TrikafkaError
from trikafka._api.ack import Ack
from trikafka.testing import ScriptedCluster

Default = Callable[[], Awaitable[Any]]


class LateBytes:
    """Keeps the next Produce requests from the broker and cuts their connection; :meth:`arrive` hands them over."""

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


@pytest.mark.parametrize("when", ["before the refusal", "after the refusal", "never"])
async def test_what_was_sent_before_is_not_sent_under_a_new_epoch(when: str, autojump_clock: Clock) -> None:
    quick = {"retry_backoff_ms": 20, "retry_backoff_max_ms": 20, "reconnect_backoff_max_ms": 20}
    async with ready(request_timeout_ms=2_000, delivery_timeout_ms=3_000, **quick) as (cluster, producer):
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
            refused = trio.Event()

            async def answer(request: Any, default: Default) -> Any:
                if when == "before the refusal":
                    await late.arrive()
                response = await default()
                if when == "after the refusal":
                    await late.arrive()
                refused.set()
                return response

            cluster.on("Produce", answer, times=1)
            never.remove()
            found = [await fate(ack) for ack in (second, third, fourth)]
            await producer.send("t", b"5")
        there = [int(value) for value in values(cluster) if value]
        assert there == sorted(set(there)), "doubled, or out of order"
        assert refused.is_set()
        assert there[-2:] == [4, 5]
        assert found[2] == "delivered"
        for number, one in zip((2, 3), found, strict=False):
            assert (one == "delivered") <= (number in there)
        if when == "before the refusal":
            assert (there, found) == ([1, 2, 3, 4, 5], ["delivered"] * 3)
        if when == "never":
            assert there == [4, 5]


async def test_under_another_leader_it_is_sent_again(autojump_clock: Clock) -> None:
    """What the old leader may still read it cannot write any more."""
    quick = {"retry_backoff_ms": 20, "retry_backoff_max_ms": 20, "reconnect_backoff_max_ms": 20}
    async with ready(nodes=2, request_timeout_ms=2_000, delivery_timeout_ms=3_000, **quick) as (cluster, producer):
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
