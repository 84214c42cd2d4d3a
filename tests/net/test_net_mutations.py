"""Responses with bytes changed at random: a call ends in its result or in an error of ours, and no step takes long."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock as Clock

import trikafka
from trikafka import NewTopic, OffsetSpec, TopicPartition, TrikafkaError
from trikafka.testing import ScriptedCluster

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ADMIN = ["ListOffsets", "ListGroups", "DescribeGroups", "CreateTopics", "DescribeConfigs", "OffsetFetch", "FindCoordinator"]
GROUP = ["JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "ConsumerGroupHeartbeat", "OffsetFetch", "ListOffsets", "Fetch"]
PRODUCER = ["InitProducerId", "Produce"]
ALL = ["Metadata", "ApiVersions"]
_BYTES = (0x00, 0xFF, 0x7F, 0x80, 0x01)


class Steps(trio.abc.Instrument):
    """The longest step of any task (real seconds)."""

    longest, _began = 0.0, math.inf

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.perf_counter()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, time.perf_counter() - self._began)


def mutation(chosen: random.Random) -> Callable[[bytes], bytes]:
    """One to four neighbouring bytes of what follows the correlation id are others then."""

    def change(frame: bytes) -> bytes:
        if len(frame) <= 9:
            return frame
        place = chosen.randrange(8, len(frame))
        width = min(chosen.choice((1, 1, 2, 4)), len(frame) - place)
        return frame[:place] + bytes([chosen.choice(_BYTES)]) * width + frame[place + width :]

    return change


async def admin(settings: dict[str, Any]) -> None:
    async with trikafka.open_admin(**settings) as client:
        calls: list[Callable[[], Any]] = [
            lambda: client.list_offsets({T0: OffsetSpec.LATEST, T1: 5}, timeout=20),
            lambda: client.list_topics(timeout=20),
            lambda: client.list_groups(timeout=20),
            lambda: client.describe_groups(["g"], timeout=20),
            lambda: client.create_topics({"new": NewTopic(1)}, timeout=20),
            lambda: client.topic_configs(["t"], timeout=20),
            lambda: client.list_group_offsets("g", timeout=20),
            lambda: client.describe_cluster(timeout=20),
        ]
        for call in calls:
            with suppress(TrikafkaError):
                await call()


async def group(settings: dict[str, Any]) -> None:
    async with trikafka.open_consumer("t", group_id="g", auto_offset_reset="earliest", **settings) as client:
        for _ in range(3):
            await client.receive_batch(timeout=5)
        await client.commit(timeout=10)
        await client.committed([T0], timeout=10)
        await client.end_offsets([T0], timeout=10)


async def producer(settings: dict[str, Any]) -> None:
    async with trikafka.open_producer(delivery_timeout_ms=40_000, **settings) as client:
        for number in range(3):
            await client.send("t", b"x", partition=number % 2)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize(("use", "apis"), [(admin, ADMIN), (group, GROUP), (producer, PRODUCER)])
async def test_damaged_responses(autojump_clock: Clock, use: Any, apis: list[str], seed: int) -> None:
    chosen, steps = random.Random(f"{use.__name__} {seed}"), Steps()
    trio.lowlevel.add_instrument(steps)
    async with ScriptedCluster(nodes=2, topics={"t": 2}, strict=False) as cluster:
        if seed % 2:
            cluster.offer("ConsumerGroupHeartbeat", None)
        cluster.append("t", 0, [b"a", b"b"])
        settings = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial, "request_timeout_ms": 5_000}
        for api in chosen.sample([*apis, *ALL], 2):
            cluster.damage(api, times=chosen.choice((1, 3, 10)), change=mutation(chosen))
        with suppress(TrikafkaError), trio.fail_after(600):
            await use(settings)
    trio.lowlevel.remove_instrument(steps)
    assert steps.longest < 2


async def test_metadata_that_cannot_be_is_refused_wherever_it_is_read(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_admin(**settings) as client, trikafka.open_consumer(**settings) as consumer:

            async def absurd(request: Any, default: Any) -> Any:
                response = await default()
                response.topics[0].partitions[0].partition_index = number
                return response

            cluster.on("Metadata", absurd)
            for number in (20_000_000, -1):
                for call in (client.list_topics, consumer.list_topics):
                    with pytest.raises(trikafka.KafkaTimeoutError) as caught:
                        await call(timeout=1)
                    assert isinstance(caught.value.__cause__, trikafka.ProtocolError)
                    assert f"a partition {number} of topic 't'" in str(caught.value)


@pytest.mark.parametrize("versions", [(-1, 9), (5, 3), (-3, -1)])
async def test_an_api_in_versions_that_cannot_be_is_not_offered(autojump_clock: Clock, versions: tuple[int, int]) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        cluster.offer("ListGroups", versions)
        async with trikafka.open_admin(**settings) as client:
            assert "t" in await client.list_topics()
            with pytest.raises(trikafka.UnsupportedVersionError, match="does not offer ListGroupsRequest"):
                await client.list_groups()
