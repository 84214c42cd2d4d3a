"""Several records of one partition at once, those of a key one after the other, and the offset before which all are done. No I/O.

Records are taken in the order of their offsets. One whose key is being worked on waits behind it; when a record is done, the next
of its key follows. What may be committed is the offset before the first record that is not done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class KeyOrder(Generic[T]):
    """The records of one partition that are worked on, or wait for that. Written through its methods alone."""

    __slots__ = ("_behind", "_done", "_end", "_keys", "_newest", "_taken", "running")

    def __init__(self) -> None:
        self._taken: deque[int] = deque()  # offsets that are not processed, ascending; those that are done behind one that is not
        self._done: set[int] = set()
        self._keys: dict[int, Hashable] = {}  # of what is worked on
        self._behind: dict[Hashable, deque[tuple[int, T]]] = {}  # keys that are worked on, and what waits behind each
        self._end: int | None = None  # the offset after all that was taken
        self._newest = -1  # the last offset that was begun
        self.running = 0  # records that are worked on

    @property
    def outstanding(self) -> int:
        """The records from the first that is not done to the last that was taken."""
        return len(self._taken)

    @property
    def processed(self) -> int | None:
        """The offset before which everything is done; ``None``: nothing was taken."""
        return self._taken[0] if self._taken else self._end

    def take(self, offset: int, key: Hashable | None, work: T) -> bool:
        """A record comes, behind all that came before. True: work on it now. Without a key it waits for no other."""
        self._taken.append(offset)
        self._end = offset + 1
        if key is not None and (behind := self._behind.get(key)) is not None:
            behind.append((offset, work))
            return False
        self._begin(offset, key)
        return True

    def done(self, offset: int) -> T | None:
        """A record is done. Returns what is to be worked on now in its place: the next of its key."""
        self._done.add(offset)
        while self._taken and self._taken[0] in self._done:
            self._done.remove(self._taken.popleft())
        return self._ended(offset)

    def given_up(self, offset: int) -> None:
        """A record was left undone, and so is what waits: nothing from there on counts as processed."""
        self.running -= 1
        self._behind.pop(self._keys.pop(offset, None), None)
        for behind in self._behind.values():
            behind.clear()

    def wind_down(self) -> None:
        """Nothing more comes: of what waits behind its key only that is begun without which what is done would not count."""
        for behind in self._behind.values():
            while behind and behind[-1][0] > self._newest:
                behind.pop()

    def passed(self, offset: int) -> None:
        """Nothing to work on stands between what was taken and ``offset``: a gap in the log, or the user went there."""
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
