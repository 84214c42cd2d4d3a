"""Time limits of calls on a machine that has others to do: what this process stood still counts for nobody.

A limit of a tenth of a second says something of a call, and nothing of how long the processor was elsewhere meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

_TICK = 0.005


class Standstill:
    """How long the loop has not turned at its time, in seconds."""

    def __init__(self) -> None:
        self._total = 0.0
        self._next = trio.Event()

    async def took(self, since: float, before: float) -> float:
        """How long it is since the time ``since``, when :attr:`total` was ``before``, without what the loop stood still."""
        now = trio.current_time()
        await self._next.wait()  # what stood still just now is counted at the next turn
        return now - since - (self._total - before)

    @property
    def total(self) -> float:
        """All of it."""
        return self._total

    async def watch(self) -> None:
        """Look on, until it is cancelled."""
        while True:
            due = trio.current_time() + _TICK
            await trio.sleep_until(due)
            self._total += max(0.0, trio.current_time() - due - _TICK)
            self._next.set()
            self._next = trio.Event()


@asynccontextmanager
async def watched() -> AsyncIterator[Standstill]:
    """Look on within the block."""
    async with trio.open_nursery() as nursery:
        standstill = Standstill()
        nursery.start_soon(standstill.watch)
        yield standstill
        nursery.cancel_scope.cancel()
