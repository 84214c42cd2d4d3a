"""The user's progress in one partition: position, processed offset, and the batch in delivery.

A part of :class:`~trikafka._state.consumer.assignment.AssignedPartition`; nothing else changes it.
A reader takes records through the cursor that it has begun. No I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from ..._wire import _implementation
from ..._wire._fallback_iterating import Cursor as Cursor
from ..._wire.columns import RecordBatch


class LogEnds(NamedTuple):
    """The begin and the end of a partition's log, as the last fetch reported.

    ``None``: not reported.
    """

    high_watermark: int | None = None
    log_start: int | None = None
    last_stable_offset: int | None = None


# Marks come in any order, but only one offset can be committed: everything before it has to be
# processed. Offsets have gaps (compaction, markers), so the next offset is not the last one plus
# one, and the delivered offsets themselves are kept. The head moves over the marked ones. The list
# is cut only when more than half of it lies before the head, so that cutting stays cheap.
class Marks:
    """The processed records of a partition, where the user marks them one by one, in any order."""

    __slots__ = ("_delivered", "_done", "_end", "_head")

    def __init__(self) -> None:
        #: Delivered offsets, ascending; those before ``_head`` are processed.
        self._delivered: list[int] = []
        self._head = 0
        #: Processed offsets behind one that is not processed.
        self._done: set[int] = set()
        #: The last offset in ``_delivered`` so far.
        self._end = -1

    def deliver(self, batch: RecordBatch) -> None:
        """Add the offsets of a batch that was delivered, or is about to be.

        A batch that was put back and is delivered again is added once.
        """
        self._delivered += [offset for offset in batch.offsets if offset > self._end]
        if self._delivered:
            self._end = max(self._end, self._delivered[-1])

    def done_before(self, offset: int) -> None:
        """Mark everything before ``offset`` as processed."""
        upto = bisect_left(self._delivered, offset, self._head)
        self._done.difference_update(self._delivered[self._head : upto])
        self._head = upto

    def mark(self, offsets: Iterable[int], processed: int, position: int) -> int:
        """Mark the records at ``offsets``; return the offset before which all are processed."""
        delivered, done, head = self._delivered, self._done, self._head
        for offset in offsets:
            index = bisect_left(delivered, offset, head)
            # Other offsets were marked before, or belong to an earlier delivery.
            if index < len(delivered) and delivered[index] == offset:
                done.add(offset)
        while head < len(delivered) and delivered[head] in done:
            done.remove(delivered[head])
            head += 1
        if head > self._head:
            processed = max(processed, delivered[head - 1] + 1)
        if 2 * head > len(delivered):
            del delivered[:head]
            head = 0
        self._head = head
        return processed if delivered else position


# Invariant: processed <= position, and the records between them are in hand. While a batch is
# delivered record by record, position and processed are the cursor's, which is compiled: counting
# them here would cost a Python call for each record. Every method that changes the position ends
# the cursor first, which copies its numbers back. So there is never a second source of the
# position, and a cursor that was overtaken (by a seek, say) delivers nothing more.
class Progress:
    """The position and the processed offset of one partition."""

    __slots__ = ("_cursor", "_marks", "_position", "_processed", "leader_epoch", "topic_id")

    def __init__(self, *, marks: bool = False) -> None:
        self._position: int | None = None
        self._processed: int | None = None
        self._cursor: Cursor | None = None
        self._marks = Marks() if marks else None
        #: The leader epoch of the last record delivered.
        self.leader_epoch: int | None = None
        #: The id of the topic that the position is in; a recreated topic has another one.
        self.topic_id: UUID | None = None

    @property
    def position(self) -> int | None:
        """The offset of the next record to deliver."""
        return self._position if self._cursor is None else self._cursor.position

    @property
    def processed(self) -> int | None:
        """The offset before which everything is processed."""
        return (
            self._processed
            if self._cursor is None or self._marks is not None
            else self._cursor.processed
        )

    @property
    def in_hand(self) -> bool:
        """True while the user holds records that are not processed."""
        return self.processed != self.position

    @property
    def marked(self) -> bool:
        """True if the user marks processed records one by one."""
        return self._marks is not None

    def start_at(self, offset: int, leader_epoch: int | None) -> None:
        """Continue at ``offset``, with everything before it processed."""
        self.end_cursor()
        self._position = offset
        self._processed = offset
        self.leader_epoch = leader_epoch
        self._marks = None if self._marks is None else Marks()

    def forget(self) -> None:
        """Forget the position."""
        self.end_cursor()
        self._position = None
        self._processed = None
        self.leader_epoch = None
        self.topic_id = None
        self._marks = None if self._marks is None else Marks()

    def is_in(self, topic_id: UUID) -> bool:
        """Return whether the position is in the topic with this id, and remember the id.

        ``False``: the position is in a topic of the same name that was deleted since.
        """
        before = self.topic_id
        self.topic_id = topic_id
        return before is None or before == topic_id

    def begin_cursor(self, batch: RecordBatch) -> Cursor:
        """Begin to deliver ``batch`` record by record; return the cursor."""
        self.end_cursor()
        assert self._position is not None
        self._track_contiguous(batch)
        self._cursor = _implementation.current.Cursor(batch, self._position, self._processed)
        return self._cursor

    def end_cursor(self) -> None:
        """End the cursor, if there is one, and copy its position."""
        cursor = self._cursor
        self._cursor = None
        if cursor is not None:
            cursor.end()
            self._position = cursor.position
            if self._marks is None:
                self._processed = cursor.processed

    def deliver(self, batch: RecordBatch) -> None:
        """Advance past ``batch``, which is delivered whole."""
        self.end_cursor()
        self._track_contiguous(batch)
        self._position = batch.next_offset

    def step_back(self, offset: int) -> bool:
        """Deliver from ``offset`` again, if its record is in hand; return whether it was."""
        position, processed = self.position, self.processed
        if position is None or processed is None or not processed <= offset < position:
            return False
        self.end_cursor()
        self._position = offset
        return True

    def passed_over(self, upto: int) -> None:
        """Advance to ``upto``: no record for the user stands before it."""
        self.end_cursor()
        if self._processed == self._position:
            self._processed = upto
        self._position = upto

    def came_back(self) -> bool:
        """Mark all delivered records as processed; return whether that changed anything.

        No-op where the user marks records.
        """
        self.end_cursor()
        if self._marks is not None or self._processed == self._position:
            return False
        self._processed = self._position
        return True

    def processed_upto(self, offset: int) -> None:
        """Mark everything before ``offset`` as processed.

        Never more than was delivered, and never less than before.
        """
        position, processed = self.position, self.processed
        if position is None or processed is None:
            return
        processed = max(processed, min(offset, position))
        if self._marks is not None:
            self._marks.done_before(processed)
            # Records behind the offset may have been marked already.
            processed = self._marks.mark((), processed, position)
        if self._cursor is not None:
            self._cursor.processed_upto(processed)
        self._processed = processed

    def mark(self, offsets: Iterable[int]) -> None:
        """Mark the records at ``offsets`` as processed."""
        if self._marks is not None and self._processed is not None and self.position is not None:
            self._processed = self._marks.mark(offsets, self._processed, self.position)

    def _track_contiguous(self, batch: RecordBatch) -> None:
        if batch.leader_epoch is not None and batch.leader_epoch >= 0:
            self.leader_epoch = batch.leader_epoch
        if self._marks is not None:
            self._marks.deliver(batch)
