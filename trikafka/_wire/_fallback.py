"""The record path in pure Python: the bytes, values and errors of ``_native.pyx``, only slower.

Input is hostile. Every number read is checked against the end of its record before it is used.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trikafka._wire import _format as f
from trikafka._wire import compression as codecs
from trikafka._wire._fallback_iterating import Cursor, RecordIterator, Turn
from trikafka._wire._fallback_json import split_json_lines
from trikafka._wire._fallback_lines import render_rows, split_lines
from trikafka._wire._fallback_partitioning import (
    checked,
    checked_headers,
    find_unfit,
    frozen,
    group_rows,
    hash_key,
    murmur2,
    partition_columns,
)
from trikafka._wire._fallback_producing import (
    Appender,
    BufferMemory,
    DeliveryHandle,
    OpenBatches,
    QuickSending,
)
from trikafka._wire._fallback_sharing import (
    AcquiredStates,
    BlockScopes,
    BufferFront,
    DeliveryIterator,
    HeldRecords,
    HoldingCounts,
    OpenEntry,
)
from trikafka._wire._format import Buffer, Section
from trikafka.types import AnyRecord, Headers, Record, TimestampType

if TYPE_CHECKING:
    from trikafka._wire._columns import Columns

__all__ = [
    "AcquiredStates",
    "BlockScopes",
    "Appender",
    "BatchEncoder",
    "BufferFront",
    "BufferMemory",
    "Cursor",
    "DeliveryHandle",
    "DeliveryIterator",
    "HeldRecords",
    "HoldingCounts",
    "OpenBatches",
    "OpenEntry",
    "QuickSending",
    "RecordIterator",
    "Turn",
    "end_of_batches",
    "fill",
    "find_unfit",
    "free_memory",
    "group_rows",
    "hash_key",
    "iterate",
    "make_records",
    "murmur2",
    "partition_columns",
    "render_rows",
    "split_json_lines",
    "split_lines",
    "trim_memory",
    "uncount_references",
    "walk",
    "writable_memory",
]

_BATCH_HEAD = struct.Struct(">qiibIhi")
#: The records that iteration makes at a time: enough to hide the call, few enough to stay lazy.
_CHUNK = 128
_TIMESTAMP_TYPES = (TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME)


class _Bad(Exception):
    """The error for a corrupt section; its argument is the reason's number in ``REASONS``."""


def _read_varint(data: memoryview, pos: int, end: int, width: int = 5) -> tuple[int, int]:
    """Return the zigzag number at ``pos`` and its end.

    ``width``: the most bytes that the number may have (5: 32 bits, 10: 64 bits).
    """
    number = shift = 0
    for index in range(width):
        if pos >= end:
            raise _Bad(f.CUT)
        byte = data[pos]
        pos += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if index == width - 1 and byte > (0x0F if width == 5 else 0x01):
                raise _Bad(f.BAD_VARINT)
            return (number >> 1) ^ -(number & 1), pos
        shift += 7
    raise _Bad(f.BAD_VARINT)


def _read_field(data: memoryview, pos: int, end: int) -> tuple[bytes | None, int]:
    length, pos = _read_varint(data, pos, end)
    if length < 0:
        if length < -1:
            raise _Bad(f.NEGATIVE_LENGTH)
        return None, pos
    if length > end - pos:
        raise _Bad(f.CUT)
    return bytes(data[pos : pos + length]), pos + length


_Header = tuple[bytes, bytes | None]
_Row = tuple[int, int, int, bytes | None, bytes | None, list[_Header]]


def _read_headers(data: memoryview, pos: int, end: int) -> tuple[list[_Header], int]:
    count, pos = _read_varint(data, pos, end)
    if count < 0 or count > (end - pos) // 2:
        raise _Bad(f.BAD_HEADERS)
    headers: list[_Header] = []
    for _ in range(count):
        length, pos = _read_varint(data, pos, end)
        if length < 0:
            raise _Bad(f.BAD_HEADERS)
        if length > end - pos:
            raise _Bad(f.CUT)
        name = bytes(data[pos : pos + length])
        value, pos = _read_field(data, pos + length, end)
        headers.append((name, value))
    return headers, pos


