"""Limits for data that grows when it is decoded.

A column takes room for each field of a record, even if the record is null. So a small value with
long lists can become large arrays. Only so many rows are decoded at once that their arrays stay
small, and a value whose lists would become too large is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

#: The most bytes that the rows decoded at once may take, without their texts and lists, and the
#: most that the lists of one value may take.
_MOST_AT_ONCE, MOST_OF_A_VALUE = 32 << 20, 256 << 20


class Sizes:
    """The sizes of a column's values.

    ``rows`` is the number of rows to decode at once. ``item`` is the size in bytes of the widest
    item of its lists and maps; 0 without lists and maps.
    """

    def __init__(self, type: pa.DataType, most_rows: int) -> None:
        self.rows = max(1, min(most_rows, int(_MOST_AT_ONCE / max(1.0, width(type)))))
        self.item = _widest_item(type)

    def parts(self, column: pa.BinaryArray) -> Iterator[tuple[int, pa.BinaryArray, bool]]:
        """Yield each part with its start, and whether its lists may become too large.

        A part whose lists may become too large consists of one value.
        """
        for at in range(0, len(column), self.rows):
            part = column.slice(at, self.rows)
            if self._most(part) <= MOST_OF_A_VALUE:
                yield at, part, False
            else:
                yield from self._cut(at, part)

    def _most(self, column: pa.BinaryArray) -> float:
        """Return the most bytes that the items can take: each is encoded in at least one byte."""
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
    """Raise ``ValueError`` if the lists and maps of one value take too many bytes."""
    if taken > MOST_OF_A_VALUE:
        raise ValueError(
            f"its lists and maps would take {int(taken) >> 20:,} MiB or more as columns of this "
            "type, which is too much"
        )


def rows_at_once(types: list[pa.DataType], most: int) -> int:
    """Return the number of rows whose columns stay below the limit."""
    return Sizes(
        pa.struct([pa.field(str(number), type) for number, type in enumerate(types)]), most
    ).rows


def taken_by(value: Any, type: pa.DataType) -> float:
    """Return the bytes that all items in the lists and maps of a value take as columns.

    ``value`` is fastavro's, before :mod:`.avro_unions` has converted the values of unions.
    """
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
            left += [
                (one[field.name] if of_record else one, field.type)
                for field in kind
                if _widest_item(field.type)
            ]
    return found


def width(type: pa.DataType) -> float:
    """Return the bytes that each row takes, without the content of texts, lists and maps."""
    if pa.types.is_struct(type):
        return 0.125 + sum(width(field.type) for field in type)
    try:
        return 0.125 + float(type.bit_width) / 8
    except ValueError:  # text, lists and maps: an offset only
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
