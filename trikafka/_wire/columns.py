""":class:`RecordBatch`, the public view of one partition's records over their columns.

A ``RecordBatch`` is not written to after it was made; slices share the bytes of keys and values.
"""

from __future__ import annotations

import operator
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, overload

from trikafka._wire import _implementation
from trikafka._wire._columns import Columns as Columns
from trikafka._wire._columns import slice_bits as slice_bits
from trikafka._wire._format import Buffer as Buffer
from trikafka.errors.counts import counted
from trikafka.types import Key, Record, Value

if TYPE_CHECKING:
    import pyarrow


def arrow_is_loaded() -> bool:
    """Return whether the module behind :meth:`RecordBatch.to_arrow` and ``send_arrow`` is imported.

    Its import takes 30 ms and more.
    """
    return hasattr(sys.modules.get("trikafka._wire.arrow"), "LOADED")


class RecordBatch(Sequence[Record[Key, Value]], Generic[Key, Value]):
    """Records of one partition, in the order of their offsets.

    A sequence of :class:`Record` objects, which are made on demand; :meth:`to_arrow` makes none. A
    slice with step 1 is a ``RecordBatch`` that shares the memory of keys and values. A batch can be
    pickled, for a worker process; of one with deserializers, pickle :attr:`raw`.
    """

    __slots__ = ("_columns", "_leader_epoch", "_next_offset", "_partition", "_topic")

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: Columns,
        next_offset: int,
        leader_epoch: int | None = None,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._columns = columns
        self._next_offset = next_offset
        self._leader_epoch = leader_epoch

    @classmethod
    def empty(cls) -> RecordBatch[Key, Value]:
        """Return a batch without records and partition.

        Its topic is ``""``, its partition and its next offset are -1.
        """
        return cls("", -1, Columns.empty(), -1)

    @property
    def topic(self) -> str:
        """The topic of all the records."""
        return self._topic

    @property
    def partition(self) -> int:
        """The partition of all the records."""
        return self._partition

    @property
    def columns(self) -> Columns:
        """The columns of exactly these records."""
        return self._columns

    @property
    def next_offset(self) -> int:
        """The offset from which to continue after this batch.

        It may lie beyond the last record: compaction, transaction markers and aborted transactions
        leave gaps.
        """
        return self._next_offset

    @property
    def leader_epoch(self) -> int | None:
        """The leader epoch of the last fetched record batch; ``None``: the broker gave none."""
        return self._leader_epoch

    @property
    def offsets(self) -> memoryview:
        """The records' offsets, as a view of 64-bit integers."""
        return self._columns.offsets

    @property
    def timestamps(self) -> memoryview:
        """The records' timestamps, as a view of 64-bit integers.

        They are in milliseconds since the epoch; -1 stands for none.
        """
        return self._columns.timestamps

    @property
    def nbytes(self) -> int:
        """The bytes that the records occupy, headers included."""
        return self._columns.nbytes

    def __len__(self) -> int:
        return self._columns.count

    def __bool__(self) -> bool:
        return self._columns.count > 0

    @overload
    def __getitem__(self, index: int) -> Record[Key, Value]: ...
    @overload
    def __getitem__(self, index: slice) -> RecordBatch[Key, Value]: ...
    def __getitem__(self, index: int | slice) -> Record[Key, Value] | RecordBatch[Key, Value]:
        count = self._columns.count
        if isinstance(index, slice):
            start, stop, step = index.indices(count)
            if step != 1:
                raise ValueError("a RecordBatch can only be sliced with step 1")
            return self._slice(start, max(start, stop))
        index = operator.index(index)
        position = index + count if index < 0 else index
        if not 0 <= position < count:
            raise IndexError(f"index {index} of {counted(count, 'record')}")
        return self._make(position, position + 1)[0]

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Return what pickles the batch: a worker process gets a copy of these records alone."""
        parts = (self._topic, self._partition, self._columns, self._next_offset)
        return RecordBatch, (*parts, self._leader_epoch)

    def __copy__(self) -> Self:
        return self  # it is not written to

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __iter__(self) -> Iterator[Record[Key, Value]]:
        return _implementation.current.iterate(self._columns, self._topic, self._partition)

    def __repr__(self) -> str:
        return (
            f"<RecordBatch {self._topic}-{self._partition}: "
            f"{counted(self._columns.count, 'record')}, next offset {self._next_offset}>"
        )

    def _make(self, start: int, stop: int) -> list[Record[Key, Value]]:
        return _implementation.current.make_records(
            self._columns, self._topic, self._partition, start, stop
        )

    def _slice(self, start: int, stop: int) -> RecordBatch[Key, Value]:
        columns = self._columns
        if start == 0 and stop == columns.count:
            return self
        next_offset = self._next_offset if stop >= columns.count else columns.offsets[stop]
        return RecordBatch(
            self._topic,
            self._partition,
            columns.slice(start, stop),
            next_offset,
            self._leader_epoch,
        )

    def head(self, end_offset: int) -> RecordBatch[Key, Value]:
        """Return the part of the batch before an offset.

        Args:
            end_offset: the offset of the first record to leave out.

        Returns:
            A batch that shares this one's memory, with ``end_offset`` as its ``next_offset``; this
            batch itself if it ends there or before.
        """
        if end_offset >= self._next_offset:
            return self
        stop = bisect_left(self._columns.offsets, end_offset)
        return RecordBatch(
            self._topic,
            self._partition,
            self._columns.slice(0, stop),
            end_offset,
            self._leader_epoch,
        )

    @property
    def raw(self) -> RecordBatch:
        """The same records with keys and values as they were written.

        This batch itself, unless the consumer has deserializers.
        """
        same: Any = self  # without deserializers its records have bytes
        return same  # type: ignore[no-any-return]

    def deserialize(self, record: Record) -> Record[Key, Value]:
        """Return a record of :attr:`raw` with key and value as this batch has them.

        So a program can keep the bytes of a record, and deserialize it when it needs the values.

        Args:
            record: A record of :attr:`raw`.

        Raises:
            DeserializationError: A deserializer of the consumer failed.
        """
        same: Any = record
        return same  # type: ignore[no-any-return]

    def detached(self) -> RecordBatch[Key, Value]:
        """Return the same records without the batch's hold on the consumer's position.

        A record that cannot be deserialized moves the position of its partition back to itself when
        it is read from a batch, and is delivered again. Read from a detached batch, it raises the
        same :exc:`DeserializationError`, and the position stays.
        """
        return self

    async def deserialized_again(self) -> RecordBatch[Key, Value]:
        """Return the same records, with an async deserializer that failed called again.

        The consumer calls async deserializers when it receives the batch, and a record whose
        deserializer failed raises the same error each time that it is read. Plain ones are called
        when a record is read, so a batch of theirs is returned as it is. When cancelled, this batch
        is as before.
        """
        return self

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Return the records as a ``pyarrow.RecordBatch``.

        Keys, values, headers and offsets share this batch's memory.

        Returns:
            A record batch with the columns ``topic`` (dictionary of string), ``partition`` (int32),
            ``offset`` (int64), ``timestamp`` (timestamp[ms, UTC], null where there is none),
            ``timestamp_type`` (int8), ``key`` and ``value`` (binary), and ``headers`` (list of key
            and value).

        Raises:
            ImportError: pyarrow is not installed (the extra ``trikafka[arrow]``).
        """
        try:
            from trikafka._wire import arrow
        except ImportError as error:
            how = "pip install 'trikafka[arrow]' (from a clone: pip install '.[arrow]')"
            raise ImportError(f"to_arrow() needs pyarrow: {how}") from error
        return arrow.to_arrow(self._topic, self._partition, self._columns)

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        """Return the batch as Arrow PyCapsules, for Polars, DuckDB and others.

        Args:
            requested_schema: a PyCapsule with the schema that the caller prefers.

        Returns:
            The PyCapsules of the schema and of the array.
        """
        return self.to_arrow().__arrow_c_array__(requested_schema)
