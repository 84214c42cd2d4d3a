"""How many items a message's lists have, before anything is made of them: two bytes may be a message of many fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .protobuf_types import repeated
from .sizes import Sizes


def count_items(value: bytes, descriptor: Any, sizes: Sizes) -> None:
    """Raise ``ValueError`` if there are too many. What is no message ends the count: who reads it will say so."""
    found, left = 0, [(value, descriptor)]
    while left:
        data, kind = left.pop()
        fields = {field.number: field for field in kind.fields}
        for number, wire, inner in _fields(data):
            field = fields.get(number)
            if field is None:
                continue
            if repeated(field):
                packed = wire == 2 and field.type not in (field.TYPE_STRING, field.TYPE_BYTES, field.TYPE_MESSAGE)
                found += len(inner) if packed else 1
                sizes.check(found)
            if field.message_type is not None and wire == 2:
                left.append((inner, field.message_type))


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
