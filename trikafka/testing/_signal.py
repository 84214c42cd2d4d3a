"""Two small ways to wait: for something to change, and for one answer."""

from __future__ import annotations

from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Signal:
    """Wakes everybody who waits, each time something has changed. Wait in a loop around the condition."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def notify(self) -> None:
        """Wake those who wait now."""
        event, self._event = self._event, trio.Event()
        event.set()

    async def wait(self) -> None:
        """Wait for the next :meth:`notify`."""
        await self._event.wait()


class Promise(Generic[T]):
    """An answer that somebody else will give. The first one given counts."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self._value: list[T] = []

    def give(self, value: T) -> None:
        """Answer. Nobody need be waiting."""
        if not self._value:
            self._value.append(value)
            self._event.set()

    async def wait(self) -> T:
        """Wait for the answer."""
        await self._event.wait()
        return self._value[0]
