"""The admin client with the scripted cluster, in virtual time."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
import trio
import trio.testing
from administering import opened

import trikafka
from trikafka import (
    Admin,
    AdminErrors,
    ConfigResource,
    KafkaTimeoutError,
    ListedOffset,
    NewTopic,
    OffsetAndMetadata,
    OffsetSpec,
    TopicPartition,
)
from trikafka.error_codes import ErrorCode
from trikafka.errors import (
    BrokerResponseError,
    GroupIdNotFoundError,
    KafkaConnectionError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable, encode_batch
from trikafka.testing.state import RememberedProducer

T0 = TopicPartition("t", 0)


@asynccontextmanager
async def member(
    cluster: ScriptedCluster, group: str, protocol: Literal["classic", "consumer"] = "classic"
) -> AsyncIterator[None]:
    """A consumer that is in a group and has committed an offset."""
    settings = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "dial": cluster.dial,
        "client_id": "reader",
    }
    async with trikafka.open_consumer(
        "t", group_id=group, group_protocol=protocol, **settings
    ) as consumer:
        while not consumer.assignment():
            await consumer.receive_batch(timeout=0.1)
        await consumer.commit({T0: OffsetAndMetadata(7, None, "note")})
        yield


# --- topics ---------------------------------------------------------------------------------------


async def test_topics_from_creation_to_deletion(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster, opened(cluster) as admin:
        await admin.create_topics(
            {"a": NewTopic(2, 1, {"compression.type": "lz4", "preallocate": True}), "b": NewTopic()}
        )
        (seen,) = cluster.requests("CreateTopics")
        assert {entry.name: entry.value for entry in seen.request.topics[0].configs} == {
            "compression.type": "lz4",
            "preallocate": "true",
        }
        assert {name: len(found) for name, found in (await admin.list_topics()).items()} == {
            "a": 2,
            "b": 1,
            "t": 1,
        }
        await admin.create_partitions({"a": 5})
        await admin.delete_topics(["b", "t"])
        assert {name: len(found) for name, found in (await admin.list_topics()).items()} == {"a": 5}


async def test_uncreatable_topics_are_named(autojump_clock: trio.testing.MockClock) -> None:
    """The others are created."""
    async with ScriptedCluster(topics={"t": 1, "u": 1}) as cluster, opened(cluster) as admin:
        with pytest.raises(
            AdminErrors, match=r"2 of 3 failed.*topic 't'.*also failed: u"
        ) as raised:
            await admin.create_topics({name: NewTopic(1) for name in ("t", "new", "u")})
        assert {type(each) for each in raised.value.failures.values()} == {TopicAlreadyExistsError}
        assert raised.value.results["new"].partitions == 1
        assert "new" in await admin.list_topics()


async def test_topics_are_found_and_deleted_by_id(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1, "u": 2}) as cluster, opened(cluster) as admin:
        named = await admin.describe_topics(["t", "u"])
        t, u = named["t"].topic_id, named["u"].topic_id
        assert t is not None
        assert u is not None
        by_id = await admin.describe_topics([u, t])
        assert {one.name: len(one.partitions) for one in by_id.values()} == {"u": 2, "t": 1}
        assert list(by_id) == [u, t]
        assert list(await admin.describe_topics(one for one in (u, t))) == [u, t]
        missing = uuid.UUID(int=1)
        with pytest.raises(AdminErrors, match=f"topic id {missing}") as caught:
            await admin.describe_topics([missing, t])
        assert list(caught.value.results) == [t]
        with pytest.raises(AdminErrors) as caught:
            await admin.delete_topics([missing, t])
        assert (list(caught.value.failures), list(caught.value.results)) == ([missing], [t])
        assert list(await admin.list_topics()) == ["u"]
        cluster.drop("DeleteTopics", after=True)
        with pytest.raises(UnknownTopicOrPartitionError, match="may have done it"):
            await admin.delete_topics([u])
        assert await admin.list_topics() == {}
        wrong: Any
        for wrong in ([u, "t"], ["t", u], [uuid.UUID(int=0)]):
            with pytest.raises(trikafka.ConfigurationError, match="topics must be names, or be"):
                await admin.delete_topics(wrong)


async def test_deleting_a_missing_topic_fails_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with ScriptedCluster() as cluster, opened(cluster) as admin:
        started = trio.current_time()
        with pytest.raises(trikafka.UnknownTopicOrPartitionError, match="'nosuch'"):
            await admin.delete_topics(["nosuch"])
        assert trio.current_time() == started
        assert len(cluster.requests("DeleteTopics")) == 1


async def test_moved_controller_is_found(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=3) as cluster, opened(cluster) as admin:
        cluster.fail("CreateTopics", 41, times=2)
        await admin.create_topics({"a": NewTopic(1)})
        assert "a" in await admin.list_topics()
        assert len(cluster.requests("CreateTopics")) == 3


async def test_retry_contains_only_what_is_left(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster() as cluster, opened(cluster) as admin:
        cluster.fail("CreateTopics", 7, topic="b")
        await admin.create_topics({"a": NewTopic(1), "b": NewTopic(1)})
        asked = [
            [topic.name for topic in seen.request.topics]
            for seen in cluster.requests("CreateTopics")
        ]
        assert asked == [["a", "b"], ["b"]]


CHANGES: dict[str, Any] = {
    "CreateTopics": (
        TopicAlreadyExistsError,
        lambda admin: admin.create_topics({"a": NewTopic(1)}),
    ),
    "DeleteTopics": (
        UnknownTopicOrPartitionError,
        lambda admin: admin.delete_topics(["t"]),
    ),
    "CreatePartitions": (
        BrokerResponseError,
        lambda admin: admin.create_partitions({"t": 3}),
    ),
}


@pytest.mark.parametrize("between", [None, ErrorCode.NOT_CONTROLLER])
@pytest.mark.parametrize("api", CHANGES)
async def test_lost_response_is_explained(
    api: str, between: int | None, autojump_clock: trio.testing.MockClock
) -> None:
    """The error says what may have been done.

    It also does if other attempts were refused after the lost one.
    """
    kind, change = CHANGES[api]
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as admin:
        cluster.drop(api, after=True)
        if between is not None:
            cluster.fail(api, between)
        with pytest.raises(
            kind, match="an attempt before this one got no response and may have done it"
        ) as caught:
            await change(admin)
        assert isinstance(caught.value.__cause__, KafkaConnectionError)
        assert len(cluster.requests(api)) == (2 if between is None else 3)


async def test_unsent_change_leaves_no_doubt(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as admin:
        await admin.list_topics()
        cluster.stop(0)
        await trio.sleep(1)  # the client has noticed that its connection is lost
        async with trio.open_nursery() as nursery:

            async def start() -> None:
                await trio.sleep(3)
                cluster.start(0)

            nursery.start_soon(start)
            with pytest.raises(TopicAlreadyExistsError) as caught:
                await admin.create_topics({"t": NewTopic(1)})
        assert "an attempt before" not in str(caught.value)


# --- offsets and the cluster ----------------------------------------------------------------------


async def test_offsets_are_listed(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 2}) as cluster, opened(cluster) as admin:
        for n in range(3):
            cluster.append("t", 0, [(None, b"v", 1000 + n)])
        other = TopicPartition("t", 1)
        assert await admin.list_offsets({other: OffsetSpec.LATEST, T0: OffsetSpec.LATEST}) == {
            other: ListedOffset(0, None, 0),
            T0: ListedOffset(3, None, 0),
        }
        found = await admin.list_offsets({T0: 1001, other: 1001})
        assert found[other] is None
        assert found[T0] is not None
        assert (found[T0].offset, found[T0].timestamp) == (1, 1001)
        cluster.move_leader("t", 0, 1)
        # The epoch is that of the record.
        assert (await admin.list_offsets({T0: OffsetSpec.EARLIEST}))[T0] == ListedOffset(0, None, 0)


async def test_cluster_is_described(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=3) as cluster, opened(cluster) as admin:
        seen = await admin.describe_cluster()
        assert (seen.cluster_id, [node.node_id for node in seen.nodes]) == (
            "scripted-cluster",
            [0, 1, 2],
        )
        assert seen.controller in seen.nodes
        cluster.stop(2)
        assert len((await admin.describe_cluster()).nodes) == 2


# --- groups ---------------------------------------------------------------------------------------


async def test_group_with_a_member_is_described(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        ScriptedCluster(nodes=2, topics={"t": 2}) as cluster,
        opened(cluster) as admin,
        member(cluster, "g"),
    ):
        (listed,) = await admin.list_groups()
        assert (listed.group_id, listed.state, listed.protocol_type) == ("g", "Stable", "consumer")
        group = (await admin.describe_groups(["g"]))["g"]
        assert (group.state, group.protocol, [m.client_id for m in group.members]) == (
            "Stable",
            "range",
            ["reader"],
        )
        assert group.members[0].assignment == (T0, TopicPartition("t", 1))
        assert await admin.list_group_offsets("g") == {T0: OffsetAndMetadata(7, None, "note")}
        with pytest.raises(
            trikafka.BrokerResponseError, match=r"the group has members .*group 'g'"
        ):
            await admin.delete_groups(["g"])


async def test_group_of_the_consumer_protocol(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        ScriptedCluster(topics={"t": 2}) as cluster,
        opened(cluster) as admin,
        member(cluster, "g", "consumer"),
    ):
        group = (await admin.describe_groups(["g"]))["g"]
        assert (group.state, group.protocol, [m.client_id for m in group.members]) == (
            "Stable",
            "consumer",
            ["reader"],
        )
        assert group.members[0].assignment == (T0, TopicPartition("t", 1))
        assert await admin.list_group_offsets("g") == {T0: OffsetAndMetadata(7, None, "note")}


async def test_groups_of_all_brokers_are_listed(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=3, topics={"t": 1}) as cluster, opened(cluster) as admin:
        for node in range(3):
            cluster.move_coordinator(node, f"g{node}")
        async with member(cluster, "g2"), member(cluster, "g0"):
            assert [group.group_id for group in await admin.list_groups()] == ["g0", "g2"]
            assert {seen.node_id for seen in cluster.requests("ListGroups")} == {0, 1, 2}
            described = await admin.describe_groups(["g2", "g0"])
            states = [(name, group.state) for name, group in described.items()]
            assert states == [("g2", "Stable"), ("g0", "Stable")]


@pytest.mark.parametrize("versions", [(0, 5), (0, 6)])
async def test_missing_group_is_not_described(
    versions: tuple[int, int], autojump_clock: trio.testing.MockClock
) -> None:
    """As in Java's client since 4.0; brokers before that describe the group as dead."""
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as admin:
        cluster.offer("DescribeGroups", versions)
        with pytest.raises(GroupIdNotFoundError, match="group 'none'"):
            await admin.describe_groups(["none"])
        async with member(cluster, "g"):
            with pytest.raises(AdminErrors) as caught:
                await admin.describe_groups(["g", "none"])
        assert list(caught.value.results) == ["g"]
        assert isinstance(caught.value.failures["none"], GroupIdNotFoundError)


