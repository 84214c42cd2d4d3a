"""What an export tells of its way: how fast it is, how much is left, and how long that takes. Pure."""

from __future__ import annotations

from test_export_plan import plan_of

from trikafka import ExportProgress


def step(rows: int, seconds: float) -> ExportProgress:
    return ExportProgress("writing", plan_of(0, 1_000), 0, 2, rows, 1_000, seconds)


def test_rate_lag_and_time_left() -> None:
    half = step(250, 5.0)
    assert (half.rate, half.lag, half.seconds_left) == (50.0, 750, 15.0)
    assert step(1_000, 20.0).seconds_left == 0.0


def test_what_is_not_known_yet_is_none() -> None:
    for early in (step(0, 5.0), step(10, 0.0)):
        assert (early.rate, early.seconds_left) == (None, None)
    assert step(0, 5.0).lag == 1_000


def test_there_may_be_fewer_offsets_than_were_told() -> None:
    assert (step(1_200, 10.0).lag, step(1_200, 10.0).seconds_left) == (0, 0.0)
