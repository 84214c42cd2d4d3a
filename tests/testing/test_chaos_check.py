"""The soak's own judge: it finds every fault in a log, and none in a right one."""

from __future__ import annotations

import pytest

from benchmarks.chaos.check import Found, check
from benchmarks.chaos.ledger import Fate, Ledger, Table

FATES = [Fate.ACKED, Fate.ACKED, Fate.MAYBE, Fate.NEVER, Fate.ACKED]
RIGHT = [0, 1, 4]


def ledger_of(fates: list[Fate] = FATES) -> Ledger:
    """Return the ledger of one writer in partition 0: record n was acked at offset n."""
    ledger = Ledger(1)
    track = ledger.track("w", 0)
    for fate in fates:
        number = track.begin()
        track.settle(number, fate, number if fate is Fate.ACKED else None)
    return ledger


def log_of(
    ledger: Ledger, numbers: list[int], *, offsets: list[int] | None = None, partition: int = 0
) -> list[Found]:
    track = ledger.track("w", 0)
    return [
        (partition, offset, track.value(number, 30))
        for offset, number in zip(offsets or numbers, numbers, strict=True)
    ]


@pytest.mark.parametrize("numbers", [RIGHT, [0, 1, 2, 4]])
def test_right_log_has_no_fault(numbers: list[int]) -> None:
    ledger = ledger_of()
    verdict = check(ledger, log_of(ledger, numbers))
    assert (verdict.records, verdict.counts, verdict.named) == (len(numbers), {}, [])


@pytest.mark.parametrize(
    ("numbers", "offsets", "kinds"),
    [
        ([0, 1], [0, 1], {"lost"}),
        ([0, 1, 4, 1], [0, 1, 4, 5], {"doubled"}),
        ([0, 1, 2, 2, 4], [0, 1, 2, 3, 4], {"doubled"}),
        ([1, 0, 4], [1, 0, 4], {"out of order"}),
        ([0, 1, 3, 4], [0, 1, 3, 4], {"there though called not written"}),
        ([0, 1, 4], [0, 1, 5], {"wrong offset"}),
    ],
)
def test_wrong_log_has_its_fault(numbers: list[int], offsets: list[int], kinds: set[str]) -> None:
    ledger = ledger_of()
    verdict = check(ledger, log_of(ledger, numbers, offsets=offsets))
    assert set(verdict.counts) == kinds
    assert "w in partition 0" in verdict.named[0]


def test_misplaced_and_unexpected_are_faults() -> None:
    """So is a record without an outcome."""
    ledger = ledger_of([Fate.PENDING])
    assert set(check(ledger, []).counts) == {"without an outcome"}
    ledger = ledger_of([Fate.MAYBE])
    assert set(check(ledger, log_of(ledger, [0], partition=1)).counts) == {"in another partition"}
    ledger.unexpected["no permission"] += 3
    assert "3 records of no permission" in check(ledger, []).named[0]


@pytest.mark.parametrize(
    ("delivered", "unknown", "wrong"), [(1, 0, True), (1, 1, False), (2, 0, False), (3, 0, True)]
)
def test_partly_failed_table_is_judged(delivered: int, unknown: int, wrong: bool) -> None:
    ledger = ledger_of([Fate.MAYBE] * 4)
    track = ledger.track("w", 0)
    ledger.tables.append(Table(tuple((track, number) for number in range(4)), delivered, unknown))
    verdict = check(ledger, log_of(ledger, [0, 2]))
    assert bool(verdict.counts) is wrong
