"""A limit that passes before the first step has ended: the error names what was waited for.

Each names the broker, or the topic, although no attempt has failed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import trikafka
from trikafka import Admin, Consumer, KafkaTimeoutError, NewTopic, Producer, TopicPartition
from trikafka.testing import ScriptedCluster

T0 = TopicPartition("t", 0)


def settings(cluster: ScriptedCluster, **more: Any) -> dict[str, Any]:
    return {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial, **more}


async def refused(call: Callable[[], Awaitable[object]]) -> KafkaTimeoutError:
    """Return the error of a call whose limit passes in its first step."""
    began = trio.current_time()
    with pytest.raises(KafkaTimeoutError) as caught:
        await call()
    assert trio.current_time() - began < 0.1
    assert caught.value.__cause__ is not None
    return caught.value


@pytest.mark.parametrize(
    ("api", "says"),
    [
        ("InitProducerId", "InitProducerId to broker-0:9092"),
        ("Produce", "Produce to broker 0"),
        ("ApiVersions", "broker-0:9092"),
    ],
)
async def test_record_that_expires_at_once(api: str, says: str, autojump_clock: MockClock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_producer(
            **settings(cluster, linger_ms=0, request_timeout_ms=50, delivery_timeout_ms=50)
        ) as producer,
    ):
        await producer.partitions_for("t")
        if api == "ApiVersions":
            await producer.send("t", b"0")
            cluster.disconnect()
        cluster.silence(api)
        error = await refused(lambda: producer.send("t", b"1"))
        assert isinstance(error, trikafka.DeliveryTimeoutError)
        assert (error.topic, error.partition) == ("t", 0)
        assert says in str(error.__cause__)


CALLS: list[tuple[str, str, Callable[[Producer, Consumer[Any, Any], Admin], Awaitable[Any]]]] = [
    ("Metadata", "'new'", lambda p, c, a: p.partitions_for("new", timeout=0)),
    ("Produce", "Produce to", lambda p, c, a: p.flush(timeout=0)),
    ("FindCoordinator", "FindCoordinator to", lambda p, c, a: c.committed([T0], timeout=0)),
    ("OffsetFetch", "OffsetFetch to", lambda p, c, a: c.committed([T0], timeout=0)),
    ("FindCoordinator", "FindCoordinator to", lambda p, c, a: c.commit({T0: 1}, timeout=0)),
    ("OffsetCommit", "OffsetCommit to", lambda p, c, a: c.commit({T0: 1}, timeout=0)),
    ("Metadata", "Metadata to", lambda p, c, a: c.position(T0, timeout=0)),
    ("FindCoordinator", "FindCoordinator to", lambda p, c, a: c.position(T0, timeout=0)),
    ("OffsetFetch", "OffsetFetch to", lambda p, c, a: c.position(T0, timeout=0)),
    ("ListOffsets", "ListOffsets to", lambda p, c, a: c.position(T0, timeout=0)),
    ("ListOffsets", "ListOffsets to", lambda p, c, a: c.end_offsets([T0], timeout=0)),
    ("Metadata", "Metadata to", lambda p, c, a: c.list_topics(timeout=0)),
    (
        "CreateTopics",
        "CreateTopics to",
        lambda p, c, a: a.create_topics({"n": NewTopic(1)}, timeout=0),
    ),
    ("DescribeGroups", "DescribeGroups to", lambda p, c, a: a.describe_groups(["g"], timeout=0)),
    ("ListGroups", "ListGroups to", lambda p, c, a: a.list_groups(timeout=0)),
    ("Metadata", "Metadata to", lambda p, c, a: a.describe_topics(["t"], timeout=0)),
    ("GetTelemetrySubscriptions", "", lambda p, c, a: a.client_instance_id(timeout=0)),
]


@pytest.mark.parametrize(("api", "says", "call"), CALLS)
async def test_call_without_time_names_its_broker(
    api: str, says: str, call: Any, autojump_clock: MockClock
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.offer("GetTelemetrySubscriptions", (0, 0))
        async with (
            trikafka.open_producer(**settings(cluster, close_timeout_ms=0)) as producer,
            trikafka.open_consumer(**settings(cluster, group_id="g")) as consumer,
            trikafka.open_admin(**settings(cluster)) as admin,
        ):
            consumer.assign([T0])
            if api == "Produce":
                await producer.send("t", b"0")
            silence = cluster.silence(api)
            if api == "Produce":
                await producer.enqueue("t", b"1")
            error = await refused(lambda: call(producer, consumer, admin))
            assert says in str(error)
            assert "broker-0:9092" in str(error)
            silence.remove()
            cluster.disconnect()
