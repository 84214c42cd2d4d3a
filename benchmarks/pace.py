"""When the records of a latency case are due: the same for all clients. Standard library alone: every peer pays for this module.

The timers of event loops (Trio's, asyncio's, Go's) know whole milliseconds only, for that is what epoll takes. A task that
sleeps until each record is due calls too late by up to one, and at 1,000 records a second every third record follows the one
before at once: another load than the even one which a sleeping thread makes. So all wait for a timer of the kernel instead.
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

_CLOCK_MONOTONIC = 1
_SECOND = 10**9
#: What is read of the timer: how many times it went off, an integer in the machine's own order.
_COUNT = 8


class _Times(ctypes.Structure):
    """``struct itimerspec``: the time from one tick to the next, and to the first."""

    _fields_ = [(name, ctypes.c_long) for name in ("next_seconds", "next_nanoseconds", "first_seconds", "first_nanoseconds")]


class Pace:
    """A timer that ticks ``rate`` times a second from now on; its file descriptor is readable from one tick to its being taken.

    A tick that is taken late delays no other. ``latest`` is by how much (s) the latest one was taken too late. Raises ``Missing``
    where there is no such timer (it is Linux's). To be closed, as a context manager.
    """

    def __init__(self, rate: int) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        if not hasattr(library, "timerfd_create"):
            raise Missing("the pace of the latency cases is a timerfd, which only Linux has")
        self._timer: int = library.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        every = divmod(_SECOND // rate, _SECOND)
        self._began, self._every = time.perf_counter(), 1 / rate
        if library.timerfd_settime(self._timer, 0, ctypes.byref(_Times(*every, *every)), None):
            raise OSError(ctypes.get_errno(), "no timer could be set")
        self._left = self._taken = 0
        self.latest = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._timer)

    def fileno(self) -> int:
        return self._timer

    def take(self) -> bool:
        """Whether there was a tick that was not taken yet; now it is."""
        if not self._left:
            try:
                self._left = int.from_bytes(os.read(self._timer, _COUNT), sys.byteorder)
            except BlockingIOError:
                return False
        self._left -= 1
        self._taken += 1
        self.latest = max(self.latest, time.perf_counter() - self._began - self._taken * self._every)
        return True

    def wait(self) -> None:
        """The next tick is taken, in a thread that may block."""
        while not self.take():
            select.select([self], [], [])

    async def tick(self, readable: Callable[[Pace], Awaitable[object]]) -> None:
        """The next tick is taken, in a task; ``readable`` waits in the ways of its event loop, at most until there is one."""
        while not self.take():
            await readable(self)
