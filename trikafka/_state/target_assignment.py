"""What the coordinator wants a member to own (KIP-848), and how far the member has come. No I/O; the consumer membership writes it.

The coordinator names topics by their ids, and a member only knows names: what cannot be named yet waits, and what is owned stays
meanwhile. Partitions of a topic that was deleted and created anew have another id, and so are others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from ..types import TopicPartition

#: A partition, by its topic's id.
Part = tuple[UUID, int]


class Report(NamedTuple):
    """What the coordinator is to hear of the member's progress: up to which target it has come, and what it owns now."""

    target: int
    owned: frozenset[Part]

    def by_topic(self) -> dict[UUID, list[int]]:
        """The partitions in the form of the messages."""
        found: dict[UUID, list[int]] = {}
        for topic_id, number in sorted(self.owned):
            found.setdefault(topic_id, []).append(number)
        return found


class Step(NamedTuple):
    """What brings the member to its target, as far as that can be named: give up ``revoke``, then own ``wanted``.

    ``added``: there is something new in ``wanted``; ``unnamed``: topics that have no name yet.
    """

    target: int
    wanted: Mapping[TopicPartition, UUID]
    revoke: list[TopicPartition]
    added: bool
    unnamed: frozenset[UUID]


class TargetAssignment:
    """The last assignment that the coordinator gave, and what the member owns. Targets are counted."""

    def __init__(self) -> None:
        self.number = 0
        self.parts: frozenset[Part] = frozenset()
        self._names: dict[UUID, str] = {}  # of the target's topics, also of those that the cluster does not show any more
        self._owned: dict[TopicPartition, UUID] = {}
        self._reached = 0

    def aim(self, parts: Iterable[Part]) -> None:
        """The coordinator gave this assignment. The same again is no news."""
        wanted = frozenset(parts)
        if wanted != self.parts:
            self.number, self.parts = self.number + 1, wanted
            ids = {topic_id for topic_id, _ in wanted}
            self._names = {topic_id: name for topic_id, name in self._names.items() if topic_id in ids}

    def step(self, names: Mapping[UUID, str], follows: Callable[[str], bool], given_up: Iterable[TopicPartition] = ()) -> Step:
        """What is to be done now. ``names`` are those of the cluster's topics, ``follows`` tells whether one is subscribed to.

        ``given_up`` is owned and can only go, whatever the target says: a topic that is not subscribed to, or was not for a moment.
        """
        ids = {topic_id for topic_id, _ in self.parts}
        self._names.update((topic_id, names[topic_id]) for topic_id in ids & names.keys())
        wanted: dict[TopicPartition, UUID] = {}
        # Of two topics of one name, which were there one after the other, the cluster's is the present one.
        for topic_id, number in sorted(self.parts, key=lambda part: part[0] in names):
            name = self._names.get(topic_id)
            if name is not None and follows(name):
                wanted[TopicPartition(name, number)] = topic_id
        going = set(given_up)
        revoke = [tp for tp, topic_id in self._owned.items() if tp in going or wanted.get(tp) != topic_id]
        added = any(tp in going or self._owned.get(tp) != topic_id for tp, topic_id in wanted.items())
        return Step(self.number, wanted, revoke, added, frozenset(ids - self._names.keys()))

    def name(self, names: Mapping[UUID, str]) -> None:
        """These topics' names were looked up."""
        self._names.update(names)

    def gave_up(self, tps: Iterable[TopicPartition]) -> None:
        """The member owns these no more."""
        for tp in tps:
            self._owned.pop(tp, None)

    def took(self, step: Step) -> None:
        """The member owns what ``step`` wanted."""
        self._owned = dict(step.wanted)
        if not step.unnamed:
            self._reached = step.target

    @property
    def reached(self) -> bool:
        """Whether the member has come to the last target."""
        return self._reached == self.number

    @property
    def report(self) -> Report:
        """What the coordinator is to hear. It has heard all there is when it has heard this."""
        return Report(self._reached, frozenset((topic_id, tp.partition) for tp, topic_id in self._owned.items()))
