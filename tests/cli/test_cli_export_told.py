"""``trikafka export --every`` tells an outage once, however it is worded from time to time. Pure."""

from __future__ import annotations

import pytest

from trikafka.cli.export import _gist

LATE = "t-1 could not be exported: reading t-1 from offset {} did not finish within {} s (1 attempt)"
GONE = "t-0, t-12 could not be exported: t-0 holds the offsets [30, {}), but [0, 100) are to be read"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LATE.format(5, 120), LATE.format(5, 120.25) + "; 1,200 rows are published"),
        (GONE.format(100), GONE.format("250") + "; 3 rows are published"),
    ],
)
def test_the_same_outage(one: str, other: str) -> None:
    assert _gist(one) == _gist(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LATE, LATE.replace("t-1 could", "t-2 could")),
        (LATE, GONE),
        ("cannot write to /data/1: No space left on device", "cannot write to /data/2: No space left on device"),
    ],
)
def test_another_one(one: str, other: str) -> None:
    assert _gist(one) != _gist(other)
