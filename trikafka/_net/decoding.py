"""The decoding of large responses in a thread, one at a time.

A million partitions take seconds to decode, and the event loop has other tasks. Millions of new
objects also keep Python's garbage collector busy: it goes through them again and again, and no
other thread runs meanwhile. That was two thirds of the time, a second at a stretch. So the
collector waits while a very large response is decoded.
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
from .run_local import RunLocal
from .singleflight import ClientClosed

T = TypeVar("T")
#: A response of this many bytes is large: kafka-python's decoder reads about four megabytes a
#: second.
LARGE = 131_072
#: This many elements are many: to look at each takes some microseconds.
MANY = 5_000
#: From this many times the two figures above on, a collection takes too long: a tenth of a second
#: for a million objects that are not garbage.
_VERY = 8
#: A threshold that is never reached, and that no other code would set: the number of new objects
#: before a collection.
_NEVER = 2**31 - 1
#: How many objects are freed in one go, without letting another thread run.
_SLICE = 5_000
# Why a thread, and why one. Decoding in the loop would stop heartbeats, responses and timeouts of
# the whole client for seconds. A thread shares the interpreter's lock, so it makes nothing faster,
# but the loop gets its turn every few milliseconds. Several threads at once would only compete for
# that lock, and each holds a response in memory. So there is a limit of one for each event loop.
#
# A small response is decoded in the step that reads it: a thread costs more than the decoding. A
# cancelled caller leaves at once and the thread goes on to its end, because a thread cannot be
# stopped.
#
# The garbage collector is half of the problem. Its work grows with the objects that are alive, none
# of which is garbage here, and it holds the interpreter's lock. A response about a million
# partitions takes 3.9 s of CPU time to decode, and one collection holds the lock for 0.26 s in a
# process that has nothing else; with the collector waiting it takes 2.0 s, and nothing holds the
# lock. Another way to spare the collector is not known: kafka-python makes an object of each
# partition. `gc.disable()` was not used: whether the collector is on is the program's own setting,
# and a change of it meanwhile could not be recognized. A threshold that no program sets can be
# recognized and restored. This is the only place that touches the collector, and
# `TRIKAFKA_PAUSE_GC=0` in the environment keeps it from that.
_limiter = RunLocal("trikafka_decoding", lambda: trio.CapacityLimiter(1))


async def decoded(request: InFlightRequest) -> Any:
    """Return the response to ``request``, which is large, decoded in a thread.

    Raises as :meth:`InFlightRequest.response`. On cancellation this returns at once; the thread
    finishes its work in the background.
    """
    return await _in_thread(request.response, collects=request.size < LARGE * _VERY)


async def worked_out(elements: int, work: Callable[[], T]) -> T:
    """Return the result of ``work`` on this many ``elements``.

    Few elements are handled at once, without a checkpoint; many in a thread.
    """
    return work() if elements < MANY else await _in_thread(work, collects=elements < MANY * _VERY)


def busy() -> bool:
    """Return whether a large response is being decoded."""
    return _limiter.get().borrowed_tokens > 0


def use_up(items: Sequence[Any] | None) -> None:
    """Free what a list holds, in slices.

    Freed at once, as by dropping the last reference, no other thread would run meanwhile.
    """
    if isinstance(items, list):
        while items:
            del items[-_SLICE:]


def free_after(last: object, parts: list[object], start_soon: Callable[..., object]) -> None:
    """Free what ``parts`` holds once ``last``, which was made of them, is gone.

    They are freed in slices, beside the loop. A million objects take a tenth of a second in the
    step that drops the last reference to what holds them.
    """
    token = trio.lowlevel.current_trio_token()

    def begin() -> None:
        with suppress(ClientClosed):
            start_soon(_free, parts)

    def gone() -> None:  # in the thread that dropped it, or when Python ends
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(begin)

    weakref.finalize(last, gone)


async def _free(parts: list[object]) -> None:
    await trio.to_thread.run_sync(use_up, parts, limiter=_limiter.get(), abandon_on_cancel=True)


async def _in_thread(work: Callable[[], T], *, collects: bool) -> T:
    def done() -> T:
        pauses = not collects and os.environ.get("TRIKAFKA_PAUSE_GC") != "0"
        with _collector.kept_away() if pauses else nullcontext():
            return work()

    return await trio.to_thread.run_sync(done, limiter=_limiter.get(), abandon_on_cancel=True)


class _Collector:
    """The means to keep the process's garbage collector waiting, by its threshold.

    There is one for the process, as there is one garbage collector. Threads of several event loops
    may use it at the same time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = gc.get_threshold()

    @contextmanager
    def kept_away(self) -> Iterator[None]:
        """Keep automatic collections from starting within the block."""
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
        """Restore the threshold in a child process.

        The threads that set it in the parent do not exist here, so no other code would.
        """
        self._lock = threading.Lock()
        if self._users:
            self._users = 0
            self._back()

    def _back(self) -> None:
        if not gc.get_freeze_count():
            # Mark all objects as old. Otherwise the collector would begin by going through all that
            # was made. This would also thaw what the program has frozen itself, so it is not done
            # if there is such.
            gc.freeze()
            gc.unfreeze()
        if gc.get_threshold()[0] == _NEVER:  # otherwise the program has set another one meanwhile
            gc.set_threshold(*self._before)


_collector = _Collector()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_collector.forked)
