"""A condition that tasks wait for: every waiter wakes at the next ``notify``."""

from __future__ import annotations

import trio

from .waiters import Waiters


class Signal:
    """Check what you wait for, then ``await wait()``, in a loop; nothing is lost while there is no checkpoint between the two."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters = Waiters()

    @trio.lowlevel.enable_ki_protection  # Ctrl-C halfway, and some would be neither asleep nor awake
    def notify(self) -> None:
        """Wake all that wait now."""
        self._waiters.set()

    @trio.lowlevel.enable_ki_protection
    async def wait(self) -> None:
        """Wait for the next ``notify``. Cancelled: it waits no more."""
        await self._waiters.wait()
