"""Two small primitives: a signal for changes, and a promise of one value."""

from __future__ import annotations

from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class WakeSignal:
    """A signal that wakes all waiting tasks after each change.

    Wait in a loop around the condition.
    """

    def __init__(self) -> None:
        self._event = trio.Event()

    def notify(self) -> None:
        """Wake all tasks that wait now."""
        event = self._event
        self._event = trio.Event()
        event.set()

    async def wait(self) -> None:
        """Wait for the next :meth:`notify`."""
        await self._event.wait()


class Promise(Generic[T]):
    """A value that another task will supply. The first value counts."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self._value: list[T] = []

    def give(self, value: T) -> None:
        """Supply the value. No task need be waiting."""
        if not self._value:
            self._value.append(value)
            self._event.set()

    async def wait(self) -> T:
        """Wait for the value; return it."""
        await self._event.wait()
        return self._value[0]