async def test_moved_coordinator_is_found(autojump_clock: trio.testing.MockClock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster, opened(cluster) as admin:
        async with member(cluster, "g"):
            pass
        assert (await admin.describe_groups(["g"]))["g"].state == "Empty"
        cluster.move_coordinator(1)
        assert (await admin.describe_groups(["g"]))["g"].state == "Empty"
        await admin.delete_groups(["g"])
        assert await admin.list_groups() == []
        with pytest.raises(AdminErrors, match=r"no group of that id .*'g'.*also failed: h"):
            await admin.delete_groups(["g", "h"])


# --- deadlines, cancellation, misuse --------------------------------------------------------------

TOPIC = ConfigResource("topic", "t")
CALLS: list[tuple[str, Callable[[Admin], Callable[..., Awaitable[object]]], tuple[object, ...]]] = [
    ("create_topics", lambda admin: admin.create_topics, ({"a": NewTopic(1)},)),
    ("delete_topics", lambda admin: admin.delete_topics, (["t"],)),
    ("create_partitions", lambda admin: admin.create_partitions, ({"t": 3},)),
    ("list_topics", lambda admin: admin.list_topics, ()),
    ("describe_cluster", lambda admin: admin.describe_cluster, ()),
    ("list_offsets", lambda admin: admin.list_offsets, ({T0: OffsetSpec.LATEST},)),
    ("list_groups", lambda admin: admin.list_groups, ()),
    ("describe_groups", lambda admin: admin.describe_groups, (["g"],)),
    ("list_group_offsets", lambda admin: admin.list_group_offsets, ("g",)),
    ("delete_groups", lambda admin: admin.delete_groups, (["g"],)),
    ("list_transactions", lambda admin: admin.list_transactions, ()),
    ("describe_transactions", lambda admin: admin.describe_transactions, (["x"],)),
    ("describe_producers", lambda admin: admin.describe_producers, ([T0],)),
    ("find_hanging_transactions", lambda admin: admin.find_hanging_transactions, ()),
    ("abort_transaction", lambda admin: admin.abort_transaction, (T0, 0)),
    ("describe_configs", lambda admin: admin.describe_configs, ([TOPIC],)),
    ("alter_configs", lambda admin: admin.alter_configs, ({TOPIC: {"flush.ms": 7}},)),
    ("delete_records", lambda admin: admin.delete_records, ({T0: 0},)),
    ("delete_group_offsets", lambda admin: admin.delete_group_offsets, ("g", [T0])),
    ("alter_group_offsets", lambda admin: admin.alter_group_offsets, ("new", {T0: 1})),
]
every_call = pytest.mark.parametrize(
    ("name", "method", "args"), CALLS, ids=[name for name, _, _ in CALLS]
)


@every_call
async def test_frozen_cluster_ends_calls_at_their_limit(
    autojump_clock: trio.testing.MockClock,
    name: str,
    method: Callable[[Admin], Any],
    args: tuple[object, ...],
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as admin:
        cluster.freeze(0)
        started = trio.current_time()
        with pytest.raises(KafkaTimeoutError, match=rf"^{name} did not finish within 0\.7 s"):
            await method(admin)(*args, timeout=0.7)
        assert trio.current_time() - started == pytest.approx(0.7, abs=0.05)
        cluster.thaw(0)
        assert "t" in await admin.list_topics() or name == "delete_topics"


@every_call
async def test_every_await_can_be_cancelled(
    autojump_clock: trio.testing.MockClock,
    name: str,
    method: Callable[[Admin], Any],
    args: tuple[object, ...],
) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[Admin]:
        async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as admin:
            async with member(cluster, "g"):
                pass
            cluster.transactions.initialize("x", 60_000, None, two_phase=False, keep=False)
            cluster.append_batch(
                "t", 0, encode_batch([b"x"], timestamp=0, producer=(7, 0, 0), transactional=True)
            )
            cluster.partition("t", 0).producers[7] = RememberedProducer(0)
            yield admin

    async def call(admin: Admin) -> None:
        await method(admin)(*args)

    async def still_works(admin: Admin) -> None:
        with trio.fail_after(5):
            await admin.describe_cluster()

    assert await assert_all_awaits_cancellable(call, still_works, setup=setup) > 0


@every_call
async def test_closed_client_and_bad_timeout_are_errors(
    autojump_clock: trio.testing.MockClock,
    name: str,
    method: Callable[[Admin], Any],
    args: tuple[object, ...],
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as admin:
        before = len(cluster.log)
        with pytest.raises(ValueError, match="timeout"):
            await method(admin)(*args, timeout=-1)
        with pytest.raises(trikafka.ConfigurationError, match="timeout"):
            await admin.aclose(timeout=-1)
        await admin.aclose(timeout=0)
        await admin.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await method(admin)(*args)
        assert len(cluster.log) == before


async def test_wrong_arguments_are_refused_early(autojump_clock: trio.testing.MockClock) -> None:
    wrong: list[Callable[[Admin], Awaitable[object]]] = [
        lambda admin: admin.delete_topics("t"),
        lambda admin: admin.delete_topics([""]),
        lambda admin: admin.create_topics({"t": 3}),  # type: ignore[dict-item]
        lambda admin: admin.create_partitions({"t": 0}),
        lambda admin: admin.describe_groups("g"),
        lambda admin: admin.list_offsets({T0: -7}),
        lambda admin: admin.list_offsets({T0: True}),
    ]
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as admin:
        before = len(cluster.log)
        for call in wrong:
            with pytest.raises(ValueError):  # noqa: PT011
                await call(admin)
        await admin.create_topics({})
        await admin.delete_topics([])
        assert await admin.describe_groups([]) == {}
        assert await admin.list_offsets({}) == {}
        assert len(cluster.log) == before
    for partitions, replicas in ((0, 1), (1, 0), (True, 1), ("3", 1)):
        with pytest.raises(trikafka.ConfigurationError):
            NewTopic(partitions, replicas)  # type: ignore[arg-type]


def test_config_entries_are_in_kafkas_notation() -> None:
    topic = NewTopic(config={"preallocate": True, "retention.ms": 5, "compression.type": "lz4"})
    assert topic.config_entries == {
        "preallocate": "true",
        "retention.ms": "5",
        "compression.type": "lz4",
    }
