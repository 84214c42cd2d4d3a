"""Lines of JSON as columns, a block at once. What is not simple is left to ``from_json``."""

from __future__ import annotations

import json
from array import array
from itertools import accumulate
from typing import Any

from .._wire.column_rows import BinaryColumn, ColumnRows
from .._wire.columns import Columns
from .record_lines import FIELDS

_NAMES = frozenset(FIELDS)
_NONE = type(None)


# One call of the JSON parser for a block costs a fifth of a call for each line. The block is parsed
# as an array, with commas at the line ends, so one has to be sure that each line is one object:
#
# * Each line begins with "{" and ends with "}". Behind a comma, an object stands only in an array.
# * No object of the result contains an array, but for an empty one. So none spans lines, each line
#   has at least one object, and with as many objects as lines each has just one.
def read_json_block(
    text: bytes, topic: str | None, *, with_partitions: bool, partition: int | None
) -> tuple[str, ColumnRows] | None:
    """Return the topic and the records of a block of lines.

    ``None``: the lines have to be read one by one, because a line is wrong, blank, of another
    topic, or has headers or bytes that are no text.
    """
    lines = text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    if not lines or not all(line[:1] == b"{" and line.rstrip()[-1:] == b"}" for line in lines):
        return None
    try:
        found = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        return None
    if len(found) != len(lines) or {type(each) for each in found} != {dict}:
        return None
    names = set().union(*found)
    if not names <= _NAMES:
        return None
    values: dict[str, list[Any]] = {name: [each.get(name) for each in found] for name in names}
    if any(values.get("headers", ())):
        return None
    for name, kind in (("topic", str), ("headers", list), ("key", str), ("value", str)):
        if not {type(value) for value in values.get(name, ())} <= {kind, _NONE}:
            return None
    for name in ("offset", "timestamp_type"):  # of what was consumed; anything simple is ignored
        if not {type(value) for value in values.get(name, ())} <= {str, int, _NONE}:
            return None
    topics = set(values.get("topic", [None]))
    target = topic or (topics.pop() if len(topics) == 1 else None)
    if target is None or not all(name is None or name.isascii() for name in topics):
        return None
    keys, contents = _column(values.get("key")), _column(values.get("value"))
    times = _numbers("q", values.get("timestamp"))
    explicit = _numbers("i", values.get("partition"))
    if keys is None or contents is None or times is None or explicit is None:
        return None
    count = len(found)
    columns = Columns(
        count,
        memoryview(array("q", range(count))),
        memoryview(times or array("q", [-1]) * count),
        memoryview(bytes(count)).cast("b"),
        *(keys or _nulls(count)),
        *(contents or _nulls(count)),
    )
    rows = ColumnRows(
        columns,
        keyed=bool(keys),
        timed=True,
        partition=partition,
        explicit=memoryview(explicit) if explicit and with_partitions else None,
    )
    return target, rows


def _column(texts: list[str | None] | None) -> BinaryColumn | tuple[()] | None:
    """Return texts as a column, ``()`` for a column of nulls; ``None``: one is no text."""
    if texts is None:
        return ()
    try:
        parts = [b"" if text is None else text.encode() for text in texts]
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    validity = None
    if None in texts:
        bits = "".join(["0" if text is None else "1" for text in texts])[::-1]
        validity = int(bits, 2).to_bytes((len(texts) + 7) // 8, "little")
    ends = array("i", accumulate(map(len, parts), initial=0))
    return memoryview(ends), b"".join(parts), validity


def _nulls(count: int) -> BinaryColumn:
    return memoryview(bytes(4 * count + 4)).cast("i"), b"", bytes((count + 7) // 8)


def _numbers(form: str, numbers: list[Any] | None) -> array[int] | None:
    """Return numbers from 0, -1 for a null; empty without any; ``None``: one is out of range."""
    if numbers is None:
        return array(form)
    if not {type(number) for number in numbers} <= {int, _NONE}:
        return None
    try:
        found = array(form, [-1 if number is None else number for number in numbers])
    except OverflowError:
        return None
    given = (number for number in numbers if number is not None)
    return found if min(given, default=0) >= 0 else None
