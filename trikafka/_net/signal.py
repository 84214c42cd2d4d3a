"""A condition that tasks wait for: every waiter wakes at the next ``notify``."""

from __future__ import annotations

import trio


class Signal:
    """Check what you wait for, then ``await wait()``, in a loop; nothing is lost while there is no checkpoint between the two."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = trio.Event()

    def notify(self) -> None:
        """Wake all that wait now."""
        if self._event.statistics().tasks_waiting:
            event, self._event = self._event, trio.Event()
            event.set()

    async def wait(self) -> None:
        """Wait for the next ``notify``."""
        await self._event.wait()
