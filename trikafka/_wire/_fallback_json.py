"""The record path in pure Python: columns from lines of JSON."""

from __future__ import annotations

import base64
import binascii
import json
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from trikafka._wire._fallback_partitioning import frozen
from trikafka._wire._format import Buffer

#: Offsets, data and validity of a binary column.
_Column = tuple[memoryview, bytes, bytes]
#: The first header of each row, and the columns of names and values.
_Headers = tuple[memoryview, _Column, _Column]

_NAMES = frozenset(
    ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
)
_NUMBERS = range(10**18)
# `raw_decode` without its Python function, which costs two thirds of the parser for a short line.
_parse: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]


class _NotSimpleError(Exception):
    """A part of a line is wrong, or unusual."""


def split_json_lines(
    data: Buffer, one_topic: bool
) -> (
    tuple[
        int,
        str | None,
        _Column | None,
        _Column | None,
        memoryview | None,
        memoryview | None,
        _Headers | None,
    ]
    | None
):
    """Return lines of JSON as columns, where each line is the object of a record.

    ``one_topic``: all lines have to name the same topic, or none.

    Returns:
        The number of lines, the topic of the first, the columns of keys and values, the timestamps,
        the partitions (-1: none), and the headers. ``None`` stands for a part that no line has.
        ``None`` for all of it: a line is wrong, or not simple. What is simple is for each
        implementation to decide; the record of a simple line is the same in all.
    """
    found = _objects(bytes(data))
    if not found or not set().union(*found) <= _NAMES:
        return None
    try:
        topics = _parts(found, "topic", _topic) or [None]
        if one_topic and len(set(topics)) > 1:
            return None
        keys, values = (_parts(found, name, _binary) for name in ("key", "value"))
        timestamps = _parts(found, "timestamp", _whole)
        partitions = _parts(found, "partition", _whole)
        headers = _parts(found, "headers", _headers)
        return (
            len(found),
            topics[0],
            None if keys is None else _column(keys),
            None if values is None else _column(values),
            None if timestamps is None else frozen(array("q", timestamps)),
            None if partitions is None else frozen(array("i", partitions)),
            _headers_of(headers) if headers is not None and any(headers) else None,
        )
    except (_NotSimpleError, OverflowError):
        return None


# Each line is parsed where it begins, and has to end at a line end. Parsing a block as one array,
# with commas for the line ends, is no faster, and an array or a text could then span two lines.
def _objects(block: bytes) -> list[dict[str, Any]] | None:
    """Return the object of each line; ``None``: a line is something else, or not simple."""
    try:
        text = block.decode()
    except UnicodeDecodeError:
        return None
    found: list[dict[str, Any]] = []
    at = 0
    end = len(text)
    while at < end:
        try:
            line, at = _parse(text, at)
        except (ValueError, RecursionError, StopIteration):
            return None
        found.append(line)
        if at < end and text[at] == "\r":
            at += 1
        if at < end and text[at] != "\n":
            return None
        at += 1
    lines = text.count("\n") + (not text.endswith("\n"))  # an object may have line ends, too
    return found if len(found) == lines and set(map(type, found)) == {dict} else None


def _parts(
    found: Sequence[dict[str, Any]], name: str, read: Callable[[Any], Any]
) -> list[Any] | None:
    """Return one part of all lines; ``None``: no line has it."""
    if not any(name in each for each in found):
        return None
    return [read(each.get(name)) for each in found]


def _topic(value: object) -> str | None:
    if value is None or (type(value) is str and value.isascii()):
        return value
    raise _NotSimpleError


def _whole(value: object) -> int:
    if value is None:
        return -1
    if type(value) is int and value in _NUMBERS:
        return value
    raise _NotSimpleError


def _binary(value: object) -> bytes | None:
    try:
        if value is None:
            return None
        if type(value) is str:
            return value.encode()
        if type(value) is dict and set(value) == {"base64"} and type(value["base64"]) is str:
            return base64.b64decode(value["base64"], validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError):
        raise _NotSimpleError from None
    raise _NotSimpleError


def _headers(value: object) -> list[tuple[bytes, bytes | None]]:
    if value is None:
        return []
    if type(value) is not list:
        raise _NotSimpleError
    pairs = []
    for pair in value:
        if type(pair) is not list or len(pair) != 2 or type(pair[0]) is not str:
            raise _NotSimpleError
        name = _binary(pair[0])
        assert name is not None  # it is a text
        pairs.append((name, _binary(pair[1])))
    return pairs


def _headers_of(headers: Sequence[Sequence[tuple[bytes, bytes | None]]]) -> _Headers:
    starts = array("i", accumulate(map(len, headers), initial=0))
    pairs = [pair for of_row in headers for pair in of_row]
    names, values = zip(*pairs, strict=True)
    return frozen(starts), _column(names), _column(values)


def _column(parts: Sequence[bytes | None]) -> _Column:
    ends = array("i", [0])
    bits = bytearray((len(parts) + 7) // 8)
    for row, part in enumerate(parts):
        ends.append(ends[-1] + len(part or b""))
        if part is not None:
            bits[row >> 3] |= 1 << (row & 7)
    return frozen(ends), b"".join(part or b"" for part in parts), bytes(bits)
