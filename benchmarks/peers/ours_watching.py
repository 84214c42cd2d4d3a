"""trikafka: figures beside the rate.

They are the time that other tasks wait, and the number and duration of re-authentications.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from trikafka import ConnectionEvent
from trikafka.hooks import hookimpl
from trikafka.interfaces import ConnectionObserver

from ..jobs import Window

#: Seconds between two looks of the waiting task at the clock. It costs less than a hundredth of a
#: processor.
_EVERY = 0.002


class WatchedWindow(Window):
    """A window in which another task requests its turn all the time.

    ``gap`` is the longest time that the task waited beyond its interval.
    """

    def __init__(self) -> None:
        super().__init__()
        self._looked = 0.0
        self._gap = 0.0

    def look(self) -> None:
        now = time.perf_counter()
        if self._looked:
            self._gap = max(self._gap, now - self._looked - _EVERY)
        self._looked = now

    async def watch(self) -> None:
        while True:
            self.look()
            await trio.sleep(_EVERY)

    def gap(self) -> dict[str, float]:
        return {"longest_gap_ms": 1e3 * self._gap}


@asynccontextmanager
async def watched() -> AsyncIterator[WatchedWindow]:
    """Open a window around the block, with the waiting task."""
    window = WatchedWindow()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(window.watch)
        with window:
            window.look()
            yield window
        window.look()
        nursery.cancel_scope.cancel()


class Renewals(ConnectionObserver):
    """A plugin that records the re-authentications of connections."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[Any, str], float] = {}
        self._count = 0

    @hookimpl
    def trikafka_observer(self) -> ConnectionObserver:
        return self

    def connection_changed(self, event: ConnectionEvent) -> None:
        if event.before == "reauthenticating" and event.state == "ready":
            self._count += 1
            # The event has the sum of all re-authentications of the connection so far.
            self._seconds[event.node, event.purpose] = event.seconds

    def figures(self) -> dict[str, float]:
        """Return the number of re-authentications, and the mean time for which requests waited."""
        if not self._count:
            return {}
        return {
            "renewals": float(self._count),
            "renewal_ms": 1e3 * sum(self._seconds.values()) / self._count,
        }
