"""The acquired records that wait to be delivered, and the errors among them. No I/O."""

from __future__ import annotations

from collections import deque

from ...errors import TrikafkaError
from ...types import Record
from .acquired import AcquiredRecords
from .session import Slice


class ShareBuffer:
    """Acquired records in the order in which they came; lost ones are passed over."""

    def __init__(self) -> None:
        self._waiting: deque[AcquiredRecords | TrikafkaError] = deque()
        self._index = 0  # of the next record of the first one
        #: The number of errors that no receive has raised so far.
        self.errors = 0

    def __bool__(self) -> bool:
        """Return whether something may be delivered: a record that is not lost, or an error."""
        return self._first() is not None

    def put(self, acquired: AcquiredRecords) -> None:
        """Add acquired records."""
        self._waiting.append(acquired)

    def put_error(self, error: TrikafkaError) -> None:
        """Add an error, which one receive raises in its turn."""
        self._waiting.append(error)
        self.errors += 1

    def pop_record(self) -> tuple[AcquiredRecords, int, Record] | None:
        """Take the next record; ``None`` if there is none. Raises an error whose turn it is."""
        waiting = self._waiting
        if not waiting:
            return None
        first, index = waiting[0], self._index
        if type(first) is AcquiredRecords:
            record = first.take(index)
            if record is not None:
                self._index = index + 1
                return first, index, record
        acquired = self._take()
        if acquired is None:
            return None
        index = self._index
        record = acquired.take(index)
        assert record is not None
        self._index = index + 1
        return acquired, index, record

    def pop_run(self) -> Slice | None:
        """Take the next records of one partition, as :meth:`pop_record`."""
        acquired = self._take()
        if acquired is None:
            return None
        start = self._index
        stop = acquired.buffered_run(start)
        acquired.deliver(start, stop)
        self._index = stop
        return acquired, start, stop

    def give_back(self) -> None:
        """Release everything that waits: the program does not receive any more."""
        for each in self._waiting:
            if isinstance(each, AcquiredRecords):
                each.give_back_buffered()

    def clear(self) -> None:
        """Forget everything; the caller has released it."""
        self._waiting.clear()
        self._index = 0
        self.errors = 0

    def _take(self) -> AcquiredRecords | None:
        first = self._first()
        if isinstance(first, TrikafkaError):
            self._waiting.popleft()
            self._index = 0
            self.errors -= 1
            raise first
        return first

    def _first(self) -> AcquiredRecords | TrikafkaError | None:
        while self._waiting:
            first = self._waiting[0]
            if isinstance(first, TrikafkaError):
                return first
            index = first.next_buffered(self._index)
            if index >= 0:
                self._index = index
                return first
            self._waiting.popleft()
            self._index = 0
        return None
