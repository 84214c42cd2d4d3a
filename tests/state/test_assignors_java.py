"""The assignors and the bytes of the consumer protocol, compared with Kafka's own classes.

A JVM answers what ``JavaAssignors.java`` reads. The same groups go through several rebalances:
members, topics and racks come and go, a member claims what another has, or returns with what it had
long ago. Every member's assignment is compared as the bytes that a leader sends.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import pytest
from beside_java import (
    ASSIGNORS,
    GOLDEN,
    NAMES,
    Cluster,
    Group,
    Java,
    as_sent,
    explained,
    members_from,
    topics_of,
)

from trikafka import TopicPartition
from trikafka._managers.group.group_messages import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from trikafka._state.assignors import (
    Assignment,
    Assignor,
    CooperativeStickyAssignor,
    LastAssignment,
    MemberSubscription,
    StickyAssignor,
    rebalance_protocol,
)
from trikafka._state.assignors.java_order import first_of, map_order
from trikafka.errors import ProtocolError

GROUPS, REBALANCES = 20, 6  # of each kind; each group goes through so many rebalances
STICKY: list[StickyAssignor | CooperativeStickyAssignor] = [
    StickyAssignor(),
    CooperativeStickyAssignor(),
]


@pytest.fixture(scope="module")
def java() -> Iterator[Java]:
    java = Java()
    yield java
    java.close()


def tps(topic: str, *numbers: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, number) for number in numbers)


def check(
    assignor: Assignor,
    members: Mapping[str, MemberSubscription],
    cluster: Cluster,
    result: Assignment,
) -> None:
    """Check what holds of every assignment, whatever Java's is."""
    assert result.keys() == members.keys()
    assert all(tp.topic in members[member].topics for member, mine in result.items() for tp in mine)
    counts = Counter(tp for mine in result.values() for tp in mine)
    wanted = frozenset[str]().union(*(subscription.topics for subscription in members.values()))
    there_is = {
        TopicPartition(topic, number)
        for topic in wanted & cluster.keys()
        for number in range(len(cluster[topic]))
    }
    claimed = (
        {tp for subscription in members.values() for tp in subscription.owned}
        if assignor.cooperative
        else set()
    )
    assert set(counts.values()) <= {1}
    assert there_is - claimed <= counts.keys() <= there_is


@pytest.mark.parametrize("alike", [True, False], ids=["same topics", "different topics"])
@pytest.mark.parametrize("racks", [False, True], ids=["no racks", "racks"])
@pytest.mark.parametrize("assignor", ASSIGNORS, ids=NAMES)
def test_rebalances_equal_javas(java: Java, assignor: Assignor, racks: bool, alike: bool) -> None:
    outcomes: Counter[bool] = Counter()
    for seed in range(GROUPS):
        group = Group(
            random.Random(f"{assignor.name} {racks} {alike} {seed}"), assignor, racks, alike
        )
        for _ in range(REBALANCES):
            group.change()
            members = group.subscriptions()
            ours = as_sent(assignor.assign(members, topics_of(group.cluster)))
            check(assignor, members, group.cluster, ours)
            theirs = java.assign(assignor.name, members, group.cluster)
            assert ours == theirs or explained(assignor, members), (
                f"seed {seed}, {members}, {group.cluster}"
            )
            outcomes[ours == theirs] += 1
            group.assigned(ours)
    assert outcomes[True] >= 0.97 * outcomes.total()


@pytest.mark.parametrize(
    "line", GOLDEN.read_text().splitlines(), ids=lambda line: json.loads(line)["name"]
)
def test_golden_assignments_equal_javas(line: str) -> None:
    case = json.loads(line)
    assignor = ASSIGNORS[NAMES.index(case["assignor"])]
    result = assignor.assign(members_from(case["members"]), topics_of(case["topics"]))
    assert {member: encode_assignment(mine).hex() for member, mine in result.items()} == case[
        "assignment"
    ]


