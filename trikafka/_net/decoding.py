"""Large responses are read in a thread, one at a time: a million partitions take seconds, and the loop has other things to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import trio

from .in_flight import InFlightRequest

T = TypeVar("T")
#: A response of so many bytes is large: kafka-python's decoder reads about four megabytes a second.
LARGE = 131_072
#: So many elements are many: to look at each takes some microseconds.
MANY = 5_000
_threads: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("trikafka_decoding")


async def decoded(request: InFlightRequest) -> Any:
    """The response to ``request``, read in a thread if it is large. Raises as :meth:`InFlightRequest.response`.

    Cancelled, it leaves at once; the thread ends by itself.
    """
    if request.frame is None or len(request.frame) < LARGE:
        return request.response()
    return await in_thread(request.response)


async def worked_out(elements: int, work: Callable[[], T]) -> T:
    """What ``work`` makes of so many elements: at once, without a checkpoint, if they are few; else in a thread."""
    return work() if elements < MANY else await in_thread(work)


def busy() -> bool:
    """Whether a large response has come and is being read."""
    return _limiter().borrowed_tokens > 0


async def in_thread(work: Callable[[], T]) -> T:
    """Do ``work`` in the thread for it."""
    return await trio.to_thread.run_sync(work, limiter=_limiter(), abandon_on_cancel=True)


def _limiter() -> trio.CapacityLimiter:
    try:
        return _threads.get()
    except LookupError:
        made = trio.CapacityLimiter(1)
        _threads.set(made)
        return made
