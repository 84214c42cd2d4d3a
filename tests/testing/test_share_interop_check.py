"""The judge of three clients in one share group finds each violation, and none in a good run."""

from __future__ import annotations

import pytest

from benchmarks.share_interop import RELEASED, Accepted, Run, violations


def a_run() -> Run:
    """Return a good run of two members, which take turns."""
    run = Run({"a": [], "b": []}, 4 * RELEASED)
    for offset in range(run.written):
        some = run.accepted["ab"[offset % 2]]
        some.append(Accepted(0, offset, 1 if offset % RELEASED else 2))
    return run


def test_a_good_run_has_no_violation() -> None:
    assert violations(a_run(), least=2 * RELEASED) == []


@pytest.mark.parametrize(
    ("member", "accepted", "found"),
    [
        ("a", Accepted(0, 1, 1), "(0, 1) was accepted 2 times"),
        ("b", Accepted(0, 1, 2), "(0, 1) was accepted 2 times"),
        ("b", Accepted(0, 2 * RELEASED, 1), f"(0, {2 * RELEASED}, 1), which had to be released"),
    ],
)
def test_a_second_accept_is_found(member: str, accepted: Accepted, found: str) -> None:
    run = a_run()
    run.accepted[member].append(accepted)
    assert any(found in line for line in violations(run, least=1))


def test_a_missing_record_is_found() -> None:
    run = a_run()
    run.accepted["b"].pop()
    last = (0, run.written - 1)
    assert violations(run, least=1) == [f"1 records were not accepted, the first of them {last}"]


def test_a_member_without_its_share_is_found() -> None:
    run = a_run()
    assert violations(run, least=2 * RELEASED + 1)[0].startswith("a accepted 20 records")
