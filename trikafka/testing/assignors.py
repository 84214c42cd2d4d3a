"""The assignors of the group coordinator (KIP-848). Pure functions.

They give the same guarantees as Kafka's: equal numbers of partitions, give or take one, and few
moves with ``uniform``. They do not reproduce Kafka's exact choice.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

#: A partition, by its topic's id.
Part: TypeAlias = tuple[uuid.UUID, int]
Parts: TypeAlias = frozenset[Part]
#: The topics of each member: id -> number of partitions.
Wishes: TypeAlias = Mapping[str, Mapping[uuid.UUID, int]]
Assignor: TypeAlias = Callable[[Wishes, Mapping[str, Parts]], dict[str, Parts]]


def uniform(wishes: Wishes, before: Mapping[str, Parts]) -> dict[str, Parts]:
    """Assign equal numbers; a member keeps its partitions unless another has too few."""
    chosen: dict[str, list[Part]] = {member: [] for member in wishes}
    counts = {topic: count for wanted in wishes.values() for topic, count in wanted.items()}
    free = {(topic, index): None for topic, count in counts.items() for index in range(count)}
    for member, wanted in wishes.items():
        for part in sorted(before.get(member, frozenset()) & free.keys()):
            if part[0] in wanted:
                chosen[member].append(part)
                del free[part]
    for part in free:
        takers = [member for member, wanted in wishes.items() if part[0] in wanted]
        chosen[min(takers, key=lambda member: len(chosen[member]))].append(part)
    while _move_one(wishes, chosen):
        pass
    return {member: frozenset(parts) for member, parts in chosen.items()}


def _move_one(wishes: Wishes, chosen: dict[str, list[Part]]) -> bool:
    for giver in sorted(chosen, key=lambda member: -len(chosen[member])):
        for taker in sorted(chosen, key=lambda member: len(chosen[member])):
            if len(chosen[giver]) - len(chosen[taker]) < 2:
                break
            for part in reversed(chosen[giver]):
                if part[0] in wishes[taker]:
                    chosen[giver].remove(part)
                    chosen[taker].append(part)
                    return True
    return False


def range_(wishes: Wishes, before: Mapping[str, Parts]) -> dict[str, Parts]:
    """Assign neighbouring partitions of each topic, in the order of the members' ids."""
    chosen: dict[str, set[Part]] = {member: set() for member in wishes}
    counts = {topic: count for wanted in wishes.values() for topic, count in wanted.items()}
    for topic, count in sorted(counts.items()):
        takers: Sequence[str] = sorted(
            member for member, wanted in wishes.items() if topic in wanted
        )
        each, more = divmod(count, len(takers))
        first = 0
        for place, member in enumerate(takers):
            width = each + (place < more)
            chosen[member] |= {(topic, index) for index in range(first, first + width)}
            first += width
    return {member: frozenset(parts) for member, parts in chosen.items()}


#: The assignors by name. The first one is the group's default.
ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform, "range": range_}
