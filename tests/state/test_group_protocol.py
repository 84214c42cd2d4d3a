"""Messages of the classic protocol: subscriptions, reasons, racks, and the protocol choice.

``test_assignors_java.py`` compares the bytes with Java's.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.group import JoinGroupResponse, LeaveGroupRequest

from trikafka import TopicPartition
from trikafka._managers.group import group_messages
from trikafka._state.assignors import (
    AssignableTopics,
    Assignor,
    CooperativeStickyAssignor,
    LastAssignment,
    MemberSubscription,
    RangeAssignor,
    RebalanceProtocol,
    RoundRobinAssignor,
    StickyAssignor,
    rebalance_protocol,
    transferring_ownership,
)
from trikafka._state.assignors.java_order import first_of, map_order, partition_hash, text_hash
from trikafka._state.assignors.sticky import Claim, encode_claim, read_claim
from trikafka._state.group.member import MemberIdentity
from trikafka.config import ConsumerConfig
from trikafka.interfaces import ClusterSnapshot, TopicInfo
from trikafka.types import Node, PartitionInfo

RANGE = RangeAssignor()
ROUND = RoundRobinAssignor()
STICKY = StickyAssignor()
COOPERATIVE = CooperativeStickyAssignor()
BY_NAME: dict[str, Assignor] = {each.name: each for each in (RANGE, ROUND, STICKY, COOPERATIVE)}
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def join(last: LastAssignment | None = None, reason: str = "", **settings: Any) -> Any:
    config = ConsumerConfig.build({"bootstrap_servers": "a:1", "group_id": "g", **settings})
    identity = MemberIdentity("m", 7, "i")
    return group_messages.join_request(
        config, identity, BY_NAME, frozenset("ut"), [T1, T0], last=last, reason=reason
    )


def subscriptions_of(request: Any) -> dict[str, MemberSubscription]:
    return {
        each.name: group_messages.decode_subscription(each.metadata, "i")
        for each in request.protocols
    }


def test_each_assignor_sends_its_user_data() -> None:
    request = join(LastAssignment("sticky", 6, (T0, U0)), client_rack="r1")
    said = subscriptions_of(request)
    # The preferred assignor comes first.
    assert list(said) == [
        "range",
        "roundrobin",
        "sticky",
        "cooperative-sticky",
    ]
    same = MemberSubscription(frozenset("tu"), (T0, T1), 7, "i", None, "r1")
    assert said == {
        "range": same,
        "roundrobin": same,
        "sticky": replace(same, user_data=encode_claim(Claim((T0, U0), 6))),
        # This assignor did not make the assignment.
        "cooperative-sticky": replace(same, user_data=b"\xff\xff\xff\xff"),
    }


def test_first_subscription_has_no_claim() -> None:
    said = subscriptions_of(join())
    assert said["sticky"].user_data is None
    assert said["cooperative-sticky"].user_data == b"\xff\xff\xff\xff"
    assert {each.rack for each in said.values()} == {None}
    assert (
        subscriptions_of(join(LastAssignment("cooperative-sticky", 6, ())))[
            "cooperative-sticky"
        ].user_data
        == b"\x00\x00\x00\x06"
    )


@pytest.mark.parametrize("version", range(2, 10))
def test_join_reason_is_sent_from_version_8(version: int) -> None:
    """A reason is cut to 255 characters; older versions have no field for it."""
    request = join(reason="x" * 300)
    data = bytes(request.encode(version=version))
    read = type(request).decode(data, version=version)
    assert read.reason == ("x" * 255 if version >= 8 else None)


def test_leave_reason_is_the_callers() -> None:
    request = group_messages.leave_request(
        "g", MemberIdentity("m", 7, "i"), "max_poll_interval_ms passed" + "." * 300
    )
    read = LeaveGroupRequest.decode(bytes(request.encode(version=5)), version=5)
    assert [(each.member_id, each.group_instance_id) for each in read.members] == [("m", "i")]
    assert read.members[0].reason == ("max_poll_interval_ms passed" + "." * 300)[:255]
    bytes(request.encode(version=1))  # an old broker


def response(**fields: Any) -> JoinGroupResponse:
    member = JoinGroupResponse.JoinGroupResponseMember
    subscription = group_messages.encode_subscription(MemberSubscription(frozenset("t"), rack="r"))
    members = [
        member(member_id=name, group_instance_id=None, metadata=subscription) for name in ("z", "a")
    ]
    given: dict[str, Any] = {
        "throttle_time_ms": 0,
        "error_code": 0,
        "generation_id": 3,
        "protocol_type": "consumer",
    }
    given |= {
        "protocol_name": "range",
        "leader": "a",
        "skip_assignment": False,
        "member_id": "a",
        "members": members,
    } | fields
    return JoinGroupResponse(**given)


def test_leader_gets_members_in_response_order() -> None:
    joined = group_messages.join_response(response())
    assert (joined.is_leader, joined.protocol, list(joined.members)) == (True, "range", ["z", "a"])
    assert joined.topics == {"t"}
    assert joined.members["z"].rack == "r"
    assert not joined.skip_assignment
    assert not group_messages.join_response(response(leader="z")).is_leader


def test_returning_static_leader_skips_assigning() -> None:
    joined = group_messages.join_response(response(skip_assignment=True))
    assert (joined.is_leader, joined.skip_assignment) == (True, True)


# --- racks ----------------------------------------------------------------------------------------


def snapshot(*replicas: tuple[int, ...], topic: str = "t", error_code: int = 0) -> ClusterSnapshot:
    nodes = {0: Node(0, "h", 1, "a"), 1: Node(1, "h", 2, "b"), 2: Node(2, "h", 3)}
    infos = {
        number: PartitionInfo(topic, number, each[0], 1, each, each)
        for number, each in enumerate(replicas)
    }
    return ClusterSnapshot(
        nodes=nodes, topics={topic: TopicInfo(topic, error_code, None, False, infos)}
    )


def test_racks_are_those_of_the_replicas() -> None:
    seen = AssignableTopics.from_snapshot(snapshot((0, 1), (2,), (1, 2, 99)), ["t", "unknown"])
    assert dict(seen) == {"t": (0, 1, 2)}
    assert seen.racks == {T0: {"a", "b"}, TopicPartition("t", 2): {"b"}}
    assert "unknown" not in seen
    assert dict(AssignableTopics.from_snapshot(snapshot((0,), error_code=3), ["t"])) == {}


def test_replica_in_another_rack_is_a_change() -> None:
    """The order of replicas is no change."""
    seen = AssignableTopics.from_snapshot(snapshot((0, 1)), ["t"])
    assert seen == AssignableTopics.from_snapshot(snapshot((1, 0)), ["t"])
    assert seen != AssignableTopics.from_snapshot(snapshot((0, 2)), ["t"])
    assert seen != AssignableTopics.from_snapshot(snapshot((0, 1), (0, 1)), ["t"])


@pytest.mark.parametrize("assignor", [RANGE, STICKY, COOPERATIVE], ids=lambda each: each.name)
def test_members_get_partitions_in_their_rack(assignor: Assignor) -> None:
    members = {
        name: MemberSubscription(frozenset("t"), rack=rack)
        for name, rack in [("m1", "b"), ("m2", "a"), ("m3", "b")]
    }
    replicas = [(0,), (1,), (1,), (0,), (1,), (1,)]
    topics = AssignableTopics.from_snapshot(snapshot(*replicas), ["t"])
    assert {
        m: {topics.racks[tp] for tp in mine} for m, mine in assignor.assign(members, topics).items()
    } == {
        "m1": {frozenset("b")},
        "m2": {frozenset("a")},
        "m3": {frozenset("b")},
    }


# --- java's orders --------------------------------------------------------------------------------


def test_hashes_are_as_specified() -> None:
    assert text_hash("") == 0
    assert text_hash("hello") == 99162322
    assert text_hash("polygenelubricants") == 0x80000000  # a well-known one
    assert text_hash("\N{GRINNING FACE}") == 31 * 0xD83D + 0xDE00
    assert partition_hash(TopicPartition("", 0)) == 31 * 31


def test_map_order_is_by_bucket_then_insertion() -> None:
    assert map_order(["b", "a", "q", "1"]) == ["a", "q", "1", "b"]  # all but b share a bucket
    assert map_order(["q", "1", "b", "a"]) == ["q", "1", "a", "b"]
    assert map_order(map(str, range(10))) == [str(number) for number in range(10)]
    assert first_of([T0, T1], 2) == T1  # buckets 5 and 4
    assert map_order([]) == []


# --- user data of sticky --------------------------------------------------------------------------


@given(
    st.lists(
        st.builds(TopicPartition, st.text(max_size=5), st.integers(0, 2**31 - 1)), unique=True
    ),
    st.integers(-1, 2**31 - 1),
)
def test_sticky_claim_roundtrips(partitions: list[TopicPartition], generation: int) -> None:
    claim = read_claim(encode_claim(Claim(partitions, generation)))
    assert sorted(claim.partitions) == sorted(partitions)
    assert claim.generation == generation


@given(st.binary(max_size=60))
def test_any_user_data_is_a_claim_or_none(data: bytes) -> None:
    assert read_claim(data).generation >= -(2**31)
    member = MemberSubscription(frozenset("t"), user_data=data)
    for assignor in (STICKY, COOPERATIVE):
        assert assignor.assign({"a": member}, {"t": [0, 1]}) == {"a": [T0, T1]}


def test_user_data_without_generation_is_read() -> None:
    """Members before generations were part of the claim."""
    assert read_claim(encode_claim(Claim((T0,), 5))[:-4]) == Claim([T0], -1)
    # A claim that counts two thousand million partitions.
    assert read_claim(b"\x00\x00\x00\x01\x00\x01t\x7f\xff\xff\xff") == Claim((), -1)
    assert read_claim(b"\xff\xff\xff\xff") == Claim((), -1)


# --- eager and cooperative ------------------------------------------------------------------------


def test_one_eager_assignor_makes_the_list_eager() -> None:
    """Only cooperative-sticky is cooperative."""
    assert [name for name, each in BY_NAME.items() if each.cooperative] == ["cooperative-sticky"]
    assert rebalance_protocol([COOPERATIVE]) is RebalanceProtocol.COOPERATIVE
    assert rebalance_protocol([COOPERATIVE, RANGE]) is RebalanceProtocol.EAGER
    assert rebalance_protocol([]) is RebalanceProtocol.EAGER


def test_transferred_partitions_are_found() -> None:
    members = {
        "a": MemberSubscription(frozenset("t"), (T0, T1)),
        "b": MemberSubscription(frozenset("t")),
    }
    topics = {"t": [0, 1]}
    assert transferring_ownership(members, RANGE.assign(members, topics)) == {T1: "b"}
    assert transferring_ownership(members, COOPERATIVE.assign(members, topics)) == {}
    assert transferring_ownership(members, {"b": [T0]}) == {T0: "b"}


class Group:
    """A group as its coordinator and its members see it."""

    def __init__(self, count: int) -> None:
        self.lists: dict[str, list[Assignor]] = {f"m{number}": [RANGE] for number in range(count)}
        self.owned: dict[str, list[TopicPartition]] = {member: [] for member in self.lists}
        self.last: dict[str, LastAssignment] = {}
        self.generation = 0
        self.chosen: list[str] = []

    def vote(self) -> Assignor:
        """Return the assignor that most members prefer among those that all support."""
        common = set.intersection(*({each.name for each in mine} for mine in self.lists.values()))
        assert common, "a member would not have been let in"
        votes = Counter(
            next(each.name for each in mine if each.name in common) for mine in self.lists.values()
        )
        return BY_NAME[votes.most_common(1)[0][0]]

    def rebalance(self) -> None:
        """Rebalance until no member revokes anything."""
        while True:
            assignor = self.vote()
            self.chosen.append(assignor.name)
            for member, mine in self.lists.items():
                if rebalance_protocol(mine) is RebalanceProtocol.EAGER:
                    self.owned[member] = []
            members = {
                member: MemberSubscription(
                    frozenset("t"),
                    tuple(self.owned[member]),
                    self.generation if self.owned[member] else -1,
                )
                for member in self.lists
            }
            self.generation += 1
            result = assignor.assign(members, {"t": range(12)})
            for member, other in itertools.permutations(self.lists, 2):
                assert not set(result[member]) & set(self.owned[other]), (
                    "two have it at the same time"
                )
            gave_up = any(set(self.owned[member]) - set(result[member]) for member in self.lists)
            self.owned = dict(result)
            if not gave_up:
                return

    def restart(self, member: str, *assignors: Assignor) -> None:
        """Let the member leave and rejoin with another list of assignors."""
        del self.lists[member], self.owned[member]
        if self.lists:
            self.rebalance()
        self.lists[member] = list(assignors)
        self.owned[member] = []
        self.rebalance()


@pytest.mark.parametrize("seed", range(10))
def test_two_rolling_restarts_make_it_cooperative(seed: int) -> None:
    group = Group(4)
    group.rebalance()
    order = list(group.lists)
    random.Random(seed).shuffle(order)
    for member in order:
        group.restart(member, COOPERATIVE, RANGE)
        assert {rebalance_protocol(mine) for mine in group.lists.values()} == {
            RebalanceProtocol.EAGER
        }
    # While one member had only range, the group used range, and it changed at the first rebalance
    # after that.
    assert set(group.chosen[: group.chosen.index("cooperative-sticky")]) == {"range"}
    assert set(group.chosen[group.chosen.index("cooperative-sticky") :]) <= {
        "range",
        "cooperative-sticky",
    }
    assert group.vote() is COOPERATIVE
    seen = len(group.chosen)
    for done, member in enumerate(order, start=1):
        group.restart(member, COOPERATIVE)
        cooperative = [
            name
            for name, mine in group.lists.items()
            if rebalance_protocol(mine) is RebalanceProtocol.COOPERATIVE
        ]
        assert sorted(cooperative) == sorted(order[:done])
    assert set(group.chosen[seen:]) == {"cooperative-sticky"}
    assert sorted(len(mine) for mine in group.owned.values()) == [3, 3, 3, 3]


# --- large groups ---------------------------------------------------------------------------------


@pytest.mark.parametrize("same", [True, False], ids=["same topics", "different topics"])
@pytest.mark.parametrize("assignor", list(BY_NAME.values()), ids=list(BY_NAME))
def test_large_assignment_is_quick(assignor: Assignor, same: bool) -> None:
    """The leader's task is blocked while it assigns: for 0.2 s at most on an idle machine."""
    names = [f"t{number:03}" for number in range(100)]
    partitions = {topic: range(100) for topic in names}
    racks = {
        TopicPartition(t, p): frozenset("abcd"[(p + i) % 4] for i in range(2))
        for t in names
        for p in range(100)
    }
    members = {
        f"consumer-{number}": MemberSubscription(
            frozenset(names if same else names[: 100 - number % 7]), rack="abcd"[number % 4]
        )
        for number in range(100)
    }
    first = assignor.assign(members, AssignableTopics(partitions, racks))
    again = {
        member: replace(
            subscription,
            owned=tuple(first[member]),
            generation=1,
            user_data=StickyAssignor().user_data(
                subscription.topics, LastAssignment("sticky", 1, tuple(first[member]))
            ),
        )
        for member, subscription in list(members.items())[:80]
    }
    newcomers = {
        f"new-{number}": MemberSubscription(frozenset(names), rack="a") for number in range(30)
    }
    start = time.process_time()
    result = assignor.assign(again | newcomers, AssignableTopics(partitions, racks))
    assert time.process_time() - start < 3
    dealt = [tp for mine in result.values() for tp in mine]
    assert len(dealt) == len(set(dealt))
    assert assignor.cooperative or len(dealt) == 10_000
