"""A condition that tasks wait for: every waiter wakes at the next ``notify``."""

from __future__ import annotations

import trio

from .waiters import Waiters


class Signal:
    """A condition without a value: the waiter checks what it waits for itself.

    Check the condition, then ``await wait()``, in a loop. No notification is lost while there is no
    checkpoint between the two.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters = Waiters()

    # Ctrl-C halfway would leave some tasks neither asleep nor awake.
    @trio.lowlevel.enable_ki_protection
    def notify(self) -> None:
        """Wake all tasks that wait now."""
        self._waiters.set()

    @trio.lowlevel.enable_ki_protection
    async def wait(self) -> None:
        """Wait for the next ``notify``. A cancelled task waits no more."""
        await self._waiters.wait()
