"""Faults that a test can set for every API: silence, damage, omissions, refused connections."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import trio
from kafka.protocol.api_key import ApiKey
from rawclient import RawClient, fetch_fields, produce_fields
from trio.testing import MockClock as Clock

from trikafka.testing import ScriptedCluster, encode_batch
from trikafka.testing.faults import cut, flip, strange_id
from trikafka.testing.messages import REQUESTS, RESPONSES, build


def requests_of(cluster: ScriptedCluster) -> dict[str, tuple[int, dict[str, Any]]]:
    """Return a request for partitions 0 and 1 of topic "t" for every API with partitions.

    The version is one with names.
    """
    both = [0, 1]
    data = encode_batch([b"a"], timestamp=1)
    produce = produce_fields("t", 0, data)
    produce["topic_data"][0]["partition_data"].append({"index": 1, "records": data})
    fetch = fetch_fields("t", 0, 0)
    fetch["topics"][0]["partitions"].append(
        {"partition": 1, "fetch_offset": 0, "partition_max_bytes": 1000}
    )
    commits = [
        {"partition_index": index, "committed_offset": 1, "committed_metadata": ""}
        for index in both
    ]
    epochs = [{"partition": index, "leader_epoch": 0} for index in both]
    group = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": both}]}
    committer = {"group_id": "g", "generation_id_or_member_epoch": -1}
    return {
        "Metadata": (12, {"topics": [{"name": "t"}]}),
        "Produce": (12, produce),
        "Fetch": (12, fetch),
        "ListOffsets": (
            7,
            {
                "replica_id": -1,
                "topics": [{"name": "t", "partitions": [{"partition_index": i} for i in both]}],
            },
        ),
        "OffsetForLeaderEpoch": (
            4,
            {"replica_id": -1, "topics": [{"topic": "t", "partitions": epochs}]},
        ),
        "OffsetCommit": (8, committer | {"topics": [{"name": "t", "partitions": commits}]}),
        "OffsetFetch": (8, {"groups": [group]}),
    }


APIS = [
    "Metadata",
    "Produce",
    "Fetch",
    "ListOffsets",
    "OffsetForLeaderEpoch",
    "OffsetCommit",
    "OffsetFetch",
]


def indexes_of(answer: Any) -> list[int]:
    answer = answer.groups[0] if "groups" in answer.fields else answer
    topics = answer.responses if "responses" in answer.fields else answer.topics
    found = []
    for item in topics:
        parts = (
            item.partition_responses if "partition_responses" in item.fields else item.partitions
        )
        found += [
            part.partition_index
            if "partition_index" in part.fields
            else getattr(part, "partition", part)
            for part in parts
        ]
    return [getattr(each, "index", each) if not isinstance(each, int) else each for each in found]


@pytest.mark.parametrize("api", APIS)
async def test_partition_is_left_out(autojump_clock: Clock, api: str) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        client = await RawClient.connect(cluster)
        version, fields = requests_of(cluster)[api]
        cluster.leave_out(api, "t", 1)
        cluster.leave_out(api, "t")
        found = [sorted(indexes_of(await client.call(api, version, **fields))) for _ in range(3)]
        assert found == [[0], [], [0, 1]]


async def test_partition_is_left_out_by_topic_id(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1, "u": 1}) as cluster:
        client = await RawClient.connect(cluster)
        fields = fetch_fields("", 0, 0, topic_id=cluster.topic_id("t"))
        fields["topics"] += fetch_fields("", 0, 0, topic_id=cluster.topic_id("u"))["topics"]
        cluster.leave_out("Fetch", "t", 0)
        answer = await client.call("Fetch", 13, **fields)
        assert [item.topic_id for item in answer.responses] == [cluster.topic_id("u")]


@pytest.mark.parametrize(
    "api", [key for key in sorted(REQUESTS) if key in (68, 69)] + ["Metadata", "Fetch"]
)
async def test_silence_lasts_for_the_connection(autojump_clock: Clock, api: Any) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.silence(api, times=1)
        client, other = await RawClient.connect(cluster), await RawClient.connect(cluster)
        key = api if isinstance(api, int) else int(ApiKey[api])
        await client.send(
            build(
                REQUESTS[key], 1 if key >= 68 else 12, {"max_wait_ms": 0} if api == "Fetch" else {}
            )
        )
        with trio.move_on_after(86_400) as scope:
            await client.call("Metadata", 12, topics=None)
        assert (scope.cancelled_caught, trio.current_time()) == (True, 86_400)
        assert (await other.call("Metadata", 12, topics=None)).topics


@pytest.mark.parametrize("after", [False, True])
async def test_silent_request_is_carried_out_or_not(autojump_clock: Clock, after: bool) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.silence("Produce", after=after)
        client = await RawClient.connect(cluster)
        with trio.move_on_after(1):
            await client.call(
                "Produce", 12, **produce_fields("t", 0, encode_batch([b"a"], timestamp=1))
            )
        assert len(cluster.records("t", 0)) == after


async def test_damaged_bytes_are_sent(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        request = build(REQUESTS[3], 12, {"topics": None})
        frames = []
        for change in (None, flip, cut, strange_id):
            if change is not None:
                cluster.damage("Metadata", change=change)
            await client.send(request)
            frames.append(await client.frame())
        good, flipped, short, strange = frames
        assert (len(flipped), sum(a != b for a, b in zip(good[4:], flipped[4:], strict=True))) == (
            len(good),
            1,
        )
        assert len(short) < len(good)
        with pytest.raises(Exception):  # noqa: B017, PT011 - any error of kafka-python's
            RESPONSES[3].decode(short, version=12, header=True)
        assert strange[0] == 0x40


async def test_refusing_node_keeps_old_connections(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        cluster.refuse(0)
        with pytest.raises(ConnectionRefusedError):
            await RawClient.connect(cluster)
        assert len((await client.call("Metadata", 12, topics=None)).brokers) == 2
        await RawClient.connect(cluster, 1)
        cluster.refuse(0, False)
        await RawClient.connect(cluster)
        assert [outcome for _, _, outcome in cluster.dials] == [
            "connected",
            "refused",
            "connected",
            "connected",
        ]


async def test_error_lasts_until_the_rule_is_removed(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        rule = cluster.fail("FindCoordinator", 15, times=None)
        ask = {"key": "g", "key_type": 0, "coordinator_keys": ["g"]}
        codes = [
            (await client.call("FindCoordinator", 4, **ask)).coordinators[0].error_code
            for _ in range(3)
        ]
        rule.remove()
        codes.append((await client.call("FindCoordinator", 4, **ask)).coordinators[0].error_code)
        assert codes == [15, 15, 15, 0]


async def test_telemetry_is_offered_on_demand(autojump_clock: Clock) -> None:
    wanted = {"GetTelemetrySubscriptions": (0, 0), "PushTelemetry": (0, 0)}
    async with ScriptedCluster(api_versions=wanted) as cluster:
        client = await RawClient.connect(cluster)
        given = await client.call(
            "GetTelemetrySubscriptions", 0, client_instance_id=uuid.UUID(int=0)
        )
        assert (given.error_code, given.client_instance_id is not None, given.push_interval_ms) == (
            0,
            True,
            300_000,
        )
        assert given.requested_metrics == []
        cluster.want_metrics([""], interval=5)
        again = await client.call(
            "GetTelemetrySubscriptions", 0, client_instance_id=given.client_instance_id
        )
        assert (again.requested_metrics, again.push_interval_ms, again.client_instance_id) == (
            [""],
            5000,
            None,
        )
        push = {
            "client_instance_id": given.client_instance_id,
            "terminating": False,
            "compression_type": 0,
            "metrics": b"data",
        }
        codes = []
        for subscription in (given.subscription_id, again.subscription_id):
            codes.append(
                (
                    await client.call("PushTelemetry", 0, subscription_id=subscription, **push)
                ).error_code
            )
        assert codes == [117, 0]
        assert [bytes(seen.request.metrics) for seen in cluster.requests("PushTelemetry")] == [
            b"data",
            b"data",
        ]