def _read_section(section: Section) -> list[_Row]:
    data = memoryview(section.data)
    pos = section.start
    end = section.end
    if section.records < 0 or section.records > (end - pos) // f.MIN_RECORD:
        raise _Bad(f.BAD_COUNT)
    rows: list[_Row] = []
    last_delta = -1
    for _ in range(section.records):
        length, pos = _read_varint(data, pos, end)
        if length <= 0 or length > end - pos:
            raise _Bad(f.CUT)
        stop = pos + length
        time_delta, pos = _read_varint(data, pos + 1, stop, 10)
        delta, pos = _read_varint(data, pos, stop)
        if delta <= last_delta or delta > section.last_offset_delta:
            raise _Bad(f.BAD_OFFSET)
        last_delta = delta
        key, pos = _read_field(data, pos, stop)
        value, pos = _read_field(data, pos, stop)
        headers, pos = _read_headers(data, pos, stop)
        if pos != stop:
            raise _Bad(f.BAD_LENGTH)
        timestamp = (
            section.append_timestamp
            if section.timestamp_type
            else section.base_timestamp + time_delta
        )
        if not -f.MAX_INT64 - 1 <= timestamp <= f.MAX_INT64:
            raise _Bad(f.BAD_TIMESTAMP)
        offset = section.base_offset + delta
        if offset >= section.min_offset:
            rows.append((offset, timestamp, section.timestamp_type, key, value, headers))
    if pos != end:
        raise _Bad(f.LEFTOVER)
    return rows


class _Binary:
    """A binary column that grows."""

    def __init__(self) -> None:
        self.offsets = array("i", [0])
        self.data = bytearray()
        self.valid = bytearray()
        self.nulls = 0

    def add(self, value: Buffer | None) -> None:
        index = len(self.offsets) - 1
        if index % 8 == 0:
            self.valid.append(0)
        if value is None:
            self.nulls += 1
        else:
            self.data += value
            self.valid[-1] |= 1 << index % 8
        self.offsets.append(len(self.data))

    def fields(self) -> tuple[memoryview, bytes, bytes | None]:
        return frozen(self.offsets), bytes(self.data), bytes(self.valid) if self.nulls else None


def walk(
    data: Buffer,
    start: int,
    position: int,
    *,
    check_crcs: bool,
    most: int,
    committed: bool,
    first_abort: int | None,
    aborting: Collection[int],
) -> tuple[int, int, int, int, Any]:
    """Walk over batches from ``start`` on as long as they are plain.

    A batch is plain if it is not compressed, without a fault, and needs no decision. The walk ends
    after an effort of ``most`` (one for each batch, and more for large ones), before a batch that
    is not plain, and before one that may begin an aborted transaction (it reaches ``first_abort``)
    or end one (its producer is in ``aborting``).

    ``position`` is the offset from which records are wanted. With ``committed``, control batches
    below it count too.

    Returns the end of the walk, the position there, the leader epoch (-1: none), the effort, and
    the records for :func:`fill`, or ``None``. This implementation leaves every batch to its caller.
    """
    return start, position, -1, 0, None


def fill(sections: Sequence[Section]) -> tuple[f.Fields, int, int]:
    """Decode the records of the sections into the fields of ``Columns``.

    Returns the fields, the ``min_offset`` of the first corrupt section (else -1), and the number of
    its reason in ``REASONS``. The columns then hold the records before that section. ``sections``
    may contain results of :func:`walk`.
    """
    rows: list[_Row] = []
    failed, reason, size = -1, f.OK, 0
    for section in sections:
        try:
            size += section.end - section.start
            if size > f.MAX_INT32:
                raise _Bad(f.TOO_LARGE)
            rows += _read_section(section)
        except _Bad as bad:
            failed, reason = section.min_offset, bad.args[0]
            break
    return _columns(rows), failed, reason


def _columns(rows: list[_Row]) -> f.Fields:
    offsets = array("q")
    timestamps = array("q")
    types = array("b")
    keys = _Binary()
    values = _Binary()
    names = _Binary()
    contents = _Binary()
    starts = array("i", [0])
    for offset, timestamp, kind, key, value, headers in rows:
        offsets.append(offset)
        timestamps.append(timestamp)
        types.append(kind)
        keys.add(key)
        values.add(value)
        for name, content in headers:
            names.add(name)
            contents.add(content)
        starts.append(len(names.offsets) - 1)
    head = (
        len(rows),
        frozen(offsets),
        frozen(timestamps),
        frozen(types),
        *keys.fields(),
        *values.fields(),
    )
    if not starts[-1]:
        return (*head, None, None, None, None, None, None)
    return (*head, frozen(starts), *names.fields()[:2], *contents.fields())


