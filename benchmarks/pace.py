"""The schedule of the records of a latency case, the same for all clients.

Only the standard library is used here: every peer pays for this module.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from .jobs import Missing

# Why all clients wait for a timer of the kernel:
#
# The timers of event loops (Trio's, asyncio's, Go's) have a resolution of a millisecond, which is
# that of epoll. A task that sleeps until each record is due calls up to a millisecond late. At
# 1,000 records per second every third record then followed its predecessor immediately. A sleeping
# thread, as in confluent-kafka's case, wrote evenly instead. So the clients had different loads,
# and their latencies could not be compared. A timerfd is readable exactly when a record is due, and
# every event loop can wait for it.

_CLOCK_MONOTONIC = 1
_SECOND = 10**9
#: The size of what is read from the timer: the number of its expirations, in native byte order.
_COUNT = 8


class _Times(ctypes.Structure):
    """``struct itimerspec``: the time between ticks, and the time to the first."""

    _fields_ = [
        (name, ctypes.c_long)
        for name in ("next_seconds", "next_nanoseconds", "first_seconds", "first_nanoseconds")
    ]


class Pace:
    """A timer that ticks ``rate`` times per second from now on.

    Its file descriptor is readable while a tick has not been taken. A tick that is taken late does
    not delay the following ones. ``latest`` is the delay (s) with which the last tick was taken.
    Use it as a context manager, which closes the timer.

    Raises:
        Missing: The system has no such timer. Only Linux does.
    """

    def __init__(self, rate: int) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        if not hasattr(library, "timerfd_create"):
            raise Missing("the pace of the latency cases is a timerfd, which only Linux has")
        self._timer: int = library.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        every = divmod(_SECOND // rate, _SECOND)
        self._began = time.perf_counter()
        self._every = 1 / rate
        if library.timerfd_settime(self._timer, 0, ctypes.byref(_Times(*every, *every)), None):
            raise OSError(ctypes.get_errno(), "no timer could be set")
        self._left = 0
        self._taken = 0
        self.latest = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._timer)

    def fileno(self) -> int:
        return self._timer

    def take(self) -> bool:
        """Take a tick if there is one; return whether there was."""
        if not self._left:
            try:
                self._left = int.from_bytes(os.read(self._timer, _COUNT), sys.byteorder)
            except BlockingIOError:
                return False
        self._left -= 1
        self._taken += 1
        self.latest = max(
            self.latest, time.perf_counter() - self._began - self._taken * self._every
        )
        return True

    def wait(self) -> None:
        """Block the thread until the next tick, and take it."""
        while not self.take():
            select.select([self], [], [])

    async def tick(self, readable: Callable[[Pace], Awaitable[object]]) -> None:
        """Wait for the next tick in a task, and take it.

        ``readable`` waits in the event loop's own way, at most until the descriptor is readable.
        """
        while not self.take():
            await readable(self)
