"""Several records of one partition at once, each key in order: the tasks around :class:`~trikafka._state.key_order.KeyOrder`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

import trio

from .._state.key_order import KeyOrder
from ..types import Record
from .handling import Work

#: So many records of a partition may be taken at most from the first on that is not done.
WINDOW = 1_000


class Lanes:
    """For ``async with``, whose end waits for what is worked on. ``handle`` says whether a record is done; it raises nothing.

    After one that is not done, a :meth:`stop` or a cancellation nothing more is begun. One task puts works in.
    """

    def __init__(self, concurrency: int, handle: Callable[[Work], Awaitable[bool]]) -> None:
        self._concurrency, self._handle = concurrency, handle
        self._window = max(WINDOW, concurrency)
        self.order = KeyOrder[Work]()
        self._nurseries: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nursery: trio.Nursery | None = None
        self._room = trio.Event()
        self.stopped = False

    async def __aenter__(self) -> Self:
        if self._concurrency > 1:
            self._nurseries = trio.open_nursery()
            self._nursery = await self._nurseries.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._nurseries is None:
            return None
        return await self._nurseries.__aexit__(kind, error, trace)

    async def put(self, work: Work) -> None:
        """Work on it, once there is room and nothing of its key is before it. Returns when the next may be put in."""
        if self.stopped:
            return
        key = work.raw.key if isinstance(work.raw, Record) else None
        if self._nursery is None:
            self.order.take(work.offset, None, work)
            await self._run(work)
            return
        while self.order.running >= self._concurrency or self.order.outstanding >= self._window:
            self._room = trio.Event()
            await self._room.wait()
            if self.stopped:
                return
        if self.order.take(work.offset, key, work):
            self._nursery.start_soon(self._run, work)

    def stop(self) -> None:
        """Take nothing more; what is worked on goes on, and what has to be done before it counts."""
        self.stopped = True
        self.order.wind_down()
        self._room.set()

    async def _run(self, work: Work) -> None:
        following: Work | None = work
        while following is not None:
            if await self._handle(following):
                following = self.order.done(following.offset)
            else:
                self.order.given_up(following.offset)
                self.stop()
                return
            self._room.set()
