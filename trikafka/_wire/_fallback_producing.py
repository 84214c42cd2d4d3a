"""The work of a producer for each record, in pure Python.

Interface and results are those of ``_native_producing.pxi``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trikafka._wire._fallback_iterating import Turn

BatchEncoder = Any  #: of ``_fallback``, which imports this module


class DeliveryHandle:
    """The place of an accepted record: a batch, the index in the batch, and the timestamp.

    Only :meth:`Appender.make` makes one.
    """

    __slots__ = ("_batch", "_index", "_timestamp")

    _batch: Any
    _index: int
    _timestamp: int


class BufferMemory:
    """The bytes of ``buffer_memory``: capacity, free bytes, and the callers that wait, in order.

    These are counted only here. :class:`Appender` takes bytes for the records that it puts into
    open batches. While any caller waits, new calls get no memory. The accumulator alone adds and
    removes waiters; ``set()`` wakes one to check again.
    """

    __slots__ = ("capacity", "free", "waiters")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = capacity
        self.waiters: list[Any] = []

    def take(self, size: int) -> None:
        """Take ``size`` bytes."""
        self.free -= size

    def give(self, size: int) -> None:
        """Free ``size`` bytes and wake the first waiter."""
        self.free += size
        if self.waiters:
            self.waiters[0].set()


class OpenBatches:
    """The open batches of a topic: for each partition, the encoder that accepts records.

    Which batch is open is recorded only here. ``sticky`` is the partition for records without a
    key; -1: one must be chosen.
    """

    __slots__ = ("encoders", "sticky")

    def __init__(self) -> None:
        self.encoders: list[BatchEncoder | None] = []
        self.sticky = -1

    def resize(self, count: int) -> None:
        """Set the number of partitions. Open batches beyond it must have been closed."""
        del self.encoders[count:]
        self.encoders.extend([None] * (count - len(self.encoders)))
        self.sticky = -1

    def open(self, partition: int, encoder: BatchEncoder) -> None:
        """Record that this encoder's batch is the open one of the partition."""
        self.encoders[partition] = encoder

    def close(self, partition: int) -> None:
        """Record that the partition has no open batch."""
        self.encoders[partition] = None

    def stick(self, partition: int) -> None:
        """Send records without a key to ``partition`` from now on; -1: one must be chosen."""
        if not -1 <= partition < len(self.encoders):
            raise IndexError(f"partition {partition} of {len(self.encoders)}")
        self.sticky = partition


class Appender:
    """The fast path of a common record into an open batch.

    A common record has plain bytes and no headers, and its partition has an open batch with room.
    All other records go to ``carefully``, which has the same arguments and result; with ``careful``
    every record does. This implementation in Python always calls ``carefully``. The appender's
    owner updates ``topics``, the open batches of each known topic.
    """

    __slots__ = ("_handle", "append", "topics")

    def __init__(
        self,
        handle: type[DeliveryHandle],
        carefully: Callable[..., Any],
        memory: BufferMemory,
        batch_size: int,
        largest: int,
        *,
        careful: bool = False,
        key_hash: int = 0,
        shortest_key: int = 0,
    ) -> None:
        self._handle = handle
        self.append = carefully
        self.topics: dict[str, OpenBatches] = {}

    def make(self, batch: object, index: int, timestamp: int) -> Any:
        """Return a delivery handle."""
        made = self._handle()
        made._batch = batch
        made._index = index
        made._timestamp = timestamp
        return made


class QuickSending:
    """The quick ``enqueue`` and ``send_nowait`` of one producer.

    The compiled ones append a common record themselves, without the frame of a Python function, and
    ``enqueue`` without a coroutine. They call ``complete_enqueue`` and ``complete_send``, which
    have the same arguments and define the behaviour, for every other record, after :meth:`close`,
    and while ``gate.takes_records`` is false. So does ``enqueue`` when the turn is over or the task
    is cancelled. This implementation in Python always uses the complete ways.
    """

    __slots__ = ("enqueue", "send_nowait")

    def __init__(
        self,
        appender: Appender,
        turn: Turn,
        gate: object,
        complete_enqueue: Callable[..., Any],
        complete_send: Callable[..., Any],
    ) -> None:
        self.enqueue = complete_enqueue
        self.send_nowait = complete_send

    def close(self) -> None:
        """Take no more records."""
