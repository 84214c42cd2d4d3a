"""The share consumer of asyncio on a scripted cluster: blocks, batches, lost locks, cancellations."""

from __future__ import annotations

import asyncio
import time
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
            with pytest.raises(IllegalStateError, match="entered only once"):
                async with first:
                    pass
            with pytest.raises(IllegalStateError, match="left once"):
                await first.__aexit__(None, None, None)

    with nothing_left("asyncio"):
        run(main)


def test_batches_are_acknowledged_by_mask() -> None:
    async def main() -> None:
        async with a_queue(4) as (cluster, queue):
            batch = await queue.receive_batch()
            assert len(batch) == len(batch.delivery_counts) == batch.to_arrow().num_rows == 4
            for wrong in (None, 5, "accept", {True: 1}):
                with pytest.raises(ValueError, match="verdicts must be a sequence, one for each"):
                    batch.acknowledge(wrong)  # type: ignore[arg-type]
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


def test_a_cancellation_beside_a_lost_lock_arrives() -> None:
    """Both reach the task in the end of a block that has failed: the user's one is not dropped."""

    async def main() -> None:
        async with a_queue(1) as (_, queue):
            delivery = await queue.receive()

            async def work() -> None:
                task = asyncio.current_task()
                assert task is not None
                async with delivery:
                    delivery._cancel("the lock is lost")  # as Trio's side does
                    task.cancel()
                    raise KeyError

            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(work())

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


def test_a_deadline_is_known_after_the_end() -> None:
    async def main() -> None:
        async with a_queue(1) as (_, queue):
            delivery = await queue.receive()
            now = time.monotonic()
            assert now < delivery.deadline <= time.monotonic() + 30
        assert delivery.deadline <= time.monotonic() + 30

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


def test_a_queue_is_worked_on_in_asyncio() -> None:
    """Handlers are tasks of asyncio: one fails twice, and its record is rejected."""

    async def main() -> None:
        async with cluster_of(1, records=4) as cluster:
            cluster.shares.times.auto_offset_reset = "earliest"
            handled: list[tuple[int, int]] = []

            async def handle(delivery: trikafka.aio.Delivery[Any, Any]) -> None:
                assert isinstance(delivery, trikafka.aio.Delivery)
                handled.append((delivery.record.offset, delivery.delivery_count))
                await asyncio.sleep(0.001)
                if delivery.record.offset == 1:
                    raise KeyError
                if delivery.record.offset == 2:
                    delivery.reject("no use")

            run_queue = trikafka.aio.run_queue(
                handle, "t", group_id="workers", concurrency=2, reject_after=2, **cluster.settings
            )
            task = asyncio.create_task(run_queue)
            wanted = ["acknowledged", "archived", "archived", "acknowledged"]
            async with asyncio.timeout(240):
                while len(handled) < 5 or states(cluster) != wanted:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert sorted(handled) == [(0, 1), (1, 1), (1, 2), (2, 1), (3, 1)]

    with nothing_left("asyncio"):
        run(main)


def test_a_plain_handler_ends_the_run() -> None:
    """Released again and again, each record would be lost for the group."""

    async def main() -> None:
        handle: Any = lambda delivery: 5  # noqa: E731
        async with cluster_of(1, records=2) as cluster:
            cluster.shares.times.auto_offset_reset = "earliest"
            async with asyncio.timeout(240):
                with pytest.raises(trikafka.ConfigurationError, match="must be an async function"):
                    await trikafka.aio.run_queue(
                        handle, "t", group_id="workers", **cluster.settings
                    )
            assert set(states(cluster)) == {"available"}

    run(main)


def test_a_lost_lock_cancels_a_handler() -> None:
    async def main() -> None:
        async with cluster_of(1, records=1) as cluster:
            cluster.shares.times.auto_offset_reset = "earliest"
            ends: list[str] = []
            began = asyncio.Event()

            async def handle(delivery: trikafka.aio.Delivery[Any, Any]) -> None:
                if delivery.delivery_count == 2:
                    ends.append("again")
                    return
                began.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    ends.append("cut")

            run_queue = trikafka.aio.run_queue(handle, "t", group_id="workers", **cluster.settings)
            task = asyncio.create_task(run_queue)
            async with asyncio.timeout(240):
                await began.wait()
                cluster.disconnect(0)
                while ends != ["cut", "again"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    with nothing_left("asyncio"):
        run(main)


def test_wrong_arguments_of_a_queue_are_told_first() -> None:
    async def main() -> None:
        async def handle(delivery: object) -> None: ...

        for wrong in (
            {"concurrency": 0},
            {"reject_after": True},
            {"retry": 3},
            {"stop_on": [9]},
        ):
            with pytest.raises(trikafka.ConfigurationError, match=next(iter(wrong))):
                await trikafka.aio.run_queue(handle, "t", group_id="g", **wrong)  # type: ignore[arg-type]

    run(main)


def test_async_deserializers_run_in_asyncio() -> None:
    async def main() -> None:
        async def decode(data: bytes) -> int:
            await asyncio.sleep(0.001)
            return int(data)

        async with a_queue(3, value_deserializer=decode) as (_, queue):
            queue.register_metric("waiting", lambda: 1)
            queue.unregister_metric("waiting")
            with pytest.raises(trio.WouldBlock):
                queue.receive_nowait()
            async with await queue.receive() as delivery:
                assert delivery.record.value == 0
            got: list[int] = []
            while len(got) < 2:
                assert await queue.wait_receivable()
                batch = queue.receive_batch_nowait()
                got += [record.value for record in batch.records]
                batch.accept()
            assert got == [1, 2]
            await queue.flush()

    with nothing_left("asyncio"):
        run(main)
