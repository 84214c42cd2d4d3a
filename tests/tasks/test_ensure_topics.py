"""``ensure_topics``: topics are created by the group's leader before any task begins, verified, and
waited for in bounds (KIP-572).
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tasking import Values, cluster_of, consumer_of, running, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka import NewTopic, TopicsNotReadyError
from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster


def count_of(cluster: ScriptedCluster, topic: str) -> int:
    return len(cluster._state.topics[topic].partitions)


async def test_missing_topics_are_created(autojump_clock: Clock) -> None:
    """Existing ones stay as they are."""
    async with cluster_of(2, topics={"out": 3}) as cluster, consumer_of(cluster) as consumer:
        found = await trikafka.ensure_topics(
            consumer, {"out": NewTopic(3), "dead": NewTopic(1, 1), "any": NewTopic()}
        )
        assert {name: len(parts) for name, parts in found.items()} == {
            "out": 3,
            "dead": 1,
            "any": count_of(cluster, "any"),
            "t": 2,
        }
        (create,) = cluster.requests("CreateTopics")
        assert sorted(topic.name for topic in create.request.topics) == ["any", "dead"]
        await trikafka.ensure_topics(consumer, {"out": NewTopic(3), "dead": NewTopic(1, 1)})
        assert len(cluster.requests("CreateTopics")) == 1


async def test_wrong_topics_are_raised_at_once(autojump_clock: Clock) -> None:
    async with cluster_of(2, topics={"out": 3}) as cluster, consumer_of(cluster) as consumer:
        cluster.create_topic("state", 1, {"max.message.bytes": "2000"})
        began = trio.current_time()
        with pytest.raises(TopicsNotReadyError, match=r"'out' has 3 partitions, not 4") as raised:
            await trikafka.ensure_topics(consumer, {"out": NewTopic(4), "new": NewTopic(1, 1)})
        assert set(raised.value.problems) == {"out"}
        with pytest.raises(TopicsNotReadyError, match=r"'state' has 1 partition, not 2"):
            await trikafka.ensure_topics(consumer, {"state": NewTopic(2)})
        with pytest.raises(
            TopicsNotReadyError, match=r"'state' has max.message.bytes=2000, not 1000"
        ):
            await trikafka.ensure_topics(
                consumer, {"state": NewTopic(1, config={"max.message.bytes": 1000})}
            )
        await trikafka.ensure_topics(
            consumer, {"state": NewTopic(1, config={"max.message.bytes": 2000})}
        )
        assert trio.current_time() - began < 5
        assert not cluster.requests("CreateTopics")


async def test_requests_are_retried_side_by_side(autojump_clock: Clock) -> None:
    async with (
        cluster_of(1) as cluster,
        consumer_of(cluster, default_api_timeout_ms=500, request_timeout_ms=500) as consumer,
    ):
        await until(lambda: bool(consumer.assignment()), limit=20)
        cluster.fail("CreateTopics", ErrorCode.NOT_CONTROLLER, times=3)
        cluster.fail("DescribeConfigs", ErrorCode.REQUEST_TIMED_OUT, times=3)
        with trio.fail_after(30):
            await trikafka.ensure_topics(
                consumer, {"dead": NewTopic(1, 1, {"max.message.bytes": 1000})}
            )
        assert count_of(cluster, "dead") == 1


async def test_another_program_may_be_quicker(autojump_clock: Clock) -> None:
    """It has made one of two topics in the meantime."""

    async def overtaken(request: Any, default: Any) -> Any:
        cluster.create_topic("dead", 1)
        return await default()

    async with cluster_of(1) as cluster, consumer_of(cluster) as consumer:
        cluster.on("CreateTopics", overtaken, times=1)
        found = await trikafka.ensure_topics(consumer, {"dead": NewTopic(1), "out": NewTopic(2)})
        assert {name: len(parts) for name, parts in found.items()} == {"dead": 1, "out": 2, "t": 1}
        assert len(cluster.requests("CreateTopics")) == 1


@pytest.mark.parametrize("what", ["silence", "input"])
async def test_time_is_half_of_the_poll_interval(autojump_clock: Clock, what: str) -> None:
    """The error names the missing topics."""
    settings: dict[str, Any] = {
        "max_poll_interval_ms": 20_000,
        "request_timeout_ms": 2_000,
        "session_timeout_ms": 10_000,
    }
    topics = ["t", "absent"] if what == "input" else ["t"]
    async with cluster_of(1) as cluster, consumer_of(cluster, *topics, **settings) as consumer:
        with trio.move_on_after(1):
            await consumer.receive_batch()
        began = trio.current_time()
        if what == "silence":
            cluster.silence("CreateTopics")
        with pytest.raises(TopicsNotReadyError) as raised:
            await trikafka.ensure_topics(consumer, {"out": NewTopic(1, 1), "dead": NewTopic(1, 1)})
        assert 10 <= trio.current_time() - began < 12.1
        assert set(raised.value.problems) == ({"out", "dead"} if what == "silence" else {"absent"})
        assert "after 10 s" in str(raised.value)


async def test_missing_right_is_raised(autojump_clock: Clock) -> None:
    async with cluster_of(1) as cluster, consumer_of(cluster) as consumer:
        cluster.fail("CreateTopics", ErrorCode.TOPIC_AUTHORIZATION_FAILED, times=None)
        with pytest.raises(trikafka.AuthorizationError), trio.fail_after(20):
            await trikafka.ensure_topics(consumer, {"dead": NewTopic(1, 1)})
        with pytest.raises(trikafka.ConfigurationError):
            await trikafka.ensure_topics(consumer, {"dead": 3})  # type: ignore[dict-item]


async def test_leader_creates_before_tasks_begin(
    autojump_clock: Clock,
) -> None:
    """Three members, two partitions: the leader may have nothing to read, and the others wait."""
    async with cluster_of(2, records=3) as cluster, trio.open_nursery() as nursery:
        cluster.delay("CreateTopics", 5)
        began: list[float] = []

        async def member() -> None:
            async def handler(record: trikafka.Record) -> None:
                assert "dead" in cluster._state.topics
                began.append(trio.current_time())

            async with consumer_of(cluster) as consumer:
                await trikafka.run_tasks(consumer, handler, topics={"dead": NewTopic(1, 1)})

        for _ in range(3):
            nursery.start_soon(member)
        await until(lambda: len(began) == 6)
        group = cluster.group("g")
        assert group is not None
        assert len(cluster.requests("CreateTopics")) == 1
        nursery.cancel_scope.cancel()


async def test_run_ends_without_its_topics(autojump_clock: Clock) -> None:
    handler = Values()
    async with (
        cluster_of(1, records=3, topics={"dead": 2}) as cluster,
        consumer_of(cluster) as consumer,
    ):
        with pytest.raises(TopicsNotReadyError):
            await trikafka.run_tasks(consumer, handler, topics={"dead": NewTopic(1)})
        assert not handler.seen
        async with running(consumer, handler, topics={"dead": NewTopic(2)}):
            await until(lambda: len(handler.done) == 3)
