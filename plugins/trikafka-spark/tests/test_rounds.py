"""Which range of an export is tried when: counted, and in seconds of a clock that only this file has."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field

import pytest
from trikafka_spark.reading import NothingYet
from trikafka_spark.rounds import LOOK, Aside, Rounds, Try, units

from trikafka import KafkaTimeoutError, OffsetOutOfRangeError, TopicPartition
from trikafka.interfaces import PlannedRange

#: How long a client waits, and a range takes (seconds).
LIMIT, TAKES = 60.0, 1.0


def ranges(partitions: int, each: int, width: int = 1_000_000) -> list[PlannedRange]:
    """In turns, as exports have them."""
    return [
        PlannedRange("t", part, number * width, (number + 1) * width, f"{part}-{number}")
        for number in range(each)
        for part in range(partitions)
    ]


@dataclass
class Workers:
    """``slots`` of them, each with its own memory, or (``together``) threads of one process; ``frozen`` partitions give nothing."""

    planned: list[PlannedRange]
    slots: int
    frozen: set[int]
    together: bool = False
    #: From which second on a partition is frozen no more.
    thaws: float = float("inf")
    now: float = 0.0
    waits: Counter[int] = field(default_factory=Counter)
    ended: dict[int, float] = field(default_factory=dict)
    rounds: int = 0

    def run(self) -> list[Exception | None]:
        rounds = Rounds(self.planned)
        while tries := rounds.next():
            self.rounds += 1
            rounds.note(self._round(tries))
        return rounds.results

    def _round(self, tries: list[Try]) -> list[tuple[int, Exception | None]]:
        found = []
        shared = Aside()
        free = [(self.now, slot) for slot in range(self.slots)]
        own = [shared if self.together else Aside() for _ in range(self.slots)]
        work = [[at] for at in range(len(tries))] if self.together else units([self.planned[t.index] for t in tries], self.slots)
        for unit in work:
            now, slot = heapq.heappop(free)
            for at in unit:
                now, error = self._try(tries[at], own[slot], now)
                found.append((tries[at].index, error))
            heapq.heappush(free, (now, slot))
        self.now = max(now for now, _ in free)
        return found

    def _try(self, tried: Try, aside: Aside, now: float) -> tuple[float, Exception | None]:
        planned = self.planned[tried.index]
        error = aside.errors.get(planned.tp)
        if error is None:
            if planned.partition in self.frozen and now < self.thaws:
                self.waits[planned.partition] += 1
                patience = LIMIT if tried.patience is None else tried.patience
                error = KafkaTimeoutError("reading", LIMIT) if tried.patience is None else NothingYet()
                now += patience
            else:
                now += TAKES
            aside.note(planned.tp, error)
        self.ended[tried.index] = now
        return now, error

    def live_until(self) -> float:
        return max(at for index, at in self.ended.items() if self.planned[index].partition not in self.frozen)


@pytest.mark.parametrize("together", [False, True], ids=["spark", "threads"])
def test_a_frozen_partition_of_three_holds_up_the_others_for_a_look_and_not_for_a_time_out(together: bool) -> None:
    """Before: with two slots, the twelve ranges of the frozen one took six time-outs, and the live ones stood still for five."""
    workers = Workers(ranges(3, 12), slots=2, frozen={1}, together=together)
    results = workers.run()
    looks = 1 if together else 2  # one in each process
    assert workers.live_until() == pytest.approx((24 * TAKES + looks * LOOK) / 2, abs=TAKES)
    assert workers.now <= workers.live_until() + TAKES + LIMIT
    assert workers.waits == {1: looks + 1}
    assert [type(error) for planned, error in zip(workers.planned, results, strict=True) if planned.partition == 1] == [
        KafkaTimeoutError
    ] * 12
    assert {error for planned, error in zip(workers.planned, results, strict=True) if planned.partition != 1} == {None}


def test_frozen_partitions_wait_side_by_side_and_once_each() -> None:
    workers = Workers(ranges(8, 5), slots=4, frozen={1, 2, 6}, together=False)
    workers.run()
    assert workers.live_until() <= 25 * TAKES / 4 + 3 * LOOK + TAKES
    assert workers.now <= workers.live_until() + 3 * LOOK + LIMIT
    assert all(count <= 4 + 1 for count in workers.waits.values()), "a look in each worker, and one wait"


def test_one_that_was_only_slow_is_read_in_full_and_by_all_slots() -> None:
    """It responds when it is waited for: then its other ranges are as good as any."""
    workers = Workers(ranges(3, 12), slots=2, frozen={1}, thaws=12.0)
    assert workers.run() == [None] * 36
    assert workers.rounds == 3
    assert workers.now == pytest.approx((36 * TAKES + 2 * LOOK) / 2, abs=2 * TAKES)


def test_without_anything_frozen_each_range_is_tried_once_in_one_round() -> None:
    workers = Workers(ranges(3, 12), slots=2, frozen=set())
    assert workers.run() == [None] * 36
    assert (workers.rounds, workers.now) == (1, 18 * TAKES)


def test_a_single_range_waits_for_nobody_and_so_as_long_as_a_client_does() -> None:
    assert Rounds(ranges(1, 1)).next() == [Try(0, None)]


def test_what_is_not_a_time_out_is_the_ranges_own() -> None:
    """What is gone of one may be there of the next."""
    planned = ranges(2, 3)
    rounds = Rounds(planned)
    gone = OffsetOutOfRangeError("gone")
    rounds.note([(each.index, gone if each.index == 0 else None) for each in rounds.next()])
    assert rounds.results == [gone, None, None, None, None, None]
    assert rounds.next() == []


def test_a_time_out_in_the_first_round_ends_what_was_set_aside() -> None:
    """The limit of a client's call may be shorter than the look."""
    rounds = Rounds(ranges(1, 3))
    late = KafkaTimeoutError("reading", 1.0)
    rounds.note([(0, late), (1, NothingYet()), (2, late)])
    assert rounds.results == [late] * 3
    assert rounds.next() == []


# --- what one task of Spark has ---


def test_large_ranges_go_alone_in_turns() -> None:
    assert units(ranges(3, 2), 2) == [[index] for index in range(6)]


def test_small_ranges_of_a_partition_go_together_and_all_slots_are_busy() -> None:
    planned = ranges(4, 100, 1_000)
    found = units(planned, 2)
    assert sorted(index for unit in found for index in unit) == list(range(400))
    assert len(found) == 16
    assert max(map(len, found)) == 25
    partitions = [{planned[index].tp for index in unit} for unit in found]
    assert partitions == [{TopicPartition("t", part)} for _ in range(4) for part in range(4)], "and partitions take turns"
    for unit in found:
        assert unit == sorted(unit), "in the order of their offsets"


def test_small_partitions_go_together() -> None:
    found = units(ranges(400, 1, 10), 2)
    assert found == [list(range(at, at + 25)) for at in range(0, 400, 25)]


def test_few_ranges_are_not_put_together_where_slots_would_be_idle() -> None:
    assert units(ranges(1, 12, 10), 2) == [[index] for index in range(12)]
    assert units(ranges(5, 1, 10), 4) == [[index] for index in range(5)]


def test_how_much_goes_together_is_bounded_however_large_the_plan() -> None:
    """Progress is told by units, and what a lost worker had in hand is one."""
    planned = ranges(2, 5_000, 100_000)
    assert max(sum(planned[index].end - planned[index].start for index in unit) for unit in units(planned, 2)) <= 1_000_000
