"""The readers: each decodes the fetched bytes of one partition, and delivers the records in order.

Owned by the consumer. The receiver (all partitions, in turns) and the streams (one partition each)
decide which task reads when.
"""

# Why a cancelled receive loses nothing
# -------------------------------------
#
# A record leaves the buffer, and the position moves, only in the synchronous step after the last
# checkpoint. Until then a fetch is taken out of the buffer for decoding at most, and any exception
# (a cancellation above all) puts it back as the first one.
#
# Decoding is the await in between. Little is decoded in the event loop, in about 5 ms at most. More
# goes to a thread: else heartbeats and other tasks would wait for a batch that is decompressed.
# There is one thread at a time. A thread cannot be cancelled. So a cancelled receive abandons the
# thread, and the fetch keeps the ``_Work``. The next receive of the same fetch takes its result
# instead of decoding a second time.
#
# Meanwhile a seek or a rebalance may have overtaken the fetch. Its ticket shows that: a fetch with
# an old ticket is neither put back nor delivered.

from __future__ import annotations

from functools import partial
from typing import Any

import trio

from ..._state.consumer.assignment import AssignedPartition, Assignment, Cursor
from ..._state.consumer.fetch_buffer import CompletedFetch, FetchBuffer
from ..._wire.columns import RecordBatch
from ..._wire.compression import Codecs
from ..._wire.records import IMPLEMENTATION, decode_some, first_batch
from ...config import ConsumerConfig
from ...errors import CorruptRecordError
from ..client.deserializing import AwaitedBatch, DeserializedBatch, Deserializers

#: The bytes that are decoded in about 5 ms, and so in the event loop.
_QUICK = 5 * 2**20 if IMPLEMENTATION == "native" else 50_000
#: Twice this many bytes are decompressed and decoded in about 5 ms. Only a single batch may come to
#: more.
_ENOUGH = 2**20 if IMPLEMENTATION == "native" else 50_000


#: The longest wait (seconds) for further batches of a table: this wait cannot be cancelled.
_MORE = 0.1


class _Work:
    """The decoding of one fetch in a thread, or by async deserializers.

    A thread continues when the waiting task is cancelled. The next call finds the result.
    """

    # The fetch has a reference to its work. With one to the fetch here, each decoded batch would
    # stay in memory until the garbage collector runs.
    __slots__ = ("_decoder", "result")

    def __init__(self, decoder: BatchDecoder) -> None:
        self._decoder = decoder
        self.result: RecordBatch[Any, Any] | CorruptRecordError | None = None

    def decode(self, fetch: CompletedFetch) -> RecordBatch | CorruptRecordError:
        """Return the decoded batch of ``fetch``, or the error. One thread at a time calls this."""
        if self.result is None:
            self.result = self._decoder.decode_now(fetch)
        return self.result


class BatchDecoder:
    """The decoder of all readers of one consumer: in the event loop, or in a thread for more."""

    def __init__(self, config: ConsumerConfig, buffer: FetchBuffer, codecs: Codecs) -> None:
        self._buffer = buffer
        self._codecs = codecs
        self._most = config.receive_message_max_bytes
        self._check_crcs = config.check_crcs
        # Of the thread that decodes what would block the event loop.
        self._limiter = trio.CapacityLimiter(1)
        self._deserializers = Deserializers.of(config)
        # The bytes of records that a compressed byte yields: the most of late.
        self._expansion = 4.0

    async def decode(self, fetch: CompletedFetch) -> RecordBatch | CorruptRecordError:
        """Return the next batch of a fetch; the undecoded rest is in ``fetch.rest`` then.

        When cancelled, the thread goes on alone, and the next call for this fetch returns its
        result.
        """
        work = fetch.work
        if isinstance(work, _Work) and work.result is not None:
            return work.result
        if work is None and (fetch.batch is not None or self._is_quick(fetch.records)):
            batch = self.decode_now(fetch, most=4 * _ENOUGH)
            if not isinstance(batch, CorruptRecordError) or not first_batch(fetch.records)[2]:
                # Otherwise the batch may only have expanded more than expected: a thread decodes
                # it.
                return batch
        if not isinstance(work, _Work):
            work = _Work(self)
            fetch.decoded_by(work)
        return await trio.to_thread.run_sync(
            work.decode, fetch, limiter=self._limiter, abandon_on_cancel=True
        )

    def decode_now(
        self, fetch: CompletedFetch, most: int | None = None
    ) -> RecordBatch | CorruptRecordError:
        """Return the next batch of a fetch as :meth:`decode`, in this step."""
        if fetch.batch is not None:
            return fetch.batch
        if isinstance(fetch.work, _Work) and fetch.work.result is not None:
            return fetch.work.result
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
                enough=self._buffer.decoded_at_once(_ENOUGH),
                codecs=self._codecs,
            )
            self._expansion = max(decoded.expansion, self._expansion * 0.9, 1.0)
            if decoded.rest:
                fetch.decoded_before(
                    CompletedFetch(
                        partition, fetch.ticket, decoded.rest, decoded.aborted, fetch.end
                    )
                )
            return (
                decoded.batch
                if self._deserializers is None
                else self._deserializers.batch(decoded.batch)
            )
        except CorruptRecordError as error:
            # Frames of the traceback have the fetch and, in the caller, this error: a cycle.
            return error.with_traceback(None)

    def keep(self, fetch: CompletedFetch, batch: AwaitedBatch) -> None:
        """Keep a decoded batch with its fetch: the next call for that returns the same one."""
        if fetch.batch is None and not isinstance(fetch.work, _Work):
            work = _Work(self)
            work.result = batch
            fetch.decoded_by(work)

    def _is_quick(self, records: memoryview) -> bool:
        """Return whether the next :meth:`decode_now` will take less than 5 ms."""
        size, magic, compressed = first_batch(records)
        if magic < 2:
            # kafka-python's code decodes these.
            return len(records) <= _QUICK // 80 and not compressed
        return size * self._expansion <= 2 * _ENOUGH if compressed else len(records) <= _QUICK


