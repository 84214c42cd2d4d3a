"""The processed records of a partition, where the user marks them one by one. No I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from ..._wire.columns import RecordBatch


# Marks come in any order, but only one offset can be committed: everything before it has to be
# processed. Offsets have gaps (compaction, markers), so the next offset is not the last one plus
# one, and the delivered offsets themselves are kept. The head moves over the marked ones. The list
# is cut only when more than half of it lies before the head, so that cutting stays cheap.
class Marks:
    """The delivered records of a partition, each marked as processed or not."""

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
        delivered = self._delivered
        done = self._done
        head = self._head
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
