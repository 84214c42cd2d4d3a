"""What a producer does with each record, in pure Python: the interface of ``_native_producing.pxi``, with the same outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BatchEncoder = Any  #: of ``_fallback``, which imports this module


class DeliveryHandle:
    """Where an accepted record is: a batch, the index in it, and the timestamp. Made by :meth:`Appender.make` alone."""

    __slots__ = ("_batch", "_index", "_timestamp")

    _batch: Any
    _index: int
    _timestamp: int


class BufferMemory:
    """The bytes of ``buffer_memory``: how many there are, how many are free, and who waits for them (in order).

    The one place where they are counted. :class:`Appender` takes for the records that it puts into open batches; all else goes
    through ``_state/buffer_pool.py``. While somebody waits newcomers get nothing.
    """

    __slots__ = ("capacity", "free", "waiters")

    def __init__(self, capacity: int) -> None:
        self.capacity = self.free = capacity
        self.waiters: list[Any] = []

    def take(self, size: int) -> None:
        """``size`` bytes are in use."""
        self.free -= size

    def give(self, size: int) -> None:
        """``size`` bytes are free again."""
        self.free += size


class OpenBatches:
    """The one place that says which batches of a topic take records: for each partition the encoder of its open batch.

    ``sticky`` is the partition that records without a key go to, -1 where one has to be chosen.
    """

    __slots__ = ("encoders", "sticky")

    def __init__(self) -> None:
        self.encoders: list[BatchEncoder | None] = []
        self.sticky = -1

    def resize(self, count: int) -> None:
        """The topic has ``count`` partitions. What is open beyond that must have been closed."""
        del self.encoders[count:]
        self.encoders.extend([None] * (count - len(self.encoders)))
        self.sticky = -1

    def open(self, partition: int, encoder: BatchEncoder) -> None:
        """The batch of this encoder takes the partition's records from now on."""
        self.encoders[partition] = encoder

    def close(self, partition: int) -> None:
        """No batch of the partition takes records now."""
        self.encoders[partition] = None

    def stick(self, partition: int) -> None:
        """Records without a key go to ``partition`` from now on; -1: to one that is still to be chosen."""
        if not -1 <= partition < len(self.encoders):
            raise IndexError(f"partition {partition} of {len(self.encoders)}")
        self.sticky = partition


class Appender:
    """The way of a common record into an open batch: plain bytes, no headers, with room, in a batch that goes on.

    All other records go the way of ``carefully``, which takes and returns the same; with ``careful`` every record does. Who owns
    the appender keeps ``topics``, the open batches of each topic that is known. The pure one knows no other way than ``carefully``.
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
        ignore_keys: bool = False,
    ) -> None:
        self._handle = handle
        self.append = carefully
        self.topics: dict[str, OpenBatches] = {}

    def make(self, batch: object, index: int, timestamp: int) -> Any:
        """A delivery handle."""
        made = self._handle()
        made._batch, made._index, made._timestamp = batch, index, timestamp
        return made
