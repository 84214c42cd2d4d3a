"""The order in which ranges of an export are tried, with a clock of this file alone."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field

import pytest
from trikafka_export.reading import NothingYet
from trikafka_export.rounds import LOOK, RangeAttempt, Rounds, UnresponsivePartitions, units

from trikafka import KafkaTimeoutError, OffsetOutOfRangeError, TopicPartition
from trikafka.interfaces import PlannedRange

#: The time-out of a client, and the time that a range takes (seconds).
LIMIT, TAKES = 60.0, 1.0


def ranges(partitions: int, each: int, width: int = 1_000_000) -> list[PlannedRange]:
    """Return the ranges, the partitions in turn, as exports have them."""
    return [
        PlannedRange("t", part, number * width, (number + 1) * width, f"{part}-{number}")
        for number in range(each)
        for part in range(partitions)
    ]


@dataclass
class Workers:
    """Workers for the ranges: ``slots`` processes, or threads of one process (``together``).

    Each process has a memory of its own. ``frozen`` partitions do not respond.
    """

    planned: list[PlannedRange]
    slots: int
    frozen: set[int]
    together: bool = False
    #: The second at which frozen partitions respond again.
    thaws: float = float("inf")
    now: float = 0.0
    waits: Counter[int] = field(default_factory=Counter)
    ended: dict[int, float] = field(default_factory=dict)
    rounds: int = 0

    def run(self) -> list[Exception | None]:
        rounds = Rounds(self.planned)
        while tries := rounds.next():
            self.rounds += 1
            rounds.record(self._round(tries))
        return rounds.results

    def _round(self, tries: list[RangeAttempt]) -> list[tuple[int, Exception | None]]:
        found = []
        shared = UnresponsivePartitions()
        free = [(self.now, slot) for slot in range(self.slots)]
        own = [shared if self.together else UnresponsivePartitions() for _ in range(self.slots)]
        work = (
            [[at] for at in range(len(tries))]
            if self.together
            else units([self.planned[t.index] for t in tries], self.slots)
        )
        for unit in work:
            now, slot = heapq.heappop(free)
            for at in unit:
                now, error = self._try(tries[at], own[slot], now)
                found.append((tries[at].index, error))
            heapq.heappush(free, (now, slot))
        self.now = max(now for now, _ in free)
        return found

    def _try(
        self, tried: RangeAttempt, unresponsive: UnresponsivePartitions, now: float
    ) -> tuple[float, Exception | None]:
        planned = self.planned[tried.index]
        error = unresponsive.errors.get(planned.tp)
        if error is None:
            if planned.partition in self.frozen and now < self.thaws:
                self.waits[planned.partition] += 1
                patience = LIMIT if tried.patience is None else tried.patience
                error = (
                    KafkaTimeoutError("reading", LIMIT) if tried.patience is None else NothingYet()
                )
                now += patience
            else:
                now += TAKES
            unresponsive.record(planned.tp, error)
        self.ended[tried.index] = now
        return now, error

    def live_until(self) -> float:
        return max(
            at
            for index, at in self.ended.items()
            if self.planned[index].partition not in self.frozen
        )


@pytest.mark.parametrize("together", [False, True], ids=["spark", "threads"])
def test_frozen_partition_delays_others_by_a_look(
    together: bool,
) -> None:
    """A frozen partition delays the other two for one look, and not for a time-out.

    Previously, with two slots, the twelve ranges of the frozen partition took six time-outs, and
    the live ones waited for five of them.
    """
    workers = Workers(ranges(3, 12), slots=2, frozen={1}, together=together)
    results = workers.run()
    looks = 1 if together else 2  # one in each process
    assert workers.live_until() == pytest.approx((24 * TAKES + looks * LOOK) / 2, abs=TAKES)
    assert workers.now <= workers.live_until() + TAKES + LIMIT
    assert workers.waits == {1: looks + 1}
    assert [
        type(error)
        for planned, error in zip(workers.planned, results, strict=True)
        if planned.partition == 1
    ] == [KafkaTimeoutError] * 12
    assert {
        error
        for planned, error in zip(workers.planned, results, strict=True)
        if planned.partition != 1
    } == {None}


def test_frozen_partitions_wait_together() -> None:
    """Frozen partitions wait at the same time, and once each."""
    workers = Workers(ranges(8, 5), slots=4, frozen={1, 2, 6}, together=False)
    workers.run()
    assert workers.live_until() <= 25 * TAKES / 4 + 3 * LOOK + TAKES
    assert workers.now <= workers.live_until() + 3 * LOOK + LIMIT
    assert all(count <= 4 + 1 for count in workers.waits.values()), (
        "a look in each worker, and one wait"
    )


def test_slow_partition_is_read_by_all_slots() -> None:
    """A partition that was only slow is read completely, by all slots.

    It responds to the longer wait, and then its other ranges count as any others.
    """
    workers = Workers(ranges(3, 12), slots=2, frozen={1}, thaws=12.0)
    assert workers.run() == [None] * 36
    assert workers.rounds == 3
    assert workers.now == pytest.approx((36 * TAKES + 2 * LOOK) / 2, abs=2 * TAKES)


def test_healthy_ranges_need_one_round() -> None:
    workers = Workers(ranges(3, 12), slots=2, frozen=set())
    assert workers.run() == [None] * 36
    assert (workers.rounds, workers.now) == (1, 18 * TAKES)


def test_single_range_has_no_look() -> None:
    """A single range delays no other range, so it waits for the client's own time-out."""
    assert Rounds(ranges(1, 1)).next() == [RangeAttempt(0, None)]


