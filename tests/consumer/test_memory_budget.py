"""A budget of memory for all consumers of a program (KIP-81's idea)."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio
from consuming import T0, cluster_of, consumer_of
from trio.testing import MockClock as Clock

from trikafka import ConfigurationError, MemoryBudget


async def test_consumers_share_a_budget(autojump_clock: Clock) -> None:
    budget = MemoryBudget(800_000)
    async with cluster_of() as cluster:
        for _ in range(150):
            cluster.append("t", 0, [bytes(10_000)])
        async with AsyncExitStack() as stack:
            consumers = [
                await stack.enter_async_context(consumer_of(cluster, memory_budget=budget))
                for _ in range(8)
            ]
            assert budget.share == 100_000
            for consumer in consumers:
                consumer.assign([T0])
            await trio.sleep(30)
            assert (
                0 < sum(consumer.statistics().buffered_bytes for consumer in consumers) <= 800_000
            )
            with trio.fail_after(600):
                for consumer in consumers:
                    for _ in range(150):
                        await consumer.receive()
        assert budget.share == 800_000


async def test_lone_consumer_keeps_its_own_limit(
    autojump_clock: Clock,
) -> None:
    budget = MemoryBudget(10_000_000)
    async with cluster_of() as cluster:
        for _ in range(400):
            cluster.append("t", 0, [bytes(10_000)])
        async with consumer_of(
            cluster, memory_budget=budget, fetch_buffer_bytes=200_000
        ) as consumer:
            consumer.assign([T0])
            await trio.sleep(30)
            assert 0 < consumer.statistics().buffered_bytes <= 200_000


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "1"])
def test_budget_must_be_a_number_of_bytes(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="whole number of bytes"):
        MemoryBudget(wrong)  # type: ignore[arg-type]


async def test_wrong_budget_type_is_refused(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster:
        with pytest.raises(ConfigurationError, match="memory_budget"):
            async with consumer_of(cluster, memory_budget=5):
                pass
