"""A quick way for plain schemas: each field of many Avro values is read at once, by numpy, from the bytes where they lie.

It reads records of numbers, text, bytes, enums, fixed and dates, nested or nullable, also where fields of the record itself have
come or gone since. Whatever is odd about one value, a byte too many or text that is no UTF-8, ends it for all of them:
:class:`AvroDecoder` has fastavro read these again, and say which it was. Without numpy everything is read so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

#: Zero bytes behind the last value: a number may be looked for beyond the end, which is seen afterwards.
_GUARD = 16
_MOST_FIXED = 64
#: Positions, and where each value ends; what is read, and the positions behind it.
Reader = Callable[["_Data", Any, Any], tuple[pa.Array, Any]]


class OddError(Exception):
    """Something that is not read here."""


class _Data:
    """The bytes of many values: for numpy, with guards, and as Arrow's buffer."""

    def __init__(self, column: pa.BinaryArray) -> None:
        _, offsets, data = column.buffers()
        self.offsets = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
        first, last = int(self.offsets[0]), int(self.offsets[-1])
        found = np.zeros(last - first + _GUARD, np.uint8)
        if last > first:
            found[: last - first] = np.frombuffer(data, np.uint8)[first:last]
        self.bytes = found
        self.offsets -= first
        self.buffer = pa.py_buffer(found)


def reader_of(schema: Any, named: Mapping[str, Any], type: pa.DataType) -> Callable[[pa.BinaryArray], pa.Array] | None:
    """What reads values of a parsed schema into that type, or raises :exc:`OddError`; ``None`` where the schema is not so plain."""
    if np is None:
        return None
    try:
        read = _reader(schema, named, type)
    except OddError:
        return None

    def whole(column: pa.BinaryArray) -> pa.Array:
        data = _Data(column)
        try:
            array, at = read(data, data.offsets[:-1].copy(), data.offsets[1:])
        except (pa.ArrowException, OverflowError) as error:
            raise OddError from error
        _check(at == data.offsets[1:])
        return array

    return whole


def resolved_reader_of(
    written: Callable[[pa.BinaryArray], pa.Array], fields: Sequence[tuple[pa.Field, Any]]
) -> Callable[[pa.BinaryArray], pa.Array]:
    """Of records read by ``written``: these fields, each with its default where it was not written."""

    def whole(column: pa.BinaryArray) -> pa.Array:
        found = written(column)
        none = pa.array(np.zeros(len(column), np.int64))
        arrays = [
            found.field(field.name) if found.type.get_field_index(field.name) >= 0 else pa.array([default], field.type).take(none)
            for field, default in fields
        ]
        return pa.StructArray.from_arrays(arrays, fields=[field for field, _ in fields])

    return whole


def _reader(schema: Any, named: Mapping[str, Any], type: pa.DataType) -> Reader:
    if isinstance(schema, list):
        return _union(schema, named, type)
    if isinstance(schema, dict) and isinstance(schema["type"], dict | list):
        return _reader(schema["type"], named, type)
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(schema, dict) and schema.get("logicalType") == "decimal":
        raise OddError
    if kind == "record":
        return _record(schema, named, type)
    if kind == "enum":
        return _enum(schema["symbols"])
    if kind == "fixed":
        return _fixed(schema["size"])
    if kind in _SIMPLE:
        return _SIMPLE[kind](type)
    if kind in named:
        return _reader(named[kind], named, type)
    raise OddError


def _check(right: Any) -> None:
    if not right.all():
        raise OddError


def _longs(data: _Data, at: Any, end: Any) -> tuple[Any, Any]:
    """Whole numbers: seven bits a byte, the lowest first, the sign in the lowest bit."""
    found = data.bytes[at].astype(np.uint64)
    at = at + 1
    left = np.flatnonzero(found & 0x80)
    found &= 0x7F
    for shift in range(7, 64, 7):
        if not len(left):
            break
        more = data.bytes[at[left]].astype(np.uint64)
        at[left] += 1
        _check((more <= 1) | (shift < 63))
        found[left] |= (more & 0x7F) << np.uint64(shift)
        left = left[(more & 0x80) != 0]
    if len(left):
        raise OddError
    _check(at <= end)
    return (found >> np.uint64(1)).astype(np.int64) ^ -(found & 1).astype(np.int64), at


