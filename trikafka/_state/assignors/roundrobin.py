"""The ``roundrobin`` assignor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from ...interfaces import MemberSubscription
from .base import Assignment, member_key, subscribed


class RoundRobinAssignor:
    """Partition by partition, around the members that subscribe to its topic."""

    name = "roundrobin"
    cooperative = False

    def assign(
        self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, Sequence[int]]
    ) -> Assignment:
        result: Assignment = {member: [] for member in members}
        around = cycle(sorted(members, key=lambda member: member_key(member, members[member])))
        for topic, all_of_it in subscribed(members, partitions).items():
            for tp in all_of_it:
                taker = next(member for member in around if topic in members[member].topics)
                result[taker].append(tp)
        return result
