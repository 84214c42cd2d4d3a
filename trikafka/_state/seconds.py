"""Times in seconds, given where Kafka has milliseconds. No I/O."""

from __future__ import annotations

from datetime import UTC, datetime

#: The years 2001 to 2286 in seconds; in milliseconds, 12 January to 26 April 1970.
_FIRST = 1_000_000_000
_BEYOND = 10_000_000_000


def like_seconds(ms: int) -> bool:
    """Return whether a time in milliseconds since the epoch is probably in seconds."""
    return _FIRST <= ms < _BEYOND


# Kafka takes any time from 0 on, as do Java's client and this one: tests use 0 and 1, and an
# archive may have records of 1970. But int(time.time()) is the usual mistake, and its effects are
# silent. By the retention of a topic, records of 1970 are deleted soon after they are written, and
# the first record from January 1970 on is the first record there is. So such a time is logged.
def seconds_hint(timestamp: int) -> str | None:
    """Return a sentence about a time in milliseconds that is probably in seconds, or ``None``."""
    if not like_seconds(timestamp):
        return None
    taken = datetime.fromtimestamp(timestamp / 1000, UTC)
    meant = datetime.fromtimestamp(timestamp, UTC)
    return (
        f"in milliseconds {timestamp} is {taken:%Y-%m-%d}; in seconds it would be {meant:%Y-%m-%d}: "
        "int(time.time() * 1000) has milliseconds"
    )
