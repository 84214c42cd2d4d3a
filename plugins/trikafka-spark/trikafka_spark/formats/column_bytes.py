"""What reads many values at once, by numpy, from the bytes where they lie: numbers of seven bits a byte, fixed ones, text.

Whatever is odd about one value ends it for all of them by :exc:`OddError`; another way reads them again, and says which it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

#: Zero bytes behind the last value: a number may be looked for beyond the end, which is seen afterwards.
GUARD = 16


class OddError(Exception):
    """Something that is not read here."""


def quickly(read: Callable[[pa.BinaryArray], pa.Array] | None, column: pa.BinaryArray) -> pa.Array | None:
    """The column by ``read``; ``None`` where there is no such way, or one of the values is odd."""
    try:
        return None if read is None else read(column)
    except OddError:
        return None


class Data:
    """The bytes of many values: for numpy, with guards, and as Arrow's buffer."""

    def __init__(self, column: pa.BinaryArray) -> None:
        _, offsets, data = column.buffers()
        self.offsets = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
        first, last = int(self.offsets[0]), int(self.offsets[-1])
        found = np.zeros(last - first + GUARD, np.uint8)
        if last > first:
            found[: last - first] = np.frombuffer(data, np.uint8)[first:last]
        self.bytes = found
        self.offsets -= first
        self.buffer = pa.py_buffer(found)


def check(right: Any) -> None:
    """Raise :exc:`OddError` unless all are right."""
    if not right.all():
        raise OddError


def varints(data: Data, at: Any, end: Any) -> tuple[Any, Any]:
    """Whole numbers of at most 64 bits, seven a byte, the lowest first; and where they end."""
    first = data.bytes[at]
    at = at + 1
    if not len(first) or first.max() < 0x80:
        check(at <= end)
        return first.astype(np.uint64), at
    left = np.flatnonzero(first & 0x80)
    found = (first & 0x7F).astype(np.uint64)
    for shift in range(7, 64, 7):
        if not len(left):
            break
        more = data.bytes[at[left]].astype(np.uint64)
        at[left] += 1
        check((more <= 1) | (shift < 63))
        found[left] |= (more & 0x7F) << np.uint64(shift)
        left = left[(more & 0x80) != 0]
    if len(left):
        raise OddError
    check(at <= end)
    return found, at


def gathered(data: Data, at: Any, size: int) -> Any:
    """So many bytes of each."""
    return data.bytes[at[:, None] + np.arange(size)]


def texts(data: Data, start: Any, stop: Any, type: pa.DataType) -> pa.Array:
    """Text and bytes that lie in the order of the values: they and what is between them are one array, every second one meant."""
    edges = np.empty(2 * len(start) + 1, np.int32)
    edges[:-1:2], edges[1::2], edges[-1] = start, stop, len(data.bytes)
    every = pa.Array.from_buffers(pa.binary(), 2 * len(start), [None, pa.py_buffer(edges), data.buffer])
    return every.take(pa.array(np.arange(0, 2 * len(start), 2))).cast(type)
