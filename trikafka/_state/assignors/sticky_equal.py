"""Sticky assignment where all members subscribe to the same topics.

Quotas are known beforehand, so one pass suffices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from ...types import TopicPartition
from .base import Assignment, text_key
from .racks import Racks


class EqualAssignment:
    """The assignment of equal quotas; the remainder gives some members one more.

    First members keep what they own, up to their quota. Then members in the racks of what is left
    are filled up, then all. ``transferring``: the partitions that another member had, or that
    several claimed, each with its next owner.
    """

    def __init__(
        self,
        partitions: Sequence[TopicPartition],
        racks: Racks,
        owned: Mapping[str, Mapping[TopicPartition, None]],
        contested: AbstractSet[TopicPartition],
    ) -> None:
        self.transferring: dict[TopicPartition, str] = {}
        self._partitions = partitions
        self._racks = racks
        self._owned = owned
        self._contested = contested
        # The remainder is the number of members that get one more than the small quota.
        self._small, self._remainder = divmod(len(partitions), len(owned))
        self._large = self._small + (self._remainder > 0)
        #: The number of members above the small quota.
        self._over = 0
        #: Members below the small quota.
        self._under: list[str] = []
        #: Members with the small quota that may get one more.
        self._at_small: list[str] = []
        self._result: Assignment = {member: [] for member in owned}
        self._revoked: dict[TopicPartition, str] = {}

    def build(self) -> Assignment:
        """Return the assignment."""
        for member, mine in self._owned.items():
            self._retain_owned(member, mine)
        kept = {tp for mine in self._result.values() for tp in mine}
        left = [tp for tp in self._partitions if tp not in kept]
        self._under.sort(key=text_key)
        self._at_small.sort(key=text_key)
        left = self._racks.fewest_neighbours_first(left)
        if self._racks.used:
            left = self._fill_near(left)
        self._fill(left)
        return self._result

    def _retain_owned(self, member: str, owned: Mapping[TopicPartition, None]) -> None:
        far = [tp for tp in owned if self._racks.mismatch(member, tp)]
        mine = sorted(
            (tp for tp in owned.keys() - set(far) - self._contested),
            key=lambda tp: (tp.partition, tp.topic),
        )
        if len(mine) < self._small:
            quota = len(mine)
            self._under.append(member)
        elif len(mine) >= self._large and self._over < self._remainder:
            quota = self._large
            self._count_over()
        else:
            quota = self._small
            if self._over < self._remainder:
                self._at_small.append(member)
        self._result[member] += mine[:quota]
        self._revoked |= dict.fromkeys([*far, *mine[quota:]], member)

    def _count_over(self) -> None:
        self._over += 1
        if self._over == self._remainder:  # no member at the small quota may get one more
            self._at_small.clear()

    def _fill_near(self, left: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Assign partitions to members with room in a rack of theirs; return the rest.

        Members take turns.
        """
        rest: list[TopicPartition] = []
        turn = 0
        for tp in left:
            if (index := self._racks.next_near(tp, self._under, turn)) is not None:
                member = self._under[index]
                turn = index + 1
                if self._give(tp, member) >= self._small:
                    turn = index
                    del self._under[index]
                    if self._small < self._large and self._over < self._remainder:
                        self._at_small.append(member)
                turn = turn % len(self._under) if self._under else 0
            elif (index := self._racks.next_near(tp, self._at_small, 0)) is not None:
                self._give(tp, self._at_small.pop(index))
                self._count_over()
            else:
                rest.append(tp)
        return rest

    def _fill(self, left: Sequence[TopicPartition]) -> None:
        """Assign the rest, first up to the small quota, then one more to each member that may."""
        under, at_small, position = self._under, self._at_small, 0
        todo = iter(left)
        while under:
            if position == len(under):
                position = 0
            tp = next(todo, None)
            if tp is None:
                break
            if self._give(tp, under[position]) == self._small:
                at_small.append(under.pop(position))
            else:
                position += 1
        for member, tp in zip(at_small, todo, strict=False):
            self._give(tp, member)

    def _give(self, tp: TopicPartition, member: str) -> int:
        self._result[member].append(tp)
        if self._revoked.get(tp, member) != member or tp in self._contested:
            self.transferring[tp] = member
        return len(self._result[member])
