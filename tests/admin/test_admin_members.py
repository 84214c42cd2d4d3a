"""Members, share groups and streams groups: against brokers that the test scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from administering import opened, refuses

import trikafka
from trikafka import (
    AdminErrors,
    AuthorizationError,
    GroupIdNotFoundError,
    IllegalStateError,
    SharePartitionOffset,
    TopicPartition,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable, respond

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
NO_GROUP, NO_TOPIC, NON_EMPTY, NOT_COORDINATOR, NO_MEMBER = 69, 3, 68, 16, 25
GROUP_REFUSED, UNSUPPORTED_VERSION = 30, 35


@asynccontextmanager
async def member(cluster: ScriptedCluster, **settings: Any) -> AsyncIterator[trikafka.Consumer]:
    """A consumer in group ``g`` that has partitions."""
    async with trikafka.open_consumer(
        "t",
        group_id="g",
        bootstrap_servers=cluster.bootstrap_servers,
        dial=cluster.dial,
        enable_auto_commit=False,
        **{"group_protocol": "classic", **settings},
    ) as consumer:
        while not consumer.assignment():
            await consumer.receive_batch(timeout=0.1)
        yield consumer


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_static_member_is_removed(
    autojump_clock: trio.testing.MockClock, protocol: str
) -> None:
    async with (
        ScriptedCluster(topics={"t": 2}) as cluster,
        opened(cluster) as admin,
        member(cluster, group_instance_id="i", client_rack="r", group_protocol=protocol),
    ):
        (found,) = (await admin.describe_groups(["g"]))["g"].members
        assert (found.instance_id, found.rack, found.topics) == ("i", "r", ("t",))
        removed = await admin.remove_group_members("g", instance_ids=["i"], reason="moved")
        assert removed == ["i"]
        (seen,) = cluster.requests("LeaveGroup")
        (one,) = seen.request.members
        assert (one.member_id, one.group_instance_id, one.reason) == ("", "i", "moved")
        assert (await admin.describe_groups(["g"]))["g"].members == ()


async def test_all_members_are_removed_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        ScriptedCluster(topics={"t": 2}) as cluster,
        opened(cluster) as admin,
        member(cluster, group_instance_id="i"),
        member(cluster) as second,
    ):
        removed = await admin.remove_group_members("g")
        assert sorted(removed) == sorted(["i", second.group_metadata().member_id])
        assert len(cluster.requests("LeaveGroup")) == 1


async def test_unknown_member_leaves_the_others(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        ScriptedCluster(topics={"t": 2}) as cluster,
        opened(cluster) as admin,
        member(cluster, group_instance_id="i"),
    ):
        with pytest.raises(AdminErrors, match="member 'no' of group 'g'") as raised:
            await admin.remove_group_members("g", ["no"], instance_ids=["i"])
        assert (list(raised.value.results), list(raised.value.failures)) == (["i"], ["no"])
        with pytest.raises(GroupIdNotFoundError, match="'other'"):
            await admin.remove_group_members("other")
        assert await admin.remove_group_members("g", []) == []


async def test_description_has_epochs_and_target(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        ScriptedCluster(topics={"t": 2}) as cluster,
        opened(cluster) as admin,
        member(cluster, group_protocol="consumer", group_instance_id="i"),
    ):
        found = (await admin.describe_groups(["g"]))["g"]
        assert (found.type, found.assignor) == ("consumer", "uniform")
        (one,) = found.members
        assert found.epoch == found.assignment_epoch == one.epoch
        assert one.epoch
        assert (one.instance_id, one.topics) == ("i", ("t",))
        assert one.assignment == one.target_assignment == (T0, T1)


# --- share groups and streams groups --------------------------------------------------------------


def offers_share_groups(cluster: ScriptedCluster) -> None:
    for api, versions in (
        ("ShareGroupDescribe", (1, 1)),
        ("DescribeShareGroupOffsets", (0, 1)),
        ("AlterShareGroupOffsets", (0, 0)),
        ("DeleteShareGroupOffsets", (0, 0)),
    ):
        cluster.offer(api, versions)


def share_group(name: str) -> dict[str, Any]:
    assigned = [{"topic_name": "t", "partitions": [1, 0]}]
    return {
        "group_id": name,
        "group_state": "Stable",
        "group_epoch": 4,
        "assignment_epoch": 3,
        "assignor_name": "simple",
        "authorized_operations": 1 << 8 | 1 << 3,
        "members": [
            {
                "member_id": "m",
                "rack_id": "r",
                "member_epoch": 4,
                "client_id": "c",
                "client_host": "/1.2.3.4",
                "subscribed_topic_names": ["u", "t"],
                "assignment": {"topic_partitions": assigned},
            }
        ],
    }


async def describes_shares(request: Any, default: Any) -> Any:
    groups = [
        share_group(name)
        if name != "no"
        else {"group_id": name, "error_code": NO_GROUP, "error_message": "not found", "members": []}
        for name in request.group_ids
    ]
    return respond(request, groups=groups)


async def test_share_groups_are_described(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster) as admin:
        offers_share_groups(cluster)
        cluster.on("ShareGroupDescribe", describes_shares)
        found = (await admin.describe_share_groups(["g"], authorized_operations=True))["g"]
        assert (found.state, found.type, found.epoch) == ("Stable", "share", 4)
        assert found.authorized_operations == {"describe", "read"}
        (one,) = found.members
        assert (one.client_host, one.rack, one.epoch) == ("1.2.3.4", "r", 4)
        assert (one.topics, one.assignment) == (("t", "u"), (T0, T1))
        assert one.target_assignment is None
        with pytest.raises(AdminErrors, match=r"group 'no' \(not found\)") as raised:
            await admin.describe_share_groups(["g", "no"])
        assert raised.value.results == {"g": found}


async def test_any_group_is_described_as_it_is(autojump_clock: trio.testing.MockClock) -> None:
    async def lists(request: Any, default: Any) -> Any:
        response = await default()
        response.groups.append(
            type(response).ListedGroup(
                group_id="s", protocol_type="share", group_state="Stable", group_type="share"
            )
        )
        return response

    async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster) as admin:
        offers_share_groups(cluster)
        cluster.on("ShareGroupDescribe", describes_shares)
        cluster.on("ListGroups", lists)
        found = await admin.describe_groups(["s"])
        assert (found["s"].type, len(found["s"].members)) == ("share", 1)
        with pytest.raises(IllegalStateError, match="members of share group 's'"):
            await admin.remove_group_members("s")


def share_offsets(code: int = 0) -> Any:
    async def answer(request: Any, default: Any) -> Any:
        parts = [
            {"partition_index": 1, "start_offset": 7, "leader_epoch": 2, "lag": 5},
            {"partition_index": 0, "start_offset": -1, "leader_epoch": -1, "lag": -1},
        ]
        if code:
            parts.append({"partition_index": 2, "start_offset": -1, "error_code": code})
        groups = [
            {"group_id": group.group_id, "topics": [{"topic_name": "t", "partitions": parts}]}
            for group in request.groups
        ]
        return respond(request, groups=groups)

    return answer


async def test_share_offsets_are_one_request(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster) as admin:
        offers_share_groups(cluster)
        cluster.on("DescribeShareGroupOffsets", share_offsets())
        found = await admin.list_share_group_offsets({"g": None, "h": [T1, U0]})
        place = SharePartitionOffset(7, 2, 5)
        assert found == {"g": {T1: place}, "h": {T1: place}}
        (seen,) = cluster.requests("DescribeShareGroupOffsets")
        asked = {group.group_id: group.topics for group in seen.request.groups}
        assert asked["g"] is None
        assert [(each.topic_name, each.partitions) for each in asked["h"]] == [
            ("t", [1]),
            ("u", [0]),
        ]
        cluster.offer("DescribeShareGroupOffsets", (0, 0))
        cluster.disconnect()
        found = await admin.list_share_group_offsets(["g"])
        assert found["g"][T1] == SharePartitionOffset(7, 2, None)


async def test_partition_without_offset_fails_its_group(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with ScriptedCluster(topics={"t": 3}) as cluster, opened(cluster) as admin:
        offers_share_groups(cluster)
        cluster.on("DescribeShareGroupOffsets", share_offsets(NO_TOPIC), times=1)
        with pytest.raises(trikafka.UnknownTopicOrPartitionError, match="t-2") as raised:
            await admin.list_share_group_offsets(["g"])
        assert list(raised.value.failures) == [TopicPartition("t", 2)]


def alters(cluster: ScriptedCluster, codes: dict[int, int], whole: int = 0) -> None:
    async def answer(request: Any, default: Any) -> Any:
        responses = [
            {
                "topic_name": topic.topic_name,
                "partitions": [
                    {
                        "partition_index": part.partition_index,
                        "error_code": codes.get(part.partition_index, 0),
                    }
                    for part in topic.partitions
                ],
            }
            for topic in request.topics
        ]
        return respond(request, error_code=whole, responses=[] if whole else responses)

    offers_share_groups(cluster)
    cluster.on("AlterShareGroupOffsets", answer)


async def test_share_offsets_are_set(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster) as admin:
        alters(cluster, {1: NO_TOPIC})
        await admin.alter_share_group_offsets("g", {T0: 5})
        with pytest.raises(AdminErrors, match="t-1") as raised:
            await admin.alter_share_group_offsets("g", {T0: 5, T1: 6})
        assert list(raised.value.results) == [T0]
        asked = cluster.requests("AlterShareGroupOffsets")[-1].request
        assert [
            (part.partition_index, part.start_offset)
            for topic in asked.topics
            for part in topic.partitions
        ] == [(0, 5), (1, 6)]


async def test_share_group_with_members_keeps_offsets(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster) as admin:
        alters(cluster, {}, whole=NON_EMPTY)
        with pytest.raises(IllegalStateError, match="share group 'g' has members"):
            await admin.alter_share_group_offsets("g", {T0: 5})


async def test_refused_share_offsets_name_the_right(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster) as admin:
        alters(cluster, {}, whole=GROUP_REFUSED)
        with pytest.raises(AuthorizationError) as raised:
            await admin.alter_share_group_offsets("g", {T0: 5})
        assert raised.value.operation == "Read"


async def test_moved_coordinator_is_found_again(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 2}) as cluster, opened(cluster) as admin:

        async def refuse(request: Any, default: Any) -> Any:
            cluster.move_coordinator(1)
            return respond(request, error_code=NOT_COORDINATOR, responses=[])

        offers_share_groups(cluster)
        cluster.on("AlterShareGroupOffsets", refuse, node=0)
        alters(cluster, {})
        await admin.alter_share_group_offsets("g", {T0: 5})
        assert [seen.node_id for seen in cluster.requests("AlterShareGroupOffsets")][-1] == 1


async def test_share_offsets_of_topics_are_deleted(autojump_clock: trio.testing.MockClock) -> None:
    async def answer(request: Any, default: Any) -> Any:
        responses = [
            {
                "topic_name": topic.topic_name,
                "error_code": NO_TOPIC if topic.topic_name == "no" else 0,
            }
            for topic in request.topics
        ]
        return respond(request, error_code=0, responses=responses)

    async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster) as admin:
        offers_share_groups(cluster)
        cluster.on("DeleteShareGroupOffsets", answer)
        await admin.delete_share_group_offsets("g", ["t", "u"])
        with pytest.raises(AdminErrors, match="topic 'no' does not exist") as raised:
            await admin.delete_share_group_offsets("g", ["t", "no"])
        assert list(raised.value.results) == ["t"]


async def test_streams_group_shows_its_tasks(autojump_clock: trio.testing.MockClock) -> None:
    def tasks(active: list[int]) -> dict[str, Any]:
        return {
            "active_tasks": [{"subtopology_id": "0", "partitions": active}],
            "standby_tasks": [],
            "warmup_tasks": [],
        }

    async def answer(request: Any, default: Any) -> Any:
        group = {
            "group_id": "s",
            "group_state": "Stable",
            "group_epoch": 3,
            "assignment_epoch": 3,
            "topology": {
                "epoch": 1,
                "subtopologies": [
                    {
                        "subtopology_id": "0",
                        "source_topics": ["t"],
                        "repartition_sink_topics": [],
                        "state_changelog_topics": [
                            {
                                "name": "log",
                                "partitions": 0,
                                "replication_factor": 0,
                                "topic_configs": [],
                            }
                        ],
                        "repartition_source_topics": [],
                    }
                ],
            },
            "members": [
                {
                    "member_id": "m",
                    "member_epoch": 3,
                    "client_id": "c",
                    "client_host": "/1.2.3.4",
                    "topology_epoch": 1,
                    "process_id": "p",
                    "client_tags": [],
                    "task_offsets": [],
                    "task_end_offsets": [],
                    "assignment": tasks([1, 0]),
                    "target_assignment": tasks([0]),
                }
            ],
        }
        return respond(request, groups=[group])

    async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster) as admin:
        for version in (0, 1):
            cluster.offer("StreamsGroupDescribe", (version, version))
            cluster.disconnect()
            rule = cluster.on("StreamsGroupDescribe", answer)
            found = (await admin.describe_streams_groups(["s"]))["s"]
            rule.remove()
            (one,) = found.members
            assert one.tasks.active == {"0": (0, 1)}
            assert one.target_tasks.active == {"0": (0,)}
            assert one.tasks.standby == {}
            assert found.subtopologies is not None
            assert found.subtopologies[0].changelog_topics == ("log",)
            assert (found.topology_epoch, found.assignor) == (1, None)


async def test_undeleted_group_has_the_reason(autojump_clock: trio.testing.MockClock) -> None:
    async def answer(request: Any, default: Any) -> Any:
        result = {"group_id": "g", "error_code": NON_EMPTY, "error_message": "2 members."}
        return respond(request, results=[result])

    async with ScriptedCluster() as cluster:
        cluster.offer("DeleteGroups", (0, 3))
        cluster.on("DeleteGroups", answer)
        async with opened(cluster) as admin:
            with pytest.raises(trikafka.BrokerResponseError, match=r"group 'g' \(2 members\)"):
                await admin.delete_groups(["g"])


async def test_share_offsets_of_missing_partitions(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Kafka 4.4.0 does not answer a request that names one."""
    strange = TopicPartition("t", 7)

    def names_it(request: Any) -> bool:
        named = [each for group in request.groups for each in group.topics or ()]
        return any(7 in each.partitions for each in named)

    async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster) as admin:
        cluster.silence("DescribeShareGroupOffsets", None, where=names_it)
        await admin.alter_share_group_offsets("h", {T1: 0})
        with trio.fail_after(1):
            with pytest.raises(UnknownTopicOrPartitionError, match=r"partition t-7 .*2 partitions"):
                await admin.list_share_group_offsets({"g": [T0, strange]})
            with pytest.raises(AdminErrors, match="partition t-7") as caught:
                await admin.list_share_group_offsets({"g": [T0, strange], "h": None})
        assert caught.value.results["h"].keys() == {T1}


