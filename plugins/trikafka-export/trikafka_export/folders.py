"""The partition folders of a destination, by the topic and the day of a record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

#: Days since 1970 of the first and the last date with a year of four digits.
_FIRST_DAY = -719_162
_LAST_DAY = 2_932_896
_DAY_US = 86_400_000_000
#: The key, in a plan's format, of one more folder. The files of a plan that follows an abandoned
#: one go there, because they may have the same names as files of the abandoned plan.
AGAIN = "again"
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_EPOCH = date(1970, 1, 1)


class Folders:
    """The folders of one topic, by a plan's ``format``.

    A folder's name holds the value of a column that its files do not have. Only Iceberg has each
    column in the file, too. A day whose year does not have four digits counts as unknown: the
    producer has probably sent microseconds as milliseconds.
    """

    def __init__(self, format: Mapping[str, Any], topic: str) -> None:
        self._by = tuple(format.get("partition_by", ()))
        self._keeps_columns = format.get("name") == "iceberg"
        self._prefix = [str(format[name]) for name in ("folder", AGAIN) if name in format]
        self._prefix += [f"topic={topic}"] if "topic" in self._by else []

    def count(self, table: pa.Table) -> int:
        """Return the number of folders of the rows."""
        return len(pc.unique(_days(table["timestamp"]))) if "date" in self._by else 1

    def split(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Yield each folder's name and its rows.

        All rows are of this topic. A row's day is that of the record's timestamp, in UTC.
        """
        if not table.num_rows:
            return
        days = _days(table["timestamp"]) if "date" in self._by else None
        if "topic" in self._by and not self._keeps_columns:
            table = table.drop_columns(["topic"])
        if days is None:
            yield "/".join(self._prefix), table
            return
        for day in pc.unique(days).to_pylist():
            chosen = pc.is_null(days) if day is None else pc.equal(days, day)
            yield "/".join([*self._prefix, f"date={_text(day)}"]), table.filter(chosen)


def _days(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the days since 1970, negative before 1970; null for a year without four digits."""
    number = times.cast(pa.int64())
    whole = pc.divide(number, _DAY_US)
    before = pc.less(number, pc.multiply(whole, _DAY_US))
    days = pc.subtract(whole, before.cast(pa.int64()))
    sane = pc.and_(pc.greater_equal(days, _FIRST_DAY), pc.less_equal(days, _LAST_DAY))
    return pc.if_else(sane, days, pa.scalar(None, days.type))


def _text(day: int | None) -> str:
    return _NO_VALUE if day is None else (_EPOCH + timedelta(days=day)).isoformat()


def day_of(name: str) -> int | None:
    """Return the day since 1970 in a file's name; ``None`` if the record's day is unknown.

    The name is relative to the destination.
    """
    text = next(
        (
            part.removeprefix("date=")
            for part in PurePosixPath(name).parts
            if part.startswith("date=")
        ),
        _NO_VALUE,
    )
    return None if text == _NO_VALUE else (date.fromisoformat(text) - _EPOCH).days
