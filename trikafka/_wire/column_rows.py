"""Rows to be written to a topic, from columns in Arrow's layout that this package has made."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator

from trikafka._wire._columns import Columns
from trikafka._wire._format import Buffer

#: Offsets, data and validity of a binary column.
BinaryColumn = tuple[memoryview, Buffer, Buffer | None]


class ColumnRows:
    """Rows to write, with the interface of ``trikafka._wire.arrow.ArrowRows``.

    They need no pyarrow. ``explicit``: the partition of each row, or -1 where the key decides. The
    column of offsets then has the numbers of the rows; else offsets do not count, nor do the kinds
    of timestamps.
    """

    #: All columns are read in place, so a piece costs no copy at any size.
    shared = True

    def __init__(
        self,
        columns: Columns,
        *,
        keyed: bool,
        timed: bool,
        partition: int | None = None,
        explicit: memoryview | None = None,
    ) -> None:
        #: The partition of all rows, or ``None``.
        self.partition = partition
        #: True if there may be keys.
        self.keyed = keyed
        self._timed = timed  # False: the time is that at which the rows are encoded
        self._count = columns.count
        self._columns: Columns | None = columns
        self._explicit = explicit

    @classmethod
    def of_lines(
        cls,
        count: int,
        keys: BinaryColumn,
        values: BinaryColumn,
        *,
        keyed: bool,
        partition: int | None = None,
    ) -> ColumnRows:
        """Return rows of keys and values, without timestamps and headers."""
        zeros = memoryview(bytes(8 * count)).cast("q")
        kinds = memoryview(bytes(count)).cast("b")
        columns = Columns(count, zeros, zeros, kinds, *keys, *values)
        return cls(columns, keyed=keyed, timed=False, partition=partition)

    def __len__(self) -> int:
        return self._count

    def release(self) -> None:
        """Release the memory, since the rows have been copied; they must not be used afterwards."""
        self._columns = None

    def pieces(self, max_rows: int, max_bytes: int) -> Iterator[tuple[int, Columns]]:
        """Yield the rows in pieces of about these sizes, each with the number of its first row."""
        whole = self._columns
        if whole is None or not self._count:
            return
        # Multiples of eight: a slice that begins at a whole byte of its bitmaps shares them.
        step = max(8, min(max_rows, max_bytes * self._count // max(1, whole.nbytes)) & ~7)
        for start in range(0, self._count, step):
            yield start, whole.slice(start, min(start + step, self._count))

    def columns(self, piece: Columns, default_timestamp: int) -> Columns:
        """Return the columns of a piece to encode from; without timestamps they get the default."""
        times = piece.timestamps
        if not self._timed:
            stamp = default_timestamp.to_bytes(8, sys.byteorder, signed=True)
            times = memoryview(stamp * piece.count).cast("q")
        elif min(times, default=0) < 0:  # the messages of old formats may have none
            known = array("q", [default_timestamp if time < 0 else time for time in times])
            times = memoryview(known)
        return Columns(
            piece.count,
            piece.offsets,
            times,
            piece.timestamp_types,
            piece.key_offsets,
            piece.key_data,
            piece.key_validity,
            piece.value_offsets,
            piece.value_data,
            piece.value_validity,
            piece.header_offsets,
            piece.header_name_offsets,
            piece.header_name_data,
            piece.header_value_offsets,
            piece.header_value_data,
            piece.header_value_validity,
        )

    def partitions(self, piece: Columns) -> memoryview | None:
        """Return the partition of each row of a piece; ``None``: all are chosen by keys."""
        if self._explicit is None or not piece.count:
            return self._explicit
        first = piece.offsets[0]
        return self._explicit[first : first + piece.count]

    @property
    def highest_partition(self) -> int:
        """The highest partition that a row names; -1: none is named."""
        if self.partition is not None:
            return self.partition
        return max(self._explicit, default=-1) if self._explicit is not None else -1
