"""Several records of one partition in work at once, in order for each key. No I/O.

Records are taken in the order of their offsets. While a record is in work, later records with the
same key wait behind it; when it is done, the next one follows. The offset that may be committed is
that of the first record that is not done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class KeyOrder(Generic[T]):
    """The records of one partition that are in work, or wait behind another one of their key."""

    __slots__ = ("_behind", "_done", "_end", "_keys", "_newest", "_taken", "running", "waiting")

    def __init__(self) -> None:
        #: The offsets from the first that is not done, ascending.
        self._taken: deque[int] = deque()
        #: The offsets of ``_taken`` that are done.
        self._done: set[int] = set()
        #: The keys of the records in work, by offset.
        self._keys: dict[int, Hashable] = {}
        #: The keys in work, and the records that wait behind each, with their sizes.
        self._behind: dict[Hashable, deque[tuple[int, T, int]]] = {}
        #: The offset after the last record that was taken.
        self._end: int | None = None
        #: The highest offset that was begun.
        self._newest = -1
        #: The number of records in work.
        self.running = 0
        #: The bytes of the records that wait behind their keys.
        self.waiting = 0

    @property
    def outstanding(self) -> int:
        """The number of records from the first that is not done to the last that was taken."""
        return len(self._taken)

    @property
    def processed(self) -> int | None:
        """The offset before which all records are done; ``None`` before the first record."""
        return self._taken[0] if self._taken else self._end

    def add(self, offset: int, key: Hashable | None, work: T, size: int = 0) -> bool:
        """Take the next record, of ``size`` bytes; return whether the caller is to work on it now.

        A record without a key waits for no other record.
        """
        self._taken.append(offset)
        self._end = offset + 1
        if key is not None and (behind := self._behind.get(key)) is not None:
            behind.append((offset, work, size))
            self.waiting += size
            return False
        self._begin(offset, key)
        return True

    def done(self, offset: int) -> T | None:
        """Complete a record; return the next one of its key, which the caller is to work on now."""
        self._done.add(offset)
        while self._taken and self._taken[0] in self._done:
            self._done.remove(self._taken.popleft())
        return self._ended(offset)

    def abandon(self, offset: int) -> None:
        """Record that a record will not be done, and drop all records that wait.

        No record from this offset on counts as processed any more.
        """
        self.running -= 1
        self._behind.pop(self._keys.pop(offset, None), None)
        for behind in self._behind.values():
            behind.clear()
        self.waiting = 0

    # The committed offset is that of the first record that is not done. Suppose record 9 is done
    # and record 5 waits for another one of its key. Without 5 the offset stays at 5, and the next
    # owner handles 9 again. So records that wait before the newest one begun must still be done.
    # Records that wait after it need not: no done record stands behind them.
    def wind_down(self) -> None:
        """Drop the waiting records after the newest one begun; no further records will come."""
        for behind in self._behind.values():
            while behind and behind[-1][0] > self._newest:
                self.waiting -= behind.pop()[2]

    def passed(self, offset: int) -> None:
        """Record that no record between the last one taken and ``offset`` will be handled.

        There is a gap in the log, or the user has called ``seek``.
        """
        if not self._taken or self._end is None or offset > self._end:
            self._end = offset

    def _begin(self, offset: int, key: Hashable | None) -> None:
        self.running += 1
        self._newest = max(self._newest, offset)
        if key is not None:
            self._keys[offset] = key
            self._behind.setdefault(key, deque())

    def _ended(self, offset: int) -> T | None:
        self.running -= 1
        key = self._keys.pop(offset, None)
        if key is None:
            return None
        if behind := self._behind[key]:
            following, work, size = behind.popleft()
            self.waiting -= size
            self._begin(following, key)
            return work
        del self._behind[key]
        return None
