"""The record path in pure Python: columns from a producer, checked, and their rows' partitions."""

from __future__ import annotations

import zlib
from array import array
from typing import TYPE_CHECKING, Any

from trikafka._wire import _format as f
from trikafka._wire._format import Buffer

if TYPE_CHECKING:
    from trikafka._wire._columns import Columns


def frozen(numbers: array[int]) -> memoryview:
    """Return native numbers as a read-only view of the same type."""
    view: Any = memoryview(numbers.tobytes())
    return view.cast(numbers.typecode)  # type: ignore[no-any-return]


def checked(offsets: memoryview, data: Buffer, validity: Buffer | None, index: int) -> bytes | None:
    """Return row ``index`` of an Arrow binary column that a caller made.

    Raises ``ValueError`` where the column is not consistent.
    """
    if not 0 <= index < len(offsets) - 1 or (validity is not None and index >> 3 >= len(validity)):
        raise ValueError("the columns are not consistent")
    if validity is not None and not validity[index >> 3] >> (index & 7) & 1:
        return None
    start, stop = offsets[index], offsets[index + 1]
    if not 0 <= start <= stop <= len(data):
        raise ValueError("the columns are not consistent")
    return bytes(data[start:stop])


def checked_headers(columns: Any, row: int) -> list[tuple[Buffer, Buffer | None]]:
    """Return the headers of a row, checked as by :func:`checked`."""
    starts = columns.header_offsets
    if starts is None:
        return []
    if row + 1 >= len(starts) or not 0 <= starts[row] <= starts[row + 1]:
        raise ValueError("the columns are not consistent")
    c = columns
    return [
        (
            checked(c.header_name_offsets, c.header_name_data, None, at) or b"",
            checked(c.header_value_offsets, c.header_value_data, c.header_value_validity, at),
        )
        for at in range(starts[row], starts[row + 1])
    ]


def murmur2(data: Buffer) -> int:
    """Return Kafka's murmur2 as a signed 32-bit integer."""
    data = bytes(data)
    length = len(data)
    mask = 0xFFFFFFFF
    m = 0x5BD1E995
    state = 0x9747B28C ^ length
    whole = length & ~3
    for pos in range(0, whole, 4):
        k = int.from_bytes(data[pos : pos + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        state = (state * m & mask) ^ k
    if whole < length:
        state = (state ^ int.from_bytes(data[whole:], "little")) * m & mask
    state = (state ^ state >> 13) * m & mask
    state ^= state >> 15
    return state - (1 << 32) if state >> 31 else state


def fnv1a(data: Buffer) -> int:
    """Return the absolute value of the signed 32-bit FNV-1a hash, as librdkafka uses it."""
    state = 0x811C9DC5
    for byte in bytes(data):
        state = (state ^ byte) * 0x01000193 & 0xFFFFFFFF
    return (1 << 32) - state if state >> 31 else state


def hash_key(kind: int, data: Buffer) -> int:
    """Return the hash that selects a partition; ``kind`` is that of ``partitioning.KeyRule``."""
    if kind == f.HASH_MURMUR2:
        return murmur2(data) & 0x7FFFFFFF
    return zlib.crc32(data) if kind == f.HASH_CRC32 else fnv1a(data)


def partition_columns(
    key_offsets: Buffer,
    key_data: Buffer,
    key_validity: Buffer | None,
    n_partitions: int,
    explicit: Buffer | None = None,
    keyless: int = -1,
    kind: int = f.HASH_MURMUR2,
    shortest: int = 0,
) -> memoryview:
    """Return the partition of each row, from an Arrow binary column of keys.

    ``keyless`` is used where the key is shorter than ``shortest`` (a null key has length -1).
    ``explicit`` are 32-bit numbers that take precedence over the key where they are not -1.
    """
    if n_partitions < 1:
        raise ValueError("no partitions")
    offsets = memoryview(key_offsets).cast("B").cast("i")
    count = len(offsets) - 1
    given = None if explicit is None else memoryview(explicit).cast("B").cast("i")
    if given is not None and len(given) < count:
        raise ValueError("the columns are not consistent")
    result = array("i")
    for index in range(count):
        if given is not None and given[index] != -1:
            if not 0 <= given[index] < n_partitions:
                raise ValueError(f"partition {given[index]} of {n_partitions}")
            result.append(given[index])
            continue
        key = checked(offsets, key_data, key_validity, index)
        if (-1 if key is None else len(key)) < shortest:
            result.append(keyless)
        else:
            result.append(hash_key(kind, key or b"") % n_partitions)
    return frozen(result)


def find_unfit(columns: Columns, largest: int) -> tuple[int, int] | None:
    """Return the first row that no batch can take, with its upper bound in bytes.

    The bound is over ``largest``, or -1 if the timestamp is invalid. Raises ``ValueError`` where
    the columns are not consistent.
    """
    c: Any = columns
    for row in range(c.count):
        if not 0 <= c.timestamps[row] <= f.MAX_TIMESTAMP:
            return row, -1
        size = f.RECORD_OVERHEAD + len(
            checked(c.key_offsets, c.key_data, c.key_validity, row) or b""
        )
        size += len(checked(c.value_offsets, c.value_data, c.value_validity, row) or b"")
        size += sum(
            f.HEADER_OVERHEAD + len(name) + len(content or b"")
            for name, content in checked_headers(c, row)
        )
        if size > largest:
            return row, size
    return None


def group_rows(partitions: Buffer, n_partitions: int) -> tuple[memoryview, memoryview]:
    """Return the row numbers sorted by partition (stable), and the bounds of each partition."""
    wanted = memoryview(partitions).cast("B").cast("i")
    groups: list[array[int]] = [array("i") for _ in range(n_partitions)]
    for row, partition in enumerate(wanted):
        if not 0 <= partition < n_partitions:
            raise ValueError(f"partition {partition} of {n_partitions}")
        groups[partition].append(row)
    rows = array("i")
    bounds = array("i", [0])
    for group in groups:
        rows += group
        bounds.append(len(rows))
    return frozen(rows), frozen(bounds)
