"""Columns to Arrow without copying. Imports pyarrow; nothing imports this module before somebody asks for Arrow."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trikafka._wire.columns import Buffer, Columns

HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("item", HEADER, nullable=False))
TIMESTAMP = pa.timestamp("ms", tz="UTC")

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
            pa.DictionaryArray.from_arrays(_fixed(pa.int8(), bytes(count), count), pa.array([topic], pa.string())),
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


def _timestamps(columns: Columns) -> pa.Array:
    data = pa.py_buffer(columns.timestamps)
    present = pc.not_equal(pa.Array.from_buffers(pa.int64(), columns.count, [None, data]), -1)
    bitmap = None if present.true_count == columns.count else present.buffers()[1]
    return pa.Array.from_buffers(TIMESTAMP, columns.count, [bitmap, data])


def _headers(columns: Columns) -> pa.Array:
    offsets: Any = columns.header_offsets
    if offsets is None:
        entries = pa.array([], HEADER)
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
