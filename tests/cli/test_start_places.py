"""Places where reading begins, without I/O."""

from __future__ import annotations

import time
from collections.abc import Callable

import click
import pytest

from trikafka.cli.offsets import parse_at
from trikafka.cli.resetting import parse_place
from trikafka.cli.start import At, Start, check_come, parse, past_time, place


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("beginning", Start(At.BEGINNING)),
        ("earliest", Start(At.BEGINNING)),
        ("end", Start(At.END)),
        ("latest", Start(At.END)),
        ("stored", Start(At.STORED)),
        ("0", Start(At.OFFSET, 0)),
        ("-5", Start(At.LAST, 5)),
        ("@1700000000000", Start(At.TIME, 1_700_000_000_000)),
        ("s@7", Start(At.TIME, 7)),
        ("@2026-01-31T12:00", Start(At.TIME, 1_769_860_800_000)),
        ("@2026-01-31T13:00+01:00", Start(At.TIME, 1_769_860_800_000)),
        ("2026-01-31T12:00", Start(At.TIME, 1_769_860_800_000)),
        ("2026-01-31", Start(At.TIME, 1_769_817_600_000)),
    ],
)
def test_places_are_understood(text: str, start: Start) -> None:
    assert parse(text) == start


@pytest.mark.parametrize(
    ("text", "seconds"), [("-45s", 45), ("-30m", 1_800), ("-1h", 3_600), ("@-2d", 172_800)]
)
def test_times_before_now_are_understood(
    monkeypatch: pytest.MonkeyPatch, text: str, seconds: int
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    assert parse(text) == Start(At.TIME, 1_700_000_000_000 - 1_000 * seconds)
    assert parse_place(text) == parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "--5",
        "5.0",
        "@",
        "@yesterday",
        "2026-13-01",
        "-1y",
        "1h",
        "@1960-01-01",
        "9" * 30,
        "9" * 5000,
        "@" + "9" * 20,
        "@" + "9" * 5000,
    ],
)
def test_invalid_place_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse(text)


@pytest.mark.parametrize(
    ("start", "at_time", "offset", "warned"),
    [
        (Start(At.BEGINNING), None, 10, False),
        (Start(At.END), None, 50, False),
        (Start(At.LAST, 5), None, 45, False),
        (Start(At.LAST, 500), None, 10, False),
        (Start(At.TIME, 1), 30, 30, False),
        (Start(At.TIME, 1), None, 50, False),
        (Start(At.OFFSET, 20), None, 20, False),
        (Start(At.OFFSET, 50), None, 50, False),
        (Start(At.OFFSET, 5), None, 10, True),
        (Start(At.OFFSET, 99), None, 50, True),
    ],
)
def test_place_is_an_offset_of_the_log(
    start: Start, at_time: int | None, offset: int, warned: bool
) -> None:
    warnings: list[str] = []
    assert place(start, 10, 50, at_time, warnings.append) == offset
    assert bool(warnings) is warned


@pytest.mark.parametrize("read", [parse, parse_place, parse_at, past_time])
def test_seconds_are_not_taken_for_milliseconds(read: Callable[[str], object]) -> None:
    """As milliseconds they are in January 1970: the look-up of that finds the whole log."""
    with pytest.raises(click.UsageError, match=r"are 1970-01-21T11:37:40.800000\+00:00; add 000"):
        read("@1769860800")
    read("@1769860800000")
    read("1970-01-21T11:37:40.8")


@pytest.mark.parametrize("ms", [999_999_999, 10_000_000_000, 31_536_000_000, 63_072_000_000])
def test_milliseconds_of_1971_are_taken(ms: int) -> None:
    assert parse(f"@{ms}") == Start(At.TIME, ms)
    assert past_time(str(ms)) == ms


def test_offset_like_seconds_is_one() -> None:
    assert parse("1769860800") == Start(At.OFFSET, 1_769_860_800)


def test_time_to_come_is_refused_without_records() -> None:
    """Its place would be the end, from where on records come that are not as late."""
    for late, text in ((4_000_000_000_000, "2096-10-02T07:06:40"), (2**63 - 1, f"{2**63 - 1} ms")):
        with pytest.raises(click.ClickException, match=f"as late as {text}"):
            check_come(Start(At.TIME, late), [None, None])
    check_come(Start(At.TIME, 4_000_000_000_000), [None, 5])
    check_come(Start(At.TIME, 1_000), [None])
    check_come(Start(At.OFFSET, 4_000_000_000_000), [None])
