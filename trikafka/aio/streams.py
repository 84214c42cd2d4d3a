"""A stream of records for each assigned partition, for tasks of asyncio."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self

import trio

from .. import PartitionStream as _PartitionStream
from .. import Record, RecordBatch, TopicPartition
from ..types import Key, Value
from .crossing import Client, cross
from .methods import crossing, direct, ending
from .taking import ArrowBatches, RecordTaker, taken


class PartitionStreams(Generic[Key, Value]):
    """An async iterator of :class:`PartitionStream` s; made by :meth:`Consumer.partitions`."""

    def __init__(
        self, consumer: Client, streams: AsyncIterator[_PartitionStream[Key, Value]]
    ) -> None:
        self._consumer = consumer
        self._streams = streams
        # A cancellation may meet the answer. The stream is then kept for the next call: Trio's side
        # has yielded it, and does not yield it again.
        self._found: deque[_PartitionStream[Key, Value]] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PartitionStream[Key, Value]:
        """Return the next stream; wait until a partition is assigned, and serve rebalances.

        Ends when the consumer unsubscribes or closes, or when another iteration over
        ``partitions()`` replaces this one. Raises as ``Consumer.receive``. When cancelled, no
        stream is lost.
        """
        self._consumer._check()
        while True:
            while self._found:
                stream = self._found.popleft()
                if not stream.ended:
                    return PartitionStream(self._consumer, stream)
            await cross(self._consumer._guest, self._find)

    async def _find(self) -> None:
        self._found.append(await self._streams.__anext__())


class PartitionStream(RecordTaker[Key, Value]):
    """The records of one assigned partition, in order; made by :meth:`Consumer.partitions`.

    One task at a time receives from it; iterate over it for records. As
    :class:`trikafka.PartitionStream`: the same promises, arguments and errors. The handler is the
    task of asyncio that receives.
    """

    _client: _PartitionStream[Key, Value]

    def __init__(self, consumer: Client, stream: _PartitionStream[Key, Value]) -> None:
        super().__init__(consumer._guest, stream)
        self._consumer = consumer

    def _check(self) -> None:
        self._consumer._check()

    def _has_ended(self) -> bool:
        return self._consumer._has_ended()

    @property
    def partition(self) -> TopicPartition:
        """The partition of this stream."""
        return self._client.partition

    @property
    def position(self) -> int | None:
        """The offset of the next record to deliver; ``None`` while it is looked up."""
        return self._client.position

    @property
    def ended(self) -> bool:
        """True once the stream delivers nothing more.

        The partition was revoked or lost, or the stream was closed.
        """
        return self._client.ended

    @property
    def owned(self) -> bool:
        """True while the consumer owns the partition and is not releasing it.

        Also after the stream was left: then this handler may still seek and commit.
        """
        return self._client.owned

    # --- receiving ---

    async def receive(self) -> Record[Key, Value]:
        """Return the next record; wait until there is one.

        Raises:
            trio.EndOfChannel: The stream has ended.
            trio.BusyResourceError: Another task receives from this stream.
            TrikafkaError: As :meth:`trikafka.PartitionStream.receive`.

        When cancelled, no record is lost.
        """
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise trio.EndOfChannel from None

    def batches(self) -> StreamBatches[Key, Value]:
        """Iterate over the records by batch, each of at most ``max_poll_records``."""
        self._check()
        return StreamBatches(self)

    def arrow_batches(
        self, *, max_rows: int = 131_072, max_bytes: int = 16_777_216
    ) -> ArrowBatches:
        """Iterate over :class:`pyarrow.Table` s, as :meth:`trikafka.aio.Consumer.arrow_batches`.

        Args:
            max_rows: A table grows until it has this many rows.
            max_bytes: A table grows until it has this many bytes.
        """
        self._check()
        self._client.arrow_batches(max_rows=max_rows, max_bytes=max_bytes)  # checks them
        return ArrowBatches(self._guest, StreamBatches(self), max_rows, max_bytes)

    # --- leaving ---

    async def __aenter__(self) -> Self:
        self._check()
        try:
            await cross(self._guest, self._client.__aenter__)
        except asyncio.CancelledError as error:
            # The block never begins, and nothing would end it: a revocation would wait for it.
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._guest.ending:  # with the client, and so with its streams
            return
        await cross(self._guest, partial(self._client.__aexit__, kind, error, traceback))

    aclose = ending(_PartitionStream.aclose)
    commit = crossing(_PartitionStream.commit)
    report_progress = direct(_PartitionStream.report_progress)
    wait_ended = ending(_PartitionStream.wait_ended)


class StreamBatches(Generic[Key, Value]):
    """An async iterator of the :class:`RecordBatch` es of one stream.

    A loop may leave it at any time; no record is lost.
    """

    def __init__(self, stream: PartitionStream[Key, Value]) -> None:
        self._stream = stream

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordBatch[Key, Value]:
        """Return the next batch; end with the stream."""
        stream = self._stream
        return await taken(
            stream, stream._client.receive_batch_nowait, stream._client.wait_receivable
        )

    async def gather(self, max_rows: int, max_bytes: int) -> list[RecordBatch[Any, Any]]:
        """Return the next batch and what else is buffered, up to the given size."""
        stream = self._stream
        return await taken(
            stream,
            partial(stream._client.batches().gather_nowait, max_rows, max_bytes),
            partial(stream._client.wait_receivable, raw=True),
        )
