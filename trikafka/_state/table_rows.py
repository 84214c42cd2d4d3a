"""Rows of a table on their way into batches. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from .._wire.columns import Columns
from .._wire.records import BatchEncoder
from .producer_batch import ProducerBatch


class RowGroup(NamedTuple):
    """Rows of some columns, in order: the row numbers ``rows[start:stop]``, or without ``rows`` these positions themselves.

    ``partition`` is ``None`` where each batch may go to another: rows without a key, if none of the columns' rows has one.
    """

    partition: int | None
    rows: memoryview | None
    start: int
    stop: int

    def put(self, encoder: BatchEncoder, columns: Columns, start: int, max_size: int) -> int:
        """Encode rows from ``start`` on until ``max_size`` is reached; return where to go on."""
        return encoder.extend_columns(columns, rows=self.rows, start=start, stop=self.stop, max_size=max_size)


class Taken(NamedTuple):
    """Rows that went into one batch: the first's index there, and the position in the table to go on from."""

    batch: ProducerBatch
    first: int
    next: int
