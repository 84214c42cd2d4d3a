"""The interface of assignors, with their input and output.

Values and rules only; nothing here has state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from ...interfaces import ClusterSnapshot, MemberSubscription
from ...types import TopicPartition

#: Member id -> its partitions. Every member has an entry, also those without partitions.
Assignment = dict[str, list[TopicPartition]]


@dataclass(frozen=True)
class AssignableTopics(Mapping[str, Sequence[int]]):
    """The partitions to assign: a mapping of topics to partition numbers, with the replicas' racks.

    Two are equal when numbers and racks are equal. A leader rebalances when they are not (KIP-881).
    """

    partitions: Mapping[str, Sequence[int]]
    racks: Mapping[TopicPartition, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def from_snapshot(cls, snapshot: ClusterSnapshot, topics: Iterable[str]) -> AssignableTopics:
        """Return what ``snapshot`` knows of ``topics``, without topics that have no partitions.

        All replicas count, in sync or not. Those out of sync are expected back, and leaders do not
        rebalance for that.
        """
        partitions: dict[str, list[int]] = {}
        racks: dict[TopicPartition, frozenset[str]] = {}
        for topic in topics:
            for tp in snapshot.partitions_of(topic):
                partitions.setdefault(topic, []).append(tp.partition)
                nodes = (
                    snapshot.nodes.get(node)
                    for node in snapshot.topics[topic].partitions[tp.partition].replicas
                )
                if near := frozenset(node.rack for node in nodes if node is not None and node.rack):
                    racks[tp] = near
        # Tuples: the leader keeps and compares them, and a plugin's assignor gets them.
        return cls({topic: tuple(numbers) for topic, numbers in partitions.items()}, racks)

    def __getitem__(self, topic: str) -> Sequence[int]:
        return self.partitions[topic]

    def __iter__(self) -> Iterator[str]:
        return iter(self.partitions)

    def __len__(self) -> int:
        return len(self.partitions)


class Assignor(Protocol):
    """An assignor of the classic protocol; plugins offer others (hook ``trikafka_assignor``).

    An assignor that adds user data to the subscription is a
    :class:`~trikafka.interfaces.SubscribesWithUserData` as well.
    """

    name: str
    #: True if it withholds partitions that change their owner, so that members keep theirs while
    #: they join again (KIP-429). Members do so only if all assignors of their list can: see
    #: :func:`rebalance_protocol`.
    cooperative: bool

    def assign(
        self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, Sequence[int]]
    ) -> Assignment:
        """Return an assignment of ``partitions`` to ``members``.

        Pure; called on the leader.

        Args:
            members: member id -> subscription, in the order of the coordinator's response.
            partitions: topic -> partition numbers, of topics that exist. An
                :class:`AssignableTopics` if the racks of replicas are known.

        Returns:
            Member id -> partitions, with an entry for every member.
        """


class RebalanceProtocol(IntEnum):
    """The way in which a member joins again (KIP-429); a higher value is a newer way."""

    #: The member revokes everything before it joins.
    EAGER = 0
    #: The member keeps its partitions, and revokes afterwards what the new assignment leaves out.
    COOPERATIVE = 1


def rebalance_protocol(assignors: Iterable[Assignor]) -> RebalanceProtocol:
    """Return the highest protocol that all of these assignors support (KIP-429).

    Every assignor supports EAGER. A running group changes from eager to cooperative in two rolling
    restarts. The first adds the cooperative assignor to every member's list (``cooperative-sticky,
    range``): members are still EAGER, and the coordinator chooses ``range`` until all support the
    other. The second removes the eager assignor, and members become COOPERATIVE one by one.
    """
    supported = {
        frozenset(RebalanceProtocol) if a.cooperative else frozenset({RebalanceProtocol.EAGER})
        for a in assignors
    }
    return (
        max(frozenset(RebalanceProtocol).intersection(*supported))
        if supported
        else RebalanceProtocol.EAGER
    )


def transferring_ownership(
    members: Mapping[str, MemberSubscription], assignment: Mapping[str, Sequence[TopicPartition]]
) -> dict[TopicPartition, str]:
    """Return the partitions that change their owner, each with its next owner.

    Those are partitions that a member owned and does not get, and that another member gets. A
    cooperative assignor withholds them: until the owner has revoked a partition, two members would
    have it. If all members are COOPERATIVE, such a partition in the assignment of a plugin is a bug
    of the plugin. (``cooperative-sticky`` looks at the generations too: a partition that two
    members claim goes to the one of the newer generation, and that is no bug.)
    """
    lost = {
        tp
        for member, subscription in members.items()
        for tp in set(subscription.owned).difference(assignment.get(member, ()))
    }
    return {
        tp: member
        for member, mine in assignment.items()
        for tp in lost.intersection(mine).difference(members[member].owned)
    }


def racks_of(partitions: Mapping[str, Sequence[int]]) -> Mapping[TopicPartition, frozenset[str]]:
    """Return the racks of the partitions' replicas; empty for a mapping without racks."""
    return partitions.racks if isinstance(partitions, AssignableTopics) else {}


def subscribed(
    members: Mapping[str, MemberSubscription], partitions: Mapping[str, Sequence[int]]
) -> dict[str, tuple[TopicPartition, ...]]:
    """Return the partitions to assign, in order of topic and number.

    Those are the partitions of topics that a member wants and that have any.
    """
    wanted = frozenset[str]().union(*(member.topics for member in members.values()))
    return {
        topic: tuple(TopicPartition(topic, number) for number in sorted(partitions[topic]))
        for topic in sorted(wanted & partitions.keys())
        if partitions[topic]
    }


def text_key(text: str) -> bytes:
    """Return a sort key with the order of strings in Java: by UTF-16 code units.

    Python's order differs beyond the 65,536th character.
    """
    return text.encode("utf-16-be", "surrogatepass")


def member_key(member: str, subscription: MemberSubscription) -> tuple[bool, bytes]:
    """Return the sort key of a member.

    Static members come first, by their instance ids, which outlive restarts (KIP-345); then the
    others by member id.
    """
    instance = subscription.instance_id
    return instance is None, text_key(member if instance is None else instance)
