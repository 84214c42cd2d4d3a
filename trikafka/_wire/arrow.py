"""Columns to Arrow and back without copying. Imports pyarrow; nothing imports this module before somebody asks for Arrow.

On the way to Arrow no Python value goes through pyarrow's converters: the first that does imports pandas where it is installed,
which holds up the event loop for a second or more.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trikafka._wire.columns import Buffer, Columns, slice_bits

HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("item", HEADER, nullable=False))
TIMESTAMP = pa.timestamp("ms", tz="UTC")
#: The bytes of a timestamp that is not there (-1); where they do not occur, none is missing.
_MAYBE_NONE = b"\xff" * 8

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", TIMESTAMP),
        pa.field("timestamp_type", pa.int8(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS, nullable=False),
    ]
)


def to_arrow(topic: str, partition: int, columns: Columns) -> pa.RecordBatch:
    """The records of one partition as an Arrow record batch over the memory of ``columns``."""
    count = columns.count
    return pa.RecordBatch.from_arrays(
        [
            pa.DictionaryArray.from_arrays(_fixed(pa.int8(), bytes(count), count), _texts(topic)),
            _fixed(pa.int32(), partition.to_bytes(4, "little", signed=True) * count, count),
            _fixed(pa.int64(), columns.offsets, count),
            _timestamps(columns),
            _fixed(pa.int8(), columns.timestamp_types, count),
            _binary(pa.binary(), columns.key_offsets, columns.key_data, columns.key_validity, count),
            _binary(pa.binary(), columns.value_offsets, columns.value_data, columns.value_validity, count),
            _headers(columns),
        ],
        schema=SCHEMA,
    )


def _fixed(kind: pa.DataType, data: Buffer, count: int) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])


def _binary(kind: pa.DataType, offsets: memoryview, data: Buffer, validity: Buffer | None, count: int) -> pa.Array:
    bitmap = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)])


def _texts(*texts: str) -> pa.Array:
    data = "".join(texts).encode()
    offsets = memoryview(array("i", accumulate((len(text.encode()) for text in texts), initial=0)))
    return _binary(pa.string(), offsets, data, None, len(texts))


def _timestamps(columns: Columns) -> pa.Array:
    data = pa.py_buffer(columns.timestamps)
    bitmap = None
    if _MAYBE_NONE in columns.timestamps.tobytes():
        present = pc.not_equal(pa.Array.from_buffers(pa.int64(), columns.count, [None, data]), -1)
        bitmap = None if present.true_count == columns.count else present.buffers()[1]
    return pa.Array.from_buffers(TIMESTAMP, columns.count, [bitmap, data])


def _no_values() -> pa.Array:
    return _binary(pa.binary(), memoryview(bytes(4)), b"", None, 0)


def _headers(columns: Columns) -> pa.Array:
    offsets: Any = columns.header_offsets
    if offsets is None:
        entries = pa.StructArray.from_arrays([_texts(), _no_values()], fields=list(HEADER))
        return pa.Array.from_buffers(HEADERS, columns.count, [None, pa.py_buffer(bytes(4 * columns.count + 4))], children=[entries])
    total = len(columns.header_name_offsets) - 1  # type: ignore[arg-type]
    names = _binary(pa.string(), columns.header_name_offsets, columns.header_name_data, None, total)  # type: ignore[arg-type]
    values = _binary(
        pa.binary(),
        columns.header_value_offsets,  # type: ignore[arg-type]
        columns.header_value_data,  # type: ignore[arg-type]
        columns.header_value_validity,
        total,
    )
    entries = pa.StructArray.from_arrays([names, values], fields=list(HEADER))
    return pa.Array.from_buffers(HEADERS, columns.count, [None, pa.py_buffer(offsets)], children=[entries])


def from_arrow(
    data: Any,
    *,
    key: str | None = None,
    value: str | None = None,
    timestamp: str | None = None,
    headers: str | None = None,
    default_timestamp: int = -1,
) -> Iterator[Columns]:
    """Columns to encode from, one for each chunk of ``data``, sharing its memory where its types allow that.

    ``data`` is a pyarrow Table or RecordBatch, or anything with Arrow's PyCapsule interface; the other arguments name its
    columns. Keys and values: binary or string of any width. Timestamps: ms since the epoch, or timestamps; null is
    ``default_timestamp``. Headers: lists of (name, value) structs, or maps. Raises ``ValueError`` for other types, and
    where a chunk holds 2 GiB or more of keys or values. The columns' ``offsets`` are 0.
    """
    table = data if isinstance(data, pa.Table) else _as_table(data)
    for name in (key, value, timestamp, headers):
        if name is not None and name not in table.column_names:
            raise ValueError(f"no column {name!r}; there are: {', '.join(table.column_names)}")
    for batch in table.to_batches():
        count = batch.num_rows
        if not count:
            continue
        zeros = memoryview(bytes(8 * count))
        yield Columns(
            count,
            zeros.cast("q"),
            _stamps_of(batch, timestamp, default_timestamp),
            zeros[:count].cast("b"),
            *_binary_of(None if key is None else batch.column(key), count),
            *_binary_of(None if value is None else batch.column(value), count),
            *((None,) * 6 if headers is None else _headers_of(batch.column(headers))),
        )


def _as_table(data: Any) -> pa.Table:
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return pa.table(data)
    raise ValueError(f"{type(data).__name__} is neither an Arrow table nor has Arrow's PyCapsule interface")


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as error:
        raise ValueError(str(error)) from None
    except pa.ArrowNotImplementedError:
        raise ValueError(f"a column of {array.type} cannot become one of {kind}") from None


def _numbers(array: pa.Array, form: str, width: int, count: int) -> memoryview:
    whole = memoryview(array.buffers()[1])[array.offset * width : (array.offset + count) * width]
    return whole.cast("B").cast(form)  # type: ignore[call-overload,no-any-return]


def _stamps_of(batch: pa.RecordBatch, name: str | None, default: int) -> memoryview:
    if name is None:
        return memoryview(default.to_bytes(8, "little", signed=True) * batch.num_rows).cast("q")
    array = batch.column(name)
    if pa.types.is_timestamp(array.type):
        try:
            array = array.cast(pa.timestamp("ms", tz=array.type.tz), safe=False)
        except pa.ArrowInvalid as error:
            raise ValueError(str(error)) from None
    array = _cast(array, pa.int64())
    if array.null_count:
        array = array.fill_null(default)
    return _numbers(array, "q", 8, batch.num_rows)


def _binary_of(array: pa.Array | None, count: int) -> tuple[memoryview, Buffer, Buffer | None]:
    """Offsets, data and validity of a column; all null for no column."""
    if array is None:
        return memoryview(bytes(4 * count + 4)).cast("i"), b"", bytes((count + 7) // 8)
    if not pa.types.is_binary(array.type):
        if not (pa.types.is_string(array.type) or pa.types.is_null(array.type) or "binary" in str(array.type)):
            array = _cast(array, pa.string())
        array = _cast(array, pa.binary())
    if not count:
        return memoryview(bytes(4)).cast("i"), b"", None
    validity, _, data = array.buffers()
    bits = slice_bits(memoryview(validity), array.offset, array.offset + count) if array.null_count else None
    return _numbers(array, "i", 4, count + 1), b"" if data is None else memoryview(data), bits


def _headers_of(array: pa.Array) -> tuple[Any, ...]:
    if array.null_count:
        array = pa.array([item or [] for item in array.to_pylist()], array.type)
    if pa.types.is_map(array.type):
        names, values, count = array.keys, array.items, len(array.keys)
    elif pa.types.is_list(array.type) and pa.types.is_struct(array.type.value_type) and array.type.value_type.num_fields == 2:
        names, values = array.values.flatten()
        count = len(array.values)
    else:
        raise ValueError(f"headers must be lists of (name, value) structs, or maps; not {array.type}")
    if names.null_count:
        raise ValueError("a header has no name")
    starts = _numbers(array.offsets, "i", 4, len(array) + 1)
    return (starts, *_binary_of(names, count)[:2], *_binary_of(values, count))
