"""The sticky assignors: which claims to partitions count, and what the cooperative one withholds.

The assignment itself is in ``sticky_equal`` (all members subscribe to the same topics) and
``sticky_general``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from ...interfaces import LastAssignment, MemberSubscription
from ...types import TopicPartition
from .base import Assignment, racks_of, subscribed, transferring_ownership
from .java_order import grouped_order, map_order
from .racks import Racks
from .sticky_equal import EqualAssignment
from .sticky_general import GeneralAssignment


@dataclass(frozen=True, slots=True)
class Claim:
    """The partitions that a member says it had, and in which generation (-1: not stated)."""

    partitions: Sequence[TopicPartition]
    generation: int


class StickyAssignor:
    """Balanced to within one partition where subscriptions allow, keeping what members had.

    Members revoke everything while they join. What a member had is in its subscription as user
    data, since at that time it owns nothing.
    """

    name = "sticky"
    cooperative = False

    def assign(
        self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, Sequence[int]]
    ) -> Assignment:
        claims = {
            member: read_claim(subscription.user_data) for member, subscription in members.items()
        }
        return _assign(members, partitions, claims)[0]

    def user_data(self, topics: frozenset[str], last: LastAssignment | None) -> bytes | None:
        """Return the last assignment and its generation; ``None`` before the first."""
        return None if last is None else encode_claim(Claim(last.partitions, last.generation))


class CooperativeStickyAssignor:
    """The sticky assignment for members that keep their partitions while they join (KIP-429).

    A partition that changes its owner is assigned to no member at first. Its owner learns from this
    assignment that it must revoke the partition, and joins again without it. Then it is assigned.
    """

    name = "cooperative-sticky"
    cooperative = True

    def assign(
        self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, Sequence[int]]
    ) -> Assignment:
        claims = {
            member: Claim(subscription.owned, _generation(subscription))
            for member, subscription in members.items()
        }
        result, transferring = _assign(members, partitions, claims)
        if transferring is None:
            transferring = transferring_ownership(members, result)
        for member in set(transferring.values()):
            result[member] = [tp for tp in result[member] if transferring.get(tp) != member]
        return result

    def user_data(self, topics: frozenset[str], last: LastAssignment | None) -> bytes:
        """Return the generation, for leaders that do not know the subscription's field for it."""
        return struct.pack(">i", -1 if last is None else last.generation)


# Two algorithms, as in Java's client, because stickiness and balance are cheap together only if all
# members subscribe to the same topics. Then each member's quota is known beforehand, and one pass
# keeps, fills and ends (``sticky_equal``). With different subscriptions the most even assignment
# can only be approached by moving single partitions (``sticky_general``), in time that grows with
# members and partitions. Most groups have equal subscriptions.
#
# Claims are settled first, for both. A member that was away may claim partitions that others have
# got since; the claim of the newer generation counts. Two claims of the same generation are a
# contradiction (a member that was fenced and did not know it, say), and neither is believed.
# Members are taken in the order of Java's ``HashMap``, since the first member may keep one
# partition more: with any other order a change of the leader from Java's client to this one would
# move partitions.
def _assign(
    members: Mapping[str, MemberSubscription],
    partitions: Mapping[str, Sequence[int]],
    claims: Mapping[str, Claim],
) -> tuple[Assignment, dict[TopicPartition, str] | None]:
    """Return the assignment and the partitions that change their owner (``None``: not known)."""
    if not members:
        return {}, {}
    topics = subscribed(members, partitions)
    everything = dict.fromkeys(chain.from_iterable(topics.values()))
    racks = Racks(members, everything, racks_of(partitions))
    order = map_order(members)
    owned, contested = _settle_claims(
        {member: claims[member] for member in order}, members, everything
    )
    if len({subscription.topics for subscription in members.values()}) == 1:
        equal = EqualAssignment(list(everything), racks, owned, contested)
        return equal.build(), equal.transferring
    wanted = {member: members[member].topics for member in order}
    return GeneralAssignment(topics, wanted, racks, owned, _older(claims, order)).build(), None


def _settle_claims(
    claims: Mapping[str, Claim],
    members: Mapping[str, MemberSubscription],
    known: Mapping[TopicPartition, None],
) -> tuple[dict[str, dict[TopicPartition, None]], set[TopicPartition]]:
    """Return the partitions that each member keeps its claim to, and the contested ones.

    Of two claims to a partition the one of the newer generation counts. Claims of several members
    in the same generation are contested, and count for none of them. Partitions that do not exist
    (any more) are left out.
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
            # The other member's generation is the one in its subscription, even if the assignor has
            # user data of its own.
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
    """Return the owners of partitions in generations before the newest.

    Of several owners of a partition the one of the newest of these generations counts.
    """
    newest = max(claim.generation for claim in claims.values())
    older: dict[TopicPartition, tuple[int, str]] = {}
    for member in order:
        claim = claims[member]
        if claim.generation < newest:
            for tp in claim.partitions:
                if tp not in older or claim.generation > older[tp][0]:
                    older[tp] = claim.generation, member
    return {tp: member for tp, (_, member) in older.items()}


def _generation(subscription: MemberSubscription) -> int:
    """Return the generation of the member's owned partitions.

    Old members state it only in the user data.
    """
    if (
        subscription.generation >= 0
        or subscription.user_data is None
        or len(subscription.user_data) < 4
    ):
        return max(subscription.generation, -1)
    return int(struct.unpack_from(">i", subscription.user_data)[0])


def encode_claim(claim: Claim) -> bytes:
    """Return the user data of ``sticky``: topics with their partitions, then the generation."""
    by_topic: dict[str, list[int]] = {}
    for tp in claim.partitions:
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    parts = [struct.pack(">i", len(by_topic))]
    for topic in grouped_order(tp.topic for tp in claim.partitions):
        name = topic.encode()
        numbers = by_topic[topic]
        parts.append(
            struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers)
        )
    return b"".join([*parts, struct.pack(">i", claim.generation)])


def read_claim(data: bytes | None) -> Claim:
    """Read the user data of ``sticky``; older members leave out the generation.

    Data that cannot be read claims nothing.
    """
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
