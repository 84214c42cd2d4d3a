"""The assignors as pure functions: tables, Java's rules, and properties of every group."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trikafka import TopicPartition
from trikafka._state.assignors import (
    Assignment,
    Assignor,
    CooperativeStickyAssignor,
    MemberSubscription,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
)

GroupOf = tuple[dict[str, MemberSubscription], dict[str, list[int]]]
RANGE, STICKY = RangeAssignor(), CooperativeStickyAssignor()
ALL: list[Assignor] = [RANGE, RoundRobinAssignor(), StickyAssignor(), STICKY]


def tps(topic: str, *numbers: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


def member(
    *topics: str,
    owned: list[TopicPartition] | None = None,
    generation: int = 1,
    instance: str | None = None,
) -> MemberSubscription:
    return MemberSubscription(frozenset(topics), tuple(owned or ()), generation, instance)


# From Kafka's own RangeAssignorTest and the description of the class.
RANGE_TABLE = [
    ({"a": member("t")}, {"t": 3}, {"a": tps("t", 0, 1, 2)}),
    ({"a": member("t"), "b": member("t")}, {"t": 3}, {"a": tps("t", 0, 1), "b": tps("t", 2)}),
    (
        {"a": member("t", "u"), "b": member("t", "u")},
        {"t": 3, "u": 3},
        {"a": tps("t", 0, 1) + tps("u", 0, 1), "b": tps("t", 2) + tps("u", 2)},
    ),
    (
        {"a": member("t"), "b": member("t", "u"), "c": member("t")},
        {"t": 3, "u": 2},
        {"a": tps("t", 0), "b": tps("t", 1) + tps("u", 0, 1), "c": tps("t", 2)},
    ),
    ({"a": member("t"), "b": member("t")}, {"t": 1}, {"a": tps("t", 0), "b": []}),
    ({"a": member("t"), "b": member("gone")}, {"t": 2}, {"a": tps("t", 0, 1), "b": []}),
    (  # static members come before others, in the order of their names
        {"a": member("t"), "z": member("t", instance="i1"), "y": member("t", instance="i2")},
        {"t": 3},
        {"z": tps("t", 0), "y": tps("t", 1), "a": tps("t", 2)},
    ),
]


@pytest.mark.parametrize(("members", "topics", "expected"), RANGE_TABLE)
def test_range_follows_its_table(
    members: dict[str, MemberSubscription], topics: dict[str, int], expected: Assignment
) -> None:
    assert (
        RANGE.assign(members, {topic: list(range(count)) for topic, count in topics.items()})
        == expected
    )


def test_topic_without_subscriber_is_not_assigned() -> None:
    for assignor in ALL:
        assert assignor.assign({"a": member("t")}, {"t": [0], "u": [0, 1]}) == {"a": tps("t", 0)}
        assert assignor.assign({}, {"t": [0]}) == {}


@st.composite
def groups(draw: st.DrawFn, equal: bool = False) -> GroupOf:
    names = ["t", "u", "v"][: draw(st.integers(1, 3))]
    topics = {name: list(range(draw(st.integers(0, 9)))) for name in names}
    count = draw(st.integers(1, 6))
    wanted = [
        names if equal else draw(st.lists(st.sampled_from(names), unique=True))
        for _ in range(count)
    ]
    return {f"m{number}": member(*wanted[number]) for number in range(count)}, topics


def everything(
    members: dict[str, MemberSubscription], topics: dict[str, list[int]]
) -> set[TopicPartition]:
    wanted = set().union(*(m.topics for m in members.values())) if members else set()
    return {
        TopicPartition(topic, number)
        for topic, numbers in topics.items()
        if topic in wanted
        for number in numbers
    }


def check_dealt(
    members: dict[str, MemberSubscription], topics: dict[str, list[int]], dealt: Assignment
) -> None:
    assert dealt.keys() == members.keys()
    counts = Counter(tp for mine in dealt.values() for tp in mine)
    assert set(counts) == everything(members, topics)
    assert set(counts.values()) <= {1}
    assert all(tp.topic in members[name].topics for name, mine in dealt.items() for tp in mine)


@given(groups())
def test_partition_goes_to_exactly_one_subscriber(group: GroupOf) -> None:
    members, topics = group
    for assignor in ALL:
        check_dealt(members, topics, assignor.assign(members, topics))


@given(groups(equal=True))
def test_equal_subscriptions_balance_within_one(group: GroupOf) -> None:
    members, topics = group
    sizes = [len(mine) for mine in STICKY.assign(members, topics).values()]
    assert max(sizes) - min(sizes) <= 1


@given(groups())
def test_range_assigns_even_runs_of_each_topic(group: GroupOf) -> None:
    """The members' runs of one topic differ in length by one at most."""
    members, topics = group
    dealt = RANGE.assign(members, topics)
    for topic in topics:
        runs = [
            [tp.partition for tp in dealt[name] if tp.topic == topic]
            for name in sorted(members)
            if topic in members[name].topics
        ]
        assert [number for run in runs for number in run] == (topics[topic] if runs else [])
        sizes = [len(run) for run in runs]
        assert sizes == sorted(sizes, reverse=True)
        assert not sizes or sizes[0] - sizes[-1] <= 1


