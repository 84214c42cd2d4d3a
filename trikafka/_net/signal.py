"""A condition that tasks wait for: every waiter wakes at the next ``notify``."""

from __future__ import annotations

import trio


class Signal:
    """Check what you wait for, then ``await wait()``, in a loop; nothing is lost while there is no checkpoint between the two."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters = trio.lowlevel.ParkingLot()

    def notify(self) -> None:
        """Wake all that wait now."""
        if self._waiters:
            self._waiters.unpark_all()

    async def wait(self) -> None:
        """Wait for the next ``notify``."""
        await self._waiters.park()
