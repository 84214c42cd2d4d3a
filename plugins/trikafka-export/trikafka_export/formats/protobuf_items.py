"""The memory of a message's lists, computed before any object is made.

An empty message takes two bytes in a value, but in Arrow a place in the column of each of its
fields. So a value of a megabyte can become gigabytes of columns. This module counts the items from
the encoding alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .protobuf_types import AS_JSON, is_map, repeated, type_of
from .sizes import check, width


def check_items(value: bytes, descriptor: Any) -> None:
    """Raise ``ValueError`` if the lists of a message would take too much memory.

    Malformed bytes end the count; the parser reports them.
    """
    taken, left, known = 0.0, [(value, descriptor)], {}
    while left:
        data, kind = left.pop()
        if kind.full_name not in known:
            known[kind.full_name] = {field.number: (field, _weight(field)) for field in kind.fields}
        fields = known[kind.full_name]
        for number, wire, inner in _fields(data):
            if number not in fields:
                continue
            field, weight = fields[number]
            packed = wire == 2 and field.type not in (
                field.TYPE_STRING,
                field.TYPE_BYTES,
                field.TYPE_MESSAGE,
            )
            taken += weight * (len(inner) if packed else 1)
            check(taken)
            if (
                field.message_type is not None
                and wire == 2
                and field.message_type.full_name not in AS_JSON
            ):
                left.append((inner, field.message_type))


def _weight(field: Any) -> float:
    """Return the bytes that an item takes."""
    if is_map(field):
        return sum(width(type_of(each)) for each in field.message_type.fields)
    return width(type_of(field)) if repeated(field) else 0.0


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire, inner = tag & 7, b""
        if wire == 0:
            _, at = _varint(data, at)
        elif wire == 2:
            length, at = _varint(data, at)
            inner, at = data[at : at + length], at + length
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            return
        yield tag >> 3, wire, inner


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 70:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return number, at
    return 0, len(data)
