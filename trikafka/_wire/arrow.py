"""Columns to Arrow and back without copying.

Imports pyarrow. No module imports this one before a caller uses Arrow.

On the way to Arrow no Python value goes through pyarrow's converters: the first one that does
imports pandas where it is installed, which blocks the event loop for a second or more.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trikafka._wire.columns import Buffer, Columns, slice_bits
from trikafka.errors import ConfigurationError

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
    """Return one partition's records as an Arrow record batch over the memory of ``columns``."""
    count = columns.count
    return pa.RecordBatch.from_arrays(
        [
            # All indices are 0, and that is in bounds: to check each of them would cost a look at
            # the column.
            pa.DictionaryArray.from_arrays(
                _fixed(pa.int8(), _zeros(count), count), _topic(topic), safe=False
            ),
            _fixed(
                pa.int32(),
                partition.to_bytes(4, "little", signed=True) * count
                if partition
                else _zeros(4 * count),
                count,
            ),
            _fixed(pa.int64(), columns.offsets, count),
            _timestamps(columns),
            _fixed(pa.int8(), columns.timestamp_types, count),
            _binary(
                pa.binary(), columns.key_offsets, columns.key_data, columns.key_validity, count
            ),
            _binary(
                pa.binary(),
                columns.value_offsets,
                columns.value_data,
                columns.value_validity,
                count,
            ),
            _headers(columns),
        ],
        schema=SCHEMA,
    )


def _fixed(kind: pa.DataType, data: Buffer, count: int) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])


def _binary(
    kind: pa.DataType, offsets: memoryview, data: Buffer, validity: Buffer | None, count: int
) -> pa.Array:
    bitmap = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)])


def _texts(*texts: str) -> pa.Array:
    data = "".join(texts).encode()
    offsets = memoryview(array("i", accumulate((len(text.encode()) for text in texts), initial=0)))
    return _binary(pa.string(), offsets, data, None, len(texts))


@lru_cache(maxsize=64)
def _topic(name: str) -> pa.Array:
    """Return the dictionary of the topic column."""
    return _texts(name)


def _timestamps(columns: Columns) -> pa.Array:
    data = pa.py_buffer(columns.timestamps)
    numbers = pa.Array.from_buffers(pa.int64(), columns.count, [None, data])
    bitmap = None
    if columns.count and pc.min_max(numbers)["min"].as_py() < 0:  # -1 stands for none
        present = pc.not_equal(numbers, -1)
        bitmap = None if present.true_count == columns.count else present.buffers()[1]
    return pa.Array.from_buffers(TIMESTAMP, columns.count, [bitmap, data])


@cache
def _no_headers() -> pa.Array:
    """Return the entries of a column without any headers; all such columns share them."""
    values = _binary(pa.binary(), memoryview(bytes(4)), b"", None, 0)
    return pa.StructArray.from_arrays([_texts(), values], fields=list(HEADER))


def _headers(columns: Columns) -> pa.Array:
    offsets: Any = columns.header_offsets
    if offsets is None:
        buffers = [None, pa.py_buffer(_zeros(4 * columns.count + 4))]
        return pa.Array.from_buffers(HEADERS, columns.count, buffers, children=[_no_headers()])
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
    return pa.Array.from_buffers(
        HEADERS, columns.count, [None, pa.py_buffer(offsets)], children=[entries]
    )


#: Shared by the pieces of all tables, read and written: new memory would cost more than checking a
#: piece's rows.
_ZEROS = bytes(1 << 17)
#: The advice for data that is not a table.
_EXAMPLE = 'give a table with the values in a column, such as pa.table({"value": values})'


