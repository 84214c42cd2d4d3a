"""Rows to be written to a topic, from columns in Arrow's layout that this package has made."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from trikafka._wire._columns import Columns
from trikafka._wire._format import Buffer

#: Offsets, data and validity of a binary column.
BinaryColumn = tuple[memoryview, Buffer, Buffer | None]


class ColumnRows:
    """Rows of keys and values, with the interface of ``trikafka._wire.arrow.ArrowRows``.

    They need no pyarrow. The timestamps are those of the moment at which the rows are encoded.
    """

    #: All columns are read in place, so a piece costs no copy at any size.
    shared = True

    def __init__(
        self,
        count: int,
        keys: BinaryColumn,
        values: BinaryColumn,
        *,
        keyed: bool,
        partition: int | None = None,
    ) -> None:
        #: The partition of all rows, or ``None``.
        self.partition = partition
        #: True if there may be keys.
        self.keyed = keyed
        self._count = count
        self._columns: Columns | None = Columns(
            count,
            memoryview(bytes(8 * count)).cast("q"),
            memoryview(bytes(8 * count)).cast("q"),
            memoryview(bytes(count)).cast("b"),
            *keys,
            *values,
        )

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
        """Return the columns of a piece to encode from, with this timestamp."""
        stamp = default_timestamp.to_bytes(8, sys.byteorder, signed=True)
        return Columns(
            piece.count,
            piece.offsets,
            memoryview(stamp * piece.count).cast("q"),
            piece.timestamp_types,
            piece.key_offsets,
            piece.key_data,
            piece.key_validity,
            piece.value_offsets,
            piece.value_data,
            piece.value_validity,
        )

    def partitions(self, piece: Columns) -> None:
        """Return ``None``: keys, or :attr:`partition`, decide."""
