"""The sticky assignors: who says that it has what, which of it counts, and what the cooperative one withholds.

How partitions are assigned stands in ``sticky_equal`` (all members subscribe to the same topics) and ``sticky_general``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from ...types import TopicPartition
from .base import Assignment, LastAssignment, MemberSubscription, racks_of, subscribed, transferring_ownership
from .java_order import grouped_order, map_order
from .racks import Racks
from .sticky_equal import EqualAssignment
from .sticky_general import GeneralAssignment


@dataclass(frozen=True, slots=True)
class Claim:
    """What a member says it had, and in which generation (-1: it does not say)."""

    partitions: Sequence[TopicPartition]
    generation: int


class StickyAssignor:
    """Balanced to within one partition where subscriptions allow, keeping what members had; they give it up while they join.

    What a member had goes with its subscription as user data, for at that time it owns nothing.
    """

    name = "sticky"
    cooperative = False

    def assign(self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, Sequence[int]]) -> Assignment:
        claims = {member: read_claim(told.user_data) for member, told in members.items()}
        return _assign(members, partitions, claims)[0]

    def user_data(self, topics: frozenset[str], last: LastAssignment | None) -> bytes | None:
        """The last assignment and its generation; nothing before the first."""
        return None if last is None else encode_claim(Claim(last.partitions, last.generation))


class CooperativeStickyAssignor:
    """The same for members that keep what they have while they join: what changes hands goes to nobody at first (KIP-429).

    Its owner learns from this assignment that it is to give it up, and joins again without it; then it is assigned.
    """

    name = "cooperative-sticky"
    cooperative = True

    def assign(self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, Sequence[int]]) -> Assignment:
        claims = {member: Claim(told.owned, _generation(told)) for member, told in members.items()}
        result, transferring = _assign(members, partitions, claims)
        if transferring is None:
            transferring = transferring_ownership(members, result)
        for member in set(transferring.values()):
            result[member] = [tp for tp in result[member] if transferring.get(tp) != member]
        return result

    def user_data(self, topics: frozenset[str], last: LastAssignment | None) -> bytes:
        """The generation, for leaders that do not know the subscription's field of that name."""
        return struct.pack(">i", -1 if last is None else last.generation)


def _assign(
    members: Mapping[str, MemberSubscription], partitions: Mapping[str, Sequence[int]], claims: Mapping[str, Claim]
) -> tuple[Assignment, dict[TopicPartition, str] | None]:
    """The assignment, and what of it changes hands (``None``: not known)."""
    if not members:
        return {}, {}
    topics = subscribed(members, partitions)
    everything = dict.fromkeys(chain.from_iterable(topics.values()))
    racks = Racks(members, everything, racks_of(partitions))
    order = map_order(members)
    owned, contested = _settle_claims({member: claims[member] for member in order}, members, everything)
    if len({told.topics for told in members.values()}) == 1:
        equal = EqualAssignment(list(everything), racks, owned, contested)
        return equal.build(), equal.transferring
    wanted = {member: members[member].topics for member in order}
    return GeneralAssignment(topics, wanted, racks, owned, _older(claims, order)).build(), None


def _settle_claims(
    claims: Mapping[str, Claim], members: Mapping[str, MemberSubscription], known: Mapping[TopicPartition, None]
) -> tuple[dict[str, dict[TopicPartition, None]], set[TopicPartition]]:
    """Who keeps its claim to what; and what several claim in the same generation, which nobody keeps for that.

    Of two that claim a partition the one of the newer generation keeps it. What does not exist (any more) is left out.
    """
    owned: dict[str, dict[TopicPartition, None]] = {}
    owner: dict[TopicPartition, str] = {}
    contested: set[TopicPartition] = set()
    for member, claim in claims.items():
        mine = owned[member] = {}
        for tp in claim.partitions:
            if tp not in known:
                continue
            other = owner.get(tp)
            # The other's generation is what stands in its subscription, also where the assignor has user data of its own.
            rival = -1 if other is None else max(members[other].generation, -1)
            if other is None:
                mine[tp] = None
            elif claim.generation == rival:
                contested.add(tp)
                owned[other].pop(tp, None)
            elif claim.generation > rival:
                owned[other].pop(tp, None)
                mine[tp] = None
            else:
                continue
            owner[tp] = member
    return owned, contested


def _older(claims: Mapping[str, Claim], order: Sequence[str]) -> dict[TopicPartition, str]:
    """Who had what in a generation before the newest; of several, in the newest of these."""
    newest = max(claim.generation for claim in claims.values())
    older: dict[TopicPartition, tuple[int, str]] = {}
    for member in order:
        claim = claims[member]
        if claim.generation < newest:
            for tp in claim.partitions:
                if tp not in older or claim.generation > older[tp][0]:
                    older[tp] = claim.generation, member
    return {tp: member for tp, (_, member) in older.items()}


def _generation(told: MemberSubscription) -> int:
    """The generation of what a member owns; old members say it only in the user data."""
    if told.generation >= 0 or told.user_data is None or len(told.user_data) < 4:
        return max(told.generation, -1)
    return int(struct.unpack_from(">i", told.user_data)[0])


def encode_claim(claim: Claim) -> bytes:
    """The user data of ``sticky``: topics with their partitions, then the generation."""
    by_topic: dict[str, list[int]] = {}
    for tp in claim.partitions:
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    parts = [struct.pack(">i", len(by_topic))]
    for topic in grouped_order(tp.topic for tp in claim.partitions):
        name, numbers = topic.encode(), by_topic[topic]
        parts.append(struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers))
    return b"".join([*parts, struct.pack(">i", claim.generation)])


def read_claim(data: bytes | None) -> Claim:
    """Read the user data of ``sticky``; older members leave out the generation. What cannot be read claims nothing."""
    if not data:
        return Claim((), -1)
    try:
        return _read_claim(data)
    except (struct.error, ValueError):
        return Claim((), -1)


def _read_claim(data: bytes) -> Claim:
    at = 0

    def take(layout: str) -> Iterator[int]:
        nonlocal at
        values = struct.unpack_from(layout, data, at)
        at += struct.calcsize(layout)
        return iter(values)

    def count(layout: str) -> int:
        value = next(take(layout))
        if not 0 <= value <= len(data):
            raise ValueError(f"{value} of something in {len(data)} bytes")
        return value

    partitions: list[TopicPartition] = []
    for _ in range(count(">i")):
        length = count(">h")
        topic = data[at : at + length].decode()
        at += length
        partitions += [TopicPartition(topic, number) for number in take(f">{count('>i')}i")]
    return Claim(partitions, next(take(">i")) if len(data) - at >= 4 else -1)
