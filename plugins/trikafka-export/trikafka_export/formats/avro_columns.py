"""A fast decoder for plain Avro schemas: numpy reads one field of many values at a time.

The decoder reads values written with the pinned schema itself, and records whose fields have been
added or removed since. If one value of a part is odd (a surplus byte, invalid UTF-8),
:class:`AvroDecoder` reads that part again with fastavro, which finds the wrong value. Without
numpy, fastavro reads everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

from .avro_unions import groups
from .column_bytes import Data, OddError, check, gathered, texts, varints

_MOST_FIXED = 64
#: The most items of an array. Each item takes a turn.
_MOST_ITEMS = 256
#: Takes positions and the end of each value; returns the values and the positions behind them.
Reader = Callable[["Data", Any, Any], tuple[pa.Array, Any]]


# fastavro makes Python objects of every value, and Arrow then copies them into columns. Here a
# schema is compiled into a tree of readers. Each reader gets the positions of all values in one
# buffer and returns a column and the positions behind it. No Python object exists per value, which
# is many times as fast. With five fields a row, one core parses 6 million rows a second. If
# fastavro has to read the rows again, one core parses 190,000 to 490,000 rows a second.
#
# The price is that a fault cannot be attributed to its value: positions become meaningless behind a
# wrong length. So a reader never reports faults. One odd value (a surplus byte, invalid UTF-8, a
# branch that does not exist) raises OddError for the whole part. AvroDecoder then reads that part
# again with fastavro, which finds the wrong values. A reader may therefore refuse anything that is
# rare, but it must never return a value that fastavro would not return.
def reader_of(
    schema: Any, named: Mapping[str, Any], type: pa.DataType
) -> Callable[[pa.BinaryArray], pa.Array] | None:
    """Return a function that reads values of a parsed schema into columns of ``type``.

    The function raises :exc:`OddError`. Return ``None`` if the schema is not plain enough.
    """
    if np is None:
        return None
    try:
        read = _reader(schema, named, type)
    except OddError:
        return None

    def whole(column: pa.BinaryArray) -> pa.Array:
        data = Data(column)
        try:
            array, at = read(data, data.offsets[:-1].copy(), data.offsets[1:])
        except (pa.ArrowException, OverflowError, IndexError) as error:
            raise OddError from error
        check(at == data.offsets[1:])
        return array

    return whole


def resolved_reader_of(
    written: Callable[[pa.BinaryArray], pa.Array], fields: Sequence[tuple[pa.Field, Any]]
) -> Callable[[pa.BinaryArray], pa.Array]:
    """Return a function that adds defaults to the records that ``written`` reads.

    The result has the given fields; a field that was not written gets its default.
    """

    def whole(column: pa.BinaryArray) -> pa.Array:
        found = written(column)
        none = pa.array(np.zeros(len(column), np.int64))
        arrays = [
            found.field(field.name)
            if found.type.get_field_index(field.name) >= 0
            else pa.array([default], field.type).take(none)
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
        return _decimal(type, schema.get("size"))
    if kind == "record":
        return _record(schema, named, type)
    if kind == "array":
        return _array(_reader(schema["items"], named, type.value_type), type)
    if kind == "map":
        return _map(_text(pa.string()), _reader(schema["values"], named, type.item_type), type)
    if kind == "enum":
        return _enum(schema["symbols"])
    if kind == "fixed":
        return _fixed(schema["size"])
    if kind in _SIMPLE:
        return _SIMPLE[kind](type)
    if kind in named:
        return _reader(named[kind], named, type)
    raise OddError


def _longs(data: Data, at: Any, end: Any) -> tuple[Any, Any]:
    """Read zigzag numbers, with the sign in the lowest bit."""
    found, at = varints(data, at, end)
    return (found >> np.uint64(1)).astype(np.int64) ^ -(found & 1).astype(np.int64), at


def _int(type: pa.DataType) -> Reader:
    def read(data: Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        found, at = _longs(data, at, end)
        check((found >= -(2**31)) & (found < 2**31))
        return pa.array(found.astype(np.int32)).view(type), at

    return read


def _long(type: pa.DataType) -> Reader:
    def read(data: Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        found, at = _longs(data, at, end)
        return pa.array(found).view(type), at

    return read


def _gathered(data: Data, at: Any, end: Any, size: int) -> tuple[Any, Any]:
    """Read ``size`` bytes of each value."""
    check(at + size <= end)
    return gathered(data, at, size), at + size


def _floating(code: str) -> Callable[[pa.DataType], Reader]:
    def of(type: pa.DataType) -> Reader:
        def read(data: Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
            found, at = _gathered(data, at, end, np.dtype(code).itemsize)
            return pa.array(found.view(code).reshape(-1), type), at

        return read

    return of


def _boolean(type: pa.DataType) -> Reader:
    def read(data: Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        found = data.bytes[at]
        check((found <= 1) & (at < end))
        return pa.array(found.astype(np.bool_)), at + 1

    return read


def _text(type: pa.DataType) -> Reader:
    def read(data: Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        length, at = _longs(data, at, end)
        check((length >= 0) & (length <= end - at))
        return texts(data, at, at + length, type), at + length

    return read


def _decimal(type: pa.DataType, size: int | None) -> Reader:
    """Read the big-endian bytes of a decimal as Arrow's little-endian bytes of fixed width."""
    width = 16
    if not pa.types.is_decimal128(type) or (size is not None and not 0 < size <= width):
        raise OddError

    def read(data: Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        length, at = _longs(data, at, end) if size is None else (np.full(len(at), size), at)
        check((length >= 0) & (length <= end - at) & (length <= width))
        places = (at + length)[:, None] - 1 - np.arange(width)
        below = np.where((length > 0) & (data.bytes[at] >= 0x80), 0xFF, 0).astype(np.uint8)
        found = np.where(places >= at[:, None], data.bytes[np.maximum(places, 0)], below[:, None])
        array = pa.Array.from_buffers(
            type, len(at), [None, pa.py_buffer(np.ascontiguousarray(found))]
        )
        array.validate(full=True)  # The number may have more digits than its type.
        return array, at + length

    return read


def _enum(symbols: Sequence[str]) -> Reader:
    known = pa.array(symbols, pa.string())

    def read(data: Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        found, at = _longs(data, at, end)
        check((found >= 0) & (found < len(known)))
        return known.take(pa.array(found)), at

    return read


def _fixed(size: int) -> Reader:
    if not 0 < size <= _MOST_FIXED:
        raise OddError

    def read(data: Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        found, after = _gathered(data, at, end, size)
        return pa.Array.from_buffers(
            pa.binary(size), len(at), [None, pa.py_buffer(np.ascontiguousarray(found))]
        ), after

    return read


def _record(schema: Mapping[str, Any], named: Mapping[str, Any], type: pa.DataType) -> Reader:
    fields = list(type)
    parts = [
        _reader(each["type"], named, kind.type)
        for each, kind in zip(schema["fields"], fields, strict=True)
    ]

    def read(data: Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        arrays = []
        for part in parts:
            array, at = part(data, at, end)
            arrays.append(array)
        return pa.StructArray.from_arrays(arrays, fields=fields), at

    return read


def _array(inner: Reader, type: pa.DataType) -> Reader:
    def read(data: Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        (items,), offsets, at = _items(data, at, end, [inner])
        return pa.ListArray.from_arrays(offsets, items, type=type), at

    return read


def _map(key: Reader, inner: Reader, type: pa.DataType) -> Reader:
    def read(data: Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        (keys, items), offsets, at = _items(data, at, end, [key, inner])
        owners = np.repeat(np.arange(len(at)), np.diff(offsets.to_numpy()))
        numbers = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
        # A key that occurs twice is odd: fastavro keeps the last one.
        if len(np.unique(owners * (len(keys) + 1) + numbers)) < len(keys):
            raise OddError
        return pa.MapArray.from_arrays(offsets, keys, items, type=type), at

    return read


def _items(
    data: Data, at: Any, end: Any, parts: Sequence[Reader]
) -> tuple[list[pa.Array], pa.Array, Any]:
    """Read the items of arrays, and put them into the order of their arrays.

    The first item of all arrays is read, then the second of all that have one, and so on. An array
    is a block of items behind their number, followed by an empty block. More blocks are odd.
    """
    count, at = _longs(data, at, end)
    check((count >= 0) & (count <= _MOST_ITEMS))
    offsets = np.concatenate([[0], np.cumsum(count)])
    found: list[list[pa.Array]] = [[] for _ in parts]
    places = []
    for number in range(int(count.max(initial=0))):
        chosen = np.flatnonzero(count > number)
        after, limit = at[chosen], end[chosen]
        for arrays, part in zip(found, parts, strict=True):
            array, after = part(data, after, limit)
            arrays.append(array)
        at[chosen] = after
        places.append(offsets[:-1][chosen] + number)
    filled = np.flatnonzero(count > 0)
    last, after = _longs(data, at[filled], end[filled])
    at[filled] = after
    check(last == 0)
    if not places:
        empty = [part(data, at[:0], end[:0])[0] for part in parts]
        return empty, pa.array(offsets, pa.int32()), at
    order = pa.array(np.argsort(np.concatenate(places)))
    return (
        [pa.concat_arrays(arrays).take(order) for arrays in found],
        pa.array(offsets, pa.int32()),
        at,
    )


def _union(schema: list[Any], named: Mapping[str, Any], type: pa.DataType) -> Reader:
    members = groups(schema)
    if len(members) == 1 and len(members[0]) == 1:
        return _nullable(schema, members[0][0], _reader(schema[members[0][0]], named, type))
    kinds = [type] if len(members) == 1 else [field.type for field in type]
    number_of = {place: number for number, places in enumerate(members) for place in places}
    parts = {
        place: _branch(schema[place], named, kinds[number]) for place, number in number_of.items()
    }

    def read(data: Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        branch, at = _longs(data, at, end)
        check((branch >= 0) & (branch < len(schema)))
        arrays: list[list[pa.Array]] = [[] for _ in kinds]
        places: list[list[Any]] = [[] for _ in kinds]
        for place, part in parts.items():
            chosen = np.flatnonzero(branch == place)
            array, after = part(data, at[chosen], end[chosen])
            at[chosen] = after
            arrays[number_of[place]].append(array)
            places[number_of[place]].append(chosen)
        found = [
            _scattered(arrays[number], places[number], len(at)) for number in range(len(kinds))
        ]
        if len(members) == 1:
            return found[0], at
        none = pa.array(~np.isin(branch, list(parts)))
        return pa.StructArray.from_arrays(found, fields=list(type), mask=none), at

    return read


def _branch(schema: Any, named: Mapping[str, Any], type: pa.DataType) -> Reader:
    """Read a branch with its own type, which may be narrower than the member's."""
    narrow = {"int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64()}
    kind = schema.get("type") if isinstance(schema, dict) else schema
    natural = narrow.get(kind) if isinstance(kind, str) else None
    if natural is None or natural == type or type not in narrow.values():
        return _reader(schema, named, type)
    inner = _reader(schema, named, natural)

    def read(data: Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        array, at = inner(data, at, end)
        return array.cast(type), at

    return read


def _scattered(arrays: list[pa.Array], places: list[Any], length: int) -> pa.Array:
    """Return an array of that length with these values in their places, and null elsewhere."""
    order = np.full(length, -1)
    whole = np.concatenate(places)
    order[whole] = np.arange(len(whole))
    return pa.concat_arrays(arrays).take(pa.array(order, mask=order < 0))


def _nullable(schema: list[Any], meant: int, inner: Reader) -> Reader:
    def read(data: Data, at: Any, end: Any) -> tuple[pa.Array, Any]:
        branch, at = _longs(data, at, end)
        check((branch >= 0) & (branch < len(schema)))
        there = branch == meant
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
