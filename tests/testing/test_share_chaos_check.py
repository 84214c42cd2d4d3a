"""The judge of the share soak finds every violation, and none that a fault explains."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.share_chaos.judge import LINE, Event, Fault, Figures, Handled, check, read
from benchmarks.share_chaos.run import Options, pauses_of

PLACE = (0, 7)
#: A handler whose accept has an answer of the broker, and one that was not so lucky.
ONCE = Handled(100.0, 100.1, 1, "a", True, 100.2)
UNHEARD = ONCE._replace(accepted=math.inf)
AGAIN = Handled(120.0, 120.1, 2, "b", True, 120.2)
KILLED = Fault(101.0, 101.5, "a")
OTHER = Fault(101.0, 101.5, "c")
BROKER = Fault(101.0, 101.5, "")


def judged(times: Sequence[Handled], faults: Sequence[Fault] = ()) -> Figures:
    figures = Figures()
    check({PLACE: list(times)} if times else {}, {PLACE}, faults, figures)
    return figures


@pytest.mark.parametrize(
    ("times", "faults"),
    [
        ([ONCE], []),
        ([UNHEARD], [KILLED]),
        ([UNHEARD], [BROKER]),
        ([UNHEARD, AGAIN], [KILLED]),
        ([UNHEARD, AGAIN], [BROKER]),
        ([UNHEARD._replace(whole=False), AGAIN], [KILLED]),
        ([AGAIN], [OTHER]),
        # A frozen member cannot end its handlers, and a lock may be a little late.
        ([UNHEARD._replace(ended=130.0), AGAIN], [Fault(101.0, 130.0, "a")]),
        (
            [UNHEARD._replace(began=120.5, ended=130.0), AGAIN._replace(accepted=121.0)],
            [Fault(119.0, 130.0, "a")],
        ),
        ([UNHEARD._replace(ended=120.05), AGAIN], [BROKER]),
        # The lock ended and no accept came, so another one may have been given the same number.
        ([UNHEARD, AGAIN._replace(delivery=1)], [BROKER]),
        # The member that was cut off begins after the one that got the record from it.
        ([UNHEARD._replace(began=120.5, ended=120.6), AGAIN._replace(accepted=121.0)], [KILLED]),
    ],
)
def test_what_a_fault_explains_is_right(times: Sequence[Handled], faults: Sequence[Fault]) -> None:
    assert not judged(times, faults).violations


@pytest.mark.parametrize(
    ("times", "faults", "kinds"),
    [
        ([], [BROKER], {"never accepted"}),
        ([UNHEARD._replace(whole=False)], [BROKER], {"never accepted"}),
        ([UNHEARD], [], {"no word of the broker, without a fault"}),
        ([UNHEARD], [OTHER], {"no word of the broker, without a fault"}),
        ([AGAIN], [], {"delivered again without a fault"}),
        ([UNHEARD, AGAIN], [Fault(10.0, 11.0, "")], {"delivered again without a fault"}),
        ([UNHEARD, AGAIN], [OTHER], {"delivered again without a fault"}),
        (
            [UNHEARD._replace(began=120.5, ended=120.6), AGAIN._replace(accepted=121.0)],
            [KILLED._replace(member="b")],
            {"delivered again without a fault"},
        ),
        # Nothing excuses a record that comes after the broker's word.
        (
            [ONCE, AGAIN],
            [BROKER],
            {"accepted twice", "delivered after it was accepted"},
        ),
        (
            [ONCE, AGAIN._replace(whole=False, accepted=math.inf)],
            [BROKER],
            {"delivered after it was accepted"},
        ),
        (
            [ONCE._replace(accepted=130.0), AGAIN._replace(delivery=1)],
            [BROKER],
            {"accepted twice"},
        ),
        (
            [UNHEARD._replace(ended=120.5), AGAIN],
            [BROKER],
            {"a handler ran past its lock"},
        ),
        # Its own fault explains that the member begins after the other one, and not how long its
        # handler goes on.
        (
            [UNHEARD._replace(began=120.5, ended=121.0), AGAIN._replace(accepted=121.0)],
            [KILLED],
            {"a handler ran past its lock"},
        ),
    ],
)
def test_every_violation_is_found(
    times: Sequence[Handled], faults: Sequence[Fault], kinds: set[str]
) -> None:
    assert set(judged(times, faults).violations) == kinds


def test_logs_are_read_whole(tmp_path: Path) -> None:
    """An accept belongs to its handler; half a line of a killed member counts for nothing."""
    lines = [
        (0, 7, 1, 100.0, 100.1, Event.DONE),
        (1, 7, 1, 100.0, 100.1, Event.CUT),
        (0, 7, 1, 100.0, 100.2, Event.ACCEPTED),
    ]
    (tmp_path / "member-a.bin").write_bytes(b"".join(LINE.pack(*line) for line in lines))
    half = LINE.pack(0, 8, 1, 100.0, 100.1, Event.DONE)[:-1]
    (tmp_path / "member-b.bin").write_bytes(LINE.pack(0, 7, 2, 9.0, 9.5, Event.CUT) + half)
    found = Handled(100.0, 100.1, 1, "member-a", True, 100.2)
    cut = Handled(9.0, 9.5, 2, "member-b", False)
    assert read(tmp_path, 0) == {PLACE: [found, cut]}
    assert read(tmp_path, 1) == {(1, 7): [Handled(100.0, 100.1, 1, "member-a", False)]}


def test_a_run_has_times_without_an_excuse() -> None:
    """Each record is accepted by two members, and another one is in its third delivery at once."""
    now = 0.0
    faults = []
    for pause in pauses_of(Options(seed=1), random.Random(1)):
        faults.append(Fault(now + pause, now + pause + 2, "a"))
        now += pause + 2
    handled = {
        (0, second): [
            Handled(second, second + 0.01, 1, "a", True, second + 0.02),
            Handled(second + 0.1, second + 0.11, 1, "b", True, second + 0.12),
        ]
        for second in range(int(now))
    }
    again = {
        (1, second): [Handled(second, second + 0.01, 3, "a", True, second + 0.02)]
        for second in range(int(now))
    }
    for found, kind in (
        (handled, "accepted twice"),
        (again, "delivered again without a fault"),
    ):
        figures = Figures()
        check(found, set(found), faults, figures)
        assert figures.violations[kind] >= 40