class ArrowRows:
    """A table to be written to a topic: the roles of its columns, and its rows, piece by piece.

    ``data`` is a pyarrow Table or RecordBatch, or anything with Arrow's PyCapsule interface (a
    stream is read to its end). The other arguments name columns. Without a name, the column with
    the argument's name is used if there is one. For the values, the only remaining column is used
    otherwise, if its type allows that.

    Raises:
        ConfigurationError: a role has no fitting column; the message lists the columns.
    """

    def __init__(
        self,
        data: Any,
        *,
        key: str | None = None,
        value: str | None = None,
        partition: str | int | None = None,
        timestamp: str | None = None,
        headers: str | None = None,
    ) -> None:
        table = data if isinstance(data, pa.Table) else _as_table(data)
        #: The partition of all rows, or ``None``.
        self.partition = None if isinstance(partition, str) else partition
        wanted = {"key": key, "value": value, "timestamp": timestamp, "headers": headers}
        if self.partition is None:
            wanted["partition"] = partition if isinstance(partition, str) else None
        self._names = _choose(table.schema, wanted)
        self._table = table.select(sorted(set(self._names.values())))

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def release(self) -> None:
        """Release the table's memory, since its rows have been copied.

        The rows must not be used afterwards.
        """
        # Not replaced by an empty table: pyarrow would import pandas to make arrays of lists.
        del self._table

    @property
    def keyed(self) -> bool:
        """True if there is a column of keys."""
        return "key" in self._names

    @property
    def shared(self) -> bool:
        """True if all columns are read in place, so that a piece costs no copy at any size."""
        simple = (pa.types.is_binary, pa.types.is_string, pa.types.is_primitive)
        return all(any(fits(column.type) for fits in simple) for column in self._table.schema)

    def pieces(self, max_rows: int, max_bytes: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows in pieces of about these sizes, each with the number of its first row.

        Nothing is copied.
        """
        first = 0
        for chunk in self._table.to_batches():
            count = chunk.num_rows
            if not count:
                continue
            chunk = _without_views(chunk)
            # Multiples of eight: a slice that begins at a whole byte of its bitmaps shares them.
            step = max(8, min(max_rows, max_bytes * count // max(1, _size(chunk))) & ~7)
            for start in range(0, count, step):
                yield first + start, chunk.slice(start, step)
            first += count

    def columns(self, piece: pa.RecordBatch, default_timestamp: int) -> Columns:
        """Return the columns of a piece to encode from; null timestamps become the default.

        The piece's memory is shared where types allow that. Raises :exc:`ConfigurationError` for
        contents that cannot be converted.
        """
        count = piece.num_rows
        zeros = _zeros(8 * count)
        found = {role: piece.column(name) for role, name in self._names.items()}
        try:
            return Columns(
                count,
                zeros.cast("q"),
                _stamps_of(found.get("timestamp"), count, default_timestamp),
                _zeros(count).cast("b"),
                *_binary_of(found.get("key"), count),
                *_binary_of(found.get("value"), count),
                *(_headers_of(found["headers"]) if "headers" in found else (None,) * 6),
            )
        except pa.ArrowException as error:
            raise ConfigurationError(f"the table cannot be read as records: {error}") from error

    def partitions(self, piece: pa.RecordBatch) -> memoryview | None:
        """Return the partition of each row of a piece, as 32-bit integers; -1 where it is null.

        ``None``: there is no such column.
        """
        name = self._names.get("partition")
        if name is None:
            return None
        array = piece.column(name)
        span = pc.min_max(array)
        if span["min"].is_valid and not 0 <= span["min"].as_py() <= span["max"].as_py() < 2**31:
            raise ConfigurationError(
                f"column {name!r} has partition numbers from {span['min']} to {span['max']}"
            )
        return _numbers(array.cast(pa.int32()).fill_null(-1), "i", 4, piece.num_rows)


def _as_table(data: Any) -> pa.Table:
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        try:
            return pa.table(data)
        except pa.ArrowInvalid as error:  # an array has the interface, and no columns
            raise ConfigurationError(
                f"{type(data).__name__} cannot be read as a table ({error}): {_EXAMPLE}"
            ) from error
    raise ConfigurationError(
        f"{type(data).__name__} is neither an Arrow table nor has Arrow's PyCapsule interface: "
        f"{_EXAMPLE}"
    )


def _choose(schema: pa.Schema, wanted: dict[str, str | None]) -> dict[str, str]:
    """Return the column of each role. Raises :exc:`ConfigurationError`."""
    there = ", ".join(f"{field.name} ({field.type})" for field in schema) or "none"
    for role, name in wanted.items():
        if name is not None and not isinstance(name, str):
            raise ConfigurationError(
                f"{role} must be the name of a column, not {name!r}; the columns are: {there}"
            )
    names = {
        role: name or role
        for role, name in wanted.items()
        if name is not None or role in schema.names
    }
    if "value" not in names:
        left = [field for field in schema if field.name not in names.values()]
        if len(left) != 1 or not _is_text(left[0].type):
            raise ConfigurationError(
                f"say which column has the values, with value=; the columns are: {there}"
            )
        names["value"] = left[0].name
    for role, name in names.items():
        found = schema.get_all_field_indices(name)
        if len(found) != 1:
            many = "no column" if not found else "more than one column"
            raise ConfigurationError(f"{role}: there is {many} {name!r}; the columns are: {there}")
        kind = schema.field(name).type
        fits, what = _ROLES[role]
        if not (fits(kind) or pa.types.is_null(kind)):
            raise ConfigurationError(f"{role}: column {name!r} is {kind}, not {what}")
    return names


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(fits(kind) for fits in _TEXT)


def _is_headers(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _is_text(kind.key_type) and _is_text(kind.item_type)
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(
        kind.value_type
    ):
        return False
    fields = list(kind.value_type)
    return len(fields) == 2 and all(
        _is_text(field.type) or pa.types.is_null(field.type) for field in fields
    )


_TEXT = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
)
#: The types allowed for each role's column: the check, and its description.
_ROLES: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "key": (_is_text, "binary or strings; cast or serialize it first"),
    "value": (_is_text, "binary or strings; cast or serialize it first"),
    "timestamp": (
        lambda kind: pa.types.is_timestamp(kind) or pa.types.is_integer(kind),
        "timestamps or integers (milliseconds)",
    ),
    "headers": (_is_headers, "lists of (name, value) structs, or maps, of binary or strings"),
    "partition": (pa.types.is_integer, "integers"),
}


def _without_views(chunk: pa.RecordBatch) -> pa.RecordBatch:
    """Return the chunk with dictionaries that pyarrow can decode.

    It cannot decode those whose values are views.
    """
    for place, column in enumerate(chunk.columns):
        if pa.types.is_dictionary(column.type) and column.type.value_type in (
            pa.string_view(),
            pa.binary_view(),
        ):
            whole = pa.string() if column.type.value_type == pa.string_view() else pa.binary()
            plain = pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(whole))
            chunk = chunk.set_column(place, chunk.schema.names[place], plain)
    return chunk


def _size(chunk: pa.RecordBatch) -> int:
    """Return about how many bytes the rows of a chunk have."""
    size = int(chunk.nbytes)
    for column in chunk.columns:
        if pa.types.is_dictionary(column.type):
            size += column.dictionary.nbytes * chunk.num_rows // max(1, len(column.dictionary))
    return size


def _zeros(size: int) -> memoryview:
    return memoryview(_ZEROS)[:size] if size <= len(_ZEROS) else memoryview(bytes(size))


def _numbers(array: pa.Array, form: str, width: int, count: int) -> memoryview:
    whole = memoryview(array.buffers()[1])[array.offset * width : (array.offset + count) * width]
    return whole.cast("B").cast(form)  # type: ignore[call-overload,no-any-return]


def _stamps_of(array: pa.Array | None, count: int, default: int) -> memoryview:
    if array is None:
        return (
            memoryview(default.to_bytes(8, "little", signed=True) * count)
            if default
            else _zeros(8 * count)
        ).cast("q")
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", tz=array.type.tz), safe=False)
    array = array.cast(pa.int64())
    return _numbers(array.fill_null(default) if array.null_count else array, "q", 8, count)


def _binary_of(array: pa.Array | None, count: int) -> tuple[memoryview, Buffer, Buffer | None]:
    """Return offsets, data and validity of a column; without a column all values are null."""
    if array is None or pa.types.is_null(array.type):
        return memoryview(bytes(4 * count + 4)).cast("i"), b"", bytes((count + 7) // 8)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.string())
    if not pa.types.is_binary(array.type):
        array = array.cast(pa.binary())
    if not count:
        return memoryview(bytes(4)).cast("i"), b"", None
    validity, _, data = array.buffers()
    bits = (
        slice_bits(memoryview(validity), array.offset, array.offset + count)
        if array.null_count
        else None
    )
    return _numbers(array, "i", 4, count + 1), b"" if data is None else memoryview(data), bits


def _headers_of(array: pa.Array) -> tuple[Any, ...]:
    if pa.types.is_null(array.type):
        return (None,) * 6
    if pa.types.is_large_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    count = len(array)
    if array.null_count and pc.sum(_lengths(array).filter(array.is_null())).as_py():
        # A null list whose offsets span headers: write it as an empty list.
        array = pa.array([item or [] for item in array.to_pylist()], array.type)
    first = array.offsets[0].as_py()
    last = array.offsets[count].as_py()
    if pa.types.is_map(array.type):
        names = array.keys[first:last]
        values = array.items[first:last]
    else:
        names, values = array.values[first:last].flatten()
    if names.null_count:
        raise ConfigurationError("a header has no name")
    starts = _numbers(pc.subtract(array.offsets, pa.scalar(first, pa.int32())), "i", 4, count + 1)
    return (starts, *_binary_of(names, last - first)[:2], *_binary_of(values, last - first))


def _lengths(array: pa.Array) -> pa.Array:
    return pc.subtract(array.offsets[1:], array.offsets[:-1])


#: The last line on purpose: while a thread imports this module, others see it incomplete.
LOADED = True
