"""Times that a column can hold, but readers of a file refuse.

An Avro ``long`` holds any number. A time of day beyond the day, or nanoseconds in the place of
milliseconds, would go into a file as they are. DuckDB and Spark convert to microseconds, and refuse
the whole file because of one such value.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_MOST_US = 2**63 - 1


def has_times(type: pa.DataType) -> bool:
    """Return whether a column of this type may have values that :func:`check_times` refuses."""
    if type.num_fields:
        return any(has_times(type.field(number).type) for number in range(type.num_fields))
    return _bounds(type) is not None


def check_times(array: pa.Array) -> None:
    """Raise ValueError for a time in the array, at any depth, that readers of a file refuse."""
    if not has_times(array.type):
        return
    if pa.types.is_map(array.type):
        parts = [array.keys, array.items]
    elif array.type.num_fields:
        flat = array.flatten()
        parts = flat if pa.types.is_struct(array.type) else [flat]
    else:
        _check(array)
        return
    for part in parts:
        check_times(part)


def _check(array: pa.Array) -> None:
    bounds = _bounds(array.type)
    assert bounds is not None
    low, high = bounds
    number = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    found = pc.min_max(number).as_py()
    if found["min"] is not None and not low <= found["min"] <= found["max"] <= high:
        wrong = found["min"] if found["min"] < low else found["max"]
        what = (
            "is not a time of day"
            if pa.types.is_time(array.type)
            else "is beyond the timestamps that microseconds can hold"
        )
        raise ValueError(f"{wrong} {array.type.unit} {what}")


def _bounds(type: pa.DataType) -> tuple[int, int] | None:
    """Return the smallest and the largest number that readers accept; ``None`` for any."""
    if pa.types.is_time(type):
        return 0, 86_400 * _PER_SECOND[type.unit] - 1
    if pa.types.is_timestamp(type) and type.unit in ("s", "ms"):
        most = _MOST_US // (1_000_000 // _PER_SECOND[type.unit])
        return -most, most
    return None
