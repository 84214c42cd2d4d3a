"""The receiving of buffered records: without a crossing; only the wait for more crosses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import trio

from .. import RecordBatch
from .crossing import Client, cross

if TYPE_CHECKING:
    import pyarrow

#: Iteration over buffered records lets other tasks run this often (seconds).
TURN = 0.001
#: Chunks smaller than this (rows, on average) are joined: readers of columns pay for each chunk.
_SMALL_CHUNK = 1024
T = TypeVar("T")


async def taken(client: Client, take: Callable[[], T], wait: Callable[[], Awaitable[bool]]) -> T:
    """Take what is buffered; wait until something is.

    Raises :exc:`StopAsyncIteration` at the end: if the wait returns False, or a stream has ended.
    """
    await asyncio.sleep(0)
    while True:
        client._check()
        try:
            return take()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None
        except trio.WouldBlock:
            if not await cross(client._guest, wait):
                raise StopAsyncIteration from None
        finally:
            client._guest.wake()


class Gatherer(Protocol):
    """The source of the tables' batches."""

    async def gather(self, max_rows: int, max_bytes: int) -> list[RecordBatch[Any, Any]]:
        """Return the next batches, up to about this size. Raises :exc:`StopAsyncIteration`."""


class ArrowBatches:
    """An async iterator of :class:`pyarrow.Table`; made by :meth:`Consumer.arrow_batches`."""

    def __init__(self, batches: Gatherer, max_rows: int, max_bytes: int) -> None:
        self._batches = batches
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._loaded = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pyarrow.Table:
        """Return the next table: wait for records, then add what else is buffered."""
        # pyarrow is loaded before records are taken, and no await follows that: nothing is lost.
        if not self._loaded:
            await asyncio.to_thread(RecordBatch.empty().to_arrow)
            self._loaded = True
        import pyarrow

        chunks = [
            batch.to_arrow()
            for batch in await self._batches.gather(self._max_rows, self._max_bytes)
        ]
        table = pyarrow.Table.from_batches(chunks)
        few = len(chunks) == 1 or table.num_rows >= _SMALL_CHUNK * len(chunks)
        return table if few else table.combine_chunks()
