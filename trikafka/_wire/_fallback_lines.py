"""The record path in pure Python: columns from lines of text, and lines of text from columns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trikafka._wire._fallback_partitioning import frozen
from trikafka._wire._format import Buffer

if TYPE_CHECKING:
    from trikafka._wire._columns import Columns
    from trikafka._wire.rendering import Part

#: Offsets, data and validity of a binary column.
_Column = tuple[memoryview, bytes, bytes]


def render_rows(
    columns: Columns,
    start: int,
    stop: int,
    parts: Sequence[Part],
    null: bytes,
    into: bytearray,
    most: int,
) -> tuple[int, memoryview]:
    """Write rows as lines into a buffer, at least one, and as many as fit.

    Returns the first row that was not written, and places to cut the bytes: pairs of an end in the
    buffer and of the number of rows before it. A piece between two cuts has at most ``most`` bytes,
    or is one row. The buffer grows if its first row is larger.
    """
    # Imported here: it needs trikafka.types, which not every user of the record path has imported.
    from trikafka._wire._fallback import make_records
    from trikafka._wire.rendering import line_of

    cuts = array("q")
    room = len(into)
    at = cut = 0
    row = start
    while row < stop:
        (record,) = make_records(columns, "", 0, row, row + 1)
        line = line_of(record, parts, null)
        if at + len(line) > room:
            if row > start:
                break
            into.extend(bytes(len(line) - room))
            room = len(line)
        if at + len(line) - cut > most and at > cut:
            cuts.extend((at, row - start))
            cut = at
        into[at : at + len(line)] = line
        at += len(line)
        row += 1
    if row > start and (at > cut or not cuts):
        cuts.extend((at, row - start))
    elif row > start:
        cuts[-1] = row - start
    return row, frozen(cuts)


def split_lines(
    data: Buffer, delimiter: bytes | None, empty_is_null: bool
) -> tuple[int, _Column | None, _Column | None]:
    """Return the number of lines, and the columns of their keys and values.

    Without a delimiter all keys are null. If a line lacks the delimiter, the columns are ``None``
    and the number is that of the line, counted from 0. The last line may lack its line end.
    """
    lines = bytes(data).split(b"\n")
    if not lines[-1]:
        lines.pop()
    keys: list[bytes] = [b""] * len(lines)
    values = lines
    if delimiter is not None:
        values = []
        for number, line in enumerate(lines):
            key, found, value = line.partition(delimiter)
            if not found:
                return number, None, None
            keys[number] = key
            values.append(value)
    no_keys = empty_is_null or delimiter is None
    return len(lines), _column(keys, no_keys), _column(values, empty_is_null)


def _column(parts: list[bytes], empty_is_null: bool) -> _Column:
    ends = array("i", [0])
    bits: Any = bytearray((len(parts) + 7) // 8)
    for row, part in enumerate(parts):
        ends.append(ends[-1] + len(part))
        if part or not empty_is_null:
            bits[row >> 3] |= 1 << (row & 7)
    return frozen(ends), b"".join(parts), bytes(bits)
