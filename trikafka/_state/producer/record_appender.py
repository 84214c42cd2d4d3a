"""The way of records into open batches, within bounds. No I/O, no awaits.

A part of the accumulator. One record takes the fast path of the record path's ``Appender`` where
possible. ``append`` is the complete path and defines the behaviour of both. ``extend`` takes rows
of a table.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any, Generic, TypeVar

from ..._wire import _implementation
from ..._wire._format import HEADER_SIZE as BATCH_OVERHEAD
from ..._wire._format import RECORD_OVERHEAD
from ..._wire.columns import Columns
from ..._wire.records import BatchEncoder
from ...errors import RecordTooLargeError
from ...types import Headers
from ..arguments import HeaderPairs, as_bytes, check_headers, check_target, check_timestamp
from .buffer_pool import BufferPool
from .partition_chooser import Partitioning
from .partition_queue import PartitionQueue
from .producer_batch import ProducerBatch
from .table_rows import RowGroup, Taken
from .topic_queues import Queues, TopicQueues

Ack = TypeVar("Ack")
#: The size up to which rows of a table fill a batch, unless ``batch_size`` is larger. From here on
#: the fixed cost of a batch is not noticeable, while a broker's work for a record grows with the
#: batch (twice as much at 1 MiB, measured).
TABLE_BATCH = 1 << 18


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """The bounds of an accumulator. Times are in seconds."""

    batch_size: int
    linger: float
    buffer_memory: int
    max_request_size: int
    delivery_timeout: float
    retries: float = math.inf
    #: How long (seconds) a broker may be out of reach before keyless records go elsewhere; 0: no
    #: limit.
    availability_timeout: float = 0.0

    @property
    def largest(self) -> int:
        """The largest upper bound of a record's size that is accepted."""
        return min(self.max_request_size, self.buffer_memory) - BATCH_OVERHEAD

    @property
    def table_batch(self) -> int:
        """The size up to which rows of a table fill a batch."""
        return max(self.batch_size, min(self.max_request_size, TABLE_BATCH))


