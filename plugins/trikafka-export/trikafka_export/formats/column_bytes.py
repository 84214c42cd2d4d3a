"""Parts of the fast decoders: numpy reads varints, fixed-size values and text of many values.

Anything odd about one value raises :exc:`OddError` for all of them. A slower decoder then reads the
values again, and finds the wrong one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

#: Zero bytes behind the last value. A number may be read beyond the end, which is checked
#: afterwards.
GUARD = 16


class OddError(Exception):
    """A value that the fast decoders do not read."""


def quickly(
    read: Callable[[pa.BinaryArray], pa.Array] | None, column: pa.BinaryArray
) -> pa.Array | None:
    """Return the column read by ``read``; ``None`` without a fast reader or for an odd value."""
    try:
        return None if read is None else read(column)
    except OddError:
        return None


class Data:
    """The bytes of many values, with guard bytes for numpy, and as Arrow's buffer."""

    def __init__(self, column: pa.BinaryArray) -> None:
        _, offsets, data = column.buffers()
        self.offsets = np.frombuffer(offsets, np.int32)[
            column.offset : column.offset + len(column) + 1
        ].astype(np.int64)
        first = int(self.offsets[0])
        last = int(self.offsets[-1])
        found = np.zeros(last - first + GUARD, np.uint8)
        if last > first:
            found[: last - first] = np.frombuffer(data, np.uint8)[first:last]
        self.bytes = found
        self.offsets -= first
        self.buffer = pa.py_buffer(found)


def check(right: Any) -> None:
    """Raise :exc:`OddError` unless all are true."""
    if not right.all():
        raise OddError


def varints(data: Data, at: Any, end: Any) -> tuple[Any, Any]:
    """Read varints of at most 64 bits; return them and the positions behind them."""
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
    """Return ``size`` bytes of each value."""
    return data.bytes[at[:, None] + np.arange(size)]


def texts(data: Data, start: Any, stop: Any, type: pa.DataType) -> pa.Array:
    """Return text or bytes that lie in the order of the values.

    The pieces and the gaps between them form one array, of which every second item is taken.
    """
    edges = np.empty(2 * len(start) + 1, np.int32)
    edges[:-1:2] = start
    edges[1::2] = stop
    edges[-1] = len(data.bytes)
    every = pa.Array.from_buffers(
        pa.binary(), 2 * len(start), [None, pa.py_buffer(edges), data.buffer]
    )
    return every.take(pa.array(np.arange(0, 2 * len(start), 2))).cast(type)