class PartitionReader:
    """Delivery of one partition's records, by batch or one by one; one task at a time."""

    __slots__ = ("_buffer", "_cursor", "_decoder", "_rest_ticket", "deserializing", "partition")

    def __init__(
        self, partition: AssignedPartition, buffer: FetchBuffer, decoder: BatchDecoder
    ) -> None:
        self.partition = partition
        self._buffer = buffer
        self._decoder = decoder
        self._cursor: Cursor | None = None
        self._rest_ticket = 0
        #: True while a receive waits for async deserializers.
        self.deserializing = False

    # --- batch by batch ---

    async def next_batch(self, *, raw: bool = False) -> RecordBatch | None:
        """Return the next buffered batch, decoded; ``None`` if nothing may be delivered of it.

        The caller delivers it in the same step. When cancelled, the batch is still in the buffer.
        ``raw``: only the bytes are needed, so async deserializers are not called.
        """
        fetch = self._buffer.pop(self.partition)
        if fetch is None:
            return None
        try:
            batch = await self._decoder.decode(fetch)
            if isinstance(batch, AwaitedBatch) and not raw:
                self._decoder.keep(fetch, batch)
                self.deserializing = True
                await batch.resolve()
        except BaseException:
            if self.partition.accepts(fetch.ticket):
                self._buffer.put_first(fetch)
            raise
        finally:
            self.deserializing = False
        try:
            return self._accept(fetch, batch, raw)
        finally:
            del fetch, batch  # an error's traceback has this frame

    def next_batch_nowait(self, *, raw: bool) -> RecordBatch | None:
        """Return the next batch as :meth:`next_batch`, in this step.

        Raises :exc:`trio.WouldBlock` if async deserializers have to be called first.
        """
        fetch = self._buffer.pop(self.partition)
        if fetch is None:
            return None
        try:
            batch = self._decoder.decode_now(fetch)
            if isinstance(batch, AwaitedBatch) and batch and not batch.known and not raw:
                self._decoder.keep(fetch, batch)
                raise trio.WouldBlock
        except BaseException:  # a plugin's codec failed, or Ctrl-C came
            self._buffer.put_first(fetch)
            raise
        try:
            return self._accept(fetch, batch, raw)
        finally:
            del fetch, batch  # an error's traceback has this frame

    async def further_batch(self) -> RecordBatch | None:
        """Return another batch for the ones just delivered, or ``None``; for their bytes alone.

        The wait cannot be cancelled, since there is something to deliver. So it is short.

        Raises:
            CorruptRecordError: The next batch is corrupt. The next receive raises it again, so the
                caller delivers what it has.
            PluginError: A plugin's codec failed, likewise.
        """
        with trio.move_on_after(_MORE):
            return await self.next_batch(raw=True)
        return None

    def deliver(self, batch: RecordBatch[Any, Any], most: int | None) -> RecordBatch[Any, Any]:
        """Deliver a batch, or its first ``most`` records; the rest returns to the buffer."""
        if most is not None and len(batch) > most:
            self._buffer.put_back(self.partition, batch[most:])
            batch = batch[:most]
        self.partition.delivered(batch)
        if isinstance(batch, DeserializedBatch):
            batch = batch.delivered_by(partial(self._stands_at, self.partition.ticket))
        return batch

    def _stands_at(self, ticket: int, offset: int) -> bool:
        """Return to a record that could not be deserialized, unless the batch is overtaken.

        Returns whether the position is at the record.
        """
        partition = self.partition
        if partition.accepts(ticket):
            partition.step_back(offset)
        return partition.owned and partition.position == offset

    # --- record by record ---

    def begin_records(self, batch: RecordBatch) -> Cursor:
        """Deliver a batch record by record, through the returned cursor while it is live.

        :meth:`release` returns the rest to the buffer.
        """
        if isinstance(batch, AwaitedBatch):
            batch = batch.delivered_by(self._stop_records)
        elif isinstance(batch, DeserializedBatch):
            batch = batch.delivered_by(lambda offset: True)  # the position is the cursor's
        self._cursor = self.partition.begin_records(batch)
        self._rest_ticket = self.partition.ticket
        return self._cursor

    def _stop_records(self, offset: int) -> bool:
        """End the cursor at a record that failed: the next receive calls its deserializer again.

        Returns True: the position of a cursor stays at the record.
        """
        if self._cursor is not None:
            self._cursor.end()
        return True

    def release(self) -> None:
        """Return the rest of a batch that is delivered record by record to the buffer."""
        cursor = self._cursor
        self._cursor = None
        if cursor is not None:
            rest: RecordBatch | None = cursor.rest
            self.partition.end_records()
            if rest is not None and self.partition.accepts(self._rest_ticket):
                if isinstance(rest, AwaitedBatch):
                    rest = rest.to_retry()
                self._buffer.put_back(self.partition, rest)

    def _accept(
        self, fetch: CompletedFetch, batch: RecordBatch | CorruptRecordError, raw: bool
    ) -> RecordBatch | None:
        """Account for a decoded batch; return the part to deliver now.

        The rest returns to the buffer. Raises the error of a corrupt batch.
        """
        partition = self.partition
        if not partition.accepts(fetch.ticket):
            return None
        if isinstance(batch, CorruptRecordError):
            # The corrupt batch is never skipped by itself; the user may seek past it.
            partition.refetch(partition.position or 0)
            try:
                raise batch
            finally:
                del fetch, batch  # as in the callers
        if fetch.rest is not None:
            self._buffer.put_first(fetch.rest)
        elif partition.fetch_offset < 0 and fetch.batch is None:
            partition.decoded_to(batch.next_offset)
        elif fetch.end is not None and batch.next_offset < fetch.end:
            # Something corrupt follows; the next fetch begins with it.
            partition.refetch(batch.next_offset)
        if not batch:
            partition.passed_over(
                max(partition.position or 0, batch.next_offset), batch.leader_epoch
            )
            return None
        if not partition.deliverable:  # paused, or being revoked, since the decoding began
            self._buffer.put_back(partition, batch)
            return None
        if isinstance(batch, AwaitedBatch) and not raw and batch.known < len(batch):
            self._buffer.put_back(partition, batch[batch.known :])
            batch = batch[: batch.known]
        return self._within_limit(batch)

    def _within_limit(self, batch: RecordBatch) -> RecordBatch | None:
        partition, limit = self.partition, self.partition.limit
        if limit is None or batch.next_offset <= limit:
            return batch
        head = batch.head(limit)
        if rest := batch[len(head) :]:
            self._buffer.put_back(partition, rest)
        if not head:
            partition.passed_over(limit, batch.leader_epoch)
        return head or None


