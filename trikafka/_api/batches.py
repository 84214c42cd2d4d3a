"""Iteration over batches, for ever or up to given offsets: as they were fetched, or joined into Arrow tables."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import trio

from .._wire.columns import RecordBatch
from ..types import TopicPartition

if TYPE_CHECKING:
    import pyarrow

    from .consumer_parts import ConsumerParts

_ARROW = "trikafka._wire.arrow"
#: A table of chunks smaller than this (rows, on average) is joined into one chunk: readers of columns pay by the chunk.
_SMALL_CHUNK = 1024


class Batches:
    """An async iterator of :class:`RecordBatch`; made by ``Consumer.batches``. Leave it at any time, nothing is lost."""

    def __init__(self, parts: ConsumerParts, until: Mapping[TopicPartition, int] | None) -> None:
        self._parts = parts
        self._until = None if until is None else {TopicPartition(*tp): offset for tp, offset in until.items()}
        if self._until is not None:
            for tp in self._until:
                parts.subscription.state(tp)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordBatch:
        """The next batch; ends the iteration when all is read. Raises as ``Consumer.receive``."""
        batch = await self._parts.receiver.batch(None, self._until, None if self._until is None else self._reached)
        if batch is None:
            raise StopAsyncIteration
        return batch

    def _reached(self) -> bool:
        assert self._until is not None
        positions = ((self._parts.subscription.state(tp).position, end) for tp, end in self._until.items())
        return all(position is not None and position >= end for position, end in positions)


class ArrowBatches:
    """An async iterator of :class:`pyarrow.Table`; made by ``Consumer.arrow_batches``. Leave it at any time, nothing is lost."""

    def __init__(
        self, parts: ConsumerParts, until: Mapping[TopicPartition, int] | None, max_rows: int, max_bytes: int
    ) -> None:
        for name, value in (("max_rows", max_rows), ("max_bytes", max_bytes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number from 1, not {value!r}")
        self._parts, self._batches = parts, Batches(parts, until)
        self._max_rows, self._max_bytes = max_rows, max_bytes

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pyarrow.Table:
        """The next table: waits for records, then takes along what is buffered, up to the wanted size."""
        if _ARROW not in sys.modules:  # the first one imports pyarrow, which takes a while
            await trio.to_thread.run_sync(RecordBatch.empty().to_arrow)
        batch = await self._batches.__anext__()
        batches = [batch]
        rows, size = len(batch), batch.nbytes
        while rows < self._max_rows and size < self._max_bytes:
            further = await self._parts.receiver.more()
            if further is None:
                break
            batches.append(further)
            rows, size = rows + len(further), size + further.nbytes
        return _join(batches, rows)


def _join(batches: list[RecordBatch], rows: int) -> pyarrow.Table:
    import pyarrow

    chunks = [batch.to_arrow() for batch in batches]
    table = pyarrow.Table.from_batches(chunks)
    return table if len(chunks) == 1 or rows >= _SMALL_CHUNK * len(chunks) else table.combine_chunks()
