"""What an assignor is, what it is given and what it gives back. Values and rules only; nothing here has state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol, runtime_checkable

from ...types import TopicPartition
from ..cluster import ClusterSnapshot

#: Member id -> what it gets. Every member has an entry, also those that get nothing.
Assignment = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What one member told the group when it joined.

    ``owned`` and ``generation`` (-1: unknown) are what it had before, ``rack`` is where it stands (``client_rack``; ``None``:
    unknown), ``user_data`` is what its assignor of the same name added (see :class:`SubscribesWithUserData`).
    """

    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    instance_id: str | None = None
    user_data: bytes | None = None
    rack: str | None = None


@dataclass(frozen=True)
class AssignableTopics(Mapping[str, Sequence[int]]):
    """What there is to assign: a mapping of topics to their partition numbers that knows the racks of the replicas too.

    Two are equal when numbers and racks are: a leader whose cluster looks different now rebalances (KIP-881).
    """

    partitions: Mapping[str, Sequence[int]]
    racks: Mapping[TopicPartition, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def from_snapshot(cls, snapshot: ClusterSnapshot, topics: Iterable[str]) -> AssignableTopics:
        """What ``snapshot`` knows of ``topics``; those it does not know, or knows no partition of, are left out.

        All replicas count, in sync or not: those that are out of sync now are expected back, and leaders do not rebalance for it.
        """
        partitions: dict[str, list[int]] = {}
        racks: dict[TopicPartition, frozenset[str]] = {}
        for topic in topics:
            for tp in snapshot.partitions_of(topic):
                partitions.setdefault(topic, []).append(tp.partition)
                nodes = (snapshot.nodes.get(node) for node in snapshot.topics[topic].partitions[tp.partition].replicas)
                if near := frozenset(node.rack for node in nodes if node is not None and node.rack):
                    racks[tp] = near
        return cls(partitions, racks)

    def __getitem__(self, topic: str) -> Sequence[int]:
        return self.partitions[topic]

    def __iter__(self) -> Iterator[str]:
        return iter(self.partitions)

    def __len__(self) -> int:
        return len(self.partitions)


@dataclass(frozen=True, slots=True)
class LastAssignment:
    """What a member was assigned last: by which assignor, in which generation."""

    assignor: str
    generation: int
    partitions: tuple[TopicPartition, ...]


class Assignor(Protocol):
    """An assignor of the classic protocol; plugins offer further ones (hook ``trikafka_assignor``).

    One that sends user data of its own with the subscription is a :class:`SubscribesWithUserData` as well.
    """

    name: str
    #: Whether it can withhold what changes hands, so that members keep their partitions while they join again (KIP-429). Members do
    #: that only when all assignors of their list can: see :func:`rebalance_protocol`.
    cooperative: bool

    def assign(self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, Sequence[int]]) -> Assignment:
        """Assign ``partitions`` (topic -> numbers) to ``members`` (member id -> subscription). Pure; called on the leader.

        Only topics that exist are in ``partitions``, and it is an :class:`AssignableTopics` when the racks of replicas are known.
        The mapping of members is in the order of the coordinator's response.
        """


@runtime_checkable
class SubscribesWithUserData(Protocol):
    """What an :class:`Assignor` may offer besides: bytes that go with a member's subscription and reach the leader."""

    def user_data(self, topics: frozenset[str], last: LastAssignment | None) -> bytes | None:
        """The user data of a member that subscribes to ``topics``; ``last`` is what this assignor gave it last, if it did. Pure."""


class RebalanceProtocol(IntEnum):
    """How a member joins again (KIP-429); the higher, the further developed."""

    #: It gives up everything before it joins.
    EAGER = 0
    #: It keeps what it has, and gives up afterwards what the new assignment leaves out.
    COOPERATIVE = 1


def rebalance_protocol(assignors: Iterable[Assignor]) -> RebalanceProtocol:
    """What a member with this list of assignors does: the highest protocol that all of them support (KIP-429).

    Every assignor supports EAGER. A running group gets from eager to cooperative in two rolling restarts: the first adds the
    cooperative assignor to every member's list (``cooperative-sticky, range``: still EAGER, while the coordinator chooses ``range``
    until all can do the other), the second takes the eager one out, and members turn COOPERATIVE one by one.
    """
    supported = {frozenset(RebalanceProtocol) if a.cooperative else frozenset({RebalanceProtocol.EAGER}) for a in assignors}
    return max(frozenset(RebalanceProtocol).intersection(*supported)) if supported else RebalanceProtocol.EAGER


def transferring_ownership(
    members: Mapping[str, MemberSubscription], assignment: Mapping[str, Sequence[TopicPartition]]
) -> dict[TopicPartition, str]:
    """What somebody gets that did not own it, while somebody else owned it and does not get it; and who gets it.

    A cooperative assignor withholds that: while the owner has not given it up, two would have it. Where all members are
    COOPERATIVE, an assignment of a plugin's in which there is any is a bug of the plugin's. (``cooperative-sticky`` looks at the
    generations too: what two claim goes to the one of the newer generation, and that is no bug.)
    """
    lost = {tp for member, told in members.items() for tp in set(told.owned).difference(assignment.get(member, ()))}
    return {
        tp: member for member, mine in assignment.items() for tp in lost.intersection(mine).difference(members[member].owned)
    }


def racks_of(partitions: Mapping[str, Sequence[int]]) -> Mapping[TopicPartition, frozenset[str]]:
    """The racks of the partitions' replicas; empty for a mapping that knows nothing of racks."""
    return partitions.racks if isinstance(partitions, AssignableTopics) else {}


def subscribed(
    members: Mapping[str, MemberSubscription], partitions: Mapping[str, Sequence[int]]
) -> dict[str, tuple[TopicPartition, ...]]:
    """The partitions to be assigned, in order of topic and number: of topics that somebody wants and that have any."""
    wanted = frozenset[str]().union(*(member.topics for member in members.values()))
    return {
        topic: tuple(TopicPartition(topic, number) for number in sorted(partitions[topic]))
        for topic in sorted(wanted & partitions.keys())
        if partitions[topic]
    }


def text_key(text: str) -> bytes:
    """The order of texts in Java: by UTF-16 code units, which is not Python's order beyond the 65,536th character."""
    return text.encode("utf-16-be", "surrogatepass")


def member_key(member: str, subscription: MemberSubscription) -> tuple[bool, bytes]:
    """The order of members: static ones first, by their instance ids, which outlive restarts (KIP-345); then by member id."""
    instance = subscription.instance_id
    return instance is None, text_key(member if instance is None else instance)
