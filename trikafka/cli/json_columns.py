"""A block of JSON lines as columns. Blocks with unusual lines are left to ``from_json``."""

from __future__ import annotations

from array import array

from .._wire import _implementation
from .._wire.column_rows import ColumnRows
from .._wire.columns import Columns


def read_json_block(
    text: bytes, topic: str | None, *, with_partitions: bool, partition: int | None
) -> tuple[str, ColumnRows] | None:
    """Return the topic and the records of a block of lines.

    Args:
        text: The lines.
        topic: The topic of all records; ``None``: the lines name it.
        with_partitions: Whether the lines may name partitions.
        partition: The partition of all records, if there is one.

    Returns:
        ``None`` if the lines have to be read one by one, because a line is wrong, blank or unusual,
        or the lines name different topics.
    """
    found = _implementation.current.split_json_lines(text, topic is None)
    if found is None:
        return None
    count, named, keys, values, timestamps, partitions, headers = found
    target = topic or named
    if target is None:
        return None
    nulls = memoryview(bytes(4 * count + 4)).cast("i"), b"", bytes((count + 7) // 8)
    zeros = memoryview(bytes(8 * count)).cast("q")
    # With a column of partitions, ColumnRows needs the number of each row to look up its partition.
    explicit = partitions if with_partitions else None
    numbers = zeros if explicit is None else memoryview(array("q", range(count)))
    starts, names, contents = headers or (None, (None, None, None), (None, None, None))
    columns = Columns(
        count,
        numbers,
        zeros if timestamps is None else timestamps,
        memoryview(bytes(count)).cast("b"),
        *(keys or nulls),
        *(values or nulls),
        starts,
        names[0],
        names[1],
        *contents,
    )
    rows = ColumnRows(
        columns,
        keyed=keys is not None,
        timed=timestamps is not None,
        partition=partition,
        explicit=explicit,
    )
    return target, rows
