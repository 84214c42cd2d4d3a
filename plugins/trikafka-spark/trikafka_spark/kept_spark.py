"""The Spark context of a sink, as its tasks see it: started when it is wanted, kept from then on, given back at the end."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio

from . import session

if TYPE_CHECKING:
    from pyspark import SparkContext

#: How long Spark may take to stop (seconds): at the end, and when the export was cancelled. Then its JVM is killed.
#: When it did not even answer, hardly at all.
STOP_LIMIT, CANCELLED_LIMIT, _SILENT_LIMIT = 15.0, 2.0, 0.2


class KeptSpark:
    """The Spark context of a sink: none until it is wanted; kept from then on; given back at the end."""

    def __init__(self, master: str | None, app_name: str, conf: Mapping[str, str], limiter: trio.CapacityLimiter) -> None:
        self._settings, self._limiter = (master, app_name, conf), limiter
        # Handed over by the thread that starts Spark, unless the sink has given up waiting for it by then.
        self._handing_over = threading.Lock()
        self._context: SparkContext | None = None
        #: Whether the JVM did not answer when it was asked last.
        self.silent = False

    async def started(self) -> SparkContext:
        """The context, which is started where there is none."""
        if (context := self._context) is not None and await trio.to_thread.run_sync(
            session.answers, context, abandon_on_cancel=True, limiter=self._limiter
        ):
            return context
        await self.leave(STOP_LIMIT)
        unwanted = threading.Event()
        try:
            return await trio.to_thread.run_sync(self._start, unwanted, abandon_on_cancel=True, limiter=self._limiter)
        except BaseException:
            with self._handing_over:
                unwanted.set()
            raise

    def _start(self, unwanted: threading.Event) -> SparkContext:
        """Either hand the context over, to be given back when the sink is left, or give it back at once."""
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
        """Give the context back. A JVM that was started here and does not stop within ``limit`` seconds is killed."""
        context, self._context = self._context, None
        if context is None:
            return
        with trio.move_on_after(_SILENT_LIMIT if self.silent else limit, shield=True) as scope:
            await trio.to_thread.run_sync(session.release, context, abandon_on_cancel=True, limiter=self._limiter)
        if scope.cancelled_caught:
            session.kill(context)
