"""The delivery of records one by one, in pure Python.

The interface of ``_native_iterating.pxi``, with the same outcome.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Self

from trikafka.types import AnyRecord

RecordBatch = Any  #: of ``columns``, which imports this module indirectly


class Cursor:
    """A batch that is being delivered record by record.

    While there is a cursor, the partition's position is the cursor's. ``live`` becomes false when
    an event overtakes the cursor (a seek, a pause, a revocation ...): no more records may be taken
    then.
    """

    __slots__ = ("_batch", "_count", "_index", "_records", "live", "position", "processed")

    def __init__(self, batch: RecordBatch, position: int, processed: int | None) -> None:
        self._batch = batch
        self._index = 0
        self._count = len(batch)
        self._records: Iterator[AnyRecord] = iter(batch)
        self.position = position
        self.processed = processed
        self.live = True

    def take(self) -> AnyRecord:
        """Return the next record, and count the ones before it as processed.

        The user asked for more, so the delivered records are done. Written for speed.
        """
        self.processed = self.position
        # A record that cannot be deserialized raises here, and stays the next one.
        record = next(self._records)
        self._index = index = self._index + 1
        if index == self._count:
            self.position = self._batch.next_offset
            self.live = False
        else:
            self.position = record[2] + 1  # its offset
        return record

    def end(self) -> None:
        """End the cursor: an event has overtaken it."""
        self.live = False

    def processed_upto(self, offset: int) -> None:
        """Mark everything before ``offset`` as processed."""
        self.processed = offset

    @property
    def rest(self) -> RecordBatch | None:
        """The records that were not taken; ``None`` if all were."""
        return None if self._index == self._count else self._batch[self._index :]


class Turn:
    """A short time in which a series of calls, which have nothing to wait for, needs no checkpoint.

    No turn has begun at first.

    Args:
        seconds: The length of a turn.
        current_task: Returns the running task. It is ``None`` if Trio's tasks lack the attributes
            that ``passes`` reads: then no call passes.
        now: Gives the time if the clock is not the system's.
    """

    __slots__ = ("_begun", "_current_task", "_now", "_seconds")

    def __init__(
        self,
        seconds: float,
        current_task: Callable[[], object] | None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._seconds = seconds
        self._current_task = current_task
        self._now = now or time.perf_counter
        self._begun = -math.inf

    def begin(self) -> None:
        """Begin a turn: other tasks have just run."""
        self._begun = self._now()

    @property
    def is_over(self) -> bool:
        """True unless a turn began less than ``seconds`` ago."""
        return self._now() - self._begun >= self._seconds

    def passes(self) -> bool:
        """Return whether the turn is not over, and the task neither cancelled nor interrupted."""
        if self.is_over or self._current_task is None:
            return False
        task: Any = self._current_task()
        return not (task._cancel_status.effectively_cancelled or task._runner.ki_pending)


class RecordIterator:
    """The asynchronous iterator that gives a task of Trio's the records of a cursor.

    ``wait()`` is the complete way to the next record. The fast way is taken while the cursor is
    live and ``turn`` lets it pass. The pure implementation always takes the complete way.
    """

    __slots__ = ("_wait",)

    def __init__(
        self,
        wait: Callable[[], Coroutine[Any, Any, AnyRecord]],
        turn: Turn,
    ) -> None:
        self._wait = wait

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[AnyRecord]:
        return self._wait()

    def follow(self, cursor: Cursor | None) -> None:
        """Deliver the records of ``cursor`` from its position.

        ``None``: none before ``wait()`` was called.
        """

    def turn_begun(self) -> None:
        """Begin a turn: other tasks have just run."""
