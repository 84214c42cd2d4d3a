"""Who gets which partition: the assignors of the classic group protocol, as pure functions over the members' subscriptions.

``range`` deals each topic out in contiguous ranges, as the Java client's does. ``cooperative-sticky`` balances with as few moves
as it can, and withholds a partition that changes hands until its owner has given it up (KIP-429).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..types import TopicPartition

Assignment = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What one member told the group when it joined."""

    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    instance_id: str | None = None
    user_data: bytes | None = None


class Assignor(Protocol):
    """An assignor of the classic protocol; plugins offer further ones."""

    name: str
    #: Whether members keep their partitions while they join again (KIP-429).
    cooperative: bool

    def assign(self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, Sequence[int]]) -> Assignment:
        """Deal out ``partitions`` (topic -> partition numbers) to ``members`` (member id -> subscription). Pure."""


class RangeAssignor:
    """Contiguous ranges of each topic, in the order of the members' ids (static members by their instance id)."""

    name = "range"
    cooperative = False

    def assign(self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, Sequence[int]]) -> Assignment:
        result: Assignment = {member: [] for member in members}
        order = sorted(members, key=lambda m: (members[m].instance_id is None, members[m].instance_id or m, m))
        for topic in sorted(partitions):
            takers = [member for member in order if topic in members[member].topics]
            numbers = sorted(partitions[topic])
            if not takers:
                continue
            share, extra = divmod(len(numbers), len(takers))
            start = 0
            for index, member in enumerate(takers):
                end = start + share + (1 if index < extra else 0)
                result[member] += [TopicPartition(topic, number) for number in numbers[start:end]]
                start = end
        return result


class CooperativeStickyAssignor:
    """Balanced to within one partition where subscriptions allow, keeping what members own."""

    name = "cooperative-sticky"
    cooperative = True

    def assign(self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, Sequence[int]]) -> Assignment:
        everything = [TopicPartition(topic, number) for topic in sorted(partitions) for number in sorted(partitions[topic])]
        claims = _claims(members)
        owner = _owners(members, claims, set(everything))
        # What somebody claims goes to nobody else until the claimant, which learns it from this assignment, has given it up
        # and joined again without it.
        return {
            member: [tp for tp in mine if owner.get(tp) == member or claims.get(tp, {member}) == {member}]
            for member, mine in _balance(members, everything, owner).items()
        }


def _claims(members: Mapping[str, MemberSubscription]) -> dict[TopicPartition, set[str]]:
    """Who says of what that it owns it: also of topics that it does not subscribe to any more, and in whatever generation."""
    claims: dict[TopicPartition, set[str]] = {}
    for member, subscription in members.items():
        for tp in subscription.owned:
            claims.setdefault(tp, set()).add(member)
    return claims


def _owners(
    members: Mapping[str, MemberSubscription], claims: Mapping[TopicPartition, set[str]], known: set[TopicPartition]
) -> dict[TopicPartition, str]:
    """Who keeps what; of two that claim a partition, the one of the newer generation, and nobody if it is the same."""
    owners = {}
    for tp, claimed in claims.items():
        ranked = sorted((members[member].generation, member) for member in claimed)
        generation, member = ranked[-1]
        clear = len(ranked) == 1 or generation > ranked[-2][0]
        if clear and tp in known and tp.topic in members[member].topics:
            owners[tp] = member
    return owners


def _balance(
    members: Mapping[str, MemberSubscription], everything: Sequence[TopicPartition], owner: Mapping[TopicPartition, str]
) -> Assignment:
    result: Assignment = {member: [] for member in sorted(members)}
    for tp, member in sorted(owner.items()):
        result[member].append(tp)
    takers = {topic: [member for member in result if topic in members[member].topics] for topic in {tp.topic for tp in everything}}
    for tp in everything:
        if tp not in owner and takers[tp.topic]:
            result[min(takers[tp.topic], key=lambda m: len(result[m]))].append(tp)
    while (move := _next_move(members, result)) is not None:
        giver, taker, tp = move
        result[giver].remove(tp)
        result[taker].append(tp)
    return result


def _next_move(members: Mapping[str, MemberSubscription], result: Assignment) -> tuple[str, str, TopicPartition] | None:
    """A move from a fuller to an emptier member (by two at least), or None when there is none."""
    by_size = sorted(result, key=lambda m: (len(result[m]), m))
    for giver in reversed(by_size):
        for taker in by_size:
            if len(result[giver]) - len(result[taker]) < 2:
                break
            for tp in reversed(result[giver]):
                if tp.topic in members[taker].topics:
                    return giver, taker, tp
    return None
