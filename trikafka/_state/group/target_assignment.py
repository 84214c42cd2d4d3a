"""The assignment that the coordinator wants (KIP-848), and the member's progress towards it.

No I/O; the consumer membership writes it.

The coordinator names topics by id, and a member knows only names. Partitions that cannot be named
yet wait, and owned ones stay meanwhile. A topic that was deleted and recreated has another id, so
its partitions are others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from ...types import TopicPartition

#: A partition, named by its topic's id.
Part = tuple[UUID, int]


class Report(NamedTuple):
    """The progress to report to the coordinator: the last target reached, and what is owned."""

    target: int
    owned: frozenset[Part]

    def by_topic(self) -> dict[UUID, list[int]]:
        """Return the partitions in the form of the messages."""
        found: dict[UUID, list[int]] = {}
        for topic_id, number in sorted(self.owned):
            found.setdefault(topic_id, []).append(number)
        return found


class Step(NamedTuple):
    """The next step to the target, as far as its partitions can be named.

    The member revokes ``revoke``, then owns ``wanted``. ``added``: ``wanted`` has new partitions.
    ``unnamed``: topics that have no name yet.
    """

    target: int
    wanted: Mapping[TopicPartition, UUID]
    revoke: list[TopicPartition]
    added: bool
    unnamed: frozenset[UUID]


# The coordinator gives a partition to another member as soon as a report says that this member does
# not own it. So a report names exactly what is owned, and a target counts as reached only by a step
# without unnamed topics. Partitions of a recreated topic are other partitions, since ids are
# compared and not names: the old ones are revoked first, then the new ones are added.
class TargetAssignment:
    """The last assignment that the coordinator gave, and the partitions that the member owns.

    Targets are numbered.
    """

    def __init__(self) -> None:
        self.number = 0
        self.parts: frozenset[Part] = frozenset()
        #: The names of the target's topics, also of those that left the cluster's metadata.
        self._names: dict[UUID, str] = {}
        self._owned: dict[TopicPartition, UUID] = {}
        self._reached = 0

    def aim(self, parts: Iterable[Part]) -> None:
        """Set the assignment that the coordinator sent. An equal one changes nothing."""
        wanted = frozenset(parts)
        if wanted != self.parts:
            self.number = self.number + 1
            self.parts = wanted
            ids = {topic_id for topic_id, _ in wanted}
            self._names = {
                topic_id: name for topic_id, name in self._names.items() if topic_id in ids
            }

    def step(
        self,
        names: Mapping[UUID, str],
        follows: Callable[[str], bool],
        to_release: Iterable[TopicPartition] = (),
    ) -> Step:
        """Return the next step to the target.

        ``names``: the cluster's topics. ``follows``: returns whether a topic is subscribed to.
        ``to_release``: owned partitions that must go, even if the target has them, because their
        topic is not subscribed to, or was not for a moment.
        """
        ids = {topic_id for topic_id, _ in self.parts}
        self._names.update((topic_id, names[topic_id]) for topic_id in ids & names.keys())
        wanted: dict[TopicPartition, UUID] = {}
        # Two topics of one name existed one after the other: the one that the cluster shows is the
        # present one, so it comes last.
        for topic_id, number in sorted(self.parts, key=lambda part: part[0] in names):
            name = self._names.get(topic_id)
            if name is not None and follows(name):
                wanted[TopicPartition(name, number)] = topic_id
        going = set(to_release)
        revoke = [
            tp for tp, topic_id in self._owned.items() if tp in going or wanted.get(tp) != topic_id
        ]
        added = any(
            tp in going or self._owned.get(tp) != topic_id for tp, topic_id in wanted.items()
        )
        return Step(self.number, wanted, revoke, added, frozenset(ids - self._names.keys()))

    def name(self, names: Mapping[UUID, str]) -> None:
        """Add topic names that were looked up."""
        self._names.update(names)

    def revoked(self, tps: Iterable[TopicPartition]) -> None:
        """Remove partitions that the member no longer owns."""
        for tp in tps:
            self._owned.pop(tp, None)

    def took(self, step: Step) -> None:
        """Record that the member owns what ``step`` wanted."""
        self._owned = dict(step.wanted)
        if not step.unnamed:
            self._reached = step.target

    @property
    def reached(self) -> bool:
        """True while the member has reached the last target."""
        return self._reached == self.number

    @property
    def report(self) -> Report:
        """The report for the coordinator. Once it is acknowledged, nothing else is to report."""
        return Report(
            self._reached,
            frozenset((topic_id, tp.partition) for tp, topic_id in self._owned.items()),
        )