async def test_share_offsets_live_in_the_cluster(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster) as admin:
        cluster.append("t", 0, [b"v"] * 5)
        await admin.alter_share_group_offsets("g", {T0: 2, T1: 0})
        found = await admin.list_share_group_offsets(["g"])
        assert {tp: (at.start_offset, at.lag) for tp, at in found["g"].items()} == {
            T0: (2, 3),
            T1: (0, 0),
        }
        await admin.delete_share_group_offsets("g", ["t"])
        assert await admin.list_share_group_offsets(["g"]) == {"g": {}}
        assert (await admin.describe_share_groups(["g"]))["g"].state == "Empty"


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.describe_share_groups(["g"]),
        lambda admin: admin.list_share_group_offsets(["g"]),
        lambda admin: admin.alter_share_group_offsets("g", {T0: 1}),
        lambda admin: admin.delete_share_group_offsets("g", ["t"]),
        lambda admin: admin.describe_streams_groups(["g"]),
    ],
)
async def test_release_is_named_that_can(autojump_clock: trio.testing.MockClock, call: Any) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        for api in (77, 89, 90, 91, 92):
            cluster.offer(api, None)
        async with opened(cluster) as admin:
            with pytest.raises(UnsupportedVersionError, match=r"needs Kafka 4\.2 or newer"):
                await call(admin)


