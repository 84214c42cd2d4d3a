"""The rounds of an export's job: the order of its ranges, and their units. No I/O."""

# Why ranges on slow leaders wait last, and once
# ----------------------------------------------
#
# A partition whose leader is gone responds to nothing for as long as a client waits, a minute by
# default. An export may have many ranges of it, and few threads or slots. If each range waited,
# they would occupy all slots, one after the other, and the other partitions would wait for them.
#
# So the first round tries every range, but waits for its first records for ``LOOK`` seconds only. A
# range without records is set aside with the rest of its partition (``UnresponsivePartitions``). So
# each worker waits at most once, and briefly, for each such partition.
#
# In the next rounds, one range of each such partition waits as long as a client does. The
# partitions wait at the same time, and no other work is left to be delayed. If the range succeeds,
# the partition has a leader again, and the rest of it follows in the next round. If the range times
# out, the whole rest counts as timed out: to wait again for each range would show nothing new.
#
# A job with one range has nothing to delay, so its first attempt waits as long as a client does.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from trikafka import KafkaTimeoutError, TopicPartition
from trikafka.interfaces import PlannedRange

from .reading import NothingYet

#: How long (seconds) a range may be without records at its first try, while others wait.
LOOK = 5.0
#: The fixed cost of a range, in records; and the most records of a unit. The bound keeps progress
#: reports frequent, and a lost worker loses no more than one large range.
_COST, _MOST = 20_000, 1_000_000
#: Units for each slot, if there are enough ranges: the last units to end are then small.
_UNITS = 8


@dataclass(frozen=True, slots=True)
class RangeAttempt:
    """One attempt at a range, given by its index.

    ``patience`` is how many seconds to wait for the first records; ``None`` is as long as a client
    waits.
    """

    index: int
    patience: float | None


@dataclass
class UnresponsivePartitions:
    """The partitions that did not respond in one round, with their errors; one per process."""

    errors: dict[TopicPartition, Exception] = field(default_factory=dict)

    def record(self, tp: TopicPartition, error: Exception | None) -> None:
        """Record the result of a range.

        After a time-out the partition's other ranges do not wait.
        """
        if isinstance(error, KafkaTimeoutError | NothingYet):
            self.errors[tp] = error


class Rounds:
    """The attempts of one job, and their results.

    A result is the error of Kafka that ended the range, or ``None``.
    """

    def __init__(self, ranges: Sequence[PlannedRange]) -> None:
        self._ranges = ranges
        self._left = dict.fromkeys(range(len(ranges)))
        self._round = 0
        #: The partitions that responded after they were set aside.
        self._responding: set[TopicPartition] = set()
        self.results: list[Exception | None] = [None] * len(ranges)

    def next(self) -> list[RangeAttempt]:
        """Return the attempts of the next round; an empty list at the end."""
        self._round += 1
        if self._round == 1:
            return [
                RangeAttempt(index, LOOK if len(self._left) > 1 else None) for index in self._left
            ]
        waiting: set[TopicPartition] = set()
        attempts = []
        for index in self._left:
            tp = self._ranges[index].tp
            if tp in self._responding or tp not in waiting:
                attempts.append(RangeAttempt(index, None))
            waiting.add(tp)
        return attempts

    def record(self, results: Iterable[tuple[int, Exception | None]]) -> None:
        """Record the results of all attempts of the round."""
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
    """Group the indexes of small ranges into units, for ``slots`` workers at a time.

    The ranges of a partition stay together. If they form several units, partitions take turns.
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
    """Add the indexes to the last unit if it has room, or as a new unit."""
    if units and sum(costs[index] for index in (*units[-1], *more)) <= most:
        units[-1] += more
    else:
        units.append(more)
