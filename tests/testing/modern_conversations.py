"""Conversations about groups of the consumer protocol (KIP-848)."""

from __future__ import annotations

import uuid
from itertools import count
from typing import Any

import trio
from conversations import Peer, part_of
from rawclient import RawClient

ALTER_CONFIGS = 44
Owned = dict[uuid.UUID, list[int]]


def joining(group: str, member: str, topics: list[str] | None, **fields: Any) -> dict[str, Any]:
    values = {
        "group_id": group,
        "member_id": member,
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "topic_partitions": [],
    }
    return values | {"subscribed_topic_names": topics} | fields


async def beat(client: RawClient, fields: dict[str, Any], version: int = 1) -> Any:
    return await client.call("ConsumerGroupHeartbeat", version, **fields)


def owned_of(answer: Any) -> Owned | None:
    if answer.assignment is None:
        return None
    return {item.topic_id: sorted(item.partitions) for item in answer.assignment.topic_partitions}


def owning(owned: Owned) -> list[dict[str, Any]]:
    return [{"topic_id": topic, "partitions": numbers} for topic, numbers in owned.items()]


async def impatient(peer: Peer, client: RawClient, group: str, topic: str) -> None:
    """Compute a target at every change of the group, and wait until the topic is known."""
    offered = await client.call(
        "ApiVersions", 3, client_software_name="raw", client_software_version="1"
    )
    # A peer without this call is a scripted cluster, which computes at every change already.
    if any(item.api_key == ALTER_CONFIGS for item in offered.api_keys):
        interval = {"name": "consumer.assignment.interval.ms", "config_operation": 0, "value": "0"}
        resource = {"resource_type": 32, "resource_name": group, "configs": [interval]}
        answer = await client.call(
            "IncrementalAlterConfigs", 1, resources=[resource], validate_only=False
        )
        assert [item.error_code for item in answer.responses] == [0]
    for number in count():
        probe = f"{group}-probe-{number}"
        answer = await beat(client, joining(probe, "probe", [topic]))
        await beat(client, {"group_id": probe, "member_id": "probe", "member_epoch": -1})
        if owned_of(answer):
            return
        await trio.sleep(0.05)


class Member:
    """A member that remembers its assignment, as a consumer does."""

    def __init__(
        self, peer: Peer, client: RawClient, group: str, member_id: str, **fields: Any
    ) -> None:
        self.peer = peer
        self.client = client
        self.group = group
        self.member_id = member_id
        self.fields = fields
        self.epoch = 0
        self.owned = dict[uuid.UUID, list[int]]()

    async def join(self, topics: list[str] | None, **fields: Any) -> Any:
        answer = await beat(
            self.client, joining(self.group, self.member_id, topics, **self.fields, **fields)
        )
        self._told("joins", answer)
        return answer

    async def beat(self, what: str = "beats", **fields: Any) -> Any:
        values = (
            {"group_id": self.group, "member_id": self.member_id, "member_epoch": self.epoch}
            | self.fields
            | fields
        )
        answer = await beat(self.client, values)
        self._told(what, answer)
        return answer

    async def take(self, what: str = "has let go") -> Any:
        """Report exactly the last assignment as owned."""
        return await self.beat(what, topic_partitions=owning(self.owned))

    def _told(self, what: str, answer: Any) -> None:
        if not answer.error_code:
            self.epoch = answer.member_epoch
        assigned = owned_of(answer)
        if assigned is not None:
            self.owned = assigned
        count = None if assigned is None else [len(numbers) for numbers in assigned.values()]
        said = answer.error_code, answer.member_epoch, count, answer.heartbeat_interval_ms
        self.peer.note(f"{self.member_id} {what}", *said, answer.member_id)


