"""Groups of the consumer protocol (KIP-848) in virtual time: moving partitions, removed members."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from modern_conversations import joining, owned_of, owning
from rawclient import RawClient
from trio.testing import MockClock as Clock

from trikafka.testing import ScriptedCluster
from trikafka.testing.assignors import ASSIGNORS


class Beater:
    """A member that sends what a test wants; it owns its last assignment."""

    def __init__(self, client: RawClient, member_id: str, **fields: Any) -> None:
        self.client = client
        self.member_id = member_id
        self.fields = fields
        self.epoch = 0
        self.owned = dict[uuid.UUID, list[int]]()

    async def join(self, *topics: str, version: int = 1, **fields: Any) -> Any:
        return await self._send(
            version, joining("g", self.member_id, list(topics) or None, **self.fields, **fields)
        )

    async def beat(self, **fields: Any) -> Any:
        who = {"group_id": "g", "member_id": self.member_id, "member_epoch": self.epoch}
        return await self._send(1, who | self.fields | fields)

    async def let_go(self) -> Any:
        return await self.beat(topic_partitions=owning(self.owned))

    async def _send(self, version: int, fields: dict[str, Any]) -> Any:
        answer = await self.client.call("ConsumerGroupHeartbeat", version, **fields)
        if not answer.error_code:
            self.epoch = answer.member_epoch
        assigned = owned_of(answer)
        self.owned = self.owned if assigned is None else assigned
        return answer

    @property
    def has(self) -> list[int]:
        return sorted(index for numbers in self.owned.values() for index in numbers)


@asynccontextmanager
async def cluster_of(**topics: int) -> AsyncIterator[ScriptedCluster]:
    async with ScriptedCluster(topics=topics, consumer_assignment_interval=0) as cluster:
        yield cluster


@pytest.mark.parametrize("version", [0, 1])
async def test_member_gets_its_assignment_once(autojump_clock: Clock, version: int) -> None:
    async with cluster_of(t=3, u=1) as cluster:
        one = Beater(await RawClient.connect(cluster), "one")
        answer = await one.join("t", "u", version=version)
        assert (
            answer.error_code,
            answer.member_id,
            answer.member_epoch,
            answer.heartbeat_interval_ms,
        ) == (0, "one", 2, 5000)
        assert one.owned == {cluster.topic_id("t"): [0, 1, 2], cluster.topic_id("u"): [0]}
        assert (await one.beat()).assignment is None
        full = {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": ["t", "u"],
            "topic_partitions": owning(one.owned),
        }
        assert owned_of(await one.beat(**full)) == one.owned


async def test_coordinator_makes_ids_in_version_0_only(autojump_clock: Clock) -> None:
    async with cluster_of(t=1) as cluster:
        one = Beater(await RawClient.connect(cluster), "")
        assert (await one.join("t")).error_code == 42
        assert (await one.join("t", version=0)).member_id == "raw-0001"


async def test_partition_moves_only_when_revoked(autojump_clock: Clock) -> None:
    async with cluster_of(t=4) as cluster:
        client = await RawClient.connect(cluster)
        one, two = Beater(client, "one"), Beater(client, "two")
        await one.join("t")
        answer = await two.join("t")
        assert (answer.member_epoch, two.has) == (3, [])
        before = one.has
        await one.beat()
        assert (len(one.has), one.epoch) == (2, 2)
        still = owning({cluster.topic_id("t"): before})
        # Only the member's own report counts.
        assert (await one.beat(topic_partitions=still)).member_epoch == 2
        assert (await two.beat()).assignment is None
        assert (await one.let_go()).member_epoch == 3
        await two.beat()
        assert sorted(one.has + two.has) == [0, 1, 2, 3]
        group = cluster.group("g")
        assert group is not None
        assert (group.kind, group.state_name) == ("consumer", "Stable")


async def test_member_that_does_not_revoke_is_removed(autojump_clock: Clock) -> None:
    """The member has until its rebalance timeout."""
    async with cluster_of(t=2) as cluster:
        client = await RawClient.connect(cluster)
        one, two = Beater(client, "one"), Beater(client, "two")
        await one.join("t", rebalance_timeout_ms=7_000)
        await trio.sleep(1)
        await two.join("t")
        await one.beat()  # at 1 s it is asked to revoke
        await trio.sleep_until(trio.current_time() + 6.999)
        assert (await one.beat()).error_code == 0
        await trio.sleep(0.002)
        assert (await one.beat()).error_code == 25
        await two.beat()
        assert two.has == [0, 1]


async def test_session_ends_after_45_seconds(autojump_clock: Clock) -> None:
    async with cluster_of(t=2) as cluster:
        client = await RawClient.connect(cluster)
        one = Beater(client, "one")
        await one.join("t")
        await trio.sleep(44.999)
        assert (await one.beat()).error_code == 0
        await trio.sleep(45.001)
        assert (await one.beat()).error_code == 25
        assert (await one.join("t")).member_epoch == 4  # one epoch for the end of the first


async def test_new_target_comes_once_in_an_interval(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        client = await RawClient.connect(cluster)
        one, two = Beater(client, "one"), Beater(client, "two")
        await one.join("t")
        assert (await two.join("t")).member_epoch == 2
        await trio.sleep(0.999)
        assert (await two.beat()).member_epoch == 2
        assert one.has == [0, 1]
        await trio.sleep(0.001)
        assert (await two.beat()).member_epoch == 3
        await one.beat()
        assert len(one.has) == 1


async def test_static_member_returns_to_its_partitions(autojump_clock: Clock) -> None:
    async with cluster_of(t=4) as cluster:
        client = await RawClient.connect(cluster)
        one = Beater(client, "one", instance_id="i")
        again = Beater(client, "again", instance_id="i")
        two = Beater(client, "two")
        await one.join("t")
        await two.join("t")
        await one.beat()
        await one.let_go()
        await two.beat()
        kept = one.has
        assert (await again.join("t")).error_code == 111
        assert (await one.beat(member_epoch=-2)).member_epoch == -2
        await trio.sleep(30)
        assert (await two.beat()).assignment is None
        assert (await again.join("t")).member_epoch == 3
        assert again.has == kept
        assert (await one.beat(member_epoch=3)).error_code == 82


async def test_absent_static_member_loses_partitions(autojump_clock: Clock) -> None:
    async with cluster_of(t=2) as cluster:
        client = await RawClient.connect(cluster)
        one, two = Beater(client, "one", instance_id="i"), Beater(client, "two")
        await one.join("t")
        await one.beat(member_epoch=-2)
        await trio.sleep(30)
        await two.join("t")
        await trio.sleep(14.9)
        await two.beat()
        assert two.has == []  # an absent member revokes nothing
        await trio.sleep(0.2)
        await two.beat()
        assert two.has == [0, 1]


async def test_pattern_follows_the_existing_topics(autojump_clock: Clock) -> None:
    async with cluster_of(red=1, blue=1) as cluster:
        client = await RawClient.connect(cluster)
        one = Beater(client, "one")
        await one.join(subscribed_topic_regex="r.*")
        assert one.owned == {cluster.topic_id("red"): [0]}
        cluster.create_topic("rose", 2)
        await one.beat()
        assert one.owned == {cluster.topic_id("red"): [0], cluster.topic_id("rose"): [0, 1]}
        cluster.delete_topic("red")
        await one.beat()
        await one.let_go()
        assert one.owned == {cluster.topic_id("rose"): [0, 1]}
        assert (await one.beat(subscribed_topic_regex="(")).error_code == 128


async def test_recreated_topic_is_another_one(autojump_clock: Clock) -> None:
    async with cluster_of(t=1) as cluster:
        one = Beater(await RawClient.connect(cluster), "one")
        await one.join("t")
        old = cluster.topic_id("t")
        cluster.delete_topic("t")
        cluster.create_topic("t", 1)
        cluster.add_partitions("t", 2)
        await one.beat()
        assert one.owned == {}
        await one.let_go()
        assert one.owned == {cluster.topic_id("t"): [0, 1]}
        assert cluster.topic_id("t") != old


async def test_scripted_error_reaches_a_heartbeat(autojump_clock: Clock) -> None:
    async with cluster_of(t=1) as cluster:
        cluster.fail("ConsumerGroupHeartbeat", 14)
        one = Beater(await RawClient.connect(cluster), "one")
        assert [(await one.join("t")).error_code for _ in range(2)] == [14, 0]


async def test_another_node_is_not_the_coordinator(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster:
        one = Beater(await RawClient.connect(cluster, 1), "one")
        assert (await one.join("t")).error_code == 16


TOPICS = [uuid.UUID(int=number) for number in (1, 2, 3)]


def _counts(chosen: Mapping[str, frozenset[Any]]) -> list[int]:
    return sorted(len(parts) for parts in chosen.values())


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_each_partition_goes_to_one_member(name: str, members: int) -> None:
    wishes = {f"m{number}": dict.fromkeys(TOPICS, 4) for number in range(members)}
    chosen = ASSIGNORS[name](wishes, {})
    everything = [part for parts in chosen.values() for part in parts]
    assert sorted(everything) == [(topic, index) for topic in TOPICS for index in range(4)]
    if name == "uniform":
        assert _counts(chosen)[-1] - _counts(chosen)[0] <= 1


def test_uniform_moves_as_little_as_it_can() -> None:
    wishes = {name: {TOPICS[0]: 9} for name in ("a", "b", "c")}
    before = ASSIGNORS["uniform"]({name: wishes[name] for name in ("a", "b")}, {})
    after = ASSIGNORS["uniform"](wishes, before)
    assert _counts(after) == [3, 3, 3]
    assert after["a"] < before["a"]
    assert after["b"] < before["b"]


def test_uniform_respects_subscriptions() -> None:
    wishes = {"a": {TOPICS[0]: 4}, "b": {TOPICS[0]: 4, TOPICS[1]: 2}}
    chosen = ASSIGNORS["uniform"](wishes, {})
    assert _counts(chosen) == [3, 3]
    assert {topic for topic, _ in chosen["a"]} == {TOPICS[0]}
