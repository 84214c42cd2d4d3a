"""The bytes of ``buffer_memory`` and the callers that wait for them. No I/O, no tasks.

The bytes are counted in ``BufferMemory``, which may be compiled, so that the fast path of a record
can read the count without a call into Python.
"""

from __future__ import annotations

from typing import Protocol

from ..._wire import _implementation


class Waiter(Protocol):
    """A caller that waits for room. ``set`` is called when the caller is to check again."""

    def set(self) -> object: ...


# First come, first served. Without this rule, a caller with a large record, or with rows of a
# table, could wait for ever while small records fill each gap. So new calls get no memory while any
# caller waits, and a release wakes only the first waiter. When that one leaves, served or
# cancelled, it wakes the next.
class BufferPool:
    """The memory for records, given to waiting callers in the order of their arrival."""

    __slots__ = ("memory",)

    def __init__(self, capacity: int) -> None:
        #: The counter that the appender takes from.
        self.memory = _implementation.current.BufferMemory(capacity)

    @property
    def used(self) -> int:
        """The bytes in use."""
        return self.memory.capacity - self.memory.free

    @property
    def exhausted(self) -> bool:
        """True while any caller waits."""
        return bool(self.memory.waiters)

    @property
    def waiting(self) -> int:
        """The number of waiting callers."""
        return len(self.memory.waiters)

    def give(self, size: int) -> None:
        """Free ``size`` bytes and wake the first waiter."""
        self.memory.give(size)
        self.wake()

    def add_waiter(self, waiter: Waiter) -> None:
        """Add ``waiter`` behind the others."""
        self.memory.waiters.append(waiter)

    def leave(self, waiter: Waiter) -> None:
        """Remove ``waiter`` and wake the waiter that is first now."""
        self.memory.waiters.remove(waiter)
        self.wake()

    def is_first(self, waiter: Waiter) -> bool:
        """Return whether ``waiter`` is the first."""
        return self.memory.waiters[0] is waiter

    def wake(self, *, every: bool = False) -> None:
        """Wake the first waiter, or all waiters, to check again."""
        for waiter in self.memory.waiters[: None if every else 1]:
            waiter.set()
