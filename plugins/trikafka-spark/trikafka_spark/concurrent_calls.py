"""A bounded number of concurrent calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

#: Calls that run at the same time.
_AT_ONCE = 64
T = TypeVar("T")


async def call_concurrently(work: Callable[[T], Awaitable[None]], things: Iterable[T]) -> None:
    """Call ``work`` with each of the things, 64 at a time.

    Raises:
        ExceptionGroup: The errors of the calls.
    """
    limiter = trio.CapacityLimiter(_AT_ONCE)

    async def one(thing: T) -> None:
        async with limiter:
            await work(thing)

    async with trio.open_nursery() as nursery:
        for thing in things:
            nursery.start_soon(one, thing)
