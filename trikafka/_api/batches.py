"""Iteration over batches, for ever or up to given offsets: as they were fetched, or joined into Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, Self

import trio

from .._state.arguments import checked_partition
from .._wire.columns import RecordBatch, arrow_is_loaded
from ..errors import ConfigurationError
from ..types import TopicPartition

if TYPE_CHECKING:
    import pyarrow

    from .._state.assignment import Assignment
    from .receiving import Receiver

#: A table of chunks smaller than this (rows, on average) is joined into one chunk: readers of columns pay by the chunk.
_SMALL_CHUNK = 1024
#: So many chunks become a table within a millisecond, and so in the event loop.
_FEW_CHUNKS = 12


class Batches:
    """An async iterator of :class:`RecordBatch`; made by ``Consumer.batches``. Leave it at any time, nothing is lost."""

    def __init__(self, receiver: Receiver, assignment: Assignment, until: Mapping[TopicPartition, int] | None) -> None:
        self._receiver, self._assignment = receiver, assignment
        if until is not None and not isinstance(until, Mapping):
            raise TypeError(f"until must be a mapping of partitions to offsets, not {until!r}")
        self._until = None if until is None else {checked_partition(tp): offset for tp, offset in until.items()}
        for tp, offset in (self._until or {}).items():
            assignment.get(tp)
            if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
                raise ConfigurationError(f"the offset to read {tp} until must be a whole number from 0, not {offset!r}")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordBatch:
        """The next batch; ends the iteration when all is read. Raises as ``Consumer.receive``."""
        batch = await self._receiver.batch(None, self._until, None if self._until is None else self._reached)
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def gather(self, max_rows: int, max_bytes: int) -> list[RecordBatch]:
        """As ``__anext__``, with what is buffered beside the next batch, up to the wanted size."""
        stop = None if self._until is None else self._reached
        batches = await self._receiver.gather(self._until, stop, max_rows, max_bytes)
        if not batches:
            raise StopAsyncIteration
        return batches

    def _reached(self) -> bool:
        assert self._until is not None
        positions = ((self._assignment.get(tp).position, end) for tp, end in self._until.items())
        return all(position is not None and position >= end for position, end in positions)


class Gatherer(Protocol):
    """Where tables come from."""

    async def gather(self, max_rows: int, max_bytes: int) -> list[RecordBatch]:
        """The next batches, up to about so much. Raises :exc:`StopAsyncIteration` at the end."""


class ArrowBatches:
    """An async iterator of :class:`pyarrow.Table`; made by ``Consumer.arrow_batches``. Leave it at any time, nothing is lost."""

    def __init__(self, batches: Gatherer, max_rows: int, max_bytes: int) -> None:
        for name, value in (("max_rows", max_rows), ("max_bytes", max_bytes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"{name} must be a whole number from 1, not {value!r}")
        self._batches = batches
        self._max_rows, self._max_bytes = max_rows, max_bytes
        self._limiter = trio.CapacityLimiter(1)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pyarrow.Table:
        """The next table: waits for records, then takes along what is buffered, up to the wanted size."""
        await arrow_loaded()
        return await joined(await self._batches.gather(self._max_rows, self._max_bytes), self._limiter)


async def arrow_loaded() -> None:
    """Whoever makes the first table imports pyarrow, which takes a while: in a thread."""
    if not arrow_is_loaded():
        await trio.to_thread.run_sync(RecordBatch.empty().to_arrow)


async def joined(batches: list[RecordBatch], limiter: trio.CapacityLimiter) -> pyarrow.Table:
    """One table of batches that have been handed out: they are not lost, for it is not cancelled."""
    if len(batches) <= _FEW_CHUNKS:
        return _join(batches)
    with trio.CancelScope(shield=True):
        return await trio.to_thread.run_sync(_join, batches, limiter=limiter)


def _join(batches: list[RecordBatch]) -> pyarrow.Table:
    import pyarrow

    chunks = [batch.to_arrow() for batch in batches]
    table = pyarrow.Table.from_batches(chunks)
    return table if len(chunks) == 1 or table.num_rows >= _SMALL_CHUNK * len(chunks) else table.combine_chunks()
