"""Subscriptions by pattern: topics that are there, that come, and that go."""

from __future__ import annotations

import re

import pytest
import trio
from consuming import cluster_of, consumer_of
from trio.testing import MockClock as Clock


async def test_a_pattern_right_after_opening_finds_what_is_there(autojump_clock: Clock) -> None:
    """The topics become known while the member joins: what came since it began to join counts."""
    async with cluster_of(records=1) as cluster:
        got: list[str] = []

        async def read(number: int) -> None:
            async with consumer_of(cluster, group_id=f"g{number}") as consumer:
                consumer.subscribe(re.compile("t.*"))
                with trio.fail_after(3):
                    got.append((await consumer.receive()).topic)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(read, number)
        assert got == ["t"] * 20


async def test_a_topic_that_comes_is_read_and_one_that_does_not_match_is_not(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster, consumer_of(cluster, group_id="g", metadata_max_age_ms=2000) as consumer:
        consumer.subscribe(re.compile("t|new-.*"))
        assert (await consumer.receive()).topic == "t"
        cluster.create_topic("new-one", 1)
        cluster.create_topic("old-one", 1)
        for name in ("new-one", "old-one"):
            cluster.append(name, 0, [b"x"])
        with trio.fail_after(10):
            assert (await consumer.receive()).topic == "new-one"
        assert consumer.subscription() == {"t", "new-one"}


@pytest.mark.parametrize("exclude", [True, False])
async def test_internal_topics_match_only_if_they_are_asked_for(autojump_clock: Clock, exclude: bool) -> None:
    async with cluster_of(records=1) as cluster:
        cluster.create_topic("__internal", 1)
        cluster.append("__internal", 0, [b"x"])
        async with consumer_of(cluster, group_id="g", exclude_internal_topics=exclude) as consumer:
            consumer.subscribe(re.compile(".*"))
            seen = set()
            with trio.move_on_after(5):
                async for record in consumer:
                    seen.add(record.topic)
        assert seen == ({"t"} if exclude else {"t", "__internal"})