async def modern_membership(peer: Peer) -> None:
    group = peer.name("g")
    client = await peer.settle(group)
    topic = await peer.topic(client, partitions=4)
    await impatient(peer, client, group, topic)
    one, two = Member(peer, client, group, "one"), Member(peer, client, group, "two")
    await one.join([topic])
    await one.beat()
    await one.take("owns")
    await one.beat(
        "says all",
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[topic],
        topic_partitions=owning(one.owned),
    )
    await two.join([topic])
    await two.beat()
    await one.beat("is to let go")
    await one.beat("still holds")
    await two.beat("waits")
    await one.take()
    await two.beat("gets")
    await two.take("owns")
    await one.beat()
    before = one.epoch
    one.epoch = one.epoch - 1
    await one.take("lost an answer")
    one.epoch = before - 1
    await one.beat("is behind")
    one.epoch = before + 1
    await one.beat("is ahead")
    one.epoch = before
    await two.beat("changes its mind", subscribed_topic_names=[])
    await two.take()
    await one.beat("gets back")
    await two.beat("leaves", member_epoch=-1)
    two.epoch = 3
    await two.beat("is gone")
    await one.beat("after")
    await one.join([topic])
    await one.beat("leaves", member_epoch=-1)
    await one.beat("leaves again", member_epoch=-1)


async def modern_growth(peer: Peer) -> None:
    group = peer.name("grow")
    client = await peer.settle(group)
    topic = await peer.topic(client, partitions=1)
    await impatient(peer, client, group, topic)
    one = Member(peer, client, group, "one")
    await one.join([topic, peer.name("later")])
    asked = [{"name": topic, "count": 3, "assignments": None}]
    await client.call("CreatePartitions", 3, topics=asked, timeout_ms=10_000, validate_only=False)
    await _until(one, 3)
    await peer.topic(client, "later", partitions=2)
    await _until(one, 5)
    peer.note("grown", one.epoch, sorted(len(numbers) for numbers in one.owned.values()))
    await one.beat("leaves", member_epoch=-1)


async def _until(member: Member, count: int) -> None:
    """Wait for ``count`` partitions: a real coordinator sees a change of the topics a moment later."""
    quiet = Member(Peer(member.peer._dial, ""), member.client, member.group, member.member_id)
    quiet.epoch = member.epoch
    quiet.owned = member.owned
    while sum(map(len, quiet.owned.values())) != count:
        await trio.sleep(0.05)
        await quiet.take()
    member.epoch = quiet.epoch
    member.owned = quiet.owned


async def modern_refusals(peer: Peer) -> None:
    group = peer.name("g")
    client = await peer.settle(group)
    topic = await peer.topic(client)
    await impatient(peer, client, group, topic)

    async def ask(what: str, version: int = 1, /, **fields: Any) -> None:
        answer = await beat(client, joining(group, "m", [topic]) | fields, version)
        peer.note(
            what,
            answer.error_code,
            answer.member_epoch,
            answer.heartbeat_interval_ms,
            answer.assignment is None,
        )

    await ask("no group", group_id="")
    await ask("no member", member_id="")
    await ask("no rebalance timeout", rebalance_timeout_ms=-1)
    await ask("partitions not said", topic_partitions=None)
    await ask(
        "partitions owned", topic_partitions=[{"topic_id": uuid.UUID(int=7), "partitions": [1]}]
    )
    await ask("no subscription", subscribed_topic_names=None)
    await ask("epoch below", member_epoch=-3)
    await ask("away without an instance", member_epoch=-2)
    await ask("empty instance", instance_id="")
    await ask("empty rack", rack_id="")
    await ask("strange assignor", server_assignor="strange")
    await ask("bad regex", subscribed_topic_regex="(", subscribed_topic_names=None)
    await ask("unknown group", member_epoch=3)
    await ask("leaving an unknown group", member_epoch=-1)
    await ask("v0 without an id", 0, member_id="")
    await ask("unknown member", member_epoch=3)
    await ask("an unknown member leaves", member_epoch=-1)
    await ask("range", server_assignor="range")


async def modern_static_members(peer: Peer) -> None:
    group = peer.name("s")
    client = await peer.settle(group)
    topic = await peer.topic(client, partitions=4)
    await impatient(peer, client, group, topic)
    one = Member(peer, client, group, "one", instance_id="i")
    other = Member(peer, client, group, "other", instance_id="i")
    await one.join([topic])
    await one.take("owns")
    await other.join([topic])
    await other.beat("is not it", member_epoch=1)
    stranger = Member(peer, client, group, "stranger", instance_id="j")
    await stranger.beat("is unknown", member_epoch=1)
    await stranger.beat("goes, unknown", member_epoch=-2)
    await other.beat("goes, not it", member_epoch=-2)
    await one.beat("goes for a while", member_epoch=-2)
    await other.join([topic])
    await other.take("owns")
    await one.beat("is fenced", member_epoch=1)
    await other.beat("goes for good", member_epoch=-1)


