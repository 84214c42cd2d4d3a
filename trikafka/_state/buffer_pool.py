"""The bytes of ``buffer_memory``, and who waits for them. No I/O, and no word of tasks.

Bytes are counted in one place, the record path's ``BufferMemory``, which the quick way of a record sees without a call into Python.
"""

from __future__ import annotations

from typing import Protocol

from .._wire import _implementation


class Waiter(Protocol):
    """Somebody who waits for room: ``set`` is called when it is worth to look again, and it is his turn."""

    def set(self) -> object: ...


class BufferPool:
    """Whoever waits is served in the order of coming. While somebody waits newcomers get nothing."""

    __slots__ = ("memory",)

    def __init__(self, capacity: int) -> None:
        #: What the appender takes from.
        self.memory = _implementation.current.BufferMemory(capacity)

    @property
    def capacity(self) -> int:
        """``buffer_memory``."""
        return self.memory.capacity

    @property
    def free(self) -> int:
        """Bytes that may still be taken."""
        return self.memory.free

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self.memory.capacity - self.memory.free

    @property
    def exhausted(self) -> bool:
        """Whether somebody waits."""
        return bool(self.memory.waiters)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self.memory.waiters)

    def admits(self, admitted: bool) -> bool:
        """Whether one may take at all; ``admitted``: it is one's turn among those who wait."""
        return admitted or not self.memory.waiters

    def take(self, size: int) -> None:
        """``size`` bytes are in use."""
        self.memory.take(size)

    def give(self, size: int) -> None:
        """``size`` bytes are free again: the first who waits is told."""
        self.memory.give(size)
        self.wake()

    def join(self, waiter: Waiter) -> None:
        """``waiter`` waits, behind the others."""
        self.memory.waiters.append(waiter)

    def leave(self, waiter: Waiter) -> None:
        """``waiter`` waits no more: it may be the next one's turn."""
        self.memory.waiters.remove(waiter)
        self.wake()

    def is_first(self, waiter: Waiter) -> bool:
        """Whether it is the turn of ``waiter``."""
        return self.memory.waiters[0] is waiter

    def wake(self, *, everybody: bool = False) -> None:
        """Tell the first who waits (or all of them) to look again."""
        for waiter in self.memory.waiters[: None if everybody else 1]:
            waiter.set()
