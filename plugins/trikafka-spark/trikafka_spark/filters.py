"""Filters of a query as limits of the read: topics, partitions, offsets, and a first time. Pure.

A read may return more than the filters let through, never less: Spark applies them as well. An
upper bound of the time is no limit, since the times of records need not be in order. A lower bound
is one, since Kafka finds the first record at or after a time.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from trikafka import OffsetRange

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a read.

    ``topics`` and ``partitions`` are the only ones to read; ``None`` means all. ``since`` is in ms.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first: int = 0
    end: int | None = None
    since: int | None = None

    def __str__(self) -> str:
        topics = None if self.topics is None else sorted(self.topics)
        partitions = None if self.partitions is None else sorted(self.partitions)
        return (
            f"topics {topics}, partitions {partitions}, offsets {self.first} to {self.end}, since "
            f"{self.since}"
        )

    def admits(self, topic: str, partition: int) -> bool:
        """Return whether any record of a partition may pass."""
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )

    def cut(self, wanted: OffsetRange) -> OffsetRange:
        """Return the part of a range whose offsets may pass; the result may be empty."""
        start = max(wanted.start, self.first)
        end = wanted.end if self.end is None else min(wanted.end, self.end)
        return wanted._replace(start=start, end=max(start, end))


def limits_of(filters: Iterable[Any]) -> Limits:
    """Return the limits that all of ``filters`` set together.

    They are filters of PySpark's data source API. A filter that is not understood sets no limit.
    """
    limits = Limits()
    for one in filters:
        limits = _limited(limits, one)
    return limits


def _limited(limits: Limits, one: Any) -> Limits:
    kind = type(one).__name__
    attribute, value = getattr(one, "attribute", None), getattr(one, "value", None)
    if not isinstance(attribute, tuple) or len(attribute) != 1 or value is None:
        return limits
    column = attribute[0]
    if kind in ("EqualTo", "EqualNullSafe", "In"):
        return _one_of(limits, column, list(value) if kind == "In" else [value])
    if column == "timestamp" and kind in ("GreaterThan", "GreaterThanOrEqual"):
        return _since(limits, value)
    if isinstance(value, bool) or not isinstance(value, int):
        return limits
    first, end = {
        "GreaterThan": (value + 1, None),
        "GreaterThanOrEqual": (value, None),
        "LessThan": (0, value),
        "LessThanOrEqual": (0, value + 1),
    }.get(kind, (0, None))
    return _between(limits, first, end) if column == "offset" else limits


def _one_of(limits: Limits, column: str, values: list[Any]) -> Limits:
    values = [value for value in values if value is not None]
    if column == "timestamp":
        return (
            _since(limits, min(values))
            if values and all(isinstance(value, datetime.datetime) for value in values)
            else limits
        )
    if column == "topic" and all(isinstance(value, str) for value in values):
        return replace(
            limits,
            topics=frozenset(values)
            & (limits.topics if limits.topics is not None else frozenset(values)),
        )
    if any(isinstance(value, bool) or not isinstance(value, int) for value in values):
        return limits
    if column == "partition":
        known = limits.partitions if limits.partitions is not None else frozenset(values)
        return replace(limits, partitions=frozenset(values) & known)
    if column == "offset":
        return _between(limits, min(values), max(values) + 1) if values else _between(limits, 0, 0)
    return limits


def _between(limits: Limits, first: int, end: int | None) -> Limits:
    ends = [one for one in (limits.end, end) if one is not None]
    return replace(limits, first=max(limits.first, first), end=min(ends) if ends else None)


def _since(limits: Limits, value: Any) -> Limits:
    """Return the limits with a first time.

    Records have whole milliseconds and Spark's times microseconds. The time is rounded down, so no
    record is lost.
    """
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        return limits
    since = (value - _EPOCH) // datetime.timedelta(milliseconds=1)
    return replace(limits, since=since if limits.since is None else max(limits.since, since))
