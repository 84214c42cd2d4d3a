"""Progress of an export: its rate, its lag, and the time left. Pure."""

from __future__ import annotations

from test_plan import plan_of

from trikafka import ExportProgress


def step(rows: int, seconds: float) -> ExportProgress:
    return ExportProgress("writing", plan_of(0, 1_000), 0, 2, rows, 1_000, seconds)


def test_rate_lag_and_time_left() -> None:
    half = step(250, 5.0)
    assert (half.rate, half.lag, half.seconds_left) == (50.0, 750, 15.0)
    assert step(1_000, 20.0).seconds_left == 0.0


def test_unknown_values_are_none() -> None:
    for early in (step(0, 5.0), step(10, 0.0)):
        assert (early.rate, early.seconds_left) == (None, None)
    assert step(0, 5.0).lag == 1_000


def test_lag_is_never_negative() -> None:
    assert (step(1_200, 10.0).lag, step(1_200, 10.0).seconds_left) == (0, 0.0)
