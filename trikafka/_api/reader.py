"""A reader a partition: what was fetched of it, decoded and delivered in order. Owned by the consumer.

A record leaves the buffer only in the synchronous step after the last checkpoint, so a receive that is cancelled loses nothing.
Who reads from which partition, and when, is for the receiver (all partitions, in turns) and the streams (one each) to say.
"""

from __future__ import annotations

from contextlib import suppress

import trio

from .._state.assignment import AssignedPartition
from .._state.fetch_buffer import CompletedFetch, FetchBuffer
from .._state.progress import Cursor
from .._wire.columns import RecordBatch
from .._wire.records import IMPLEMENTATION, decode_some, first_batch
from ..config import ConsumerConfig
from ..errors import CorruptRecordError
from .deserializing import DeserializedBatch, Deserializers

#: Bytes that are decoded within about 5 ms, and so in the event loop.
_QUICK = 5 * 2**20 if IMPLEMENTATION == "native" else 50_000
#: Bytes of which twice as many are decompressed and decoded within about 5 ms; only one batch by itself may come to more.
_ENOUGH = 2**20 if IMPLEMENTATION == "native" else 50_000


#: A table that has begun waits so long (seconds) at most for more that is being decoded: it cannot be cancelled meanwhile.
_MORE = 0.1


class _Work:
    """The decoding of one fetch in a thread. It goes on where whoever waits for it is cancelled; the next one finds it done."""

    __slots__ = ("_decoder", "_fetch", "result")

    def __init__(self, decoder: Decoder, fetch: CompletedFetch) -> None:
        self._decoder, self._fetch = decoder, fetch
        self.result: RecordBatch | CorruptRecordError | None = None

    def run(self) -> RecordBatch | CorruptRecordError:
        """What comes of it. Called by one thread at a time."""
        if self.result is None:
            self.result = self._decoder.decode_now(self._fetch)
        return self.result


