"""Random groups for the assignors, and Kafka's own assignors in a JVM (``JavaAssignors.java``).

As a program it rewrites ``assignors_golden.jsonl``, which has Java's answers for machines without
Java (``PYTHONPATH=. python tests/state/beside_java.py``).
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trikafka_broker import fetch_jars
from trikafka_broker.java import find_java

from trikafka import TopicPartition
from trikafka._managers.group.group_messages import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from trikafka._state.assignors import (
    AssignableTopics,
    Assignment,
    Assignor,
    CooperativeStickyAssignor,
    LastAssignment,
    MemberSubscription,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    SubscribesWithUserData,
)
from trikafka._state.assignors.sticky import Claim, read_claim

ASSIGNORS: list[Assignor] = [
    RangeAssignor(),
    RoundRobinAssignor(),
    StickyAssignor(),
    CooperativeStickyAssignor(),
]
NAMES = [assignor.name for assignor in ASSIGNORS]
GOLDEN = Path(__file__).with_name("assignors_golden.jsonl")

#: Topic -> for each partition the racks of its replicas ("": a broker without a rack).
Cluster = dict[str, list[list[str]]]


class Java:
    """The JVM: each question has one answer."""

    def __init__(self) -> None:
        here = Path(__file__).parent
        quiet = f"-Dlog4j2.configurationFile={here / 'log4j2-silent.properties'}"
        command = [
            str(find_java()),
            quiet,
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{fetch_jars()}/*",
            str(here / "JavaAssignors.java"),
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def ask(self, what: str, **question: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"ask": what, **question}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"Java has gone away ({self._process.wait()})"
        return dict(json.loads(line))

    def assign(
        self, assignor: str, members: Mapping[str, MemberSubscription], cluster: Cluster
    ) -> Assignment | str:
        """Return Java's assignment or its error."""
        encoded = [
            {"id": m, "instance": s.instance_id, "subscription": encode_subscription(s).hex()}
            for m, s in members.items()
        ]
        answer = self.ask("assign", assignor=assignor, members=encoded, topics=cluster)
        if "error" in answer:
            return str(answer["error"])
        return {
            member: decode_assignment(bytes.fromhex(text))
            for member, text in answer["assignment"].items()
        }

    def close(self) -> None:
        """End the JVM."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(120)
        self._process.stdout.close()


def topics_of(cluster: Cluster) -> AssignableTopics:
    racks = {
        TopicPartition(topic, number): frozenset(filter(None, near))
        for topic, all_of_it in cluster.items()
        for number, near in enumerate(all_of_it)
    }
    return AssignableTopics(
        {topic: list(range(len(all_of_it))) for topic, all_of_it in cluster.items()}, racks
    )


@dataclass
class Group:
    """A group with its members' subscriptions and last assignments."""

    dice: random.Random
    assignor: Assignor
    racks: bool
    alike: bool  # True if all members subscribe to the same topics
    generation: int = 0
    cluster: Cluster = field(default_factory=dict)
    members: dict[str, MemberSubscription] = field(default_factory=dict)
    last: dict[str, LastAssignment] = field(default_factory=dict)

    def change(self, at_first: int | None = None) -> None:
        """Add, remove or change some members and topics."""
        dice = self.dice
        for _ in range(
            dice.randint(1, 3) if self.generation else at_first or dice.choice([3, 6, 20, 80])
        ):
            kind = dice.random()
            if kind < 0.4 or not self.members:
                self._join()
            elif kind < 0.6 and len(self.members) > 1:
                gone = dice.choice(list(self.members))
                del self.members[gone]
                if dice.random() < 0.7:  # otherwise the member may return with its old partitions
                    self.last.pop(gone, None)
            elif kind < 0.85 or not self.cluster:
                count = dice.choice([0, 1, 2, 3, 3, 3, 4, 7, 12, dice.randint(0, 30)])
                self._topic(dice.choice("tuvwxyz") * dice.randint(1, 2), count)
            elif not self.alike:
                who = dice.choice(list(self.members))
                self.members[who] = replace(self.members[who], topics=self._wanted())
        if self.alike:
            wanted = self._wanted() or frozenset("t")
            self.members = {
                member: replace(subscription, topics=wanted)
                for member, subscription in self.members.items()
            }

    def _join(self) -> None:
        number = self.dice.randrange(20)
        instance = f"i{self.dice.randrange(99)}" if self.dice.random() < 0.2 else None
        if instance in {subscription.instance_id for subscription in self.members.values()}:
            instance = None
        rack = self.dice.choice(["a", "b", "c", "elsewhere", None]) if self.racks else None
        name = self.dice.choice(["consumer-{}", "{}", "Ünsal-{}", "m-{}-5c4f0a1e"]).format(number)
        self.members[name] = MemberSubscription(self._wanted(), instance_id=instance, rack=rack)

    def _wanted(self) -> frozenset[str]:
        names = [*sorted(self.cluster), "gone"]
        return frozenset(
            self.dice.sample(names, self.dice.randint(self.dice.random() > 0.01, len(names)))
        )

    def _topic(self, name: str, count: int) -> None:
        # A topic grows or is deleted. Another test covers topics that shrink.
        if name in self.cluster and self.dice.random() < 0.3:
            del self.cluster[name]
            self.last = {
                member: replace(
                    last, partitions=tuple(tp for tp in last.partitions if tp.topic != name)
                )
                for member, last in self.last.items()
            }
            return
        old = self.cluster.get(name, [])
        racks = ["a", "b", "c", ""] if self.racks else [""]
        replicas = self.dice.randint(1, 3)
        self.cluster[name] = old + [
            self.dice.sample(racks, min(replicas, len(racks))) for _ in range(count - len(old))
        ]

    def subscriptions(self) -> dict[str, MemberSubscription]:
        """Return the subscriptions that the members send.

        They have the members' last partitions. A few claim partitions that they did not have, or
        another generation.
        """
        order = list(self.members)
        self.dice.shuffle(order)
        return {member: self._told(member) for member in order}

    def _told(self, member: str) -> MemberSubscription:
        subscription, last = self.members[member], self.last.get(member)
        if last is not None and self.dice.random() < 0.05:
            strangers = self.dice.choice(list(self.last.values()) or [last])
            last = replace(
                last, partitions=tuple(dict.fromkeys(last.partitions + strangers.partitions[:2]))
            )
        if last is not None and self.dice.random() < 0.05:
            last = replace(last, generation=self.dice.randint(-1, self.generation))
        data = (
            self.assignor.user_data(subscription.topics, last)
            if isinstance(self.assignor, SubscribesWithUserData)
            else None
        )
        owned = last.partitions if last is not None and self.assignor.cooperative else ()
        generation = -1 if last is None or self.dice.random() < 0.05 else last.generation
        return replace(
            subscription, owned=tuple(sorted(owned)), generation=generation, user_data=data
        )

    def assigned(self, result: Assignment) -> None:
        self.generation += 1
        for member, mine in result.items():
            self.last[member] = LastAssignment(self.assignor.name, self.generation, tuple(mine))


