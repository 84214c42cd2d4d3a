"""Which ranges of an export are tried when, so that partitions that do not respond hold up no other. Pure.

In the first round every range is tried, and where nothing comes for ``LOOK`` seconds, the range is set aside, with all that is left
of its partition. Then each such partition waits once, by one range, side by side with the others of its kind, as long as a client
waits. If that succeeds, the rest of the partition is as good as any; if it times out, the rest has timed out with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from trikafka import KafkaTimeoutError, TopicPartition
from trikafka.interfaces import PlannedRange

from .reading import NothingYet

#: How long (seconds) nothing may come of a range that is tried for the first time, while others wait for their turn.
LOOK = 5.0
#: What a range costs that has hardly any records, in records of a larger one; and how much is put together at most, so that
#: progress is told, and what a lost worker has not finished is no more than of one large range.
_COST, _MOST = 20_000, 1_000_000
#: So many units for each slot, where there are as many ranges: the last ones to end are small.
_UNITS = 8


@dataclass(frozen=True, slots=True)
class Try:
    """A range to try, by its index, waiting for its first records for so many seconds (``None``: as long as a client does)."""

    index: int
    patience: float | None


@dataclass
class Aside:
    """The partitions that were found not to respond in one round, and with what; each process has its own."""

    errors: dict[TopicPartition, Exception] = field(default_factory=dict)

    def note(self, tp: TopicPartition, error: Exception | None) -> None:
        """What came of a range: its partition's other ones do not wait for it, too."""
        if isinstance(error, KafkaTimeoutError | NothingYet):
            self.errors[tp] = error


class Rounds:
    """The tries of one job, and their results: for each range the error of Kafka's that ended it, or ``None``."""

    def __init__(self, ranges: Sequence[PlannedRange]) -> None:
        self._ranges = ranges
        self._left = dict.fromkeys(range(len(ranges)))
        self._round = 0
        #: The partitions that were waited for, and responded.
        self._responding: set[TopicPartition] = set()
        self.results: list[Exception | None] = [None] * len(ranges)

    def next(self) -> list[Try]:
        """The tries of the next round; none at the end."""
        self._round += 1
        if self._round == 1:
            return [Try(index, LOOK if len(self._left) > 1 else None) for index in self._left]
        waiting: set[TopicPartition] = set()
        tries = []
        for index in self._left:
            tp = self._ranges[index].tp
            if tp in self._responding or tp not in waiting:
                tries.append(Try(index, None))
            waiting.add(tp)
        return tries

    def note(self, results: Iterable[tuple[int, Exception | None]]) -> None:
        """What came of all tries of the round."""
        timed_out: dict[TopicPartition, Exception] = {}
        for index, error in results:
            tp = self._ranges[index].tp
            if isinstance(error, NothingYet):
                continue
            del self._left[index]
            self.results[index] = error
            if isinstance(error, KafkaTimeoutError):
                timed_out[tp] = error
            elif self._round > 1:
                self._responding.add(tp)
        for index in [index for index in self._left if self._ranges[index].tp in timed_out]:
            del self._left[index]
            self.results[index] = timed_out[self._ranges[index].tp]


def units(ranges: Sequence[PlannedRange], slots: int) -> list[list[int]]:
    """Put small ranges together, by their indexes, for ``slots`` workers at a time.

    Those of a partition stay together, and where they are several units, partitions take turns.
    """
    costs = [planned.end - planned.start + _COST for planned in ranges]
    most = min(_MOST, sum(costs) / (slots * _UNITS))
    by_partition: dict[TopicPartition, list[list[int]]] = {}
    for index, planned in enumerate(ranges):
        _add(by_partition.setdefault(planned.tp, []), [index], costs, most)
    turns = sorted(
        (turn, number, unit)
        for number, units_of_one in enumerate(by_partition.values())
        for turn, unit in enumerate(units_of_one)
    )
    found: list[list[int]] = []
    for _, _, unit in turns:
        _add(found, unit, costs, most)
    return found


def _add(units: list[list[int]], more: list[int], costs: Sequence[int], most: float) -> None:
    """To the last one, where it has room, or as a new one."""
    if units and sum(costs[index] for index in (*units[-1], *more)) <= most:
        units[-1] += more
    else:
        units.append(more)
