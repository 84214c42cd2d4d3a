"""The Spark context of a sink, as the sink's tasks see it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio
from trikafka_export.runners import STOP_LIMIT

from . import session

if TYPE_CHECKING:
    from pyspark import SparkContext

#: How long Spark may take to stop (seconds) if the JVM did not respond before. After that, as after
#: the limits of ``trikafka_export.runners``, the JVM is killed.
_SILENT_LIMIT = 0.2


class KeptSpark:
    """The Spark context of a sink: started at its first use, kept, and released at the end."""

    def __init__(
        self,
        master: str | None,
        app_name: str,
        conf: Mapping[str, str],
        limiter: trio.CapacityLimiter,
    ) -> None:
        self._settings = (master, app_name, conf)
        self._limiter = limiter
        # Guards the hand-over of the context by the thread that starts Spark. A sink that was
        # cancelled in the meantime no longer waits for the thread, which then releases the context.
        self._handing_over = threading.Lock()
        self._context: SparkContext | None = None
        #: True if the JVM did not respond to the last request.
        self.silent = False

    async def started(self) -> SparkContext:
        """Return the context; start one if there is none that works."""
        if (context := self._context) is not None and await trio.to_thread.run_sync(
            session.answers, context, abandon_on_cancel=True, limiter=self._limiter
        ):
            return context
        await self.leave(STOP_LIMIT)
        unwanted = threading.Event()
        try:
            return await trio.to_thread.run_sync(
                self._start, unwanted, abandon_on_cancel=True, limiter=self._limiter
            )
        except BaseException:
            with self._handing_over:
                unwanted.set()
            raise

    def _start(self, unwanted: threading.Event) -> SparkContext:
        """Start the context, and hand it over; release it if it is not wanted any more."""
        context = session.acquire(*self._settings)
        with self._handing_over:
            wanted = not unwanted.is_set()
            if wanted:
                self._context = context
        if not wanted:
            session.release(context)
        from . import spark_work  # noqa: F401  (slow imports belong in this thread)

        return context

    async def leave(self, limit: float) -> None:
        """Release the context.

        A JVM that was started here and does not stop within ``limit`` seconds is killed.
        """
        context = self._context
        self._context = None
        if context is None:
            return
        with trio.move_on_after(_SILENT_LIMIT if self.silent else limit, shield=True) as scope:
            await trio.to_thread.run_sync(
                session.release, context, abandon_on_cancel=True, limiter=self._limiter
            )
        if scope.cancelled_caught:
            session.kill(context)
