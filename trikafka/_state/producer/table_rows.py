"""Rows of a table on their way into batches. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from ..._wire.columns import Columns
from ..._wire.records import BatchEncoder
from .producer_batch import ProducerBatch


class RowGroup(NamedTuple):
    """Rows of some columns, in order, for one partition.

    The row numbers are ``rows[start:stop]``, or without ``rows`` the positions from ``start`` to
    ``stop``. ``partition`` is ``None`` for rows without a key, if none of the columns' rows has
    one: each batch of them may go to another partition.
    """

    partition: int | None
    rows: memoryview | None
    start: int
    stop: int

    def put(self, encoder: BatchEncoder, columns: Columns, start: int, max_size: int) -> int:
        """Encode rows from ``start`` on until ``max_size`` is reached; return where to go on."""
        return encoder.extend_columns(
            columns, rows=self.rows, start=start, stop=self.stop, max_size=max_size
        )


class Taken(NamedTuple):
    """The rows that went into one batch.

    ``first`` is the index of the first of them in the batch, ``next`` the position in the table
    from which to continue.
    """

    batch: ProducerBatch
    first: int
    next: int
