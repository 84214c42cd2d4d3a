"""A condition that tasks wait for: every waiter wakes at the next ``notify``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio


class Signal:
    """Check what you wait for, then ``await wait()``, in a loop; nothing is lost while there is no checkpoint between the two.

    As a :class:`trio.lowlevel.ParkingLot`, in fewer steps: each record that goes alone wakes its sender by one.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: dict[trio.lowlevel.Task, None] = {}  # in order of coming

    @trio.lowlevel.enable_ki_protection  # Ctrl-C halfway, and some would be neither asleep nor awake
    def notify(self) -> None:
        """Wake all that wait now."""
        if self._waiters:
            waiters, self._waiters = self._waiters, {}
            for task in waiters:
                trio.lowlevel.reschedule(task)

    @trio.lowlevel.enable_ki_protection
    async def wait(self) -> None:
        """Wait for the next ``notify``. Cancelled: it waits no more."""
        task = trio.lowlevel.current_task()

        def abort(_: Callable[[], Any]) -> trio.lowlevel.Abort:
            del self._waiters[task]
            return trio.lowlevel.Abort.SUCCEEDED

        self._waiters[task] = None
        await trio.lowlevel.wait_task_rescheduled(abort)
