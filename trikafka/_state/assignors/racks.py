"""The racks of members and replicas: when they matter, and which member is near which replica.

See KIP-881.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from ...interfaces import MemberSubscription
from ...types import TopicPartition


def worth_matching(
    members: Collection[str], partitions: Mapping[TopicPartition, frozenset[str]]
) -> bool:
    """Return whether racks make a difference.

    They do if a member's rack has replicas, and not every partition is in every rack.
    """
    everywhere = frozenset[str]().union(*partitions.values())
    return not everywhere.isdisjoint(members) and any(
        racks != everywhere for racks in partitions.values()
    )


class Racks:
    """The distances of a group's members to replicas. ``used``: whether racks make a difference."""

    def __init__(
        self,
        members: Mapping[str, MemberSubscription],
        partitions: Collection[TopicPartition],
        racks: Mapping[TopicPartition, frozenset[str]],
    ) -> None:
        of_members = {
            member: subscription.rack
            for member, subscription in members.items()
            if subscription.rack
        }
        of_partitions = {tp: racks.get(tp, frozenset()) for tp in partitions} if of_members else {}
        self.used = worth_matching(set(of_members.values()), of_partitions)
        self._members = of_members if self.used else {}
        self._partitions = of_partitions if self.used else {}
        inhabitants = Counter(of_members.values())
        self._neighbours = {
            tp: sum(inhabitants[rack] for rack in near) for tp, near in of_partitions.items()
        }

    def mismatch(self, member: str, tp: TopicPartition) -> bool:
        """Return whether ``member`` has a rack and ``tp`` no replica in it.

        Never when racks are not used.
        """
        rack = self._members.get(member)
        return rack is not None and rack not in self._partitions[tp]

    def fewest_neighbours_first(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return ``partitions``, sorted by the number of members near them.

        The order stays as it is if no member has a rack.
        """
        return (
            sorted(partitions, key=self._neighbours.__getitem__) if self._neighbours else partitions
        )

    def next_near(self, tp: TopicPartition, members: Sequence[str], start: int) -> int | None:
        """Return the index of the next of ``members`` near ``tp``, from ``start`` once around.

        ``None``: there is none.
        """
        racks = self._partitions.get(tp)
        if not racks:
            return None
        around = chain(range(start, len(members)), range(start))
        return next((index for index in around if self._members.get(members[index]) in racks), None)
