"""Records handed out one by one, in pure Python: the interface of ``_native_iterating.pxi``, with the same outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Self

from trikafka.types import Record

RecordBatch = Any  #: of ``columns``, which is made by what imports this module


class Cursor:
    """A batch that is being delivered record by record. While there is one, the partition's position is the cursor's.

    ``live`` is false once something has overtaken it (a seek, a pause, a revocation ...): then nothing more may be taken.
    """

    __slots__ = ("_batch", "_count", "_index", "_records", "live", "position", "processed")

    def __init__(self, batch: RecordBatch, position: int, processed: int | None) -> None:
        self._batch, self._index, self._count = batch, 0, len(batch)
        self._records: Iterator[Record] = iter(batch)
        self.position, self.processed = position, processed
        self.live = True

    def take(self) -> Record:
        """The next record: the user came back for it, so what was delivered before is processed. Written for speed."""
        self.processed = self.position
        record = next(self._records)  # may raise, where a record cannot be deserialized: it stays the next one then
        self._index = index = self._index + 1
        if index == self._count:
            self.position = self._batch.next_offset
            self.live = False
        else:
            self.position = record[2] + 1  # its offset
        return record

    def end(self) -> None:
        """Something has overtaken it."""
        self.live = False

    def processed_upto(self, offset: int) -> None:
        """Everything before ``offset`` is processed."""
        self.processed = offset

    @property
    def rest(self) -> RecordBatch:
        """What was not taken."""
        return self._batch[self._index :]


class RecordIterator:
    """Hands out a cursor's records to a task of Trio's.

    ``wait()`` is the whole way to the next record. The short one is gone while the cursor is live, the task is not cancelled
    (nor Ctrl-C pending), and the others had their turn less than ``turn`` seconds ago; the pure one knows only the whole one.
    ``context`` has the task that runs, as ``task``, where Trio is as it is known (else ``None``, and there is no short way), and
    ``now`` tells the time where that is not the system's.
    """

    __slots__ = ("_wait",)

    def __init__(
        self,
        wait: Callable[[], Coroutine[Any, Any, Record]],
        turn: float,
        context: object | None,
        now: Callable[[], float] | None,
    ) -> None:
        self._wait = wait

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[Record]:
        return self._wait()

    def follow(self, cursor: Cursor | None) -> None:
        """Hand out what is in ``cursor``, from where it is; ``None``: nothing before ``wait()`` was called."""

    def turn_begun(self) -> None:
        """The others had their turn."""
