"""The ``range`` assignor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from ...interfaces import MemberSubscription
from ...types import TopicPartition
from .base import Assignment, member_key, racks_of, subscribed
from .java_order import map_order
from .racks import worth_matching


class RangeAssignor:
    """Contiguous ranges of each topic, in the order of the members' ids, static members first.

    Where racks differ, partitions in a member's rack are assigned first, as far as the balance
    allows (KIP-881). Topics with equal numbers of partitions and equal subscribers stay alike even
    then: the member with partition 3 of one has partition 3 of all.
    """

    name = "range"
    cooperative = False

    def assign(
        self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, Sequence[int]]
    ) -> Assignment:
        result: Assignment = {member: [] for member in members}
        topics = subscribed(members, partitions)
        order = sorted(members, key=lambda member: member_key(member, members[member]))
        ranges = [
            _Ranges(
                topics[topic],
                {m: members[m].rack or None for m in order if topic in members[m].topics},
                racks_of(partitions),
            )
            for topic in _as_java_meets_them(members, topics)
        ]
        matched = any(each.worth_matching for each in ranges)
        if matched:
            _assign_by_rack(ranges, result)
        for each in ranges:
            each.assign(lambda member, tp: True, result)
        if matched:
            for mine in result.values():
                mine.sort()
        return result


def _as_java_meets_them(
    members: Mapping[str, MemberSubscription], topics: Iterable[str]
) -> list[str]:
    """Return the topics in Java's order.

    The order does not decide which member gets what; it is the order of each member's list.
    """
    wanted = dict.fromkeys(
        topic for member in map_order(members) for topic in sorted(members[member].topics)
    )
    known = set(topics)
    return map_order(topic for topic in map_order(wanted) if topic in known)


class _Ranges:
    """The ranges of one topic: partitions still to assign, and how many each member may have."""

    def __init__(
        self,
        partitions: Sequence[TopicPartition],
        takers: Mapping[str, str | None],
        racks: Mapping[TopicPartition, frozenset[str]],
    ) -> None:
        self.partitions = partitions
        self.takers = takers
        self.left = dict.fromkeys(partitions)
        self._assigned = dict.fromkeys(takers, 0)
        self._share, self._extra = divmod(len(partitions), len(takers))
        self.racked = any(takers.values())
        self._racks = {tp: racks.get(tp, frozenset()) for tp in partitions} if self.racked else {}
        self.worth_matching = worth_matching(
            {rack for rack in takers.values() if rack}, self._racks
        )

    def room(self, member: str) -> int:
        """Return how many more partitions ``member`` may have."""
        return max(0, self._share + (self._extra > 0) - self._assigned[member])

    def near(self, member: str, tp: TopicPartition) -> bool:
        """Return whether ``tp`` has a replica in the member's rack, or the member has none."""
        rack = self.takers[member]
        return rack is None or rack in self._racks.get(tp, ())

    def give(self, member: str, partitions: Sequence[TopicPartition], result: Assignment) -> None:
        result[member] += partitions
        self._assigned[member] += len(partitions)
        if self._assigned[member] > self._share:
            self._extra -= 1
        for tp in partitions:
            del self.left[tp]

    def assign(self, may: Callable[[str, TopicPartition], bool], result: Assignment) -> None:
        """Assign what is left and ``may`` be assigned, one member after the other."""
        for member in self.takers:
            if room := self.room(member):
                self.give(
                    member, list(islice((tp for tp in self.left if may(member, tp)), room)), result
                )


def _assign_by_rack(ranges: Iterable[_Ranges], result: Assignment) -> None:
    alike: dict[tuple[object, int], list[_Ranges]] = defaultdict(list)
    for each in ranges:
        if each.racked:
            alike[tuple(each.takers.items()), len(each.partitions)].append(each)
    for group in alike.values():
        if len(group) > 1:
            _assign_alike(group, result)
        elif group[0].worth_matching:
            group[0].assign(group[0].near, result)


def _assign_alike(group: Sequence[_Ranges], result: Assignment) -> None:
    """Assign several topics so that partitions of the same number go to the same member.

    That member is near to all of them.
    """
    candidates = dict.fromkeys(group[0].takers)
    for row in zip(*(each.partitions for each in group), strict=True):
        for member in candidates:
            if all(
                each.near(member, tp) and each.room(member)
                for each, tp in zip(group, row, strict=True)
            ):
                for each, tp in zip(group, row, strict=True):
                    each.give(member, [tp], result)
                if not any(each.room(member) for each in group):
                    del candidates[member]
                break
