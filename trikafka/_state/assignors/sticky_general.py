"""Sticky assignment where members subscribe to different topics.

Free partitions go to the member with the fewest. Then single partitions move from fuller to emptier
members as long as that makes the assignment more even.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ...types import TopicPartition
from .base import Assignment, text_key
from .java_order import first_of
from .racks import Racks

_Owned = dict[str, dict[TopicPartition, None]]  # the inner dict is an ordered set


class GeneralAssignment:
    """The assignment in the making.

    Members and partitions that cannot take part in any move are set aside before moves begin.
    """

    def __init__(
        self,
        topics: Mapping[str, Sequence[TopicPartition]],
        wanted: Mapping[str, frozenset[str]],
        racks: Racks,
        owned: Mapping[str, Mapping[TopicPartition, None]],
        older: Mapping[TopicPartition, str],
    ) -> None:
        self._topics = topics
        self._racks = racks
        self._older = older
        self._wanted = {member: names & topics.keys() for member, names in wanted.items()}
        self._takers = Counter(topic for names in self._wanted.values() for topic in names)
        self._mine: _Owned = {
            member: {
                tp: None
                for tp in owned[member]
                if tp.topic in names and not racks.mismatch(member, tp)
            }
            for member, names in self._wanted.items()
        }
        self._revoked = any(len(mine) < len(owned[member]) for member, mine in self._mine.items())
        self._owner = {tp: member for member, mine in self._mine.items() for tp in mine}
        #: For each topic, how many of its partitions each member has.
        self._owners: dict[str, Counter[str]] = defaultdict(Counter)
        for tp, member in self._owner.items():
            self._owners[tp.topic][member] += 1
        self._by_size = _BySize(self._mine)
        self._moves = _Moves()
        #: The last result of ``_is_balanced``; ``None`` after a move.
        self._balanced: bool | None = None

    # The steps are those of Java's client, whose results this must equal:
    #
    # 1. Members keep what they own and still subscribe to (in ``__init__``).
    # 2. Free partitions go to the emptiest member that wants them, beginning with the topics that
    #    fewest members can take: a partition with a single taker has to go there anyway.
    # 3. Members that can neither get nor lose anything are set aside, so that moves do not look at
    #    them.
    # 4. If no owned partition was lost, moving only what was free may be enough. Then all movable
    #    partitions take part.
    # 5. If those moves did not make the assignment more even they are undone, unless it began from
    #    nothing: stickiness counts more than another order of equal sizes.
    def build(self) -> Assignment:
        """Return the assignment."""
        # Topics with few takers come first.
        names = sorted(self._topics, key=lambda topic: (self._takers[topic], topic))
        everything = [tp for topic in names for tp in self._topics[topic]]
        free = [tp for tp in everything if tp not in self._owner]
        from_nothing = not self._mine[self._by_size.last()]
        self._assign_free(free)
        movable = [tp for tp in everything if self._takers[tp.topic] > 1]
        aside = {
            member: self._mine[member] for member in self._wanted if not self._may_take_part(member)
        }
        for member in aside:
            self._by_size.remove(member)
            del self._mine[member]
        before = {member: dict(mine) for member, mine in self._mine.items()}
        if not self._revoked:  # moving only what is new may be enough
            self._even_out([tp for tp in free if self._takers[tp.topic] > 1])
        if (
            self._even_out(movable)
            and not from_nothing
            and _unevenness(self._mine) >= _unevenness(before)
        ):
            self._mine = before
        return {member: list(mine) for member, mine in (self._mine | aside).items()}

    def _assign_free(self, free: Sequence[TopicPartition]) -> None:
        """Assign each partition to the member with the fewest that wants it, near ones first."""
        rest = (
            [tp for tp in free if not self._assign_one(tp, near=True)] if self._racks.used else free
        )
        for tp in rest:
            self._assign_one(tp, near=False)

    def _assign_one(self, tp: TopicPartition, *, near: bool) -> bool:
        for member in self._by_size:
            if tp.topic in self._wanted[member] and not (near and self._racks.mismatch(member, tp)):
                self._by_size.remove(member)
                self._mine[member][tp] = None
                self._by_size.add(member)
                self._owner[tp] = member
                self._owners[tp.topic][member] += 1
                return True
        return False

    def _may_take_part(self, member: str) -> bool:
        """Return whether a member can get more, or has a partition that another member can take."""
        mine = self._mine[member]
        most = sum(len(self._topics[topic]) for topic in self._wanted[member])
        return len(mine) < most or any(self._takers[tp.topic] > 1 for tp in mine)

    def _even_out(self, partitions: Sequence[TopicPartition]) -> bool:
        """Move ``partitions`` until the assignment is balanced or no move helps.

        Returns whether any partition moved.
        """
        moved = False
        while True:
            before = _unevenness(self._mine)
            modified = False
            for tp in partitions:
                if self._is_balanced():
                    break
                modified |= self._improve(tp)
            moved |= modified
            # A round of moves that gained nothing would be repeated without an end.
            if not modified or _unevenness(self._mine) >= before:
                return moved

    def _is_balanced(self) -> bool:
        if self._balanced is None:
            self._balanced = self._no_move_helps()
        return self._balanced

    def _no_move_helps(self) -> bool:
        """Return whether no move can help.

        Either sizes differ by one at most, or no member can take anything from a member that has at
        least two more.
        """
        if self._by_size.smallest() >= self._by_size.largest() - 1:
            return True
        size = {member: len(mine) for member, mine in self._mine.items()}
        largest: dict[str, int] = {}
        for member in self._by_size:
            for topic in self._wanted[member]:
                if topic not in largest:
                    largest[topic] = max(
                        size[owner] for owner, count in self._owners[topic].items() if count
                    )
                if size[member] + 1 < largest[topic]:
                    return False
        return True

    def _improve(self, tp: TopicPartition) -> bool:
        """Move ``tp`` if that helps; return whether anything moved.

        It goes to its owner in an older generation, or else to the emptiest member. Another
        partition may move instead, see :class:`_Moves`.
        """
        member = self._owner[tp]
        size = len(self._mine[member])
        previous = self._older.get(tp)
        if (
            previous in self._mine
            and tp.topic in self._wanted[previous]
            and size > len(self._mine[previous]) + 1
        ):
            taker = previous
        else:
            taker = next(other for other in self._by_size if tp.topic in self._wanted[other])
        if size <= len(self._mine[taker]) + 1:
            return False
        self._move(self._moves.instead_of(tp, member, taker), taker)
        return True

    def _move(self, tp: TopicPartition, taker: str) -> None:
        giver = self._owner[tp]
        self._moves.record_move(tp, giver, taker)
        for member in {giver, taker}:
            self._by_size.remove(member)
        del self._mine[giver][tp]
        self._mine[taker][tp] = None
        for member in {giver, taker}:
            self._by_size.add(member)
        self._owner[tp] = taker
        self._owners[tp.topic][giver] -= 1
        self._owners[tp.topic][taker] += 1
        self._balanced = None


class _BySize:
    """The members ordered by their number of partitions, then by id.

    Remove a member before its number changes, and add it afterwards.
    """

    def __init__(self, mine: _Owned) -> None:
        self._mine = mine
        self._names = sorted(mine, key=text_key)
        self._rank = {member: rank for rank, member in enumerate(self._names)}
        self._sorted = sorted(self._entry(member) for member in mine)

    def _entry(self, member: str) -> tuple[int, int]:
        return len(self._mine[member]), self._rank[member]

    def __iter__(self) -> Iterator[str]:
        return (self._names[rank] for _, rank in self._sorted)

    def smallest(self) -> int:
        return self._sorted[0][0]

    def largest(self) -> int:
        return self._sorted[-1][0]

    def last(self) -> str:
        return self._names[self._sorted[-1][1]]

    def remove(self, member: str) -> None:
        del self._sorted[bisect_left(self._sorted, self._entry(member))]

    def add(self, member: str) -> None:
        insort(self._sorted, self._entry(member))


class _Moves:
    """The moves so far.

    They show when a move would make two members swap partitions of one topic: two useless moves.
    """

    def __init__(self) -> None:
        self._of: dict[TopicPartition, tuple[str, str]] = {}
        self._between: dict[tuple[str, str, str], _Set] = defaultdict(_Set)

    def record_move(self, tp: TopicPartition, giver: str, taker: str) -> None:
        """Record a move of ``tp``, as seen from its first owner."""
        source = giver
        if (known := self._of.pop(tp, None)) is not None:
            source = known[0]
            group = self._between[tp.topic, *known]
            group.remove(tp)
            if not group.members:
                del self._between[tp.topic, *known]
        if source != taker:
            self._of[tp] = source, taker
            self._between[tp.topic, source, taker].add(tp)

    def instead_of(self, tp: TopicPartition, giver: str, taker: str) -> TopicPartition:
        """Return the partition to move to ``taker`` instead of ``tp``, or ``tp`` itself.

        That is a partition of the same topic which came from ``taker``.
        """
        source = self._of[tp][0] if tp in self._of else giver
        back = self._between.get((tp.topic, taker, source))
        return tp if back is None else first_of(list(back.members), back.peak)


class _Set:
    """A set with the order of insertion and the largest size so far."""

    def __init__(self) -> None:
        self.members: dict[TopicPartition, None] = {}
        self.peak = 0

    def add(self, tp: TopicPartition) -> None:
        self.members[tp] = None
        self.peak = max(self.peak, len(self.members))

    def remove(self, tp: TopicPartition) -> None:
        del self.members[tp]


def _unevenness(mine: _Owned) -> int:
    """Return the sum of the differences in size between any two members."""
    sizes = sorted(len(each) for each in mine.values())
    return sum((2 * index - len(sizes) + 1) * size for index, size in enumerate(sizes))