class Readers:
    """The readers of the assigned partitions, made on first use."""

    def __init__(self, config: ConsumerConfig, buffer: FetchBuffer, codecs: Codecs) -> None:
        self._buffer = buffer
        self._decoder = BatchDecoder(config, buffer, codecs)
        self._readers: dict[AssignedPartition, PartitionReader] = {}

    def of(self, partition: AssignedPartition) -> PartitionReader:
        """Return the reader of a partition."""
        reader = self._readers.get(partition)
        if reader is None:
            reader = self._readers[partition] = PartitionReader(
                partition, self._buffer, self._decoder
            )
        return reader

    def holds(self, partition: AssignedPartition) -> str | None:
        """Return why the records of a partition are not delivered, if it is its deserializer."""
        reader = self._readers.get(partition)
        if reader is None or not reader.deserializing:
            return None
        return "a receive waits for an async deserializer of its records"

    def deserializing(self) -> str | None:
        """Return the partition whose async deserializer a receive waits for; else ``None``."""
        for partition, reader in self._readers.items():
            if reader.deserializing:
                return str(partition.tp)
        return None

    def forget_others(self, assignment: Assignment) -> None:
        """Drop the readers of partitions that are no longer assigned."""
        mine = set(assignment)
        self._readers = {
            partition: reader for partition, reader in self._readers.items() if partition in mine
        }