class Decoder:
    """Decodes what was fetched: a little of it in the event loop, more in a thread. One for all readers of a consumer."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._most = config.receive_message_max_bytes
        self._check_crcs = config.check_crcs
        self._limiter = trio.CapacityLimiter(1)  # of the thread that decodes what would hold up the loop
        self._deserializers = Deserializers.of(config)
        self._expansion = 4.0  # how many bytes of records a compressed byte makes, at the most of late

    async def decode(self, fetch: CompletedFetch) -> RecordBatch | CorruptRecordError:
        """The next batch of a fetch; what was not decoded with it is in ``fetch.rest`` then.

        Cancelled: the thread is left to its work, and whoever has the same fetch decoded again has what came of it.
        """
        work = fetch.work
        if work is None and (fetch.batch is not None or self._is_quick(fetch.records)):
            batch = self.decode_now(fetch, most=4 * _ENOUGH)
            if not isinstance(batch, CorruptRecordError) or not first_batch(fetch.records)[2]:
                return batch  # else it may be only that much more came out of it than was to be expected
        if not isinstance(work, _Work):
            work = _Work(self, fetch)
            fetch.decoded_by(work)
        return await trio.to_thread.run_sync(work.run, limiter=self._limiter, abandon_on_cancel=True)

    def decode_now(self, fetch: CompletedFetch, most: int | None = None) -> RecordBatch | CorruptRecordError:
        """As :meth:`decode`, in this step."""
        if fetch.batch is not None:
            return fetch.batch
        partition = fetch.partition
        try:
            decoded = decode_some(
                fetch.records,
                topic=partition.tp.topic,
                partition=partition.tp.partition,
                fetch_offset=partition.position or 0,
                aborted=fetch.aborted,
                check_crcs=self._check_crcs,
                max_bytes=min(most or self._most, self._most),
                enough=_ENOUGH,
            )
            self._expansion = max(decoded.expansion, self._expansion * 0.9, 1.0)
            if decoded.rest:
                fetch.decoded_before(CompletedFetch(partition, fetch.ticket, decoded.rest, decoded.aborted, fetch.end))
            return decoded.batch if self._deserializers is None else DeserializedBatch(decoded.batch, self._deserializers)
        except CorruptRecordError as error:
            return error

    def _is_quick(self, records: memoryview) -> bool:
        """Whether what :meth:`decode_now` does next will take less than 5 ms."""
        size, magic, compressed = first_batch(records)
        if magic < 2:
            return len(records) <= _QUICK // 80 and not compressed  # by kafka-python's code
        return size * self._expansion <= 2 * _ENOUGH if compressed else len(records) <= _QUICK


class PartitionReader:
    """Delivers the records of one partition, by batch or one by one. One task at a time."""

    __slots__ = ("_buffer", "_cursor", "_decoder", "_rest_ticket", "partition")

    def __init__(self, partition: AssignedPartition, buffer: FetchBuffer, decoder: Decoder) -> None:
        self.partition = partition
        self._buffer, self._decoder = buffer, decoder
        self._cursor: Cursor | None = None
        self._rest_ticket = 0

    # By batch.

    async def next_batch(self) -> RecordBatch | None:
        """What is buffered next, decoded; ``None`` if nothing may be delivered of it (any more). Deliver it at once.

        Cancelled: it is in the buffer still.
        """
        fetch = self._buffer.take(self.partition)
        if fetch is None:
            return None
        try:
            batch = await self._decoder.decode(fetch)
        except BaseException:
            if self.partition.accepts(fetch.ticket):
                self._buffer.put_first(fetch)
            raise
        return self._accept(fetch, batch)

    def next_batch_nowait(self) -> RecordBatch | None:
        """As :meth:`next_batch`, in this step."""
        fetch = self._buffer.take(self.partition)
        return None if fetch is None else self._accept(fetch, self._decoder.decode_now(fetch))

    async def further_batch(self) -> RecordBatch | None:
        """As :meth:`next_batch`, beside one that has been delivered: what is corrupt is met again by the next receive.

        So is what takes long to decode: there may be something to deliver, which cannot be cancelled.
        """
        with trio.move_on_after(_MORE), suppress(CorruptRecordError):
            return await self.next_batch()
        return None

    def deliver(self, batch: RecordBatch, most: int | None) -> RecordBatch:
        """Hand out a batch whole, or its first ``most`` records; the rest goes back."""
        if most is not None and len(batch) > most:
            self._buffer.put_back(self.partition, batch[most:])
            batch = batch[:most]
        self.partition.delivered(batch)
        return batch

    # One by one.

    def begin_records(self, batch: RecordBatch) -> Cursor:
        """Hand out a batch record by record: by the cursor that this returns, while it is live. :meth:`release` what is left."""
        self._cursor, self._rest_ticket = self.partition.begin_records(batch), self.partition.ticket
        return self._cursor

    def release(self) -> None:
        """Put what is left of the batch that is handed out record by record back into the buffer."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            rest: RecordBatch = cursor.rest
            self.partition.end_records()
            if rest and self.partition.accepts(self._rest_ticket):
                self._buffer.put_back(self.partition, rest)

    # Inside.

    def _accept(self, fetch: CompletedFetch, batch: RecordBatch | CorruptRecordError) -> RecordBatch | None:
        """Book what was decoded; return what of it is to be delivered now, the rest goes back. Raises what is corrupt."""
        partition = self.partition
        if not partition.accepts(fetch.ticket):
            return None
        if isinstance(batch, CorruptRecordError):
            partition.refetch(partition.position or 0)  # and so never skipped; the user may seek past it
            raise batch
        if fetch.rest is not None:
            self._buffer.put_first(fetch.rest)
        elif partition.fetch_offset < 0 and fetch.batch is None:
            partition.decoded_to(batch.next_offset)
        elif fetch.end is not None and batch.next_offset < fetch.end:
            partition.refetch(batch.next_offset)  # something corrupt follows: it is met at the head of the next fetch
        if not batch:
            partition.passed_over(max(partition.position or 0, batch.next_offset))
            return None
        if not partition.deliverable:  # paused, or to be given up, while it was decoded
            self._buffer.put_back(partition, batch)
            return None
        return self._within_limit(batch)

    def _within_limit(self, batch: RecordBatch) -> RecordBatch | None:
        partition, limit = self.partition, self.partition.limit
        if limit is None or batch.next_offset <= limit:
            return batch
        head = batch.head(limit)
        if rest := batch[len(head) :]:
            self._buffer.put_back(partition, rest)
        if not head:
            partition.passed_over(limit)
        return head or None
