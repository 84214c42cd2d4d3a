"""A blocking call of Spark's in a thread, whose jobs are cancelled with the caller's scope."""

# Why jobs are cancelled again and again
# --------------------------------------
#
# Spark cancels jobs by a tag, which belongs to the thread that starts them. A cancellation ends the
# jobs that run at that moment. A job may be about to be submitted then, and the function may start
# another job after it, and Spark ends neither of them. So the cancellation is repeated until the
# function has returned.
#
# The cancellation itself is a call into the JVM, which may be frozen. So it runs in another thread,
# and the caller watches only whether it returns: a JVM that is silent for half a second is not
# waited for. That time is counted in short looks and not by a clock: this process may itself stand
# still for seconds, and the JVM's response is then read late.

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")
#: How long to wait (seconds) for cancelled work, and for a JVM that does not respond.
_CANCEL_LIMIT, _SILENCE_LIMIT = 5.0, 0.5
#: Seconds between two attempts to cancel the jobs, and between two looks for a response.
_STEP = 0.05


class CancellableCall(Generic[T]):
    """A call of ``function()`` in a thread; ``cancel_jobs()`` cancels its jobs in another one."""

    def __init__(
        self,
        function: Callable[[], T],
        cancel_jobs: Callable[[], object],
        limiter: trio.CapacityLimiter,
    ) -> None:
        self._function = function
        self._cancel_jobs = cancel_jobs
        self._limiter = limiter
        # Guards ``_begun`` and ``cancelled``: the thread may still wait for its turn when the
        # caller is cancelled, and then it must not begin.
        self._beginning = threading.Lock()
        self._begun = False
        #: True if the caller was cancelled before the function ended: it must start nothing new.
        self.cancelled = False
        #: True if the JVM did not respond to the cancellation.
        self.silent = False
        #: Cancellations that the JVM has responded to.
        self._responses = 0
        self._ended = threading.Event()

    @property
    def left_behind(self) -> bool:
        """True while the thread has begun and has not returned."""
        return self._begun and not self._ended.is_set()

    async def run(self) -> T:
        """Call the function and return its result, or raise its error.

        Cancellation: the jobs are cancelled, and the call waits until the function has returned, as
        long as the JVM responds, and at most five seconds. After that the thread is left alone.
        """
        try:
            return await trio.to_thread.run_sync(
                self._call, abandon_on_cancel=True, limiter=self._limiter
            )
        # In Trio's main task an interrupt is raised here as KeyboardInterrupt.
        except BaseException:
            with self._beginning:
                self.cancelled = not self._ended.is_set()  # else the error may be the function's
            if self.left_behind:
                await self._wait_cancelled()
            raise

    def _call(self) -> T:
        with self._beginning:
            if self.cancelled:
                # The caller no longer waits.
                raise RuntimeError("the call was cancelled before its thread began")
            self._begun = True
        try:
            return self._function()
        finally:
            self._ended.set()

    async def _wait_cancelled(self) -> None:
        """Cancel the jobs until the function has ended, as long as the JVM responds."""
        cancelling = threading.Thread(target=self._cancel, name="trikafka cancels", daemon=True)
        cancelling.start()
        seen, silence = self._responses, 0.0
        with trio.move_on_after(_CANCEL_LIMIT, shield=True):
            while cancelling.is_alive() and not self.silent:
                await trio.sleep(_STEP)
                silence = silence + _STEP if self._responses == seen else 0.0
                seen = self._responses
                self.silent = silence >= _SILENCE_LIMIT

    def _cancel(self) -> None:
        for _ in range(int(_CANCEL_LIMIT / _STEP)):
            with contextlib.suppress(Exception):  # a dead JVM has no job left to cancel
                self._cancel_jobs()
            self._responses += 1
            if self._ended.wait(_STEP):
                return