def test_other_errors_concern_one_range() -> None:
    """An error other than a time-out concerns one range only.

    Records that are missing in one range may exist in the next.
    """
    planned = ranges(2, 3)
    rounds = Rounds(planned)
    gone = OffsetOutOfRangeError("gone")
    rounds.record([(each.index, gone if each.index == 0 else None) for each in rounds.next()])
    assert rounds.results == [gone, None, None, None, None, None]
    assert rounds.next() == []


def test_first_time_out_ends_postponed_ranges() -> None:
    """A time-out in the first round also ends the ranges that were set aside.

    The limit of a client's call may be shorter than the look.
    """
    rounds = Rounds(ranges(1, 3))
    late = KafkaTimeoutError("reading", 1.0)
    rounds.record([(0, late), (1, NothingYet()), (2, late)])
    assert rounds.results == [late] * 3
    assert rounds.next() == []


# --- the ranges of one Spark task ---


def test_large_ranges_take_turns() -> None:
    assert units(ranges(3, 2), 2) == [[index] for index in range(6)]


def test_small_ranges_of_a_partition_are_grouped() -> None:
    """Small ranges of a partition are grouped; partitions take turns, and all slots are busy."""
    planned = ranges(4, 100, 1_000)
    found = units(planned, 2)
    assert sorted(index for unit in found for index in unit) == list(range(400))
    assert len(found) == 16
    assert max(map(len, found)) == 25
    partitions = [{planned[index].tp for index in unit} for unit in found]
    assert partitions == [{TopicPartition("t", part)} for _ in range(4) for part in range(4)], (
        "and partitions take turns"
    )
    for unit in found:
        assert unit == sorted(unit), "in the order of their offsets"


def test_small_partitions_are_grouped() -> None:
    found = units(ranges(400, 1, 10), 2)
    assert found == [list(range(at, at + 25)) for at in range(0, 400, 25)]


def test_few_ranges_are_not_grouped() -> None:
    """Ranges are not grouped if slots would be idle."""
    assert units(ranges(1, 12, 10), 2) == [[index] for index in range(12)]
    assert units(ranges(5, 1, 10), 4) == [[index] for index in range(5)]


def test_size_of_a_group_is_bounded() -> None:
    """A unit has a bounded number of offsets, however large the plan is.

    Progress is reported by units, and a lost worker loses the unit in progress.
    """
    planned = ranges(2, 5_000, 100_000)
    assert (
        max(
            sum(planned[index].end - planned[index].start for index in unit)
            for unit in units(planned, 2)
        )
        <= 1_000_000
    )
