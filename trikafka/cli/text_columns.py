"""Lists of texts and numbers as the columns of rows to write."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from .._wire.column_rows import BinaryColumn, ColumnRows
from .._wire.columns import Columns

_NONE = type(None)


def rows_of(
    count: int,
    *,
    keys: Sequence[str | None] | None,
    values: Sequence[str | None] | None,
    timestamps: Sequence[int | None] | None,
    partitions: Sequence[int | None] | None,
    with_partitions: bool,
    partition: int | None,
) -> ColumnRows | None:
    """Return rows to write from the parts of their records; ``None`` stands for nulls alone.

    ``partitions`` has the partition of each row, and decides if ``with_partitions``. ``partition``
    is that of all rows.

    Returns:
        The rows; ``None`` if a part is neither text, a number in its range, nor null.
    """
    key_column = _column(keys)
    value_column = _column(values)
    times = _numbers("q", timestamps)
    explicit = _numbers("i", partitions)
    if key_column is None or value_column is None or times is None or explicit is None:
        return None
    columns = Columns(
        count,
        memoryview(array("q", range(count))),
        memoryview(times or array("q", [-1]) * count),
        memoryview(bytes(count)).cast("b"),
        *(key_column or _nulls(count)),
        *(value_column or _nulls(count)),
    )
    return ColumnRows(
        columns,
        keyed=bool(key_column),
        timed=bool(times),
        partition=partition,
        explicit=memoryview(explicit) if explicit and with_partitions else None,
    )


def _numbers(form: str, numbers: Sequence[Any] | None) -> array[int] | None:
    """Return numbers from 0, -1 for a null; empty without any; ``None``: one is out of range."""
    if numbers is None:
        return array(form)
    if not set(map(type, numbers)) <= {int, _NONE}:
        return None
    try:
        found = array(form, [-1 if number is None else number for number in numbers])
    except OverflowError:
        return None
    given = (number for number in numbers if number is not None)
    return found if min(given, default=0) >= 0 else None


def _column(texts: Sequence[Any] | None) -> BinaryColumn | tuple[()] | None:
    """Return texts as a column, ``()`` for a column of nulls; ``None``: one is not text."""
    if texts is None:
        return ()
    try:
        whole = "".join(texts)
    except TypeError:
        return _column_with_nulls(texts)
    try:
        if whole.isascii():  # then a text has as many bytes as letters
            return _offsets(texts), whole.encode(), None
        parts = [text.encode() for text in texts]
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    return _offsets(parts), b"".join(parts), None


def _column_with_nulls(texts: Sequence[Any]) -> BinaryColumn | None:
    if not set(map(type, texts)) <= {str, _NONE}:
        return None
    column = _column(["" if text is None else text for text in texts])
    if not column:
        return None
    bits = "".join(["0" if text is None else "1" for text in texts])[::-1]
    validity = int(bits, 2).to_bytes((len(texts) + 7) // 8, "little")
    return column[0], column[1], validity


def _offsets(parts: Sequence[str | bytes]) -> memoryview:
    return memoryview(array("i", accumulate(map(len, parts), initial=0)))


def _nulls(count: int) -> BinaryColumn:
    return memoryview(bytes(4 * count + 4)).cast("i"), b"", bytes((count + 7) // 8)
