"""The soak's judge of transactions: it finds every fault, and none in a right log."""

from __future__ import annotations

import pytest

from benchmarks.chaos.check import Found
from benchmarks.chaos.transacting import Register, Verdicts, check_transactions

#: Three transactions of two records each: committed, aborted, and with an unknown outcome.
CAME_TO = [Verdicts.COMMITTED, Verdicts.ABORTED, Verdicts.UNKNOWN]


def register() -> Register:
    found = Register(1)
    for number, came_to in enumerate(CAME_TO):
        found.transactions["w", number] = (2, came_to)
    return found


def log(*records: tuple[int, int]) -> list[Found]:
    return [(0, offset, b"w %d %d ..." % record) for offset, record in enumerate(records)]


@pytest.mark.parametrize("records", [[(0, 0), (0, 1)], [(0, 0), (0, 1), (2, 0), (2, 1)]])
def test_right_transactions_have_no_fault(records: list[tuple[int, int]]) -> None:
    verdict = check_transactions(register(), log(*records))
    assert (verdict.records, verdict.counts) == (len(records), {})


@pytest.mark.parametrize(
    ("records", "kinds"),
    [
        ([], {"a part of it is there"}),
        ([(0, 0)], {"a part of it is there"}),
        ([(0, 0), (0, 1), (2, 1)], {"a part of it is there"}),
        ([(0, 0), (0, 1), (1, 0)], {"aborted, and there"}),
        ([(0, 0), (0, 1), (0, 1)], {"doubled", "out of order"}),
        ([(0, 1), (0, 0)], {"out of order"}),
        ([(0, 0), (0, 1), (7, 0)], {"never written"}),
    ],
)
def test_wrong_transactions_have_their_fault(
    records: list[tuple[int, int]], kinds: set[str]
) -> None:
    assert set(check_transactions(register(), log(*records)).counts) == {
        f"transactions: {kind}" for kind in kinds
    }