def _int(type: pa.DataType) -> Reader:
    def read(data: _Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        found, at = _longs(data, at, end)
        _check((found >= -(2**31)) & (found < 2**31))
        return pa.array(found.astype(np.int32)).view(type), at

    return read


def _long(type: pa.DataType) -> Reader:
    def read(data: _Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        found, at = _longs(data, at, end)
        return pa.array(found).view(type), at

    return read


def _gathered(data: _Data, at: Any, end: Any, size: int) -> tuple[Any, Any]:
    """So many bytes of each."""
    _check(at + size <= end)
    return data.bytes[at[:, None] + np.arange(size)], at + size


def _floating(code: str) -> Callable[[pa.DataType], Reader]:
    def of(type: pa.DataType) -> Reader:
        def read(data: _Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
            found, at = _gathered(data, at, end, np.dtype(code).itemsize)
            return pa.array(found.view(code).reshape(-1), type), at

        return read

    return of


def _boolean(type: pa.DataType) -> Reader:
    def read(data: _Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        found = data.bytes[at]
        _check((found <= 1) & (at < end))
        return pa.array(found.astype(np.bool_)), at + 1

    return read


def _text(type: pa.DataType) -> Reader:
    """Text and bytes lie in the order of the values: they and what is between them are one array; every second one is meant."""

    def read(data: _Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        length, at = _longs(data, at, end)
        _check((length >= 0) & (length <= end - at))
        edges = np.empty(2 * len(at) + 1, np.int32)
        edges[:-1:2], edges[1::2], edges[-1] = at, at + length, len(data.bytes)
        every = pa.Array.from_buffers(pa.binary(), 2 * len(at), [None, pa.py_buffer(edges), data.buffer])
        return every.take(pa.array(np.arange(0, 2 * len(at), 2))).cast(type), at + length

    return read


def _enum(symbols: Sequence[str]) -> Reader:
    known = pa.array(symbols, pa.string())

    def read(data: _Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        found, at = _longs(data, at, end)
        _check((found >= 0) & (found < len(known)))
        return known.take(pa.array(found)), at

    return read


def _fixed(size: int) -> Reader:
    if not 0 < size <= _MOST_FIXED:
        raise OddError

    def read(data: _Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        found, after = _gathered(data, at, end, size)
        return pa.Array.from_buffers(pa.binary(size), len(at), [None, pa.py_buffer(np.ascontiguousarray(found))]), after

    return read


def _record(schema: Mapping[str, Any], named: Mapping[str, Any], type: pa.DataType) -> Reader:
    fields = list(type)
    parts = [_reader(each["type"], named, kind.type) for each, kind in zip(schema["fields"], fields, strict=True)]

    def read(data: _Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        arrays = []
        for part in parts:
            array, at = part(data, at, end)
            arrays.append(array)
        return pa.StructArray.from_arrays(arrays, fields=fields), at

    return read


def _union(schema: list[Any], named: Mapping[str, Any], type: pa.DataType) -> Reader:
    meant = [number for number, each in enumerate(schema) if each != "null"]
    if len(meant) != 1:
        raise OddError
    inner = _reader(schema[meant[0]], named, type)

    def read(data: _Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        branch, at = _longs(data, at, end)
        _check((branch >= 0) & (branch < len(schema)))
        there = branch == meant[0]
        if there.all():
            return inner(data, at, end)
        chosen = np.flatnonzero(there)
        array, after = inner(data, at[chosen], end[chosen])
        at[chosen] = after
        return array.take(pa.array(np.cumsum(there) - 1, mask=~there)), at

    return read


_SIMPLE: dict[str, Callable[[pa.DataType], Reader]] = {
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _floating("<f4"),
    "double": _floating("<f8"),
    "string": _text,
    "bytes": _text,
}
