"""Large responses are read in a thread, one at a time: a million partitions take seconds, and the loop has other things to do.

Millions of objects that are made at once are also what Python's garbage collector goes through, again and again, and no other
thread runs meanwhile: that was two thirds of the time, a second at a stretch. So it waits while a very large one is read.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeVar

import trio

from .in_flight import InFlightRequest
from .singleflight import ClientClosed

T = TypeVar("T")
#: A response of so many bytes is large: kafka-python's decoder reads about four megabytes a second.
LARGE = 131_072
#: So many elements are many: to look at each takes some microseconds.
MANY = 5_000
#: From so many times as many on collections are too long: a tenth of a second for a million objects that are not garbage.
_VERY = 8
#: A threshold that is never reached, and that nobody else would set: so many objects are made before a collection.
_NEVER = 2**31 - 1
#: So many objects are freed without letting another thread run.
_SLICE = 5_000
_threads: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("trikafka_decoding")


async def decoded(request: InFlightRequest) -> Any:
    """The response to ``request``, read in a thread if it is large. Raises as :meth:`InFlightRequest.response`.

    Cancelled, it leaves at once; the thread ends by itself.
    """
    if request.frame is None or len(request.frame) < LARGE:
        return request.response()
    return await _in_thread(request.response, collects=len(request.frame) < LARGE * _VERY)


async def worked_out(elements: int, work: Callable[[], T]) -> T:
    """What ``work`` makes of so many elements: at once, without a checkpoint, if they are few; else in a thread."""
    return work() if elements < MANY else await _in_thread(work, collects=elements < MANY * _VERY)


def busy() -> bool:
    """Whether a large response has come and is being read."""
    return _limiter().borrowed_tokens > 0


def use_up(items: Sequence[Any] | None) -> None:
    """Free what a list holds that nobody needs any more. At once, as the last reference to it would, no other thread would run."""
    if isinstance(items, list):
        while items:
            del items[-_SLICE:]


def free_after(last: object, parts: list[object], start_soon: Callable[..., object]) -> None:
    """Once nobody has ``last`` any more, free what ``parts`` holds, of which it was made: in slices, beside the loop.

    A million objects are a tenth of a second in the step that drops the last reference to what holds them.
    """
    token = trio.lowlevel.current_trio_token()

    def begin() -> None:
        with suppress(ClientClosed):
            start_soon(_free, parts)

    def gone() -> None:  # in whatever thread dropped it, or when Python ends
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(begin)

    weakref.finalize(last, gone)


async def _free(parts: list[object]) -> None:
    await trio.to_thread.run_sync(use_up, parts, limiter=_limiter(), abandon_on_cancel=True)


async def _in_thread(work: Callable[[], T], *, collects: bool) -> T:
    def done() -> T:
        with nullcontext() if collects else _collector.kept_away():
            return work()

    return await trio.to_thread.run_sync(done, limiter=_limiter(), abandon_on_cancel=True)


class _Collector:
    """Has the garbage collector of the process wait, by its threshold. Threads of several loops may be about it at the same time.

    Not by ``gc.disable()``: whether it is on is the program's, which may change its mind meanwhile, and one could not tell.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = gc.get_threshold()

    @contextmanager
    def kept_away(self) -> Iterator[None]:
        """Within the block it does not begin by itself."""
        with self._lock:
            if not self._users:
                self._before = gc.get_threshold()
                gc.set_threshold(_NEVER, *self._before[1:])
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._back()

    def forked(self) -> None:
        """This is a child process: who kept it away in its parent is not here, and nobody else would let it run again."""
        self._lock = threading.Lock()
        if self._users:
            self._users = 0
            self._back()

    def _back(self) -> None:
        if not gc.get_freeze_count():
            # All objects count as old from now on: else it would begin by going through all that was made. What a program has
            # frozen itself would thaw by this, so then it does go through them.
            gc.freeze()
            gc.unfreeze()
        if gc.get_threshold()[0] == _NEVER:  # else the program has set others meanwhile
            gc.set_threshold(*self._before)


_collector = _Collector()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_collector.forked)


def _limiter() -> trio.CapacityLimiter:
    try:
        return _threads.get()
    except LookupError:
        made = trio.CapacityLimiter(1)
        _threads.set(made)
        return made
