"""trikafka: what is looked at beside the rate. How long other tasks wait, and how often and how long who one is is said anew."""

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

#: The task that waits looks at the clock so often (seconds): what it costs is less than a hundredth of a processor.
_EVERY = 0.002


class WatchedWindow(Window):
    """A window in which one more task wants its turn all the while. ``gap`` is the longest time that it was kept waiting."""

    def __init__(self) -> None:
        super().__init__()
        self._looked, self._gap = 0.0, 0.0

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
    """The window of what the block does."""
    window = WatchedWindow()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(window.watch)
        with window:
            window.look()
            yield window
        window.look()
        nursery.cancel_scope.cancel()


class Renewals(ConnectionObserver):
    """A plugin that notes when a connection has said anew who it is."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[Any, str], float] = {}
        self._count = 0

    @hookimpl
    def trikafka_observer(self) -> ConnectionObserver:
        return self

    def connection_changed(self, event: ConnectionEvent) -> None:
        if event.before == "reauthenticating" and event.state == "ready":
            self._count += 1
            self._seconds[event.node, event.purpose] = event.seconds  # of all the times so far

    def figures(self) -> dict[str, float]:
        """How often, and for how long requests had to wait, in the mean."""
        if not self._count:
            return {}
        return {"renewals": float(self._count), "renewal_ms": 1e3 * sum(self._seconds.values()) / self._count}
