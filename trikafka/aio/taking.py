"""The receiving of buffered records: without a crossing; only the wait for more crosses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import trio

from .. import Record, RecordBatch
from ..types import Key, Value
from .crossing import Client, cross
from .guest import Guest

if TYPE_CHECKING:
    import pyarrow

#: Iteration over buffered records lets other tasks run this often (seconds).
TURN = 0.001
#: Chunks smaller than this (rows, on average) are joined: readers of columns pay for each chunk.
_SMALL_CHUNK = 1024
T = TypeVar("T")


class RecordTaker(Client, Generic[Key, Value]):
    """A consumer or a stream, iterated over for its records."""

    def __init__(self, guest: Guest, client: Any) -> None:
        super().__init__(guest, client)
        self._due = 0.0  # the time of the next turn of other tasks

    def __aiter__(self) -> AsyncIterator[Record[Key, Value]]:
        return self

    async def __anext__(self) -> Record[Key, Value]:
        self._check()
        if (now := time.perf_counter()) >= self._due:
            self._due = now + TURN
            await asyncio.sleep(0)
        receive = self._client.receive_nowait
        while True:
            try:
                record: Record[Key, Value] = receive()
            except trio.EndOfChannel:  # only a stream ends
                raise StopAsyncIteration from None
            except trio.WouldBlock:
                pass  # the errors of the wait must not have this one as their context
            else:
                self._guest.wake()
                return record
            if not await cross(self._guest, self._client.wait_receivable):
                raise StopAsyncIteration
            self._due = time.perf_counter() + TURN


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
            pass  # as above
        finally:
            client._guest.wake()
        if not await cross(client._guest, wait):
            raise StopAsyncIteration


class Gatherer(Protocol):
    """The source of the tables' batches."""

    async def gather(self, max_rows: int, max_bytes: int) -> list[RecordBatch[Any, Any]]:
        """Return the next batches, up to about this size. Raises :exc:`StopAsyncIteration`."""


class ArrowBatches:
    """An async iterator of :class:`pyarrow.Table`; made by :meth:`Consumer.arrow_batches`."""

    def __init__(self, guest: Guest, batches: Gatherer, max_rows: int, max_bytes: int) -> None:
        self._guest = guest
        self._batches = batches
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._loaded = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pyarrow.Table:
        """Return the next table: wait for records, then add what else is buffered."""
        # pyarrow is loaded before records are taken, and no await follows that: nothing is lost.
        if not self._loaded and not self._guest.ending:
            await cross(self._guest, _load_arrow)
            self._loaded = True
        import pyarrow

        chunks = [
            batch.to_arrow()
            for batch in await self._batches.gather(self._max_rows, self._max_bytes)
        ]
        table = pyarrow.Table.from_batches(chunks)
        few = len(chunks) == 1 or table.num_rows >= _SMALL_CHUNK * len(chunks)
        return table if few else table.combine_chunks()


# asyncio's own executor has few threads, and the program may have used them up, as it may have used
# up those of Trio's default limiter.
async def _load_arrow() -> None:
    """Import pyarrow in a thread, on Trio's side: the import takes a while."""
    await trio.to_thread.run_sync(RecordBatch.empty().to_arrow, limiter=trio.CapacityLimiter(1))
