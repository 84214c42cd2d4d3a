"""The columns of Spark's Kafka connector as an Arrow schema, and the conversion of batches to them.

The Parquet files of an export and the rows of the data source have the same columns. Spark compares
the Arrow schema of a data source exactly: order, nullability, ``binary`` (not ``large_binary``),
microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

_HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
#: All columns, with ``headers``, which Spark's connector has only with ``includeHeaders``.
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", _HEADERS),
    ]
)

#: The largest time in milliseconds that a column of microseconds can hold.
_MOST_MS = (2**63 - 1) // 1000


def spark_table(batches: Iterable[pa.RecordBatch], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return the batches of ``RecordBatch.to_arrow()`` as one table with ``schema``.

    Keys, values and offsets are not copied.
    """
    table = pa.Table.from_batches(batches)
    columns = []
    for field in schema:
        column = table.column("timestamp_type" if field.name == "timestampType" else field.name)
        if field.name == "headers":
            columns.append(_headers(column))
        else:
            columns.append(column if column.type == field.type else _cast(column, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(column: pa.ChunkedArray, type: pa.DataType) -> pa.ChunkedArray:
    try:
        return column.cast(type)
    except pa.ArrowInvalid:
        # A producer may send a time that microseconds cannot hold. It becomes null, so that the
        # record itself gets through.
        if not pa.types.is_timestamp(column.type):
            raise
        import pyarrow.compute as pc

        number = column.cast(pa.int64())
        fits = pc.and_(pc.less_equal(number, _MOST_MS), pc.greater_equal(number, -_MOST_MS))
        return pc.if_else(fits, column, pa.scalar(None, column.type)).cast(type)


def _headers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the headers with Spark's names and nullability, and null for a record without headers.

    The buffers are shared, not copied.
    """
    if not any(len(chunk.values) for chunk in column.chunks):
        return pa.chunked_array([pa.nulls(len(column), _HEADERS)])
    return pa.chunked_array([_with_nulls(chunk) for chunk in column.chunks], _HEADERS)


def _with_nulls(column: pa.ListArray) -> pa.ListArray:
    # Not at the top: Spark starts a process to plan each stream, which needs no pyarrow.compute.
    import pyarrow.compute as pc

    names = column.values.field(0)
    values = column.values.field(1)
    entries = pa.StructArray.from_arrays([names, values], fields=list(_HEADERS.value_type))
    none = pc.equal(pc.list_value_length(column), 0)
    return pa.ListArray.from_arrays(column.offsets, entries, type=_HEADERS, mask=none)
