"""The judge of the share group's soak: it finds every violation, and none where a fault explains it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from benchmarks.share_chaos.run import Fault, Figures, Handled, Options, check, pauses_of

PLACE = (0, 7)
ONCE = Handled(100.0, 100.1, 1, "a", True)
AGAIN = Handled(120.0, 120.1, 2, "b", True)
KILLED = Fault(101.0, 101.5, "a")


def judged(times: Sequence[Handled], faults: Sequence[Fault] = ()) -> Figures:
    figures = Figures()
    check({PLACE: list(times)} if times else {}, {PLACE}, faults, figures)
    return figures


@pytest.mark.parametrize(
    ("times", "faults"),
    [
        ([ONCE], []),
        ([ONCE, AGAIN], [KILLED]),
        ([ONCE._replace(whole=False), AGAIN], [KILLED]),
        ([AGAIN], [KILLED]),
        # A frozen member cannot end its handlers, and a lock may be a little late.
        ([ONCE._replace(ended=130.0), AGAIN], [Fault(101.0, 130.0, "a")]),
        ([ONCE._replace(ended=120.05), AGAIN], [KILLED._replace(member="")]),
        ([ONCE, AGAIN._replace(delivery=1)], [KILLED]),
    ],
)
def test_what_a_fault_explains_is_right(times: Sequence[Handled], faults: Sequence[Fault]) -> None:
    assert not judged(times, faults).violations


@pytest.mark.parametrize(
    ("times", "faults", "kinds"),
    [
        ([], [], {"never accepted"}),
        ([ONCE._replace(whole=False)], [], {"never accepted"}),
        ([AGAIN], [], {"delivered again without a fault"}),
        ([ONCE, AGAIN], [Fault(10.0, 11.0, "")], {"delivered again without a fault"}),
        (
            [ONCE, AGAIN._replace(delivery=1)],
            [],
            {"delivered again without a fault", "accepted twice in one delivery"},
        ),
        (
            [ONCE._replace(ended=120.5), AGAIN],
            [KILLED._replace(member="")],
            {"a handler ran past its lock"},
        ),
    ],
)
def test_every_violation_is_found(
    times: Sequence[Handled], faults: Sequence[Fault], kinds: set[str]
) -> None:
    assert set(judged(times, faults).violations) == kinds


def test_a_run_has_times_without_an_excuse() -> None:
    """Each record is accepted by two members, and another one is in its third delivery at once."""
    now = 0.0
    faults = []
    for pause in pauses_of(Options(seed=1), random.Random(1)):
        faults.append(Fault(now + pause, now + pause + 2, "a"))
        now += pause + 2
    handled = {
        (0, second): [
            Handled(second, second + 0.01, 1, "a", True),
            Handled(second + 0.1, second + 0.11, 1, "b", True),
        ]
        for second in range(int(now))
    }
    again = {
        (1, second): [Handled(second, second + 0.01, 3, "a", True)] for second in range(int(now))
    }
    for found, kind in (
        (handled, "accepted twice in one delivery"),
        (again, "delivered again without a fault"),
    ):
        figures = Figures()
        check(found, set(found), faults, figures)
        assert figures.violations[kind] >= 40