def writable_memory(size: int) -> memoryview:
    """Return memory to write to, not cleared.

    ``_native`` reuses it once no view of it lives, like the memory of columns.
    """
    return memoryview(bytearray(size))


def free_memory() -> int:
    """Return the number of bytes that wait to be reused."""
    return 0


def trim_memory(at_once: bool = False) -> None:
    """Free the memory that was not reused for a second, or (``at_once``) since the last call."""


def uncount_references() -> None:
    """Stop counting references to what all records share, on a Python without a GIL.

    Threads contend for such a count. It can be stopped only in the thread that has made the object:
    the one that imported ``trikafka.types``. In any other thread this has no effect.
    """


def _value(offsets: memoryview, data: Buffer, validity: Buffer | None, index: int) -> bytes | None:
    if validity is not None and not validity[index >> 3] >> (index & 7) & 1:
        return None
    return bytes(data[offsets[index] : offsets[index + 1]])


def _headers_of(columns: Any, index: int) -> Headers:
    starts = columns.header_offsets
    if starts is None or starts[index] == starts[index + 1]:
        return ()
    names = columns.header_name_offsets
    name_data = columns.header_name_data
    return tuple(
        (
            str(name_data[names[at] : names[at + 1]], "utf-8"),
            _value(
                columns.header_value_offsets,
                columns.header_value_data,
                columns.header_value_validity,
                at,
            ),
        )
        for at in range(starts[index], starts[index + 1])
    )


def make_records(
    columns: Columns, topic: str, partition: int, start: int, stop: int
) -> list[AnyRecord]:
    """Return ``Record`` objects of the rows from ``start`` to ``stop``."""
    c = columns
    return [
        Record(
            topic,
            partition,
            c.offsets[index],
            None if c.timestamps[index] == -1 else c.timestamps[index],
            _TIMESTAMP_TYPES[c.timestamp_types[index]],
            _value(c.key_offsets, c.key_data, c.key_validity, index),
            _value(c.value_offsets, c.value_data, c.value_validity, index),
            _headers_of(c, index),
        )
        for index in range(start, stop)
    ]


def iterate(columns: Columns, topic: str, partition: int) -> Iterator[AnyRecord]:
    """Return an iterator over ``Record`` objects of all rows, made on demand."""
    for start in range(0, columns.count, _CHUNK):
        yield from make_records(
            columns, topic, partition, start, min(start + _CHUNK, columns.count)
        )