async def modern_regex(peer: Peer) -> None:
    group = peer.name("r")
    client = await peer.settle(group)
    await peer.topic(client, "red-1", partitions=2)
    await peer.topic(client, "red-2", partitions=1)
    await peer.topic(client, "xred-3", partitions=1)
    one = Member(peer, client, group, "one")
    quiet = Member(Peer(peer._dial, ""), client, group, "one")
    answer = await quiet.join(None, subscribed_topic_regex=peer.name("red-.*"))
    peer.note("joined", answer.error_code)
    await _until(quiet, 3)
    one.epoch = quiet.epoch
    one.owned = quiet.owned
    answer = await quiet.take()
    peer.note(
        "settled",
        answer.error_code,
        answer.assignment is None,
        sorted(map(len, quiet.owned.values())),
    )
    answer = await quiet.beat(member_epoch=-1)
    peer.note("left", answer.error_code, answer.member_epoch)


async def modern_offsets(peer: Peer) -> None:
    group = peer.name("o")
    client = await peer.settle(group)
    topic = await peer.topic(client)
    await impatient(peer, client, group, topic)
    one = Member(peer, client, group, "one")

    async def commit(what: str, version: int = 9, **fields: Any) -> None:
        part = {
            "partition_index": 0,
            "committed_offset": 4,
            "committed_leader_epoch": 0,
            "committed_metadata": "m",
        }
        values = {
            "group_id": group,
            "generation_id_or_member_epoch": one.epoch,
            "member_id": "one",
        } | fields
        answer = await client.call(
            "OffsetCommit", version, **values, topics=[{"name": topic, "partitions": [part]}]
        )
        peer.note(what, version, part_of(answer).error_code)

    async def fetch(what: str, member: str | None, epoch: int) -> None:
        asked = [{"name": topic, "partition_indexes": [0]}]
        wanted = {"group_id": group, "member_id": member, "member_epoch": epoch, "topics": asked}
        answer = (await client.call("OffsetFetch", 9, groups=[wanted])).groups[0]
        peer.note(
            what,
            answer.error_code,
            [part.committed_offset for item in answer.topics for part in item.partitions],
        )

    await commit("no group", member_id="one", generation_id_or_member_epoch=1)
    await commit("no group", 8, member_id="one", generation_id_or_member_epoch=1)
    await one.join([topic])
    await commit("as a member")
    await commit("in an old version", 8)
    await commit("behind", generation_id_or_member_epoch=0)
    await commit("ahead", generation_id_or_member_epoch=9)
    await commit("somebody else", member_id="x")
    await commit("nobody", member_id="", generation_id_or_member_epoch=-1)
    await fetch("as a member", "one", one.epoch)
    await fetch("behind", "one", 0)
    await fetch("ahead", "one", 9)
    await fetch("somebody else", "x", 1)
    await fetch("nobody", None, -1)
    await fetch("half of it", "one", -1)
    joined = await client.join(peer.name("classic"))
    peer.note("classic", joined.error_code)
    await one.beat("leaves", member_epoch=-1)
    await commit("after", generation_id_or_member_epoch=1)
    await commit("nobody, after", member_id="", generation_id_or_member_epoch=-1)


