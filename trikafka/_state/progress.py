"""How far the user is in one partition: the position, what is processed, and the batch that is being delivered record by record.

A part of :class:`~trikafka._state.assignment.AssignedPartition`, which alone writes it; a reader takes records through the
cursor that it began. No I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from .._wire import _implementation
from .._wire._fallback_iterating import Cursor as Cursor
from .._wire.columns import RecordBatch


class LogEnds(NamedTuple):
    """Where a partition's log begins and ends, as the last fetch told; ``None`` where it did not."""

    high_watermark: int | None = None
    log_start: int | None = None
    last_stable_offset: int | None = None


class Marks:
    """Which of the delivered records are processed, where the user marks them one by one, in any order."""

    __slots__ = ("_delivered", "_done", "_end", "_head")

    def __init__(self) -> None:
        self._delivered: list[int] = []  # offsets, ascending; those before the head are processed
        self._head = 0
        self._done: set[int] = set()  # processed, behind one that is not
        self._end = -1  # the last offset that was noted

    def deliver(self, batch: RecordBatch) -> None:
        """These were handed out, or are about to be. What was put back and comes again is noted once."""
        self._delivered += [offset for offset in batch.offsets if offset > self._end]
        if self._delivered:
            self._end = max(self._end, self._delivered[-1])

    def done_before(self, offset: int) -> None:
        """Everything before ``offset`` is processed, by whatever else the user said."""
        upto = bisect_left(self._delivered, offset, self._head)
        self._done.difference_update(self._delivered[self._head : upto])
        self._head = upto

    def mark(self, offsets: Iterable[int], processed: int, position: int) -> int:
        """The records at ``offsets`` are processed; returns the offset before which all are."""
        delivered, done, head = self._delivered, self._done, self._head
        for offset in offsets:
            index = bisect_left(delivered, offset, head)
            if index < len(delivered) and delivered[index] == offset:  # else marked before, or of another time
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


class Progress:
    """Position and processed offset of one partition. See the module."""

    __slots__ = ("_cursor", "_marks", "_position", "_processed", "leader_epoch", "topic_id")

    def __init__(self, *, marks: bool = False) -> None:
        self._position: int | None = None
        self._processed: int | None = None
        self._cursor: Cursor | None = None
        self._marks = Marks() if marks else None
        self.leader_epoch: int | None = None  # of the last record delivered
        self.topic_id: UUID | None = None  # of the topic that the position is in; a topic created anew has another one

    @property
    def position(self) -> int | None:
        """The offset of the next record to deliver."""
        return self._position if self._cursor is None else self._cursor.position

    @property
    def processed(self) -> int | None:
        """The offset before which everything is processed."""
        return self._processed if self._cursor is None or self._marks is not None else self._cursor.processed

    @property
    def in_hand(self) -> bool:
        """Whether the user holds records that are not processed."""
        return self.processed != self.position

    @property
    def marked(self) -> bool:
        """Whether the user marks what is processed."""
        return self._marks is not None

    def start_at(self, offset: int, leader_epoch: int | None) -> None:
        """Go on at ``offset``."""
        self.end_cursor()
        self._position = self._processed = offset
        self.leader_epoch = leader_epoch
        self._marks = None if self._marks is None else Marks()

    def forget(self) -> None:
        """The position is not known any more."""
        self.end_cursor()
        self._position = self._processed = self.leader_epoch = self.topic_id = None
        self._marks = None if self._marks is None else Marks()

    def is_in(self, topic_id: UUID) -> bool:
        """The topic of that name has this id now; whether the position is in it, and not in one that was deleted since."""
        before, self.topic_id = self.topic_id, topic_id
        return before is None or before == topic_id

    def begin_cursor(self, batch: RecordBatch) -> Cursor:
        """Deliver ``batch`` record by record from now on."""
        self.end_cursor()
        assert self._position is not None
        self._note(batch)
        self._cursor = _implementation.current.Cursor(batch, self._position, self._processed)
        return self._cursor

    def end_cursor(self) -> None:
        """The cursor, if there is one, delivers no more."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            cursor.end()
            self._position = cursor.position
            if self._marks is None:
                self._processed = cursor.processed

    def deliver(self, batch: RecordBatch) -> None:
        """``batch`` is handed out whole."""
        self.end_cursor()
        self._note(batch)
        self._position = batch.next_offset

    def passed_over(self, upto: int) -> None:
        """No record for the user stands before ``upto``."""
        self.end_cursor()
        if self._processed == self._position:
            self._processed = upto
        self._position = upto

    def came_back(self) -> bool:
        """All that was handed out is processed, unless the user marks what is; returns whether that changed something."""
        self.end_cursor()
        if self._marks is not None or self._processed == self._position:
            return False
        self._processed = self._position
        return True

    def processed_upto(self, offset: int) -> None:
        """Everything before ``offset`` is processed; never more than was handed out, and never less than before."""
        position, processed = self.position, self.processed
        if position is None or processed is None:
            return
        processed = max(processed, min(offset, position))
        if self._marks is not None:
            self._marks.done_before(processed)
            processed = self._marks.mark((), processed, position)  # those behind it may be marked already
        if self._cursor is not None:
            self._cursor.processed_upto(processed)
        self._processed = processed

    def mark(self, offsets: Iterable[int]) -> None:
        """The records at ``offsets`` are processed."""
        if self._marks is not None and self._processed is not None and self.position is not None:
            self._processed = self._marks.mark(offsets, self._processed, self.position)

    def _note(self, batch: RecordBatch) -> None:
        if batch.leader_epoch is not None and batch.leader_epoch >= 0:
            self.leader_epoch = batch.leader_epoch
        if self._marks is not None:
            self._marks.deliver(batch)