class RecordAppender(Generic[Ack]):
    """The appender of records to the open batches of ``queues``, with room from ``pool``."""

    __slots__ = (
        "_batch_size",
        "_clock",
        "_largest",
        "_limits",
        "_make_encoder",
        "_memory",
        "_pool",
        "_queues",
        "appender",
    )

    def __init__(
        self,
        limits: BufferLimits,
        pool: BufferPool,
        queues: Queues,
        how: Partitioning,
        *,
        make_encoder: Callable[[], BatchEncoder],
        handle: type[Ack],
        clock: Callable[[], float],
    ) -> None:
        self._limits = limits
        self._pool = pool
        self._queues = queues
        self._make_encoder = make_encoder
        self._clock = clock
        # Read for each record, so kept without an indirection.
        self._batch_size = limits.batch_size
        self._largest = limits.largest
        self._memory = pool.memory
        #: The fast path for one record.
        self.appender: Any = _implementation.current.Appender(
            handle,  # type: ignore[arg-type]
            self.append,
            pool.memory,
            limits.batch_size,
            limits.largest,
            careful=how.partitioner is not None,
            ignore_keys=how.ignore_keys,
        )

    # --- one record -------------------------------------------------------------------------------

    # Two ways for one record. The compiled ``Appender`` (``_wire/_native_producing.pxi``) handles
    # the common case: plain bytes, no headers, a known topic whose open batch has room. It calls
    # this method for every other case, errors included, so that only this method decides them. The
    # pure Python ``Appender`` knows no fast path and always comes here.
    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: HeaderPairs,
        timestamp: int | None,
        partition: int | None,
        admitted: bool = False,
    ) -> Ack | None:
        """Append a record and return its ack; ``None`` if there is no room or no such partition.

        ``admitted``: it is the caller's turn among those that wait for room.

        Raises:
            TypeError: a part of the record has a wrong type; nothing was appended.
            ConfigurationError: a value is out of range; nothing was appended.
            RecordTooLargeError: no batch can hold the record; nothing was appended.
        """
        known = self._queues.topic(topic) if type(topic) is str else None
        if known is None or type(partition) not in (int, NoneType):
            known = self._queues.topic(check_target(topic, partition))
        if type(value) is not bytes and value is not None:
            value = as_bytes("value", value)
        if type(key) is not bytes and key is not None:
            key = as_bytes("key", key)
        size = RECORD_OVERHEAD + len(value or b"") + len(key or b"")
        checked: Headers = ()
        if headers:
            checked, more = check_headers(headers)
            size += more
        timestamp = time.time_ns() // 1_000_000 if timestamp is None else check_timestamp(timestamp)
        if size > self._largest:
            raise self.too_large(topic, size)
        memory = self._memory
        if (
            known is None
            or size + BATCH_OVERHEAD > memory.free
            or (memory.waiters and not admitted)
        ):
            return None
        chosen = known.chooser.choose(key, partition)
        if chosen is None:
            # Raises if the number is larger than any partition's number can be.
            check_target(topic, partition)
            return None
        encoder = self._encoder_for(known, chosen, size)
        before = encoder.size
        index = encoder.append(timestamp, key, value, checked)
        memory.take(encoder.size - before)
        ack: Ack = self.appender.make(encoder.owner, index, timestamp)
        return ack

    def too_large(self, topic: str, size: int, what: str = "a record") -> RecordTooLargeError:
        """Return the error for a record of up to ``size`` bytes, with the exceeded setting."""
        limits = self._limits
        name = (
            "max_request_size"
            if limits.max_request_size <= limits.buffer_memory
            else "buffer_memory"
        )
        most = limits.largest + BATCH_OVERHEAD
        return RecordTooLargeError(
            f"{what} of up to {size} bytes for {topic!r} is larger than {name} ({most}) allows"
        )

    def _encoder_for(self, topic: TopicQueues, partition: int, size: int) -> BatchEncoder:
        """Return the encoder of an open batch with room for ``size`` bytes.

        Partition -1 means the partition that keyless records stick to.
        """
        queue = topic.chooser.stuck_to() if partition < 0 else topic.queues[partition]
        encoder = self._encoder_of(topic, queue)
        if encoder is not None and encoder.size + size > self._batch_size:
            if partition < 0:
                self._queues.close(queue)
                return self._encoder_for(topic, topic.chooser.switch().place.partition, size)
            encoder = None
        if encoder is None:
            encoder = self._make_encoder()
            self._open(queue, encoder)
        return encoder

    def _encoder_of(self, topic: TopicQueues, queue: PartitionQueue) -> BatchEncoder | None:
        encoder: BatchEncoder | None = topic.open.encoders[queue.place.partition]
        return encoder

    def _open(self, queue: PartitionQueue, encoder: BatchEncoder) -> ProducerBatch:
        """Open a batch with the content of ``encoder``; the batch before it is closed."""
        batch = ProducerBatch(queue.place.topic, queue.place.partition, encoder, self._clock())
        self._pool.reserve(batch.size)
        self._queues.add(queue, batch)
        return batch

    # --- rows of a table --------------------------------------------------------------------------

    def extend(
        self, topic: str, columns: Columns, group: RowGroup, start: int, admitted: bool = False
    ) -> Taken | None:
        """Append rows of ``group`` from ``start`` on, as many as one batch takes.

        ``None``: there is no room, or no such partition.
        """
        known = self._queues.topic(topic)
        if known is None or not self._pool.may_take(admitted):
            return None
        if group.partition is None:
            queue = known.chooser.stuck_to()
        elif group.partition < len(known.queues):
            queue = known.queues[group.partition]
        else:
            return None
        taken = self._extend_open(queue, known.table_batch, columns, group, start)
        batch = queue.open
        if (
            taken is None
            and group.partition is None
            and batch is not None
            and self._is_full(batch, known.table_batch)
        ):
            self._queues.close(queue)
            queue = known.chooser.stuck_to()
            taken = self._extend_open(queue, known.table_batch, columns, group, start)
        return taken or self._extend_new(queue, known.table_batch, columns, group, start)

    def _is_full(self, batch: ProducerBatch, most: int) -> bool:
        """Return whether ``batch`` is full: the next row did not fail for lack of memory."""
        return batch.size + self._pool.free >= most

    def _extend_open(
        self, queue: PartitionQueue, most: int, columns: Columns, group: RowGroup, start: int
    ) -> Taken | None:
        batch = queue.open
        if batch is None or batch.encoder is None:
            return None
        first, before = batch.encoder.count, batch.encoder.size
        end = group.put(batch.encoder, columns, start, min(most, before + self._pool.free))
        self._pool.reserve(batch.encoder.size - before)
        return Taken(batch, first, end) if end > start else None

    def _extend_new(
        self, queue: PartitionQueue, most: int, columns: Columns, group: RowGroup, start: int
    ) -> Taken | None:
        free = self._pool.free
        encoder = self._make_encoder()
        end = group.put(encoder, columns, start, min(most, free))
        if end == start:
            # A row larger than the usual size of a table's batches gets a batch for itself.
            largest = self._limits.largest + BATCH_OVERHEAD
            end = group._replace(stop=start + 1).put(encoder, columns, start, min(largest, free))
        if end == start:
            return None
        return Taken(self._open(queue, encoder), 0, end)
