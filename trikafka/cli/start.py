"""The start position: ``--from`` and kcat's ``-o``. Pure functions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

import click

from .._state.seconds import like_seconds

_WORDS = {
    "beginning": "BEGINNING",
    "earliest": "BEGINNING",
    "end": "END",
    "latest": "END",
    "stored": "STORED",
}


#: What a time may look like, for help texts and errors.
TIMES = "2026-01-31T12:00 in UTC, -1h (s, m, h, d), or @MILLISECONDS"
#: A date. A time that begins with one needs no @.
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
#: A time before now.
_AGO = re.compile(r"-(\d{1,9})(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class At(Enum):
    """The kind of a start position."""

    BEGINNING = "beginning"
    END = "end"
    STORED = "stored"
    OFFSET = "offset"
    LAST = "last"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Start:
    """A start position, the same for every partition.

    ``value`` is an offset, a number of last records, or milliseconds since the epoch.
    """

    at: At
    value: int = 0


def parse(text: str) -> Start:
    """Parse ``beginning``, ``end``, ``stored``, an offset, ``-5`` (the last five) or a time.

    A date and a time before now, such as ``-1h``, need no ``@``; milliseconds do.

    Raises:
        click.BadParameter: The text is none of these.
        click.UsageError: Milliseconds that look like seconds.
    """
    if text in _WORDS:
        return Start(At[_WORDS[text]])
    if text.startswith(("@", "s@")):
        return Start(At.TIME, _time(text.partition("@")[2]))
    if _DATE.match(text) or _AGO.fullmatch(text):
        return Start(At.TIME, _time(text))
    number = whole(text.removeprefix("-"))
    if number is not None:
        return Start(At.LAST if text.startswith("-") else At.OFFSET, number)
    raise click.BadParameter(
        f"{text!r:.100} is neither 'beginning', 'end', 'stored', an offset, -N (the last N "
        f"records of each partition), nor a time: {TIMES}",
        param_hint="--from",
    )


def whole(text: str) -> int | None:
    """Return the whole number below 2^63 that a text of digits names; ``None`` for other texts."""
    # Python refuses to convert thousands of digits.
    if text.isascii() and text.isdigit() and len(digits := text.lstrip("0")) < 20:
        number = int(digits or "0")
        return number if number < 2**63 else None
    return None


def _time(text: str, option: str = "--from") -> int:
    """Return milliseconds since the epoch, given as such, as a date and time, or before now.

    The time zone is UTC if the text names none.
    """
    number = whole(text)
    if number is not None and like_seconds(number):
        # No BadParameter: callers replace its message by the list of the places that they know.
        raise click.UsageError(
            f"{text} milliseconds since the epoch are {time_of(number)}; add 000 if these are "
            "seconds, or write the date"
        )
    if number is not None:
        return number
    if ago := _AGO.fullmatch(text):
        return max(0, time.time_ns() // 1_000_000 - int(ago[1]) * _SECONDS[ago[2]] * 1_000)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r:.100} is neither milliseconds since the epoch nor a time like "
            "2026-01-31T12:00 or -1h",
            param_hint=option,
        ) from None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    if when.timestamp() < 0:
        raise click.BadParameter(f"{text}: this is before 1970", param_hint=option)
    return round(when.timestamp() * 1000)


def past_time(text: str) -> int:
    """Return the time of ``--until`` in milliseconds since the epoch.

    Raises:
        click.BadParameter: The text is not a time, or is a time in the future.
        click.UsageError: Milliseconds that look like seconds.
    """
    ms = _time(text.removeprefix("@"), "--until")
    if ms > time.time() * 1000:
        raise click.BadParameter(
            f"{text} has not come yet; without --until records are printed as they come",
            param_hint="--until",
        )
    return ms


def check_come(start: Start, found: Iterable[object]) -> None:
    """Refuse a time that has not come yet, unless records have it.

    Without a record as late as the time, the place would be the end of the log. Then the records
    that arrive before the time would be read, or skipped for good.

    Args:
        start: The place.
        found: The place of the time in each partition; ``None`` if no record is as late.

    Raises:
        click.ClickException: No record is as late.
    """
    if (why := not_come(start, found)) is not None:
        raise click.ClickException(why)


def not_come(start: Start, found: Iterable[object]) -> str | None:
    """Return a sentence about a time that :func:`check_come` refuses; ``None`` for others."""
    if start.at is not At.TIME or start.value <= time.time() * 1000:
        return None
    if any(each is not None for each in found):
        return None
    return (
        f"no record is as late as {time_of(start.value)}, which has not come yet (times without"
        " a zone are UTC; milliseconds since the epoch have 13 digits)"
    )


def time_of(ms: int) -> str:
    """Return a time since 1970 in ISO 8601; in milliseconds if it is beyond the year 9999."""
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat()
    except OverflowError:
        return f"{ms} ms"


def place(
    start: Start, begin: int, end: int, at_time: int | None, warn: Callable[[str], None]
) -> int:
    """Return the start offset in a log from ``begin`` to ``end``.

    ``at_time`` is the offset found for a time, or ``None``.
    """
    if start.at is At.END:
        return end
    if start.at is At.LAST:
        return max(begin, end - start.value)
    if start.at is At.TIME:
        return end if at_time is None else at_time
    if start.at is At.OFFSET:
        if not begin <= start.value <= end:
            warn(
                f"has no offset {start.value}, only {begin} to {end}; it begins at "
                f"{min(max(start.value, begin), end)}"
            )
        return min(max(start.value, begin), end)
    return begin