def test_map_and_set_order_is_javas(java: Java) -> None:
    for seed in range(200):
        dice = random.Random(seed)
        clients = ["consumer", "Ünsal", "m\N{GRINNING FACE}"]
        names = [f"{dice.choice(clients)}-{dice.randrange(10**9):x}" for _ in range(seed)]
        names = list(dict.fromkeys(names))
        assert java.ask("map order", keys=names) == {"keys": map_order(names)}
        partitions = list(
            dict.fromkeys(
                TopicPartition(dice.choice("tu"), dice.randrange(999)) for _ in range(seed + 1)
            )
        )
        gone = dice.sample(partitions, dice.randrange(len(partitions)))
        left = [tp for tp in partitions if tp not in gone]
        assert java.ask("first of a set", partitions=partitions, removed=gone) == {
            "first": [list(first_of(left, len(partitions)))]
        }


# --- where we do not follow -----------------------------------------------------------------------


def sticky(
    topics: str, owned: tuple[TopicPartition, ...] = (), generation: int = -1
) -> MemberSubscription:
    """Return a member that both sticky assignors understand."""
    data = StickyAssignor().user_data(frozenset(), LastAssignment("sticky", generation, owned))
    return MemberSubscription(frozenset(topics), owned, generation, user_data=data)


@pytest.mark.parametrize("assignor", STICKY, ids=lambda assignor: assignor.name)
def test_member_without_topics_gets_nothing(java: Java, assignor: Assignor) -> None:
    """Java's sticky assignors give such a member partitions."""
    members, cluster = {"a": sticky(""), "b": sticky("t")}, {"t": [[""]] * 4}
    assert assignor.assign(members, topics_of(cluster)) == {"a": [], "b": [*tps("t", 0, 1, 2, 3)]}
    theirs = java.assign(assignor.name, members, cluster)
    assert isinstance(theirs, dict)
    assert theirs["a"]  # although it subscribes to nothing


@pytest.mark.parametrize("assignor", STICKY, ids=lambda assignor: assignor.name)
def test_old_claim_on_unwanted_topic_is_ignored(java: Java, assignor: Assignor) -> None:
    """A member that owned a partition in an older generation and left the topic does not get it.

    Java fails.
    """
    members = {
        "a": sticky("u", tps("t", 0), 3),
        "b": sticky("t", tps("t", 0, 1, 2, 3), 5),
        "c": sticky("t"),
    }
    cluster = {"t": [[""]] * 4, "u": [[""]]}
    result = assignor.assign(members, topics_of(cluster))
    assert result["a"] == [*tps("u", 0)]
    theirs = java.assign(assignor.name, members, cluster)
    assert isinstance(theirs, str)
    assert "NullPointerException" in theirs


@pytest.mark.parametrize("assignor", STICKY, ids=lambda assignor: assignor.name)
def test_missing_partitions_are_not_assigned(java: Java, assignor: Assignor) -> None:
    """A topic was deleted and created again with fewer partitions.

    Java fails or assigns the missing ones.
    """
    members = {"a": sticky("t", tps("t", 0, 1, 2), 5), "b": sticky("t", tps("t", 3, 4, 5), 5)}
    cluster = {"t": [[""]] * 4}
    result = assignor.assign(members, topics_of(cluster))
    assert sorted(tp for mine in result.values() for tp in mine) in (
        [*tps("t", 0, 1, 2, 3)],
        [*tps("t", 0, 1, 3)],
    )
    theirs = java.assign(assignor.name, members, cluster)
    assert isinstance(theirs, str) or not {tp for mine in theirs.values() for tp in mine} <= set(
        tps("t", 0, 1, 2, 3)
    )


# --- bytes ----------------------------------------------------------------------------------------


def subscriptions(seed: int) -> MemberSubscription:
    dice = random.Random(seed)
    topics = [f"topic-{dice.randrange(99)}" for _ in range(dice.randrange(20))]
    owned = dict.fromkeys(
        TopicPartition(dice.choice(topics), dice.randrange(9))
        for _ in range(dice.randrange(30))
        if topics
    )
    data = dice.choice([None, b"", dice.randbytes(9)])
    rack = dice.choice([None, "r1", "Straße"])
    return MemberSubscription(
        frozenset(topics), tuple(owned), dice.randint(-1, 99), None, data, rack
    )


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_subscriptions_equal_javas_bytes(java: Java, version: int) -> None:
    for seed in range(50):
        subscription = subscriptions(seed)
        data = encode_subscription(subscription, version)
        question: dict[str, Any] = {
            "owned": subscription.owned,
            "generation": subscription.generation,
            "rack": subscription.rack,
        }
        question |= {
            "topics": sorted(subscription.topics),
            "user_data": None if subscription.user_data is None else subscription.user_data.hex(),
        }
        assert java.ask("subscription", version=version, **question) == {"bytes": data.hex()}
        assert decode_subscription(data, None) == MemberSubscription(
            subscription.topics,
            tuple(sorted(subscription.owned)) if version >= 1 else (),
            subscription.generation if version >= 2 else -1,
            None,
            subscription.user_data,
            subscription.rack if version >= 3 else None,
        )


