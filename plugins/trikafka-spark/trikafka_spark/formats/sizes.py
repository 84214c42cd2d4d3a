"""How much a few bytes may become: columns have room for each field of a record, also where the whole record is null.

So rows are read in such numbers that their arrays stay small, and a value whose lists would take more is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

#: What the arrays of rows that are read at once may take (bytes), by their types alone; and what the lists of one value may.
_MOST_AT_ONCE, MOST_OF_A_VALUE = 32 << 20, 256 << 20


class Sizes:
    """Of a column. ``item`` is what the largest item of its lists and maps takes at least, in bytes."""

    def __init__(self, type: pa.DataType, most_rows: int) -> None:
        self.rows = max(1, min(most_rows, int(_MOST_AT_ONCE / max(1.0, width(type)))))
        self.item = _widest_item(type)

    def parts(self, column: pa.BinaryArray) -> Iterator[tuple[int, pa.BinaryArray, bool]]:
        """Where each part begins, the part, and whether that is one value whose lists could become too large."""
        for at in range(0, len(column), self.rows):
            part = column.slice(at, self.rows)
            if self._most(part) <= MOST_OF_A_VALUE:
                yield at, part, False
            else:
                yield from self._cut(at, part)

    def _most(self, column: pa.BinaryArray) -> float:
        """No item takes less than a byte."""
        if not self.item:
            return 0.0
        return float(pc.sum(pc.binary_length(column)).as_py() or 0) * self.item

    def _cut(self, at: int, part: pa.BinaryArray) -> Iterator[tuple[int, pa.BinaryArray, bool]]:
        begin, taken = 0, 0.0
        for number, length in enumerate(pc.binary_length(part).to_pylist()):
            if number > begin and taken + length * self.item > MOST_OF_A_VALUE:
                yield at + begin, part.slice(begin, number - begin), taken > MOST_OF_A_VALUE
                begin, taken = number, 0.0
            taken += length * self.item
        yield at + begin, part.slice(begin), taken > MOST_OF_A_VALUE


def check(taken: float) -> None:
    """Raise ``ValueError`` if what the lists and maps of one value take as columns is too much (bytes)."""
    if taken > MOST_OF_A_VALUE:
        raise ValueError(f"its lists and maps would take {int(taken) >> 20:,} MiB and more as columns of this type: too much")


def rows_at_once(types: list[pa.DataType], most: int) -> int:
    """Rows of which columns of these types take no more than is meant to be held."""
    return Sizes(pa.struct([pa.field(str(number), type) for number, type in enumerate(types)]), most).rows


def taken_by(value: Any, type: pa.DataType) -> float:
    """What the items of all lists and maps take, of what fastavro has made: those of unions without their members yet."""
    found, left = 0.0, [(value, type)]
    while left:
        one, kind = left.pop()
        if isinstance(one, tuple):
            one = one[1]
        if isinstance(one, list) and pa.types.is_list(kind):
            found += len(one) * width(kind.value_type)
            if _widest_item(kind.value_type):
                left += [(each, kind.value_type) for each in one]
        elif isinstance(one, dict) and pa.types.is_map(kind):
            found += len(one) * (width(kind.key_type) + width(kind.item_type))
            if _widest_item(kind.item_type):
                left += [(each, kind.item_type) for each in one.values()]
        elif pa.types.is_struct(kind) and one is not None:
            of_record = isinstance(one, dict) and {field.name for field in kind} == one.keys()
            left += [(one[field.name] if of_record else one, field.type) for field in kind if _widest_item(field.type)]
    return found


def width(type: pa.DataType) -> float:
    """What a row takes in any case, in bytes."""
    if pa.types.is_struct(type):
        return 0.125 + sum(width(field.type) for field in type)
    try:
        return 0.125 + float(type.bit_width) / 8
    except ValueError:  # text, lists and maps: what they hold is elsewhere
        return 4.125


def _widest_item(type: pa.DataType) -> float:
    if pa.types.is_struct(type):
        return max((_widest_item(field.type) for field in type), default=0.0)
    if pa.types.is_map(type):
        items = [type.key_type, type.item_type]
        return max(sum(map(width, items)), *map(_widest_item, items))
    if pa.types.is_list(type):
        return max(width(type.value_type), _widest_item(type.value_type))
    return 0.0