def owning(
    members: dict[str, MemberSubscription], dealt: Assignment, generation: int
) -> dict[str, MemberSubscription]:
    return {
        name: MemberSubscription(
            m.topics, tuple(dealt.get(name, ())), generation if name in dealt else -1
        )
        for name, m in members.items()
    }


def settle(
    members: dict[str, MemberSubscription], topics: dict[str, list[int]], dealt: Assignment
) -> tuple[Assignment, int]:
    """Rebalance until no member must revoke anything; return the assignment and the rounds."""
    for round_ in range(1, 9):
        before = {name: set(dealt.get(name, ())) for name in members}
        dealt = STICKY.assign(owning(members, dealt, round_), topics)
        for name, mine in dealt.items():
            for other, owned in before.items():
                assert other == name or not owned & set(mine), (
                    "a partition was given away that another still owns"
                )
        if all(before[name] <= set(dealt[name]) for name in members):
            return dealt, round_
    raise AssertionError("the group does not come to rest")


@given(groups(), groups())
@settings(max_examples=200)
def test_cooperative_group_settles(first: GroupOf, second: GroupOf) -> None:
    """Members and topics come and go.

    Soon all partitions are assigned once and stay where they are.
    """
    dealt, rounds = settle(*first, {})
    assert rounds == 1
    members, topics = second
    dealt, rounds = settle(
        members, topics, {name: mine for name, mine in dealt.items() if name in members}
    )
    assert rounds <= 4
    check_dealt(members, topics, dealt)


@given(groups())
def test_unchanged_group_moves_nothing(group: GroupOf) -> None:
    members, topics = group
    dealt, _ = settle(members, topics, {})
    again = STICKY.assign(owning(members, dealt, 7), topics)
    assert {name: set(mine) for name, mine in again.items()} == {
        name: set(mine) for name, mine in dealt.items()
    }


@given(groups(equal=True), st.data())
def test_leaving_member_moves_only_its_own(group: GroupOf, data: st.DataObject) -> None:
    members, topics = group
    dealt, _ = settle(members, topics, {})
    gone = data.draw(st.sampled_from(sorted(members)))
    left = {name: m for name, m in members.items() if name != gone}
    after = STICKY.assign(owning(left, dealt, 2), topics)
    assert all(set(dealt[name]) <= set(after[name]) for name in left)


@given(groups(equal=True))
def test_new_member_takes_only_its_share(group: GroupOf) -> None:
    members, topics = group
    dealt, _ = settle(members, topics, {})
    more = members | {"new": next(iter(members.values()))}
    after, rounds = settle(more, topics, dealt)
    assert rounds <= 2
    moved = sum(len(set(mine) - set(dealt.get(name, ()))) for name, mine in after.items())
    assert moved == len(after["new"])
    assert all(set(after[name]) <= set(dealt[name]) for name in members)


def test_newer_generation_wins_a_double_claim() -> None:
    members = {
        "old": member("t", owned=tps("t", 0), generation=3),
        "new": member("t", owned=tps("t", 0), generation=4),
    }
    assert STICKY.assign(members, {"t": [0]}) == {"old": [], "new": tps("t", 0)}


def test_equal_double_claim_is_not_assigned() -> None:
    """Two members claim a partition in the same generation.

    It stays free until both have revoked it.
    """
    members = {name: member("t", owned=tps("t", 0), generation=3) for name in "ab"}
    assert STICKY.assign(members, {"t": [0]}) == {"a": [], "b": []}


def test_unwanted_but_owned_is_not_yet_assigned() -> None:
    """A member still owns a partition of a topic that it left.

    The partition is not given to another member yet.
    """
    members = {"a": member("u", owned=tps("t", 0)), "b": member("t")}
    assert STICKY.assign(members, {"t": [0], "u": [0]}) == {"a": tps("u", 0), "b": []}


def test_large_group_is_assigned_quickly() -> None:
    topics = {f"t{number}": list(range(100)) for number in range(30)}
    members = {f"m{number:03}": member(*topics) for number in range(100)}
    start = time.process_time()
    dealt, _ = settle(members, topics, {})
    settle(members | {f"n{number:03}": member(*topics) for number in range(50)}, topics, dealt)
    assert time.process_time() - start < 10
