"""trikafka: the share consumer, by blocks, by ``accept()`` and by batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

import trikafka

from ..jobs import Job, Outcome, Window
from ..share_groups import LOCKS, new_share_group

Way = Callable[[trikafka.ShareConsumer[Any, Any], int], Awaitable[tuple[int, int]]]


async def block(queue: trikafka.ShareConsumer[Any, Any], wanted: int) -> tuple[int, int]:
    count = size = 0
    async for delivery in queue:
        async with delivery:
            size += len(delivery.record.value)
        count += 1
        if count >= wanted:
            break
    return count, size


async def accept(queue: trikafka.ShareConsumer[Any, Any], wanted: int) -> tuple[int, int]:
    count = size = 0
    async for delivery in queue:
        size += len(delivery.record.value)
        delivery.accept()
        count += 1
        if count >= wanted:
            break
    return count, size


async def batch(queue: trikafka.ShareConsumer[Any, Any], wanted: int) -> tuple[int, int]:
    count = size = 0
    while count < wanted:
        each = await queue.receive_batch()
        size += sum(len(record.value) for record in each)
        each.accept()
        count += len(each)
    return count, size


def way(receive: Way, call: str, locks: int | None = LOCKS) -> Callable[[Job], Outcome]:
    async def share(job: Job) -> Outcome:
        group = await new_share_group(job.bootstrap, job.connection, locks)
        async with trikafka.open_share_consumer(
            job.topic, group_id=group, bootstrap_servers=job.bootstrap, **job.connection
        ) as queue:
            # The group's first record comes some time after the join, which is not what is timed.
            (await queue.receive()).release()
            await queue.flush()
            with Window() as window:
                count, size = await receive(queue, job.records)
                await queue.flush()
        return Outcome(count, size, window, call, {"group_id": "a new one"})

    return lambda job: trio.run(share, job)


WAYS = {
    ("share", "block"): way(block, "async with delivery"),
    ("share", "accept"): way(accept, "accept()"),
    ("share", "batch"): way(batch, "receive_batch()"),
    ("share", "defaults"): way(batch, "receive_batch(), 2,000 locks", None),
}
