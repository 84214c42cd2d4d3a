"""Reassignments, elections, log directories, descriptions: against brokers that the test scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from administering import opened, refuses

import trikafka
from trikafka import (
    AdminErrors,
    BrokerResponseError,
    ConfigurationError,
    NewTopic,
    PartitionReassignment,
    TopicPartition,
    TopicPartitionReplica,
    TrikafkaError,
    UnsupportedVersionError,
)
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable, respond

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
NOT_CONTROLLER, BAD_REPLICAS, NO_REASSIGNMENT = 41, 39, 85
NO_PREFERRED, NOT_NEEDED, NO_DIRECTORY = 80, 84, 57
Result = Callable[[TopicPartition], int]


def fine(tp: TopicPartition) -> int:
    return 0


def reassigns(cluster: ScriptedCluster, result: Result = fine, whole: int = 0) -> None:
    """Let the cluster answer to reassignments with a code for each partition."""

    async def answer(request: Any, default: Any) -> Any:
        return respond(
            request,
            error_code=whole,
            error_message=None,
            responses=[
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": part.partition_index,
                            "error_code": result(TopicPartition(topic.name, part.partition_index)),
                            "error_message": None,
                        }
                        for part in topic.partitions
                    ],
                }
                for topic in request.topics
            ],
        )

    cluster.offer("AlterPartitionReassignments", (0, 1))
    cluster.on("AlterPartitionReassignments", answer)


async def test_reassignments_are_one_request(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        ScriptedCluster(nodes=3, topics={"t": 2, "u": 1}) as cluster,
        opened(cluster) as admin,
    ):
        reassigns(cluster)
        await admin.alter_partition_reassignments({T1: [1, 2], U0: None, T0: (2,)})
        (seen,) = cluster.requests("AlterPartitionReassignments")
        assert [
            (topic.name, [(part.partition_index, part.replicas) for part in topic.partitions])
            for topic in seen.request.topics
        ] == [("t", [(0, [2]), (1, [1, 2])]), ("u", [(0, None)])]
        assert seen.request.allow_replication_factor_change


async def test_refused_partition_leaves_the_others(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster) as admin:
        reassigns(cluster, lambda tp: BAD_REPLICAS if tp == T1 else 0)
        with pytest.raises(AdminErrors, match="1 of 2 failed") as raised:
            await admin.alter_partition_reassignments({T0: [1], T1: [9]})
        assert (list(raised.value.results), list(raised.value.failures)) == ([T0], [T1])
        with pytest.raises(BrokerResponseError, match=r"INVALID_REPLICA_ASSIGNMENT.*: t-1"):
            await admin.alter_partition_reassignments({T1: [9]})


async def test_only_passing_failures_are_repeated(autojump_clock: trio.testing.MockClock) -> None:
    codes = {T0: [0], T1: [NOT_CONTROLLER, 0]}
    async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster) as admin:
        reassigns(cluster, lambda tp: codes[tp].pop(0))
        await admin.alter_partition_reassignments({T0: [0], T1: [0]})
        asked = [
            [part.partition_index for topic in seen.request.topics for part in topic.partitions]
            for seen in cluster.requests("AlterPartitionReassignments")
        ]
        assert asked == [[0, 1], [1]]


async def test_error_of_the_whole_request_is_raised(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster) as admin:
        reassigns(cluster, whole=31)
        with pytest.raises(trikafka.AuthorizationError, match="operation Alter"):
            await admin.alter_partition_reassignments({T0: [0], T1: [0]})


async def test_partition_left_out_is_an_error(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster) as admin:

        async def half(request: Any, default: Any) -> Any:
            parts = [{"partition_index": 0, "error_code": 0, "error_message": None}]
            return respond(
                request,
                error_code=0,
                error_message=None,
                responses=[{"name": "t", "partitions": parts}],
            )

        cluster.offer("AlterPartitionReassignments", (0, 1))
        cluster.on("AlterPartitionReassignments", half)
        with pytest.raises(AdminErrors, match="leaves out t-1") as raised:
            await admin.alter_partition_reassignments({T0: [0], T1: [0]}, timeout=1)
        assert list(raised.value.results) == [T0]


async def test_reassignments_under_way_are_listed(autojump_clock: trio.testing.MockClock) -> None:
    async def answer(request: Any, default: Any) -> Any:
        part = {
            "partition_index": 1,
            "replicas": [2, 0, 1],
            "adding_replicas": [2],
            "removing_replicas": [1],
        }
        return respond(
            request,
            error_code=0,
            error_message=None,
            topics=[{"name": "t", "partitions": [part]}],
        )

    async with ScriptedCluster(topics={"t": 2}) as cluster, opened(cluster) as admin:
        cluster.offer("ListPartitionReassignments", (0, 0))
        cluster.on("ListPartitionReassignments", answer)
        found = await admin.list_partition_reassignments()
        assert found == {T1: PartitionReassignment((2, 0, 1), (2,), (1,))}
        assert found[T1].target == (2, 0)
        assert await admin.list_partition_reassignments([T0]) == {}  # t-1 was not asked for
        first, second = cluster.requests("ListPartitionReassignments")
        assert first.request.topics is None
        assert [topic.partition_indexes for topic in second.request.topics] == [[0]]


def elects(cluster: ScriptedCluster, result: dict[TopicPartition, int]) -> None:
    async def answer(request: Any, default: Any) -> Any:
        parts = [
            {
                "topic": tp.topic,
                "partition_result": [
                    {"partition_id": tp.partition, "error_code": code, "error_message": None}
                ],
            }
            for tp, code in result.items()
        ]
        return respond(request, error_code=0, replica_election_results=parts)

    cluster.offer("ElectLeaders", (0, 2))
    cluster.on("ElectLeaders", answer)


async def test_election_says_what_is_new(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(topics={"t": 2, "u": 1}) as cluster, opened(cluster) as admin:
        elects(cluster, {T0: 0, T1: NOT_NEEDED, U0: NO_PREFERRED})
        assert await admin.elect_leaders([T0, T1], election="unclean") == {T0: True, T1: False}
        started = trio.current_time()
        with pytest.raises(AdminErrors, match="PREFERRED_LEADER_NOT_AVAILABLE") as raised:
            await admin.elect_leaders()
        assert trio.current_time() - started < 1  # a dead broker is not waited for
        assert raised.value.results == {T0: True, T1: False}
        first, second = cluster.requests("ElectLeaders")
        assert (first.request.election_type, second.request.election_type) == (1, 0)
        assert second.request.topic_partitions is None


def shows_directories(cluster: ScriptedCluster, **failing: int) -> None:
    """Let each broker answer with two directories, of which one is offline."""

    def answering(number: int) -> Any:
        async def answer(request: Any, default: Any) -> Any:
            parts = [
                {"partition_index": 0, "partition_size": 7, "offset_lag": 0, "is_future_key": False}
            ]
            moving = [
                {"partition_index": 0, "partition_size": 5, "offset_lag": 2, "is_future_key": True}
            ]
            return respond(
                request,
                error_code=0,
                results=[
                    {
                        "error_code": 0,
                        "log_dir": f"/{number}/a",
                        "topics": [{"name": "t", "partitions": parts}],
                        "total_bytes": 100,
                        "usable_bytes": 60,
                    },
                    {
                        "error_code": 0,
                        "log_dir": f"/{number}/b",
                        "topics": [{"name": "t", "partitions": moving}],
                    },
                    {"error_code": 56, "log_dir": f"/{number}/c", "topics": []},
                ],
            )

        return answer

    cluster.offer("DescribeLogDirs", (1, 5))
    for number in range(2):
        cluster.on("DescribeLogDirs", answering(number), node=number)


async def test_directories_of_every_broker(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 2}) as cluster, opened(cluster) as admin:
        shows_directories(cluster)
        found = await admin.describe_log_dirs()
        assert {number: list(dirs) for number, dirs in found.items()} == {
            0: ["/0/a", "/0/b", "/0/c"],
            1: ["/1/a", "/1/b", "/1/c"],
        }
        first = found[1]["/1/a"]
        assert (first.total_bytes, first.usable_bytes, first.error) == (100, 60, None)
        assert (first.replicas[T0].size, first.is_cordoned) == (7, False)
        assert found[0]["/0/b"].total_bytes is None
        assert "KAFKA_STORAGE_ERROR" in str(found[0]["/0/c"].error)
        assert all(seen.request.topics is None for seen in cluster.requests("DescribeLogDirs"))


async def test_missing_broker_leaves_the_others(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 2}) as cluster, opened(cluster) as admin:
        shows_directories(cluster)
        (found,) = (await admin.describe_log_dirs([0], partitions=[T1])).values()
        assert not found["/0/a"].replicas  # the broker shows t-0, which was not asked for
        with pytest.raises(AdminErrors, match="no live broker 7; it has 0, 1") as raised:
            await admin.describe_log_dirs([0, 7], partitions=[T0])
        assert (list(raised.value.results), list(raised.value.failures)) == ([0], [7])
        with pytest.raises(TrikafkaError, match="no live broker 7"):
            await admin.describe_log_dirs([7])


async def test_replica_has_a_place_and_a_goal(autojump_clock: trio.testing.MockClock) -> None:
    here, elsewhere = TopicPartitionReplica("t", 0, 1), TopicPartitionReplica("t", 1, 0)
    async with ScriptedCluster(nodes=2, topics={"t": 2}) as cluster, opened(cluster) as admin:
        shows_directories(cluster)
        found = await admin.describe_replica_log_dirs([here, elsewhere])
        assert (found[here].path, found[here].future_path) == ("/1/a", "/1/b")
        assert (found[here].offset_lag, found[here].future_offset_lag) == (0, 2)
        assert found[elsewhere].path is None
        asked = {
            seen.node_id: [part for topic in seen.request.topics for part in topic.partitions]
            for seen in cluster.requests("DescribeLogDirs")
        }
        assert asked == {0: [1], 1: [0]}


async def test_missing_broker_fails_its_replicas(autojump_clock: trio.testing.MockClock) -> None:
    """The error has results and failures by what was asked for: the replicas."""
    here, gone = TopicPartitionReplica("t", 0, 1), TopicPartitionReplica("t", 1, 7)
    also = TopicPartitionReplica("t", 0, 7)
    async with ScriptedCluster(nodes=2, topics={"t": 2}) as cluster, opened(cluster) as admin:
        shows_directories(cluster)
        with pytest.raises(AdminErrors, match="no live broker 7; it has 0, 1") as raised:
            await admin.describe_replica_log_dirs([here, gone, also])
        assert set(raised.value.failures) == {gone, also}
        assert raised.value.results[here].path == "/1/a"
        with pytest.raises(TrikafkaError, match="no live broker 7"):
            await admin.describe_replica_log_dirs([gone, also])


async def test_moved_replicas_go_to_their_brokers(autojump_clock: trio.testing.MockClock) -> None:
    async def answer(request: Any, default: Any) -> Any:
        results = [
            {
                "topic_name": topic.name,
                "partitions": [
                    {
                        "partition_index": number,
                        "error_code": NO_DIRECTORY if each.path == "/no" else 0,
                    }
                    for number in topic.partitions
                ],
            }
            for each in request.dirs
            for topic in each.topics
        ]
        return respond(request, results=results)

    good, bad = TopicPartitionReplica("t", 0, 0), TopicPartitionReplica("t", 0, 1)
    async with ScriptedCluster(nodes=2, topics={"t": 2}) as cluster, opened(cluster) as admin:
        cluster.offer("AlterReplicaLogDirs", (1, 2))
        cluster.on("AlterReplicaLogDirs", answer)
        with pytest.raises(AdminErrors, match="t-0 on broker 1, to '/no'") as raised:
            await admin.alter_replica_log_dirs({good: "/d", bad: "/no"})
        assert list(raised.value.results) == [good]
        assert len(cluster.requests("AlterReplicaLogDirs")) == 2


async def test_scripted_cluster_moves_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=3, topics={"t": 1}) as cluster, opened(cluster) as admin:
        await admin.alter_partition_reassignments({T0: [1, 0]})
        assert await admin.list_partition_reassignments() == {}
        (found,) = (await admin.describe_topics(["t"]))["t"].partitions
        assert (found.leader, found.replicas) == (0, (1, 0))
        assert await admin.elect_leaders() == {T0: True}
        assert await admin.elect_leaders([T0]) == {T0: False}
        assert cluster.partition("t", 0).leader == 1
        with pytest.raises(BrokerResponseError, match="NO_REASSIGNMENT_IN_PROGRESS"):
            await admin.alter_partition_reassignments({T0: None})
        with pytest.raises(BrokerResponseError, match="INVALID_REPLICATION_FACTOR"):
            await admin.alter_partition_reassignments(
                {T0: [1]}, allow_replication_factor_change=False
            )
        directories = await admin.describe_log_dirs()
        assert [list(each["/data-" + str(n)].replicas) for n, each in directories.items()] == [
            [T0],
            [T0],
            [],
        ]


# --- the cluster and its topics -------------------------------------------------------------------


async def test_cluster_shows_fenced_brokers(autojump_clock: trio.testing.MockClock) -> None:
    async def answer(request: Any, default: Any) -> Any:
        brokers = [
            {"broker_id": number, "host": f"b-{number}", "port": 1, "is_fenced": number == 2}
            for number in (2, 0)
        ]
        asked = request.include_cluster_authorized_operations
        return respond(
            request,
            error_code=0,
            cluster_id="c",
            controller_id=0,
            brokers=brokers,
            authorized_operations={5, 8} if asked else {31},
        )

    async with ScriptedCluster() as cluster, opened(cluster) as admin:
        cluster.offer("DescribeCluster", (0, 2))
        cluster.on("DescribeCluster", answer)
        seen = await admin.describe_cluster(fenced_brokers=True, authorized_operations=True)
        assert [node.node_id for node in seen.nodes] == [0]
        assert [node.node_id for node in seen.fenced_nodes] == [2]
        assert seen.controller == seen.nodes[0]
        assert seen.authorized_operations == {"create", "describe"}
        assert (await admin.describe_cluster()).authorized_operations is None


async def test_old_cluster_is_described_in_part(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=2) as cluster, opened(cluster) as admin:
        cluster.offer("DescribeCluster", None)
        cluster.disconnect()
        assert len((await admin.describe_cluster()).nodes) == 2
        with pytest.raises(UnsupportedVersionError, match="DescribeCluster"):
            await admin.describe_cluster(authorized_operations=True)
        cluster.offer("DescribeCluster", (0, 1))
        cluster.disconnect()
        with pytest.raises(UnsupportedVersionError, match=r"needs Kafka 4\.0"):
            await admin.describe_cluster(fenced_brokers=True)


def paged(cluster: ScriptedCluster, limit: int, *, stuck: bool = False) -> None:
    """Let the cluster answer in pages of ``limit`` partitions."""

    async def answer(request: Any, default: Any) -> Any:
        names = sorted(topic.name for topic in request.topics)
        places = [(name, number) for name in names if name != "no" for number in range(3)]
        at = request.cursor
        if at is not None:
            places = [each for each in places if each >= (at.topic_name, at.partition_index)]
        page, rest = places[:limit], places[limit:]
        topics: list[dict[str, Any]] = [
            {
                "name": name,
                "topic_id": cluster.topic_id(name),
                "partitions": [
                    {
                        "partition_index": number,
                        "leader_id": 0 if number else -1,
                        "replica_nodes": [0, 1],
                        "isr_nodes": [0],
                        "eligible_leader_replicas": [1],
                        "offline_replicas": [],
                    }
                    for each, number in page
                    if each == name
                ],
            }
            for name in dict.fromkeys(name for name, _ in page)
        ]
        if "no" in names:
            topics.append({"error_code": 3, "name": "no", "partitions": []})
        following = places[0] if stuck else rest[0] if rest else None
        cursor = None
        if following is not None:
            cursor = {"topic_name": following[0], "partition_index": following[1]}
        return respond(request, topics=topics, next_cursor=cursor)

    cluster.offer("DescribeTopicPartitions", (0, 0))
    cluster.on("DescribeTopicPartitions", answer)


async def test_topics_are_described_by_pages(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        ScriptedCluster(topics={"t": 3, "u": 3, "v": 3}) as cluster,
        opened(cluster) as admin,
    ):
        paged(cluster, 2)
        found = await admin.describe_topics(["v", "t", "u"])
        assert list(found) == ["v", "t", "u"]
        assert [[part.partition for part in each.partitions] for each in found.values()] == [
            [0, 1, 2]
        ] * 3
        first, second, _ = found["t"].partitions
        assert (first.leader, second.leader) == (None, 0)
        assert first.eligible_leader_replicas == (1,)
        assert found["t"].topic_id == cluster.topic_id("t")
        assert len(cluster.requests("DescribeTopicPartitions")) == 5
        with pytest.raises(AdminErrors) as raised:
            await admin.describe_topics(["t", "no"])
        assert (list(raised.value.results), list(raised.value.failures)) == (["t"], ["no"])


async def test_page_that_repeats_is_damaged(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(topics={"t": 3}) as cluster, opened(cluster) as admin:
        paged(cluster, 2, stuck=True)
        with pytest.raises(trikafka.KafkaTimeoutError, match="which it showed already"):
            await admin.describe_topics(["t"], timeout=2)


async def test_strange_items_are_left_out(autojump_clock: trio.testing.MockClock) -> None:
    async def page(request: Any, default: Any) -> Any:
        part = {
            "partition_index": 0,
            "leader_id": 0,
            "replica_nodes": [0],
            "isr_nodes": [0],
            "offline_replicas": [],
        }
        twice = [{"name": "t", "partitions": [part]}] * 2
        return respond(
            request,
            topics=[*twice, {"error_code": 5, "name": "strange", "partitions": []}],
            next_cursor=None,
        )

    async def moved(request: Any, default: Any) -> Any:
        results = [
            {
                "topic_name": name,
                "partitions": [{"partition_index": 0, "error_code": code}],
            }
            for name, code in (("strange", 7), ("t", 0), ("t", 57))
        ]
        return respond(request, results=results)

    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as admin:
        cluster.offer("DescribeTopicPartitions", (0, 0))
        cluster.disconnect()
        cluster.on("DescribeTopicPartitions", page)
        found = await admin.describe_topics(["t"])
        assert [part.partition for part in found["t"].partitions] == [0]
        cluster.on("AlterReplicaLogDirs", moved)
        await admin.alter_replica_log_dirs({TopicPartitionReplica("t", 0, 0): "/data-0"})


async def test_old_broker_describes_topics_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 2}) as cluster, opened(cluster) as admin:
        cluster.stop(1, noticed=False)  # hides nothing of what the other one lacks
        (found,) = (await admin.describe_topics(["t"])).values()
        assert (len(found.partitions), found.topic_id) == (2, cluster.topic_id("t"))
        assert found.partitions[0].eligible_leader_replicas is None
        with pytest.raises(trikafka.UnknownTopicOrPartitionError, match="'no' does not exist"):
            await admin.describe_topics(["no"])


async def test_created_topic_is_returned(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=2) as cluster, opened(cluster) as admin:
        made = await admin.create_topics(
            {"t": NewTopic(assignments={1: [1], 0: [0]}), "u": NewTopic(3, 1, {"a": 1})},
            validate_only=True,
        )
        assert (made["t"].partitions, made["t"].topic_id) == (2, None)
        assert await admin.list_topics() == {}
        made = await admin.create_topics({"u": NewTopic(3, 1, {"a": 1})})
        assert made["u"].topic_id == cluster.topic_id("u")
        assert (made["u"].replication_factor, made["u"].config) == (1, {"a": "1"})
        asked = cluster.requests("CreateTopics")[0].request.topics[0]
        assert [(one.partition_index, one.broker_ids) for one in asked.assignments] == [
            (0, [0]),
            (1, [1]),
        ]


async def test_new_partitions_get_their_brokers(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        ScriptedCluster(nodes=2, topics={"t": 1, "u": 1}) as cluster,
        opened(cluster) as admin,
    ):
        await admin.create_partitions(
            {"t": 3, "u": 2}, assignments={"t": [[1, 0], [0, 1]]}, validate_only=True
        )
        (seen,) = cluster.requests("CreatePartitions")
        assert seen.request.validate_only
        t, u = seen.request.topics
        assert [each.broker_ids for each in t.assignments] == [[1, 0], [0, 1]]
        assert u.assignments is None


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda admin: admin.alter_partition_reassignments([T0]), "a mapping of TopicPartition"),
        (
            lambda admin: admin.alter_partition_reassignments({T0: []}),
            "replicas of t-0.*not \\[\\]",
        ),
        (lambda admin: admin.alter_partition_reassignments({T0: [1, 1]}), "each once"),
        (lambda admin: admin.alter_partition_reassignments({T0: "12"}), "numbers of brokers"),
        (lambda admin: admin.alter_partition_reassignments({"t": [1]}), "is a TopicPartition"),
        (lambda admin: admin.list_partition_reassignments("t"), "a collection of TopicPartition"),
        (lambda admin: admin.elect_leaders([T0], election="dirty"), "one of preferred, unclean"),
        (lambda admin: admin.describe_log_dirs("1"), "a collection of numbers, not '1'"),
        (lambda admin: admin.describe_log_dirs([True]), "by its number, not True"),
        (lambda admin: admin.describe_replica_log_dirs([T0]), "a TopicPartitionReplica, not"),
        (lambda admin: admin.alter_replica_log_dirs({("t", 0, 1): 5}), "its path on the broker"),
        (lambda admin: admin.alter_replica_log_dirs({("t", 0, -1): "/d"}), "by its number, not -1"),
        (lambda admin: admin.describe_topics("t"), "topics must be a collection"),
        (
            lambda admin: admin.create_partitions({"t": 2}, assignments={"u": [[1]]}),
            "name topic 'u', which is not to grow",
        ),
        (
            lambda admin: admin.create_partitions({"t": 2}, assignments={"t": [1]}),
            "a new partition of 't'",
        ),
    ],
)
async def test_bad_input_is_refused_before_any_request(
    autojump_clock: trio.testing.MockClock, call: Any, text: str
) -> None:
    await refuses(call, text)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"assignments": {1: [0]}}, "from 0 on"),
        ({"assignments": {}}, "at least one partition"),
        ({"assignments": {0: [0]}, "partitions": 1}, "give either"),
        ({"assignments": {0: []}}, "replicas of partition 0"),
        ({"assignments": [[0]]}, "a mapping"),
        ({"assignments": {0: [0], "1": [0]}}, "from 0 on"),
        ({"assignments": {0: [0], None: [0]}}, "from 0 on"),
    ],
)
def test_wrong_assignments_are_refused(given: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        NewTopic(**given)


async def test_nothing_to_do_is_no_request(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as admin:
        before = len(cluster.log)
        await admin.alter_partition_reassignments({})
        assert await admin.describe_topics([]) == {}
        assert await admin.describe_log_dirs([]) == {}
        await admin.alter_replica_log_dirs({})
        assert len(cluster.log) == before


async def test_release_is_named_that_can(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as admin:
        cluster.offer("AlterPartitionReassignments", (0, 0))
        with pytest.raises(UnsupportedVersionError, match=r"needs Kafka 4\.1 or newer"):
            await admin.alter_partition_reassignments(
                {T0: [0]}, allow_replication_factor_change=False
            )


async def test_calls_end_when_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    async def scenario() -> None:
        async with ScriptedCluster(nodes=2, topics={"t": 2}) as cluster, opened(cluster) as admin:
            reassigns(cluster)
            shows_directories(cluster)
            await admin.alter_partition_reassignments({T0: [0]})
            await admin.describe_log_dirs()

    await assert_all_awaits_cancellable(scenario)
