"""Many tasks that wait for one thing, lightly: ten thousand may wait for records at a time.

What waits is followed by Python's garbage collector, again and again, while it waits. So a task that waits here adds nothing but
Trio's own to what the collector follows: no closure, no coroutine of an event, no entry of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

#: Those that were cancelled are looked for when there are so many, and then when they are the half.
_STALE = 64


class Waiters:
    """Whoever waits checks first whether what it waits for has come, and waits then, without a checkpoint between the two::

        task = trio.lowlevel.current_task()
        waiters.add(task)
        await trio.lowlevel.wait_task_rescheduled(waiters)

    (:meth:`wait` does just that; where tasks wait in great numbers it is written out, to spare each a coroutine.)
    A task that is cancelled stays in the list, and is told from those that wait by what Trio clears when it wakes a task.
    """

    __slots__ = ("_stale", "_tasks")

    def __init__(self) -> None:
        self._tasks: list[trio.lowlevel.Task] = []
        self._stale = 0

    def add(self, task: trio.lowlevel.Task) -> None:
        """``task``, the current one, is about to sleep with this as its abort function."""
        if self._stale > _STALE and self._stale * 2 > len(self._tasks):
            self._tasks = [each for each in self._tasks if each.custom_sleep_data is self]
            self._stale = 0
        task.custom_sleep_data = self
        self._tasks.append(task)

    async def wait(self) -> None:
        """Wait until it is set, from now on. A checkpoint."""
        self.add(trio.lowlevel.current_task())
        await trio.lowlevel.wait_task_rescheduled(self)

    def set(self) -> None:
        """Wake all that wait, in the order in which they came."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if task.custom_sleep_data is self:
                trio.lowlevel.reschedule(task)

    def __call__(self, _: Callable[[], Any]) -> trio.lowlevel.Abort:
        """Trio asks whether a task that waits may be cancelled."""
        self._stale += 1
        return trio.lowlevel.Abort.SUCCEEDED
