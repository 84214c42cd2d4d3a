"""The acquired records that wait to be delivered, and the errors among them. No I/O."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from ..._wire import _implementation
from ..._wire.columns import RecordBatch
from ..._wire.share import AckType
from ...errors import TrikafkaError
from ...types import Record
from .acquired import AcquiredRecords
from .session import Slice

if TYPE_CHECKING:
    from ..._wire._fallback_sharing import BufferFront as _BufferFront
else:
    _BufferFront = _implementation.current.BufferFront

_RELEASE = bytes((AckType.RELEASE,))


class Resolved:
    """Records whose async deserializers have returned: ``acquired[start:stop]``.

    For the acquired records they count as delivered, although no receive has returned them yet.
    """

    __slots__ = ("_first", "_records", "acquired", "start", "stop")

    def __init__(
        self, acquired: AcquiredRecords, start: int, stop: int, records: RecordBatch[Any, Any]
    ) -> None:
        self.acquired = acquired
        self.start = start
        self.stop = stop
        self._first = start
        self._records = records

    def take(self, count: int) -> RecordBatch[Any, Any]:
        """Take the first records."""
        begins = self.start - self._first
        self.start += count
        return self._records[begins : begins + count]

    def skip(self, index: int) -> None:
        """Leave out a record that could not be taken."""
        self.start = index + 1


class ShareBuffer(_BufferFront):
    """Acquired records in the order of their arrival. Records whose lock is lost are skipped."""

    def __init__(self) -> None:
        self._resolved: deque[Resolved] = deque()
        self._waiting: deque[AcquiredRecords | TrikafkaError] = deque()
        self._index = 0  # of the next record of the first one
        #: The number of errors that no receive has raised so far.
        self.errors = 0
        #: The bytes that all records keep which are not delivered. Records that one response
        #: acquired in one partition count until the last of them is delivered.
        self.size = 0

    def __bool__(self) -> bool:
        """Return whether a record whose lock is not lost, or an error, can be delivered."""
        return self._first() is not None

    def put(self, acquired: AcquiredRecords) -> None:
        """Add acquired records."""
        self._waiting.append(acquired)
        self.size += acquired.size

    def expect(self, size: int) -> None:
        """Count bytes that have arrived, and are put in once they are decoded.

        A negative number takes back what was counted.
        """
        self.size += size

    def put_error(self, error: TrikafkaError) -> None:
        """Add an error. One receive raises it after the records before it."""
        self._waiting.append(error)
        self.errors += 1

    def pop_record(self) -> tuple[AcquiredRecords, int, Record] | None:
        """Take the next record; ``None`` if there is none. Raises an error that comes first."""
        # That is the whole work for nearly every record.
        found = self.pop_front()
        if found is not None:
            return found
        acquired = self._take()
        if acquired is None:
            return None
        index = self._index
        record = acquired.take(index)
        assert record is not None
        self._index = index + 1
        return acquired, index, record

    def pop_run(self) -> Slice | None:
        """Take a series of records of one partition. Returns and raises as :meth:`pop_record`."""
        acquired = self._take()
        if acquired is None:
            return None
        start = self._index
        stop = acquired.buffered_run(start)
        acquired.deliver(start, stop)
        self._index = stop
        return acquired, start, stop

    def put_back(self, acquired: AcquiredRecords, start: int, stop: int) -> None:
        """Return records to the front: the receive that took them does not deliver them."""
        if start == stop or not acquired.undeliver(start, stop):
            return
        if self._waiting and self._waiting[0] is acquired:
            self._index = min(self._index, start)
            return
        if acquired in self._waiting:
            self._waiting.remove(acquired)
        else:
            self.size += acquired.size
        self._waiting.appendleft(acquired)
        self._index = start

    def put_resolved(self, resolved: Resolved) -> None:
        """Add records whose async deserializers have returned."""
        self._resolved.append(resolved)

    def resolved(self) -> Resolved | None:
        """Return the next records whose deserializers have returned; ``None`` if there are none."""
        while self._resolved:
            first = self._resolved[0]
            # The lock may have been lost while the deserializers ran.
            if first.start < first.stop and first.acquired.are_delivered(first.start, first.stop):
                return first
            self._resolved.popleft()
        return None

    def give_back(self) -> None:
        """Release all records in the buffer, because the program receives no more."""
        while (resolved := self.resolved()) is not None:
            resolved.acquired.decide(resolved.start, resolved.stop, _RELEASE)
        for each in self._waiting:
            if isinstance(each, AcquiredRecords):
                each.give_back_buffered()

    def clear(self) -> None:
        """Forget all records and errors. The caller has released the records."""
        self._waiting.clear()
        self.size = 0
        self._resolved.clear()
        self._index = 0
        self.errors = 0

    def drop_lost(self) -> None:
        """Drop records at the front that cannot be delivered: their locks are lost."""
        self._first()

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
            self.size -= first.size
            self._index = 0
        return None
