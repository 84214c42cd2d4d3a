"""Waiting for room in ``buffer_memory``, in the order of coming."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import trio

from .._state.accumulator import Accumulator
from ..errors import no_topic

T = TypeVar("T")


class _Waiter:
    """A task that waits."""

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = trio.Event()

    def set(self) -> None:
        """Look again."""
        self._turn.set()

    async def wait(self) -> None:
        """Wait for the next ``set``."""
        self._turn = trio.Event()
        await self._turn.wait()


class Room:
    """The door of the accumulator: who finds no room waits here, until it is closed."""

    def __init__(self, accumulator: Accumulator[Any]) -> None:
        self._accumulator = accumulator
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether nobody is let in any more."""
        return self._closed

    def close(self) -> None:
        """Let nobody in any more: who waits gets :exc:`trio.ClosedResourceError`."""
        self._closed = True
        self._accumulator.pool.wake(everybody=True)

    def knows(self, topic: str, partition: int | None) -> bool:
        """Whether the partition of a record is known, so that only room can be missing."""
        count = self._accumulator.partition_count(topic)
        return count is not None and (partition is None or partition < count)

    async def wait_for(self, take: Callable[[], T | None], topic: str, partition: int | None) -> T:
        """Wait until it is one's turn and ``take`` finds room; return what it returns. Cancelled: nothing has been taken.

        Raises a retriable error when the topic or partition is gone, :exc:`trio.ClosedResourceError` when closed meanwhile.
        """
        waiter, pool = _Waiter(), self._accumulator.pool
        self._accumulator.join(waiter)
        try:
            while not self._closed:
                if pool.is_first(waiter):
                    taken = take()
                    if taken is not None:
                        return taken
                    if not self.knows(topic, partition):
                        raise no_topic(topic)
                await waiter.wait()
            raise trio.ClosedResourceError("the producer was closed")
        finally:
            pool.leave(waiter)
