"""The rows of a task: their number, their size, and a digest to compare two attempts."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows whose fields become Python objects at the same time.
_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class RowDigest:
    """The number of rows, the bytes of their keys and values, and their digest.

    ``digest`` covers all fields of all rows. It does not depend on their order, which may differ
    between attempts: a shuffle delivers its blocks in any order.
    """

    count: int = 0
    size: int = 0
    digest: int = 0

    def __add__(self, other: RowDigest) -> RowDigest:
        """Return the sum of both."""
        return RowDigest(
            self.count + other.count, self.size + other.size, (self.digest + other.digest) % 2**64
        )

    def __str__(self) -> str:
        return f"{self.count:,} rows with {self.size:,} bytes (digest {self.digest:016x})"

    def to_list(self) -> list[int]:
        """Return the three numbers, for JSON."""
        return [self.count, self.size, self.digest]

    @classmethod
    def from_list(cls, numbers: Iterable[int]) -> RowDigest:
        """Read the result of :meth:`to_list`. Raises TypeError or ValueError for anything else."""
        count, size, digest = map(int, numbers)
        return cls(count, size, digest)

    def plus(self, topic: str, table: pa.Table) -> RowDigest:
        """Return the digest of these rows and of a table's rows, which are written to ``topic``."""
        import pyarrow.compute as pc

        size, digest = self.size, self.digest
        for name in {"key", "value"}.intersection(table.column_names):
            size += pc.sum(pc.binary_length(table.column(name))).as_py() or 0
        for batch in table.to_batches(max_chunksize=_AT_ONCE):
            digest += _digest(topic, batch)
        return RowDigest(self.count + table.num_rows, size, digest % 2**64)


def _digest(topic: str, batch: pa.RecordBatch) -> int:
    """Return the sum of the squares of the rows' checksums."""
    # Not the plain sum: CRC-32 is linear, so that sum might not change when two rows exchange
    # fields.

    marks = [zlib.crc32(topic.encode())] * batch.num_rows
    for column in batch.columns:
        marks = list(map(_mixed, marks, _fields(column)))
    return sum(mark * mark for mark in marks)


def _mixed(mark: int, field: bytes | None) -> int:
    """Return the checksum of a row after one more field; ``None`` differs from an empty field.

    The field's length is a part of the checksum, so bytes that move from one field to the next
    change it.
    """
    return (
        (mark * 31) & 0xFFFFFFFF
        if field is None
        else zlib.crc32(field, (mark * 31 + len(field) + 1) & 0xFFFFFFFF)
    )


def _fields(column: pa.Array) -> list[bytes | None]:
    """Return each row's field of a column as bytes."""
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
