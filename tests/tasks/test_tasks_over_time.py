"""``run_tasks`` for weeks: partitions come and go."""

from __future__ import annotations

import gc
import re

import trio
from tasking import cluster_of, consumer_of, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka import Record
from trikafka.tasks.stream_task import StreamTask


def tasks_kept() -> int:
    gc.collect()
    return sum(isinstance(each, StreamTask) for each in gc.get_objects())


async def test_tasks_of_deleted_topics_are_not_kept(autojump_clock: Clock) -> None:
    handled: list[str] = []

    async def handler(record: Record) -> None:
        handled.append(record.topic)

    before = tasks_kept()
    async with (
        cluster_of(1, records=1) as cluster,
        consumer_of(cluster, re.compile("t|x.*"), metadata_max_age_ms=1000) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(trikafka.run_tasks, consumer, handler)
        for topic in ("x0", "x1", "x2", "x3"):
            cluster.create_topic(topic, 1)
            cluster.append(topic, 0, [b""])
            await until(lambda topic=topic: topic in handled)
            await until(lambda topic=topic: cluster.committed("g", (topic, 0)) is not None)
            cluster.delete_topic(topic)
        await until(lambda: len(consumer.assignment()) == 1)
        await trio.sleep(60)
        assert tasks_kept() == before + 1
        nursery.cancel_scope.cancel()