async def modern_late_commits(peer: Peer) -> None:
    """Commit under an epoch that was right a moment ago, and into a partition that does not exist."""
    group = peer.name("l")
    client = await peer.settle(group)
    topic = await peer.topic(client, partitions=2)
    await impatient(peer, client, group, topic)
    one, two = Member(peer, client, group, "one"), Member(peer, client, group, "two")

    async def commit(what: str, epoch: int, member: str = "one") -> None:
        parts = [
            {
                "partition_index": index,
                "committed_offset": 4,
                "committed_leader_epoch": 0,
                "committed_metadata": "m",
            }
            for index in (0, 1, 2)
        ]
        values = {"group_id": group, "generation_id_or_member_epoch": epoch, "member_id": member}
        answer = await client.call(
            "OffsetCommit", 9, **values, topics=[{"name": topic, "partitions": parts}]
        )
        kept = [index for numbers in one.owned.values() for index in numbers]
        found = {part.partition_index: part.error_code for part in answer.topics[0].partitions}
        peer.note(
            what,
            [found[index] for index in kept],
            sorted(code for index, code in found.items() if index not in kept),
        )

    await one.join([topic])
    await two.join([topic])
    await one.beat("is to let go")
    await commit("before it let go", 2)
    await one.take()
    await commit("under the new epoch", 3)
    await commit("under the old epoch", 2)
    await commit("under an epoch before it joined", 1)
    await two.beat("gets")
    await commit("under the old epoch, the other has it", 2)
    await commit("the other under the epoch of its coming", 3, "two")
    for name in (["x"], [topic]):
        await two.beat("bumps the epoch", subscribed_topic_names=name)
    await one.take("follows")
    await commit("two epochs ago", one.epoch - 2)
    await one.beat("leaves", member_epoch=-1)
    await two.beat("leaves", member_epoch=-1)


async def modern_administration(peer: Peer) -> None:
    group, classic, none = peer.name("m"), peer.name("c"), peer.name("none")
    client = await peer.settle(group)
    topic = await peer.topic(client, partitions=2)
    await impatient(peer, client, group, topic)
    await client.join(classic)
    one = Member(peer, client, group, "one", rack_id="r")
    await one.join([topic])

    async def describe(what: str) -> None:
        answer = await client.call("ConsumerGroupDescribe", 1, group_ids=[group, classic, none])
        for item in sorted(answer.groups, key=lambda each: each.group_id):
            epochs = item.group_epoch, item.assignment_epoch
            peer.note(
                what,
                item.group_id,
                item.error_code,
                item.group_state,
                epochs,
                item.assignor_name,
                bool(item.error_message),
            )
            for each in item.members:
                peer.note(
                    "  member",
                    each.member_id,
                    each.instance_id,
                    each.rack_id,
                    each.member_epoch,
                    each.client_id,
                )
                peer.note(
                    "  wants",
                    each.subscribed_topic_names,
                    each.subscribed_topic_regex,
                    each.member_type,
                )
                for parts in (each.assignment, each.target_assignment):
                    peer.note(
                        "  has",
                        [(each.topic_name, each.partitions) for each in parts.topic_partitions],
                    )

    await describe("described")
    for types in ([], ["consumer"], ["classic"]):
        answer = await client.call("ListGroups", 5, states_filter=[], types_filter=types)
        ours = [
            (g.group_id, g.protocol_type, g.group_type, g.group_state)
            for g in answer.groups
            if g.group_id == group
        ]
        peer.note("listed", types, ours)
    answer = await client.call(
        "DescribeGroups", 6, groups=[group], include_authorized_operations=False
    )
    peer.note(
        "described as of the old kind",
        [(each.error_code, each.group_state) for each in answer.groups],
    )
    peer.note(
        "not deleted",
        [
            each.error_code
            for each in (await client.call("DeleteGroups", 2, groups_names=[group])).results
        ],
    )
    fields = {"group_id": group, "generation_id": 1, "member_id": "one", "group_instance_id": None}
    peer.note("heartbeat of the old kind", (await client.call("Heartbeat", 4, **fields)).error_code)
    await one.beat("leaves", member_epoch=-1)
    await describe("left")
    joined = await client.join(group)
    peer.note("of the old kind now", joined.error_code, joined.generation_id)
    answer = await client.call(
        "LeaveGroup", 5, group_id=group, members=[{"member_id": joined.member_id}]
    )
    one.epoch = 0
    await one.join([topic])
    await one.beat("leaves", member_epoch=-1)
    peer.note(
        "deleted",
        [
            each.error_code
            for each in (await client.call("DeleteGroups", 2, groups_names=[group])).results
        ],
    )


MODERN_CONVERSATIONS = [
    modern_membership,
    modern_growth,
    modern_refusals,
    modern_static_members,
    modern_regex,
    modern_offsets,
    modern_late_commits,
    modern_administration,
]
