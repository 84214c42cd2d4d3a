"""The suggestion of a similar topic in the error for a missing one.

The look-up runs beside the call and cannot delay or break it.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock as Clock

import trikafka
from trikafka import UnknownTopicOrPartitionError
from trikafka.testing import ScriptedCluster

PAGE = "DescribeTopicPartitions"


async def missed(producer: trikafka.Producer, topic: str) -> tuple[str, float]:
    began = trio.current_time()
    with pytest.raises(UnknownTopicOrPartitionError) as caught, trio.fail_after(60):
        await producer.send(topic, b"x")
    return str(caught.value), trio.current_time() - began


def cluster_of(**more: Any) -> ScriptedCluster:
    cluster = ScriptedCluster(topics={"orders": 1, "origins": 1, "payments": 2}, **more)
    cluster.offer(PAGE, (0, 0))
    return cluster


def settings(cluster: ScriptedCluster) -> dict[str, Any]:
    return {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}


async def test_nearest_topic_is_named_after_one_request(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, trikafka.open_producer(**settings(cluster)) as producer:
        for _ in range(2):
            text, _ = await missed(producer, "ordrs")
            assert "topic 'ordrs' does not exist; did you mean 'orders'? If not, make it" in text
        assert len([seen for seen in cluster.log if seen.api_name == PAGE]) == 1
        text, _ = await missed(producer, "paymens")
        assert "did you mean 'payments'?" in text
        text, _ = await missed(producer, "ordesr")
        assert "did you mean 'orders'?" in text, "what was heard before is known still"


@pytest.mark.parametrize("wrong", ["silence", "drop", "fail", "not offered"])
async def test_error_is_as_fast_without_suggestion(wrong: str, autojump_clock: Clock) -> None:
    async with cluster_of() as cluster:
        if wrong == "not offered":
            cluster.offer(PAGE, None)
        elif wrong == "fail":
            cluster.fail(PAGE, trikafka.ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        else:
            getattr(cluster, wrong)(PAGE)
        async with trikafka.open_producer(**settings(cluster)) as producer:
            text, seconds = await missed(producer, "ordrs")
            assert text.endswith(
                "topic 'ordrs' does not exist; make it: trikafka topics create ordrs, or "
                "admin.create_topics"
            ) or (wrong == "fail" and "did you mean" not in text)
            assert 3 <= seconds < 4.5
            assert (await producer.send("orders", b"x")).offset == 0


async def test_closing_does_not_wait_for_suggestions(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster:
        cluster.silence(PAGE)
        began = trio.current_time()
        async with trikafka.open_producer(**settings(cluster)) as producer:
            with trio.move_on_after(0.5):
                await producer.send("ordrs", b"x")
        assert trio.current_time() - began < 2


async def test_suggestion_requests_are_bounded(
    autojump_clock: Clock,
) -> None:
    async with cluster_of() as cluster, trikafka.open_producer(**settings(cluster)) as producer:

        async def miss(topic: str) -> None:
            with pytest.raises(UnknownTopicOrPartitionError):
                await producer.send(topic, b"x")

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(300):
                    nursery.start_soon(miss, f"nope-{number}")
        assert len([seen for seen in cluster.log if seen.api_name == PAGE]) == 100
