"""Iteration over batches, endlessly or up to given offsets, as they are or as Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self

import trio

from ..._net.run_local import RunLocal
from ..._state.arguments import checked_partition
from ..._wire.columns import RecordBatch, arrow_is_loaded
from ...config.whole import is_whole, whole
from ...errors import ConfigurationError
from ...types import Key, TopicPartition, Value

if TYPE_CHECKING:
    import pyarrow

    from ..._state.consumer.assignment import Assignment
    from .receiving import Receiver

#: Chunks smaller than this (rows, on average) are joined into one chunk: readers of columns pay for
#: each chunk.
_SMALL_CHUNK = 1024
# The program's own threads may have used up Trio's default limiter.
_importing = RunLocal("trikafka_arrow_import", lambda: trio.CapacityLimiter(1))
#: This many chunks become a table within a millisecond, and so in the event loop.
_FEW_CHUNKS = 12


class Batches(Generic[Key, Value]):
    """An async iterator of :class:`RecordBatch`; made by ``Consumer.batches``.

    A loop may leave it at any time; no record is lost.
    """

    def __init__(
        self, receiver: Receiver, assignment: Assignment, until: Mapping[TopicPartition, int] | None
    ) -> None:
        self._receiver = receiver
        self._assignment = assignment
        if until is not None and not isinstance(until, Mapping):
            raise TypeError(f"until must be a mapping of partitions to offsets, not {until!r}")
        self._until = (
            None
            if until is None
            else {checked_partition(tp): whole(offset) for tp, offset in until.items()}
        )
        for tp, offset in (self._until or {}).items():
            assignment.get(tp)
            if not is_whole(offset):
                raise ConfigurationError(
                    f"the offset to read {tp} until must be a whole number from 0, not {offset!r}"
                )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordBatch[Key, Value]:
        """Return the next batch; end the iteration when all is read.

        Raises as ``Consumer.receive``.
        """
        batch = await self._receiver.batch(
            None, self._until, None if self._until is None else self._reached
        )
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def wait_receivable(self, *, raw: bool = False) -> bool:
        """Wait until :meth:`receive_nowait` has something to return; deliver nothing.

        Args:
            raw: Wait for :meth:`gather_nowait`: only the bytes are needed, so async deserializers
                are not called.

        Returns:
            False once all is read.
        """
        stop = None if self._until is None else self._reached
        return await self._receiver.wait(None, self._until, stop, raw=raw)

    def receive_nowait(self) -> RecordBatch[Any, Any]:
        """Return the next batch if one is buffered. Raises :exc:`trio.WouldBlock` otherwise."""
        return self._receiver.batch_nowait(self._until)

    def gather_nowait(self, max_rows: int, max_bytes: int) -> list[RecordBatch[Any, Any]]:
        """Return what is buffered, up to the given size. Raises as :meth:`receive_nowait`."""
        return self._receiver.gather_nowait(self._until, max_rows, max_bytes)

    async def gather(self, max_rows: int, max_bytes: int) -> list[RecordBatch[Any, Any]]:
        """Return the next batch and what else is buffered, up to the given size."""
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
    """The source of the tables' batches."""

    async def gather(self, max_rows: int, max_bytes: int) -> list[RecordBatch[Any, Any]]:
        """Return the next batches, up to about this size. Raises :exc:`StopAsyncIteration`."""


class ArrowBatches:
    """An async iterator of :class:`pyarrow.Table`; made by ``Consumer.arrow_batches``.

    A loop may leave it at any time; no record is lost.
    """

    def __init__(self, batches: Gatherer, max_rows: int, max_bytes: int) -> None:
        max_rows = whole(max_rows)
        max_bytes = whole(max_bytes)
        for name, value in (("max_rows", max_rows), ("max_bytes", max_bytes)):
            if not is_whole(value, 1):
                raise ConfigurationError(f"{name} must be a whole number from 1, not {value!r}")
        self._batches = batches
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._limiter = trio.CapacityLimiter(1)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pyarrow.Table:
        """Return the next table: wait for records, then add what else is buffered."""
        await arrow_loaded()
        return await joined(
            await self._batches.gather(self._max_rows, self._max_bytes), self._limiter
        )


async def arrow_loaded() -> None:
    """Import pyarrow in a thread, unless that has happened: the import takes a while."""
    if not arrow_is_loaded():
        await trio.to_thread.run_sync(RecordBatch.empty().to_arrow, limiter=_importing.get())


async def joined(
    batches: list[RecordBatch[Any, Any]], limiter: trio.CapacityLimiter
) -> pyarrow.Table:
    """Return one table of batches that have been delivered.

    Shielded from cancellation: the records would be lost.
    """
    if len(batches) <= _FEW_CHUNKS:
        return _join(batches)
    with trio.CancelScope(shield=True):
        return await trio.to_thread.run_sync(_join, batches, limiter=limiter)


def _join(batches: list[RecordBatch[Any, Any]]) -> pyarrow.Table:
    import pyarrow

    chunks = [batch.to_arrow() for batch in batches]
    table = pyarrow.Table.from_batches(chunks)
    return (
        table
        if len(chunks) == 1 or table.num_rows >= _SMALL_CHUNK * len(chunks)
        else table.combine_chunks()
    )