def test_user_data_equals_javas_bytes(java: Java) -> None:
    for seed in range(100):
        dice = random.Random(seed)
        topics = dice.sample(
            [f"topic-{number}" for number in range(99)],
            dice.choice([0, 1, 5, 12, 13, 14, 24, 25, 26, 60]),
        )
        had = tuple(
            TopicPartition(topic, dice.randrange(9))
            for topic in topics
            for _ in range(dice.randint(1, 2))
        )
        for assignor in STICKY:
            user_data = assignor.user_data(frozenset("t"), LastAssignment(assignor.name, seed, had))
            assert user_data is not None
            assert java.ask(
                "user data", assignor=assignor.name, partitions=had, generation=seed
            ) == {"bytes": user_data.hex()}


def test_first_user_data_equals_javas_bytes(java: Java) -> None:
    """A member has no partitions to claim before its first assignment."""
    assert (
        java.ask("user data", assignor="sticky")
        == {"bytes": StickyAssignor().user_data(frozenset(), None)}
        == {"bytes": None}
    )
    user_data = CooperativeStickyAssignor().user_data(frozenset(), None)
    assert java.ask("user data", assignor="cooperative-sticky") == {"bytes": user_data.hex()}


def test_damaged_subscription_is_read_like_javas(java: Java) -> None:
    """The bytes are cut, extended, of another version, or changed.

    What Java refuses is a protocol error.
    """
    outcomes: Counter[str] = Counter()
    for seed in range(400):
        dice = random.Random(seed)
        data = bytearray(encode_subscription(subscriptions(seed), dice.randrange(4)))
        for _ in range(dice.randrange(3)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        data = data[: dice.choice([len(data), dice.randrange(len(data))])] + dice.randbytes(
            dice.choice([0, 0, 3])
        )
        theirs = java.ask("decode subscription", bytes=data.hex())
        refused = ""
        try:
            subscription = decode_subscription(bytes(data), None)
        except ProtocolError as error:
            refused = str(error)
        if refused:  # Java reads broken UTF-8 as question marks; no topic has such a name
            assert "error" in theirs or "utf-8" in refused
            outcomes["refused"] += 1
            continue
        if "error" in theirs:  # a null list is read as an empty one
            assert "serialized as null" in theirs["error"]
            continue
        outcomes["read"] += 1
        assert sorted(subscription.topics) == sorted(set(theirs["topics"]))
        assert [list(tp) for tp in subscription.owned] == theirs["owned"]
        assert (max(subscription.generation, -1), subscription.rack) == (
            theirs["generation"],
            theirs["rack"],
        )
        assert (subscription.user_data and subscription.user_data.hex()) == (
            theirs["user_data"] or subscription.user_data
        )
    assert min(outcomes["refused"], outcomes["read"]) > 50


def test_assignments_of_every_version_are_read(java: Java) -> None:
    mine = [*tps("t", 3, 1), *tps("u", 0)]
    data = encode_assignment(mine)
    for version in (0, 1, 2, 3, 4, 99):
        of_version = version.to_bytes(2, "big") + data[2:]
        assert decode_assignment(of_version) == mine
        assert java.ask("decode assignment", bytes=of_version.hex()) == {
            "partitions": [list(tp) for tp in mine]
        }
    with pytest.raises(ProtocolError, match="cannot be read"):
        decode_assignment(b"\xff\xff" + data[2:])


# --- eager and cooperative ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [list(some) for count in (1, 2, 3, 4) for some in combinations(NAMES, count)],
    ids="+".join,
)
def test_rebalance_protocol_equals_javas(java: Java, names: list[str]) -> None:
    protocol = rebalance_protocol([ASSIGNORS[NAMES.index(name)] for name in names])
    assert java.ask("protocol", assignors=names) == {"protocol": protocol.name}
