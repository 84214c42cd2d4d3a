"""Several records of one partition in work at once, in order for each key. No I/O.

Records are taken in the order of their offsets. A record whose key is in work waits behind that
record; when a record is done, the next of its key follows. The offset that may be committed is the
one of the first record that is not done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class KeyOrder(Generic[T]):
    """The records of one partition that are in work, or wait for that.

    Written through its methods alone.
    """

    __slots__ = ("_behind", "_done", "_end", "_keys", "_newest", "_taken", "running")

    def __init__(self) -> None:
        #: The offsets from the first that is not done, ascending.
        self._taken: deque[int] = deque()
        #: The offsets of ``_taken`` that are done.
        self._done: set[int] = set()
        #: The keys of the records in work, by offset.
        self._keys: dict[int, Hashable] = {}
        #: The keys in work, and the records that wait behind each.
        self._behind: dict[Hashable, deque[tuple[int, T]]] = {}
        #: The offset after all that was taken.
        self._end: int | None = None
        #: The highest offset that was begun.
        self._newest = -1
        #: The number of records in work.
        self.running = 0

    @property
    def outstanding(self) -> int:
        """The number of records from the first that is not done to the last that was taken."""
        return len(self._taken)

    @property
    def processed(self) -> int | None:
        """The offset before which everything is done; ``None``: nothing was taken."""
        return self._taken[0] if self._taken else self._end

    def add(self, offset: int, key: Hashable | None, work: T) -> bool:
        """Take a record, behind all earlier ones; return whether to work on it now.

        Without a key it waits for no other record.
        """
        self._taken.append(offset)
        self._end = offset + 1
        if key is not None and (behind := self._behind.get(key)) is not None:
            behind.append((offset, work))
            return False
        self._begin(offset, key)
        return True

    def done(self, offset: int) -> T | None:
        """Complete a record; return the next one of its key, to be worked on now in its place."""
        self._done.add(offset)
        while self._taken and self._taken[0] in self._done:
            self._done.remove(self._taken.popleft())
        return self._ended(offset)

    def given_up(self, offset: int) -> None:
        """Record that a record was left undone.

        Waiting records are dropped as well: nothing from this offset on counts as processed.
        """
        self.running -= 1
        self._behind.pop(self._keys.pop(offset, None), None)
        for behind in self._behind.values():
            behind.clear()

    # The committed offset is that of the first record that is not done. Suppose record 9 is done
    # and record 5 waits behind its key: without 5 the offset stays at 5, and 9 would be handled
    # again by the next owner. So waiting records before the newest that was begun are still worth
    # their time. Those after it are not: leaving them moves the committed offset back over nothing
    # that was done.
    def wind_down(self) -> None:
        """Drop the waiting records that need not be done any more, since no more records come.

        Only waiting records before the newest that was begun remain.
        """
        for behind in self._behind.values():
            while behind and behind[-1][0] > self._newest:
                behind.pop()

    def passed(self, offset: int) -> None:
        """Record that no record to work on stands between the last taken one and ``offset``.

        There is a gap in the log, or the user went there.
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
            following, work = behind.popleft()
            self._begin(following, key)
            return work
        del self._behind[key]
        return None