@pytest.mark.parametrize(
    ("call", "feature"),
    [
        (lambda admin: admin.describe_groups(["g"]), "group"),
        (lambda admin: admin.describe_share_groups(["g"]), "share"),
        (lambda admin: admin.list_share_group_offsets(["g"]), "share"),
        (lambda admin: admin.alter_share_group_offsets("g", {T0: 1}), "share"),
        (lambda admin: admin.delete_share_group_offsets("g", ["t"]), "share"),
        (lambda admin: admin.describe_streams_groups(["g"]), "streams"),
    ],
)
async def test_feature_that_is_off_is_named(
    autojump_clock: trio.testing.MockClock, call: Any, feature: str
) -> None:
    async with (
        ScriptedCluster(topics={"t": 2}) as cluster,
        member(cluster, group_protocol="consumer"),
        opened(cluster) as admin,
    ):
        for api in (69, 77, 89, 90, 91, 92):
            cluster.fail(api, UNSUPPORTED_VERSION, None)
        with pytest.raises(UnsupportedVersionError, match=rf"feature {feature}\.version \(.*'g'"):
            await call(admin)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda admin: admin.remove_group_members(""), "group_id"),
        (lambda admin: admin.remove_group_members("g", "m"), "member_ids must be a collection"),
        (lambda admin: admin.remove_group_members("g", reason=5), "reason must be text"),
        (lambda admin: admin.describe_share_groups("g"), "group_ids must be a collection"),
        (lambda admin: admin.list_share_group_offsets("g"), "groups must be a collection"),
        (lambda admin: admin.list_share_group_offsets({"g": ["t"]}), "is a TopicPartition"),
        (lambda admin: admin.alter_share_group_offsets("g", [T0]), "a mapping of TopicPartition"),
        (lambda admin: admin.alter_share_group_offsets("g", {T0: -1}), "a whole number from 0"),
        (lambda admin: admin.delete_share_group_offsets("g", "t"), "topics must be a collection"),
    ],
)
async def test_bad_input_is_refused_before_any_request(
    autojump_clock: trio.testing.MockClock, call: Any, text: str
) -> None:
    await refuses(call, text)


async def test_calls_end_when_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    async def scenario() -> None:
        async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster) as admin:
            alters(cluster, {})
            cluster.on("DescribeShareGroupOffsets", share_offsets())
            await admin.alter_share_group_offsets("g", {T0: 1})
            await admin.list_share_group_offsets(["g", "h"])

    await assert_all_awaits_cancellable(scenario)
