"""The share consumer of asyncio on a scripted cluster: blocks, batches, lost locks, cancellations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from hosting import cluster_of, nothing_left, run

import trikafka.aio
from trikafka.errors import IllegalStateError, LockLostError


@asynccontextmanager
async def a_queue(records: int = 3, **settings: Any) -> AsyncIterator[tuple[Any, Any]]:
    """Open a cluster with records in one partition, and a share consumer."""
    async with cluster_of(1, records=records) as cluster:
        cluster.shares.times.auto_offset_reset = "earliest"
        async with trikafka.aio.open_share_consumer(
            "t", group_id="workers", **cluster.settings, **settings
        ) as queue:
            yield cluster, queue


def states(cluster: Any) -> list[str]:
    group = cluster.shares.by_id["workers"]
    records = group.partitions[cluster.topic_id("t"), 0].records
    return [record.state.value for _, record in sorted(records.items())]


def test_blocks_accept_and_release() -> None:
    async def main() -> None:
        async with a_queue() as (cluster, queue):
            first, second, third = [await queue.receive() for _ in range(3)]
            async with first:
                assert (first.record.offset, first.delivery_count) == (0, 1)
            with pytest.raises(KeyError):
                async with second:
                    raise KeyError
            async with third:
                third.reject("no use")
            await third.acknowledged()
            again = await queue.receive()
            assert (again.record.offset, again.delivery_count) == (1, 2)
            again.accept()
            await again.acknowledged()
            await queue.flush()
            assert states(cluster) == ["acknowledged", "acknowledged", "archived"]
            assert queue.statistics().accepted == 2
            with pytest.raises(IllegalStateError, match="one block"):
                async with first:
                    pass

    with nothing_left("asyncio"):
        run(main)


def test_batches_are_acknowledged_by_mask() -> None:
    async def main() -> None:
        async with a_queue(4) as (cluster, queue):
            batch = await queue.receive_batch()
            assert len(batch) == len(batch.delivery_counts) == batch.to_arrow().num_rows == 4
            batch.acknowledge([True, "reject", True, True])
            await batch.acknowledged()
            assert states(cluster) == ["acknowledged", "archived", "acknowledged", "acknowledged"]

    with nothing_left("asyncio"):
        run(main)


@pytest.mark.parametrize("ends", ["waiting", "done", "raising"])
def test_a_lost_lock_cancels_the_task(ends: str) -> None:
    async def main() -> None:
        async with a_queue(1) as (cluster, queue):
            delivery = await queue.receive()
            with pytest.raises(KeyError if ends == "raising" else LockLostError):  # noqa: PT012
                async with delivery:
                    cluster.disconnect(0)
                    while not queue.statistics().lost:
                        try:
                            await asyncio.sleep(0.001)
                        except asyncio.CancelledError:
                            if ends == "raising":
                                raise KeyError from None
                            if ends == "done":
                                break
                            raise
                    if ends == "waiting":
                        await asyncio.Event().wait()
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            await asyncio.sleep(0)
            assert (await queue.receive()).delivery_count == 2

    with nothing_left("asyncio"):
        run(main)


def test_a_cancellation_of_the_user_releases() -> None:
    async def main() -> None:
        async with a_queue(1) as (_, queue):
            delivery = await queue.receive()

            async def work() -> None:
                async with delivery:
                    started.set()
                    await asyncio.Event().wait()

            started = asyncio.Event()
            task = asyncio.create_task(work())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await queue.receive()).delivery_count == 2

    with nothing_left("asyncio"):
        run(main)


@pytest.mark.parametrize("ends", ["cancelled", "raising", "clean"])
def test_a_block_outlives_the_consumer(ends: str) -> None:
    """A cancellation, and an error of the program, come out of the block as they are."""

    async def main() -> None:
        started, go = asyncio.Event(), asyncio.Event()

        async def work(delivery: Any) -> None:
            async with delivery:
                started.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    while not go.is_set():  # it cleans up, for longer than the close takes
                        with suppress(asyncio.CancelledError):
                            await asyncio.sleep(0.001)
                    if ends == "cancelled":
                        raise
                    if ends == "raising":
                        raise KeyError from None

        async with a_queue(1) as (_, queue):
            task = asyncio.create_task(work(await queue.receive()))
            await started.wait()
            if ends == "cancelled":
                task.cancel()
        go.set()
        expected = {
            "cancelled": asyncio.CancelledError,
            "raising": KeyError,
            "clean": trio.ClosedResourceError,
        }
        with pytest.raises(expected[ends]):
            await task

    with nothing_left("asyncio"):
        run(main)


def test_a_cancelled_receive_takes_nothing() -> None:
    async def main() -> None:
        async with a_queue(1) as (cluster, queue):
            await queue.receive()
            waiting = asyncio.create_task(queue.receive())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            cluster.append("t", 0, [b"next"])
            assert (await queue.receive()).record.value == b"next"

    with nothing_left("asyncio"):
        run(main)
