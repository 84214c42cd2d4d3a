"""The values of ``auto_offset_reset``: the start without a committed offset (KIP-1106).

No I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ..errors import ConfigurationError

Strategy = Literal["earliest", "latest", "none", "by_duration"]
_PLAIN: dict[str, Strategy] = {"earliest": "earliest", "latest": "latest", "none": "none"}
_PREFIX = "by_duration:"
#: Days are 24 hours, as in Java's ``Duration.parse``. Longer units do not exist there either: a
#: month has no fixed length.
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?"
    r"(?P<time>T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?"
    r"(?:(?P<seconds>\d+(?:[.,]\d{0,9})?)S)?)?",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """A parsed ``auto_offset_reset``.

    ``duration_ms`` is the distance back from the time of the reset. Only ``by_duration`` has one.
    """

    strategy: Strategy
    duration_ms: int | None = None


def parse_reset(text: object) -> OffsetReset:
    """Parse a value of ``auto_offset_reset``.

    Raises:
        ConfigurationError: The value is malformed. The error says why.
    """
    if not isinstance(text, str) or (text not in _PLAIN and not (text + ":").startswith(_PREFIX)):
        allowed = ", ".join(map(repr, _PLAIN))
        raise ConfigurationError(
            f"auto_offset_reset must be one of {allowed}, 'by_duration:<ISO 8601 duration>', not "
            f"{text!r}"
        )
    if text in _PLAIN:
        return OffsetReset(_PLAIN[text])
    return OffsetReset("by_duration", _milliseconds(text, text[len(_PREFIX) :]))


def _milliseconds(text: str, duration: str) -> int:
    where = (
        "auto_offset_reset must be 'by_duration:' and an ISO 8601 duration such as 'PT1H30M' or "
        f"'P7D', not {text!r}"
    )
    if not duration:
        raise ConfigurationError(f"{where}: the duration is missing")
    if "-" in duration:
        raise ConfigurationError(
            f"{where}: the duration counts back from now, so it must not be negative"
        )
    found = _DURATION.fullmatch(duration)
    if found is None:
        date = duration.upper().partition("T")[0]
        why = (
            "years, months and weeks are not taken, write days (P30D)"
            if re.search(r"\d[YMW]", date)
            else "it is not a duration"
        )
        raise ConfigurationError(f"{where}: {why}")
    parts = [found["days"], found["hours"], found["minutes"], found["seconds"]]
    if all(part is None for part in parts) or (found["time"] or "").upper() == "T":
        raise ConfigurationError(f"{where}: there is no number after the {duration[-1]!r}")
    days, hours, minutes = (int(part or 0) for part in parts[:3])
    whole, _, fraction = (parts[3] or "0").replace(",", ".").partition(".")
    return (((days * 24 + hours) * 60 + minutes) * 60 + int(whole)) * 1000 + int(
        fraction.ljust(3, "0")[:3]
    )
