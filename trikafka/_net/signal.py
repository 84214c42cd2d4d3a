"""A condition that many tasks wait for: ten thousand may wait for records at a time.

Python's garbage collector goes through whatever waits, again and again. So a task that waits here
adds nothing but Trio's own objects: no closure, no coroutine of an event, no entry of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

#: Cancelled tasks are removed when there are this many of them, and they are half of the list.
_STALE = 64


class Signal:
    """A condition without a value: each task that waits wakes at the next :meth:`notify`.

    A task checks first whether what it waits for has come, and then waits, in a loop. No
    notification is lost while there is no checkpoint between the two. :meth:`wait` is these lines::

        task = trio.lowlevel.current_task()
        signal.add(task)
        await trio.lowlevel.wait_task_rescheduled(signal)

    Where tasks wait in great numbers they are written out, to spare each task a coroutine.
    """

    __slots__ = ("_callbacks", "_stale", "_tasks")

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], object]] = []
        self._tasks: list[trio.lowlevel.Task] = []
        self._stale = 0

    def add(self, task: trio.lowlevel.Task) -> None:
        """Record that ``task``, the current one, sleeps with this object as its abort function."""
        if self._stale > _STALE and self._stale * 2 > len(self._tasks):
            waiting = [each for each in self._tasks if each.custom_sleep_data is self]
            # A task that was cancelled and waits again has several entries; its last one is true.
            self._tasks = list(dict.fromkeys(reversed(waiting)))[::-1]
            self._stale = 0
        task.custom_sleep_data = self
        self._tasks.append(task)

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` at the next :meth:`notify`, after the tasks are woken.

        For a program outside of Trio, which has no task to wake. It must not raise.
        """
        self._callbacks.append(callback)

    @trio.lowlevel.enable_ki_protection
    async def wait(self) -> None:
        """Wait for the next :meth:`notify`. A cancelled task waits no more."""
        self.add(trio.lowlevel.current_task())
        await trio.lowlevel.wait_task_rescheduled(self)

    # Ctrl-C halfway would leave some tasks neither asleep nor awake.
    @trio.lowlevel.enable_ki_protection
    def notify(self) -> None:
        """Wake all tasks that wait now, in the order in which they came."""
        tasks = self._tasks
        self._tasks = []
        for task in tasks:
            if task.custom_sleep_data is self:
                trio.lowlevel.reschedule(task)
        if self._callbacks:
            callbacks = self._callbacks
            self._callbacks = []
            for callback in callbacks:
                callback()

    # Trio calls this as the abort function of a task that is cancelled. To remove the task from the
    # list would take a search through the list, and ten thousand tasks that are cancelled together
    # would take tens of millions of steps. So the task stays in the list. Trio clears
    # `custom_sleep_data` when it wakes a task, and that is how `notify` and `add` recognize it: an
    # entry whose `custom_sleep_data` is not this object does not wait here any more. `add` removes
    # such entries, and all but the last one of a task, once half of the list was cancelled (and
    # more than 64). So the list is never much more than twice as long as the tasks that wait.
    def __call__(self, _: Callable[[], Any]) -> trio.lowlevel.Abort:
        """Allow Trio to cancel a waiting task."""
        self._stale += 1
        return trio.lowlevel.Abort.SUCCEEDED
