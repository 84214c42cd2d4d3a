"""The memory of a message's lists, computed before any object is made.

An empty message takes two bytes in a value, but in Arrow it takes a place in the column of each of
its fields. So a value of a megabyte can become gigabytes of columns. This module counts the items
from the encoding alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .protobuf_types import AS_JSON, is_map, repeated, type_of
from .sizes import check, width

#: The encodings of a field's value.
_VARINT, _FIXED_64, _BYTES, _GROUP, _GROUP_END, _FIXED_32 = range(6)


# A group (proto2) is a message between two tags. Any value may have one as an unknown field, which
# the parser skips. So a group does not end the count: a group in front of a long list would hide
# the list.
def check_items(value: bytes, descriptor: Any) -> None:
    """Raise ``ValueError`` if the lists of a message would take too much memory.

    Malformed bytes end the count; the parser reports them.
    """
    taken = 0.0
    left = [(value, descriptor)]
    known: dict[str, dict[int, tuple[Any, float]]] = {}
    while left:
        data, kind = left.pop()
        # The message, and the groups that have begun in it; None for an unknown group.
        open_kinds = [kind]
        for number, wire, inner in _fields(data):
            if wire == _GROUP_END:
                open_kinds.pop()
                if not open_kinds:
                    break
                continue
            field, weight = _known_fields(open_kinds[-1], known).get(number, (None, 0.0))
            if wire == _GROUP:
                open_kinds.append(None if field is None else field.message_type)
            if field is None:
                continue
            packed = wire == _BYTES and field.type not in (
                field.TYPE_STRING,
                field.TYPE_BYTES,
                field.TYPE_MESSAGE,
            )
            taken += weight * (len(inner) if packed else 1)
            check(taken)
            if (
                field.message_type is not None
                and wire == _BYTES
                and field.message_type.full_name not in AS_JSON
            ):
                left.append((inner, field.message_type))


def _known_fields(
    kind: Any, known: dict[str, dict[int, tuple[Any, float]]]
) -> dict[int, tuple[Any, float]]:
    """Return the fields of a message, or of an unknown group, with their weights, by number."""
    if kind is None:
        return {}
    if kind.full_name not in known:
        known[kind.full_name] = {field.number: (field, _weight(field)) for field in kind.fields}
    return known[kind.full_name]


def _weight(field: Any) -> float:
    """Return the bytes that one item of a list or map takes; 0 for any other field."""
    if is_map(field):
        return sum(width(type_of(each)) for each in field.message_type.fields)
    return width(type_of(field)) if repeated(field) else 0.0


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the number, the encoding and the bytes of each field.

    Only texts, messages and packed lists have bytes. The begin and the end of a group are fields
    without bytes, and the group's own fields stand between them.
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire, inner = tag & 7, b""
        if wire == _VARINT:
            _, at = _varint(data, at)
        elif wire == _BYTES:
            length, at = _varint(data, at)
            inner, at = data[at : at + length], at + length
        elif wire in (_FIXED_64, _FIXED_32):
            at += 8 if wire == _FIXED_64 else 4
        elif wire not in (_GROUP, _GROUP_END):
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
