"""Subscriptions by pattern: topics that exist, appear and disappear."""

from __future__ import annotations

import re
from typing import Any

import pytest
import trio
from consuming import cluster_of, consumer_of
from trio.testing import MockClock as Clock

import trikafka
from trikafka import ConfigurationError, SubscriptionPattern


async def test_early_pattern_finds_existing_topics(autojump_clock: Clock) -> None:
    """The topics become known while the member joins."""
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


async def test_only_matching_new_topics_are_read(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(records=1) as cluster,
        consumer_of(cluster, group_id="g", metadata_max_age_ms=2000) as consumer,
    ):
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
async def test_internal_topics_match_on_request(autojump_clock: Clock, exclude: bool) -> None:
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


@pytest.mark.parametrize("since", ["before", "later"])
@pytest.mark.parametrize("exclude", [True, False])
async def test_broker_pattern_excludes_internal_topics(
    autojump_clock: Clock, exclude: bool, since: str
) -> None:
    """Also a topic whose name is looked up by its id before any snapshot holds it."""
    async with cluster_of(records=1) as cluster:

        def create() -> None:
            cluster.create_topic("__internal", 1)
            cluster.append("__internal", 0, [b"x"])

        if since == "before":
            create()
        settings = {"group_protocol": "consumer", "exclude_internal_topics": exclude}
        async with consumer_of(cluster, group_id="g", **settings) as consumer:
            consumer.subscribe(SubscriptionPattern(".*"))
            seen = set()
            with trio.move_on_after(20):
                async for record in consumer:
                    seen.add(record.topic)
                    if len(seen) == 1 and since == "later" and "__internal" not in seen:
                        create()
            assert seen == ({"t"} if exclude else {"t", "__internal"})
            assert {tp.topic for tp in consumer.assignment()} == seen
            assert consumer.subscription() == seen
            topics = {"t"} if exclude else {"t", "__internal"}
            fetched = {
                topic.topic
                for seen in cluster.requests("Fetch")
                for topic in seen.request.topics
                if topic.topic
            }
            assert fetched <= topics
            assert consumer.health().ok


@pytest.mark.parametrize("pattern", [re.compile("t|u"), SubscriptionPattern("t|u")])
async def test_consumer_opens_with_a_pattern(autojump_clock: Clock, pattern: Any) -> None:
    async with cluster_of(records=1) as cluster:
        settings = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        settings |= {"group_id": "g", "auto_offset_reset": "earliest"}
        async with trikafka.open_consumer(pattern, **settings) as consumer:
            with trio.fail_after(10):
                assert (await consumer.receive()).topic == "t"


@pytest.mark.parametrize(
    ("topics", "settings", "says"),
    [
        ((SubscriptionPattern("t"),), {}, "needs a group_id"),
        ((re.compile("t"),), {}, "needs a group_id"),
        ((SubscriptionPattern("t"),), {"group_id": "g", "group_protocol": "classic"}, "consumer"),
        ((SubscriptionPattern("t"), "u"), {"group_id": "g"}, "one pattern alone"),
    ],
)
async def test_wrong_pattern_opens_nothing(topics: Any, settings: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        async with trikafka.open_consumer(*topics, bootstrap_servers="a:1", **settings):
            pytest.fail("it was opened")


WRONG: list[Any] = [
    re.compile(b"t.*"),
    SubscriptionPattern(""),
    SubscriptionPattern(b"t.*"),  # type: ignore[arg-type]
    SubscriptionPattern(None),  # type: ignore[arg-type]
    SubscriptionPattern("\ud800"),
]


@pytest.mark.parametrize("pattern", WRONG, ids=repr)
async def test_wrong_pattern_is_refused_early(autojump_clock: Clock, pattern: Any) -> None:
    """It ended the client, or matched nothing for ever."""
    async with cluster_of(records=1) as cluster:
        before = len(cluster.log)
        with pytest.raises(ConfigurationError):
            async with trikafka.open_consumer(
                pattern, bootstrap_servers="kafka:9092", dial=cluster.dial, group_id="g"
            ):
                pytest.fail("it opened")
        assert len(cluster.dials) == 0
        assert len(cluster.log) == before
        async with consumer_of(cluster, group_id="g", group_protocol="auto") as consumer:
            with pytest.raises(ConfigurationError):
                consumer.subscribe(pattern)
            consumer.subscribe(["t"])
            assert (await consumer.receive()).topic == "t"
