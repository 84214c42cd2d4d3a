"""Time limits of calls on a busy machine, without the time in which this process stood still."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

# A limit of a tenth of a second says something about a call, but the processor may have been with
# another process meanwhile. A task therefore wakes every few milliseconds. When it wakes too late,
# the whole loop stood still for that long, and the time is subtracted from a call's duration. A
# loop that is blocked by the call itself is not noticed by this measure; other tests look for that.

_TICK = 0.005


class Standstill:
    """The total time (seconds) by which the loop's turns were late."""

    def __init__(self) -> None:
        self._total = 0.0
        self._next = trio.Event()

    async def took(self, since: float, before: float) -> float:
        """Return the time since ``since``, without the loop's standstill.

        ``before`` is the value of :attr:`total` at the time ``since``.
        """
        now = trio.current_time()
        await self._next.wait()  # the next tick counts a standstill of this moment
        return now - since - (self._total - before)

    @property
    def total(self) -> float:
        """The whole standstill so far, in seconds."""
        return self._total

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            due = trio.current_time() + _TICK
            await trio.sleep_until(due)
            self._total += max(0.0, trio.current_time() - due - _TICK)
            self._next.set()
            self._next = trio.Event()


@asynccontextmanager
async def watched() -> AsyncIterator[Standstill]:
    """Measure within the block."""
    async with trio.open_nursery() as nursery:
        standstill = Standstill()
        nursery.start_soon(standstill.watch)
        yield standstill
        nursery.cancel_scope.cancel()
