"""Which rows a task has: how many, how large, and a digest by which two attempts see whether theirs are the same."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows whose fields are Python objects at the same time.
_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class Rows:
    """``size``: bytes of keys and values. ``digest``: of all fields of all rows, whatever their order, which may differ between
    attempts (a shuffle gives its blocks as they come)."""

    count: int = 0
    size: int = 0
    digest: int = 0

    def plus(self, topic: str, table: pa.Table) -> Rows:
        """These, and those of a table that goes to ``topic``."""
        import pyarrow.compute as pc

        size, digest = self.size, self.digest
        for name in {"key", "value"}.intersection(table.column_names):
            size += pc.sum(pc.binary_length(table.column(name))).as_py() or 0
        for batch in table.to_batches(max_chunksize=_AT_ONCE):
            digest += _digest(topic, batch)
        return Rows(self.count + table.num_rows, size, digest % 2**64)


def _digest(topic: str, batch: pa.RecordBatch) -> int:
    """The sum of the squares of the rows' checksums: as these are linear, their plain sum might miss fields that change places."""
    marks = [zlib.crc32(topic.encode())] * batch.num_rows
    for column in batch.columns:
        marks = list(map(_mixed, marks, _fields(column)))
    return sum(mark * mark for mark in marks)


def _mixed(mark: int, field: bytes | None) -> int:
    """The length stands before the field, so no two rows are the same bytes; nothing is not the same as empty."""
    return (mark * 31) & 0xFFFFFFFF if field is None else zlib.crc32(field, (mark * 31 + len(field) + 1) & 0xFFFFFFFF)


def _fields(column: pa.Array) -> list[bytes | None]:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.large_binary())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    fields: list[Any] = column.to_pylist()
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return fields
    return [None if field is None else repr(field).encode() for field in fields]
