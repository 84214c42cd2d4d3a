"""What a newcomer found: each a test."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from consuming import T0, T1, cluster_of, member_of, until
from trio.testing import MockClock as Clock

import trikafka


@pytest.mark.parametrize("commit", ["stream", "record"])
async def test_handlers_may_commit_while_closing_waits_for_them(autojump_clock: Clock, commit: str) -> None:
    async with cluster_of(2, records=5) as cluster:
        ended: list[int] = []

        async def handle(consumer: trikafka.Consumer, stream: trikafka.PartitionStream) -> None:
            async with stream:
                async for record in stream:
                    await trio.sleep(3)
                    if commit == "record":
                        await consumer.commit(record)
                if commit == "stream":
                    await stream.commit()
            ended.append(stream.partition.partition)

        async with member_of(cluster, enable_auto_commit=False) as consumer, trio.open_nursery() as nursery:

            async def close_soon() -> None:
                await trio.sleep(7)
                await consumer.aclose(timeout=20)

            nursery.start_soon(close_soon)
            async for stream in consumer.partitions():
                nursery.start_soon(handle, consumer, stream)
        assert sorted(ended) == [0, 1]
        offsets = [found.offset for number in (0, 1) if (found := cluster.committed("g", ("t", number))) is not None]
        assert len(offsets) == 2
        assert min(offsets) >= 2


async def test_an_idle_partition_that_is_kept_is_not_stalled(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """By an eager rebalance it goes and comes back; the fetch session has nothing new to say of it."""
    caplog.set_level(logging.WARNING, logger="trikafka.consumer")
    settings: dict[str, Any] = {"partition_assignment_strategy": ["range"]}
    async with cluster_of(2, records=3) as cluster, member_of(cluster, **settings) as consumer:
        for _ in range(6):
            await consumer.receive()
        consumer.enforce_rebalance("a test")
        await consumer.receive_batch(timeout=5)
        await until(lambda: consumer.assignment() == {T0, T1})
        await consumer.receive_batch(timeout=60)
        assert consumer.health().ok
        assert set(consumer.statistics().lag.values()) == {0}
    assert not [record for record in caplog.records if record.name == "trikafka.consumer"]


async def test_a_group_that_the_brokers_lost_is_joined_anew(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=3) as cluster, member_of(cluster, group_protocol="consumer") as consumer:
        for _ in range(6):
            await consumer.receive()
        cluster.fail("ConsumerGroupHeartbeat", 69, 1)
        with trio.fail_after(60):
            while len(cluster.requests("ConsumerGroupHeartbeat")) < 3 or consumer.assignment() != {T0, T1}:
                await consumer.receive_batch(timeout=1)
            cluster.append("t", 0, [b"new"])
            while (await consumer.receive()).value != b"new":
                pass


async def test_a_class_is_no_listener(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, member_of(cluster) as consumer:
        with pytest.raises(trikafka.ConfigurationError, match=r"not a class: write RebalanceListener\(\.\.\.\)"):
            consumer.subscribe(["t"], trikafka.RebalanceListener)  # type: ignore[arg-type]
