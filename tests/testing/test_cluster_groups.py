"""The group coordinator: joining, leaving, time, and committed offsets."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from kafka.protocol.api_key import ApiKey
from rawclient import RawClient
from trio.testing import MockClock as Clock

from trikafka.testing import ScriptedCluster
from trikafka.types import OffsetAndMetadata


async def _stable(cluster: ScriptedCluster, group: str = "g") -> tuple[RawClient, Any]:
    """Return a group of one member that has its partitions."""
    client = await RawClient.connect(cluster)
    joined = await client.join(group)
    assert (await client.sync(group, joined, {joined.member_id: {"t": [0, 1]}})).error_code == 0
    return client, joined


async def _join_later(
    client: RawClient, joined: Any, into: list[Any], group: str = "g", **fields: Any
) -> None:
    into.append(await client.join(group, joined.member_id if joined else "", **fields))


@pytest.mark.parametrize("version", range(10))
async def test_join_in_every_version(autojump_clock: Clock, version: int) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        client = await RawClient.connect(cluster)
        first = await client.receive(await client.send(client.join_request("g", version=version)))
        assert first.error_code == (79 if version >= 4 else 0)
        joined = await client.join("g", first.member_id, version=version)
        assert (joined.error_code, joined.leader, joined.protocol_name) == (
            0,
            joined.member_id,
            "range",
        )
        assert [member.member_id for member in joined.members] == [joined.member_id]
        assert joined.member_id == "raw-0001"


@pytest.mark.parametrize(
    "versions", [(0, 0, 0), (1, 1, 2), (2, 2, 3), (3, 3, 4), (4, 4, 5), (5, 4, 5)]
)
async def test_sync_beat_and_leave_in_every_version(
    autojump_clock: Clock, versions: tuple[int, int, int]
) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        client = await RawClient.connect(cluster)
        joined = await client.join("g")
        who = {"group_id": "g", "member_id": joined.member_id}
        member = who | {"generation_id": joined.generation_id}
        assignments = [{"member_id": joined.member_id, "assignment": b"part"}]
        named = {"protocol_type": "consumer", "protocol_name": "range"}
        synced = await client.call(
            "SyncGroup", versions[0], **member, assignments=assignments, **named
        )
        assert (synced.error_code, bytes(synced.assignment)) == (0, b"part")
        assert (await client.call("Heartbeat", versions[1], **member)).error_code == 0
        left = await client.call(
            "LeaveGroup", versions[2], **who, members=[{"member_id": joined.member_id}]
        )
        assert left.error_code == 0
        assert (await client.call("Heartbeat", versions[1], **member)).error_code == 25


async def test_two_members_share_through_the_leader(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        one, first = await _stable(cluster)
        two = await RawClient.connect(cluster, client_id="two")
        joined: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_join_later, two, None, joined)
            await trio.sleep(1)
            assert await one.heartbeat("g", first) == 27
            assert joined == []
            nursery.start_soon(_join_later, one, first, joined)
        mine, theirs = sorted(joined, key=lambda answer: answer.member_id)
        assert mine.member_id.startswith("raw")
        assert (mine.generation_id, theirs.generation_id) == (2, 2)
        assert mine.leader == theirs.leader == mine.member_id
        assert [len(mine.members), len(theirs.members)] == [2, 0]
        synced: list[Any] = []
        async with trio.open_nursery() as nursery:

            async def follow() -> None:
                synced.append(await two.sync("g", theirs))

            nursery.start_soon(follow)
            await trio.sleep(1)
            assert await one.heartbeat("g", mine) == 0
            assert synced == []
            parts = {mine.member_id: {"t": [0]}, theirs.member_id: {"t": [1]}}
            led = await one.sync("g", mine, parts)
        assert led.assignment != synced[0].assignment
        group = cluster.group("g")
        assert group is not None
        assert (group.state.value, group.generation, sorted(group.members)) == (
            "Stable",
            2,
            [mine.member_id, theirs.member_id],
        )


async def test_member_that_does_not_rejoin_is_removed(autojump_clock: Clock) -> None:
    """The member has until the rebalance timeout."""
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        one, first = await _stable(cluster)
        two = await RawClient.connect(cluster)
        joined: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_join_later, two, None, joined)
            while not joined:  # alive, but busy
                await trio.sleep(3)
                await one.heartbeat("g", first)
        assert cluster.log[-1].time == 60
        assert [member.member_id for member in joined[0].members] == [joined[0].member_id]
        assert await one.heartbeat("g", first) == 25


async def test_silent_member_is_removed(autojump_clock: Clock) -> None:
    """The member has until its session timeout."""
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        one, first = await _stable(cluster)
        await trio.sleep(9)
        assert await one.heartbeat("g", first) == 0
        await trio.sleep(9)
        assert await one.heartbeat("g", first) == 0
        two = await RawClient.connect(cluster)
        await two.join("g")
        assert trio.current_time() == 28
        assert await one.heartbeat("g", first) == 25


async def test_leader_that_never_syncs_is_removed(autojump_clock: Clock) -> None:
    """The others join again."""
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        one, two = await RawClient.connect(cluster), await RawClient.connect(cluster)
        first = await one.join("g", rebalance_timeout_ms=7000, session_timeout_ms=30_000)
        joined: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_join_later, two, None, joined, "g")
            await trio.sleep(1)
            nursery.start_soon(_join_later, one, first, joined, "g")
        follower = next(answer for answer in joined if answer.leader != answer.member_id)
        with trio.fail_after(100):
            synced = await two.sync("g", follower)
        assert synced.error_code == 27


async def test_first_rebalance_may_wait_for_members(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2}, initial_rebalance_delay=3) as cluster:
        one, two = await RawClient.connect(cluster), await RawClient.connect(cluster)
        joined: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_join_later, one, None, joined)
            await trio.sleep(2)
            nursery.start_soon(_join_later, two, None, joined)
        assert trio.current_time() == 3
        assert {answer.generation_id for answer in joined} == {1}


async def test_unused_member_id_delays_the_group(autojump_clock: Clock) -> None:
    """A member id that was given but not used delays the group for a session."""
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        one, first = await _stable(cluster)
        two = await RawClient.connect(cluster)
        given = await two.receive(await two.send(two.join_request("g")))
        assert given.error_code == 79
        # The leader joins again, which starts a rebalance.
        again = await one.join("g", first.member_id)
        assert (again.error_code, again.generation_id, trio.current_time()) == (0, 2, 10)
        assert (await two.join("g", given.member_id)).error_code == 25


async def test_leaving_member_starts_a_rebalance(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        one, first = await _stable(cluster)
        answer = await one.call(
            "LeaveGroup",
            5,
            group_id="g",
            members=[{"member_id": first.member_id}, {"member_id": "x"}],
        )
        assert [member.error_code for member in answer.members] == [0, 25]
        group = cluster.group("g")
        assert group is not None
        assert (group.state.value, group.generation) == ("Empty", 2)


async def test_unchanged_follower_keeps_its_generation(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        one, first = await _stable(cluster)
        two = await RawClient.connect(cluster)
        joined: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_join_later, two, None, joined)
            await trio.sleep(1)
            nursery.start_soon(_join_later, one, first, joined)
        leader = next(answer for answer in joined if answer.leader == answer.member_id)
        follower = next(answer for answer in joined if answer.leader != answer.member_id)
        await one.sync("g", leader, {})
        again = await two.join("g", follower.member_id)
        assert (again.error_code, again.generation_id) == (0, 2)
        changed = {"protocols": [{"name": "range", "metadata": b"new"}]}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: _join_later(two, follower, joined, "g", **changed))
            await trio.sleep(1)
            assert await one.heartbeat("g", leader) == 27
            nursery.cancel_scope.cancel()


async def test_refusals_of_join(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 2}) as cluster:
        one, _ = await _stable(cluster)
        away = await RawClient.connect(cluster, 1)
        assert (await away.join("g")).error_code == 16
        assert (await one.join("")).error_code == 24
        assert (await one.join("g", "nobody")).error_code == 25
        assert (await one.join("g", session_timeout_ms=5000)).error_code == 26
        assert (
            await one.join("g", protocols=[{"name": "other", "metadata": b""}])
        ).error_code == 23
        assert (await one.join("g", protocol_type="connect")).error_code == 23
        cluster.fail("JoinGroup", 14)
        assert (await one.join("g")).error_code == 14


async def test_refusals_of_sync(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        one, first = await _stable(cluster)
        first.generation_id += 1
        assert (await one.sync("g", first)).error_code == 22
        assert await one.heartbeat("g", first) == 22
        first.generation_id -= 1
        first.protocol_name = "other"
        assert (await one.sync("g", first)).error_code == 23
        first.member_id = "nobody"
        assert (await one.sync("g", first)).error_code == 25
        assert (await one.sync("none", first)).error_code == 25


async def test_static_member_rejoins_without_rebalance(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        one, two = await RawClient.connect(cluster), await RawClient.connect(cluster)
        first = await one.join("g", group_instance_id="i")
        assert first.error_code == 0
        sync = {
            "group_id": "g",
            "group_instance_id": "i",
            "protocol_type": "consumer",
            "protocol_name": "range",
        }
        await one.call(
            "SyncGroup",
            5,
            **sync,
            generation_id=1,
            member_id=first.member_id,
            assignments=[{"member_id": first.member_id, "assignment": b"mine"}],
        )
        back = await two.join("g", group_instance_id="i")
        assert (back.error_code, back.generation_id, back.skip_assignment, back.leader) == (
            0,
            1,
            True,
            back.member_id,
        )
        assert back.member_id != first.member_id
        synced = await two.call(
            "SyncGroup", 5, **sync, generation_id=1, member_id=back.member_id, assignments=[]
        )
        assert bytes(synced.assignment) == b"mine"
        beat = {
            "group_id": "g",
            "generation_id": 1,
            "member_id": first.member_id,
            "group_instance_id": "i",
        }
        assert (await one.call("Heartbeat", 4, **beat)).error_code == 82
        assert (await one.join("g", first.member_id, group_instance_id="i")).error_code == 82


async def test_moved_coordinator_answers_the_waiting(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 2}) as cluster:
        one, first = await _stable(cluster)
        two = await RawClient.connect(cluster)
        joined: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_join_later, two, None, joined)
            await trio.sleep(1)
            cluster.move_coordinator(1)
        assert joined[0].error_code == 16
        assert await one.heartbeat("g", first) == 16
        moved = await RawClient.connect(cluster, 1)
        assert await moved.heartbeat("g", first) == 27


def _commit(version: int, cluster: ScriptedCluster, offset: int, **fields: Any) -> dict[str, Any]:
    part = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": 0,
        "committed_metadata": "note",
    }
    item = {"name": "t", "topic_id": cluster.topic_id("t"), "partitions": [part]}
    return {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [item],
    } | fields


def _code(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize("version", range(2, 11))
async def test_commit_in_every_version(autojump_clock: Clock, version: int) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        client, joined = await _stable(cluster)
        member = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
        assert (
            _code(
                await client.call("OffsetCommit", version, **_commit(version, cluster, 5, **member))
            )
            == 0
        )
        assert cluster.committed("g", ("t", 0)) == OffsetAndMetadata(
            5, 0 if version >= 6 else None, "note"
        )
        assert cluster.committed("g", ("t", 1)) is None
        for change, code in (({"generation_id_or_member_epoch": 9}, 22), ({"member_id": "x"}, 25)):
            wrong = _commit(version, cluster, 6, **(member | change))
            assert _code(await client.call("OffsetCommit", version, **wrong)) == code
        assert (
            _code(await client.call("OffsetCommit", version, **_commit(version, cluster, 6))) == 25
        )
        loose = _commit(version, cluster, 7, group_id="loose")
        assert _code(await client.call("OffsetCommit", version, **loose)) == 0
        late = _commit(version, cluster, 7, group_id="late", **member)
        assert _code(await client.call("OffsetCommit", version, **late)) == (
            69 if version >= 9 else 22
        )


@pytest.mark.parametrize("version", range(1, 11))
async def test_offset_fetch_in_every_version(autojump_clock: Clock, version: int) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        client = await RawClient.connect(cluster)
        await client.call("OffsetCommit", 8, **_commit(8, cluster, 5))

        async def ask(topics: Any) -> list[tuple[int, int, str]]:
            old = {"group_id": "g", "topics": topics}
            answer = await client.call(
                "OffsetFetch", version, **(old if version < 8 else {"groups": [old]})
            )
            answer = answer if version < 8 else answer.groups[0]
            assert answer.error_code == 0
            return [
                (p.partition_index, p.committed_offset, p.metadata)
                for topic in answer.topics
                for p in topic.partitions
            ]

        by_id = {"topic_id": cluster.topic_id("t")} if version >= 8 else {}
        asked = [{"name": "t", "partition_indexes": [0, 1]} | by_id]
        assert await ask(asked) == [(0, 5, "note"), (1, -1, "")]
        if version >= 2:
            assert await ask(None) == [(0, 5, "note")]
        if version < 10:
            assert await ask([{"name": "none", "partition_indexes": [0]}]) == [(0, -1, "")]


async def test_refusals_of_commit_and_fetch(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        cluster.fail("OffsetCommit", 7, topic="t")
        assert _code(await client.call("OffsetCommit", 8, **_commit(8, cluster, 1))) == 7
        missing = _commit(8, cluster, 1)
        missing["topics"][0]["name"] = "none"
        assert _code(await client.call("OffsetCommit", 8, **missing)) == 3
        long = _commit(8, cluster, 1)
        long["topics"][0]["partitions"][0]["committed_metadata"] = "x" * 5000
        assert _code(await client.call("OffsetCommit", 8, **long)) == 12
        assert cluster.committed("g", ("t", 0)) is None
        cluster.fail("OffsetFetch", 14)
        answer = await client.call("OffsetFetch", 8, groups=[{"group_id": "g", "topics": None}])
        assert answer.groups[0].error_code == 14
        away = await RawClient.connect(cluster, 1)
        assert _code(await away.call("OffsetCommit", 8, **_commit(8, cluster, 1))) == 16
        assert (await away.call("OffsetFetch", 6, group_id="g", topics=None)).error_code == 16


async def test_commit_between_join_and_sync_is_refused(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        joined = await client.join("g")
        member = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
        assert _code(await client.call("OffsetCommit", 8, **_commit(8, cluster, 5, **member))) == 27


@pytest.mark.parametrize("version", range(7))
async def test_groups_are_listed_described_and_deleted(autojump_clock: Clock, version: int) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        client, joined = await _stable(cluster)
        described = await client.call(
            "DescribeGroups", version, groups=["g", "none"], include_authorized_operations=False
        )
        found, missing = described.groups
        assert (found.group_state, found.protocol_type, found.protocol_data) == (
            "Stable",
            "consumer",
            "range",
        )
        (member,) = found.members
        assert (member.member_id, member.client_id, len(member.member_assignment) > 0) == (
            joined.member_id,
            "raw",
            True,
        )
        assert (missing.group_state, missing.error_code) == ("Dead", 69 if version >= 6 else 0)
        listed = await client.call("ListGroups", min(version, 5), states_filter=[], types_filter=[])
        assert [(g.group_id, g.protocol_type) for g in listed.groups] == [("g", "consumer")]
        if version >= 4:
            assert (await client.call("ListGroups", 4, states_filter=["Empty"])).groups == []
        deleted = await client.call("DeleteGroups", min(version, 2), groups_names=["g", "none"])
        assert [item.error_code for item in deleted.results] == [68, 69]
        await client.call("LeaveGroup", 5, group_id="g", members=[{"member_id": joined.member_id}])
        deleted = await client.call("DeleteGroups", min(version, 2), groups_names=["g"])
        assert deleted.results[0].error_code == 0
        assert cluster.group("g") is None


def test_every_offered_api_has_an_answer() -> None:
    from trikafka.testing import KAFKA_4
    from trikafka.testing.connection import HANDLERS

    # KIP-714: Kafka offers telemetry only with a plugin that receives it. A page of topics is
    # requested beside the subject of a test.
    on_demand = {
        ApiKey.GetTelemetrySubscriptions,
        ApiKey.PushTelemetry,
        ApiKey.DescribeTopicPartitions,
    }
    assert set(HANDLERS) - set(KAFKA_4) == on_demand
    assert set(KAFKA_4) <= set(HANDLERS)
    assert ApiKey.Fetch in HANDLERS
