"""The queue of callers that wait for room in ``buffer_memory``, in the order of arrival."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import trio

from ..._state.producer.accumulator import Accumulator
from ...errors import no_topic

T = TypeVar("T")


class _Waiter:
    """A task that waits for room."""

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = trio.Event()

    def set(self) -> None:
        """Wake the task, so that it looks again."""
        self._turn.set()

    async def wait(self) -> None:
        """Wait for the next ``set``."""
        self._turn = trio.Event()
        await self._turn.wait()


class Room:
    """The queue of callers that find no room in the accumulator, until it is closed."""

    def __init__(self, accumulator: Accumulator[Any]) -> None:
        self._accumulator = accumulator
        self._closed = False

    @property
    def closed(self) -> bool:
        """True once no more records are accepted."""
        return self._closed

    def close(self) -> None:
        """Accept no more records; waiting callers get :exc:`trio.ClosedResourceError`."""
        self._closed = True
        self._accumulator.pool.wake(everybody=True)

    def knows(self, topic: str, partition: int | None) -> bool:
        """Return whether the partition of a record is known, so that only room can be missing."""
        count = self._accumulator.partition_count(topic)
        return count is not None and (partition is None or partition < count)

    async def wait_for(self, take: Callable[[], T | None], topic: str, partition: int | None) -> T:
        """Wait for the caller's turn and until ``take`` finds room; return its result.

        On cancellation nothing has been taken. Raises a retriable error when the topic or partition
        is gone, :exc:`trio.ClosedResourceError` when closed meanwhile.
        """
        waiter, pool = _Waiter(), self._accumulator.pool
        self._accumulator.add_waiter(waiter)
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