class BatchEncoder:
    """Records encoded into one batch (message format v2), in the order of :meth:`append`.

    Used by one task at a time. :meth:`close` compresses, once. :meth:`build` then adds a header, as
    often as the producer's ids change.
    """

    __slots__ = (
        "_body",
        "_codec",
        "_first_timestamp",
        "_length",
        "_level",
        "_payload",
        "count",
        "max_timestamp",
        "owner",
    )

    def __init__(self, compression: str | codecs.Codec = "none", level: int | None = None) -> None:
        self._codec = (
            compression
            if isinstance(compression, codecs.Codec)
            else codecs.codec_named(compression)
        )
        self._level = level
        self._body = bytearray()
        self._length = 0
        self._payload: Buffer | None = None
        self._first_timestamp = -1
        self.count = 0
        self.max_timestamp = -1
        #: The batch of this encoder, set by the code that made the encoder.
        self.owner: Any = None

    def belong_to(self, owner: object) -> None:
        """Set the owner of the encoder."""
        self.owner = owner

    @property
    def size(self) -> int:
        """The bytes of the batch so far, not compressed."""
        return f.HEADER_SIZE + (len(self._body) if self._payload is None else self._length)

    def append(
        self, timestamp_ms: int, key: Buffer | None, value: Buffer | None, headers: Headers = ()
    ) -> int:
        """Add a record (timestamp -1: none) and return its index in the batch."""
        encoded = (
            [(name.encode(), _contents(content)) for name, content in headers] if headers else []
        )
        return self._add(timestamp_ms, _contents(key), _contents(value), encoded)

    def _add(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[Buffer, Buffer | None]],
    ) -> int:
        if self._payload is not None:
            raise ValueError("the batch is closed")
        if not -1 <= timestamp <= f.MAX_TIMESTAMP:
            raise ValueError(f"timestamp {timestamp} is out of range")
        index = self.count
        first = timestamp if not index else self._first_timestamp
        encoded = f.encode_record(timestamp - first, index, key, value, headers)
        if self.size + len(encoded) > f.MAX_INT32:
            raise ValueError("the batch exceeds 2 GiB")
        self._body += encoded
        self._first_timestamp = first
        self.max_timestamp = max(self.max_timestamp, timestamp)
        self.count = index + 1
        return index

    def extend_columns(
        self,
        columns: Columns,
        *,
        rows: Buffer | None = None,
        start: int = 0,
        stop: int | None = None,
        max_size: int = f.MAX_INT32,
    ) -> int:
        """Add the rows ``rows[start:stop]``, or without ``rows`` those from ``start`` to ``stop``.

        ``rows`` are 32-bit row numbers. The last row added is the one before the row whose upper
        bound would take :attr:`size` over ``max_size``. Returns the position from which to
        continue. Raises ``ValueError`` where the columns are not consistent.
        """
        c: Any = columns
        table = None if rows is None else memoryview(rows).cast("B").cast("i")
        limit = c.count if table is None else len(table)
        stop = limit if stop is None else stop
        if not 0 <= start <= stop <= limit:
            raise ValueError(f"rows {start} to {stop} of {limit}")
        for position in range(start, stop):
            row = position if table is None else table[position]
            if not 0 <= row < c.count:
                raise ValueError(f"row {row} of {c.count}")
            key = checked(c.key_offsets, c.key_data, c.key_validity, row)
            value = checked(c.value_offsets, c.value_data, c.value_validity, row)
            headers = checked_headers(c, row)
            size = self.size + f.RECORD_OVERHEAD + len(key or b"") + len(value or b"")
            size += sum(
                f.HEADER_OVERHEAD + len(name) + len(content or b"") for name, content in headers
            )
            if size > max_size:
                return position
            self._add(c.timestamps[row], key, value, headers)
        return stop

    def close(self) -> Buffer:
        """Compress the records and return them; a second call returns the same.

        May run in a thread.
        """
        if self._payload is None:
            self._length = len(self._body)
            self._payload = (
                self._body
                if self._codec is codecs.NONE
                else self._codec.compress(self._body, self._level)
            )
            self._body = bytearray()
        return self._payload

    def head(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        *,
        transactional: bool = False,
    ) -> bytes:
        """Return the finished batch's header; :meth:`close` returns the records behind it.

        Raises ``ValueError`` if there are no records.
        """
        return f.batch_head(
            self.close(),
            codec_id=self._codec.id,
            count=self.count,
            first_timestamp=self._first_timestamp,
            max_timestamp=self.max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )

    def build(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        *,
        transactional: bool = False,
    ) -> bytes:
        """Return the finished batch under these ids. Raises ``ValueError`` if it has no records."""
        head = self.head(producer_id, producer_epoch, base_sequence, transactional=transactional)
        return b"".join((head, self.close()))


def _contents(data: Buffer | None) -> Buffer | None:
    if data is None or isinstance(data, bytes):
        return data
    return memoryview(data).cast("B")


def end_of_batches(records: Buffer, start: int) -> int | None:
    """Return the offset after the last complete batch in ``records``, or ``start``.

    ``None``: a batch is in an old format. A batch that is cut off, or whose length or offsets are
    impossible, ends the walk.
    """
    position, end = 0, start
    while position + f.HEADER_SIZE <= len(records):
        base, size, _, magic, _, _, last_delta = _BATCH_HEAD.unpack_from(records, position)
        if magic < 2:
            return None
        if (
            size < f.HEADER_SIZE - 12
            or position + 12 + size > len(records)
            or base + last_delta >= f.MAX_INT64
        ):
            break
        end = max(end, base + last_delta + 1)
        position += 12 + size
    return end
