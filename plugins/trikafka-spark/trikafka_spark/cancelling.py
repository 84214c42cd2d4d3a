"""A blocking call of Spark's in a thread, whose jobs are cancelled when the scope of its caller is.

Spark cancels jobs by a tag, which belongs to the thread that starts them. A job may be about to be submitted when the tag is
cancelled, and a function may start another job after it; so that is done again until the function has come back.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")
#: For how long cancelled work is waited for (seconds), and a JVM that does not answer, because it is frozen.
_CANCEL_LIMIT, _SILENCE_LIMIT = 5.0, 0.5


class CancellableCall(Generic[T]):
    """``function()`` in a thread; ``cancel_jobs()``, in another thread, cancels the jobs that it has started."""

    def __init__(self, function: Callable[[], T], cancel_jobs: Callable[[], object], limiter: trio.CapacityLimiter) -> None:
        self._function, self._cancel_jobs, self._limiter = function, cancel_jobs, limiter
        # The thread begins, unless the caller was cancelled by then: it may be waiting for its turn.
        self._beginning = threading.Lock()
        self._begun = False
        #: Whether the caller was cancelled: then the function begins nothing new.
        self.cancelled = False
        #: Whether the JVM did not answer when it was told to cancel.
        self.silent = False
        self._answered = 0.0
        self._ended = threading.Event()

    @property
    def left_behind(self) -> bool:
        """Whether the thread has begun and not come back."""
        return self._begun and not self._ended.is_set()

    async def run(self) -> T:
        """Call the function and return what it does, or raise what it raises.

        A cancelled scope cancels the jobs and waits until the function has come back, as long as the JVM answers, and at most
        five seconds. Then the thread is left alone.
        """
        try:
            return await trio.to_thread.run_sync(self._call, abandon_on_cancel=True, limiter=self._limiter)
        except trio.Cancelled:
            with self._beginning:
                self.cancelled = True
            if self._begun:
                await self._wait_cancelled()
            raise

    def _call(self) -> T:
        with self._beginning:
            if self.cancelled:
                raise RuntimeError("the caller was cancelled before this began")  # who would hear of it is gone
            self._begun = True
        try:
            return self._function()
        finally:
            self._ended.set()

    async def _wait_cancelled(self) -> None:
        """Cancel the jobs until the function has ended, as long as the JVM answers."""
        self._answered = time.monotonic()
        limiter = trio.CapacityLimiter(1)  # the caller's may have no room
        with trio.move_on_after(_CANCEL_LIMIT, shield=True):
            async with trio.open_nursery() as nursery:

                async def cancel() -> None:
                    await trio.to_thread.run_sync(self._cancel, abandon_on_cancel=True, limiter=limiter)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(cancel)
                while (left := self._answered + _SILENCE_LIMIT - time.monotonic()) > 0:  # noqa: ASYNC110  (a thread moves it on)
                    await trio.sleep(left)
                self.silent = True
                nursery.cancel_scope.cancel()

    def _cancel(self) -> None:
        for _ in range(int(_CANCEL_LIMIT / 0.05)):
            with contextlib.suppress(Exception):  # without its JVM the job ends by itself
                self._cancel_jobs()
            self._answered = time.monotonic()
            if self._ended.wait(0.05):
                return