def as_sent(result: Assignment) -> Assignment:
    """Return the assignment as the members receive it: ordered by topic."""
    return {member: decode_assignment(encode_assignment(mine)) for member, mine in result.items()}


def explained(assignor: Assignor, members: Mapping[str, MemberSubscription]) -> bool:
    """Return whether Java's sticky assignors may assign a topic to a member that does not subscribe to it.

    They may do so for this group at least in an intermediate step. They overlook members without a
    subscription. They also prefer the owner of an older generation, even if it no longer
    subscribes.
    """
    if not assignor.name.endswith("sticky"):
        return False
    claims = {
        member: Claim(subscription.owned, subscription.generation)
        if assignor.cooperative
        else read_claim(subscription.user_data)
        for member, subscription in members.items()
    }
    newest = max(claim.generation for claim in claims.values())
    return any(
        not subscription.topics
        or (
            claims[member].generation < newest
            and any(tp.topic not in subscription.topics for tp in claims[member].partitions)
        )
        for member, subscription in members.items()
    )


def members_from(texts: Mapping[str, list[Any]]) -> dict[str, MemberSubscription]:
    """Return the members of a golden case, from instance ids and subscriptions as bytes."""
    return {
        member: decode_subscription(bytes.fromhex(data), instance)
        for member, (instance, data) in texts.items()
    }


def _golden(java: Java) -> Iterator[dict[str, Any]]:
    for number, assignor in enumerate(ASSIGNORS * 6):
        racks, alike = number % 8 < 4, number % 16 < 8
        group = Group(random.Random(number), assignor, racks, alike)
        theirs: Assignment = {}
        for _ in range(3):
            group.change(at_first=6)
            members = group.subscriptions()
            answer = java.assign(assignor.name, members, group.cluster)
            assert isinstance(answer, dict), answer
            theirs = answer
            group.assigned(theirs)
        name = (
            f"{assignor.name} "
            f"{number}{', racks' if racks else ''}{', same topics' if alike else ''}"
        )
        encoded = {
            member: [each.instance_id, encode_subscription(each).hex()]
            for member, each in members.items()
        }
        assignment = {member: encode_assignment(mine).hex() for member, mine in theirs.items()}
        yield {
            "name": name,
            "assignor": assignor.name,
            "topics": group.cluster,
            "members": encoded,
            "assignment": assignment,
        }


if __name__ == "__main__":
    beside = Java()
    GOLDEN.write_text("".join(json.dumps(case) + "\n" for case in _golden(beside)))
    beside.close()
