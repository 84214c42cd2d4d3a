"""The runner of exports by Spark (hook ``trikafka_export_runner``)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import trio
from trikafka_export.runners import STOP_LIMIT
from trikafka_export.sink_options import whole

from trikafka import ConfigurationError

from . import shared_context

if TYPE_CHECKING:
    from pyspark import SparkContext

#: How long Spark may take to stop (seconds) if the JVM did not respond before. After that, as after
#: the limits of ``trikafka_export.runners``, the JVM is killed.
_SILENT_LIMIT = 0.2
#: Plans with up to this many offsets are written by threads, unless ``spark_above`` says otherwise.
#: On one machine both have the same rate, but Spark's start takes about six seconds: six million
#: records took 2.5 s by threads, and 8.2 s with that start (medians of three). From fifty million
#: on it is a small part of the time, and each task of Spark has a memory of its own.
ABOVE = 50_000_000
_NAME = "trikafka export"


class SparkRunner:
    """Runs the ranges of an export by Spark jobs.

    A Spark context that the process has already is used, and stays open. The options ``master`` and
    ``spark.*`` have no effect then.
    """

    def __init__(
        self, master: str | None, app_name: str, conf: Mapping[str, str], above: int | None = ABOVE
    ) -> None:
        #: Plans of more offsets run in Spark; ``None`` if none does.
        self.above = above
        self._settings = (master, app_name, conf)
        self._limiter = trio.CapacityLimiter(4)
        # Guards the hand-over of the context by the thread that starts Spark. A sink that was
        # cancelled in the meantime no longer waits for the thread, which then releases the context.
        self._handing_over = threading.Lock()
        self._context: SparkContext | None = None
        #: True if the JVM did not respond to the last request.
        self._silent = False

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Return a runner for ``spark_above``, ``master``, ``app_name`` and ``spark.*``.

        Raises:
            ConfigurationError: ``spark_above`` is not valid.
        """
        # A text may be a Secret, a str that hides itself from repr(); str() would expose it.
        conf = {
            name: value if isinstance(value, str) else str(value)
            for name, value in options.items()
            if name.startswith("spark.")
        }
        above = options.get("spark_above", ABOVE)
        if above is not None:
            above = None if above == "never" else whole("spark_above", above, 0, " or 'never'")
        return cls(options.get("master"), options.get("app_name", _NAME), conf, above)

    def check(self) -> None:
        """Check that Spark and Java are installed.

        Raises:
            ExportError: One of them is missing.
        """
        shared_context.check_requirements()

    async def start(self, settings: Mapping[str, Any]) -> None:
        """Start Spark unless a context that works is kept from an earlier start.

        Raises:
            ConfigurationError: A setting cannot be sent to Spark's workers.
            ExportError: Spark does not start.
        """
        if settings.get("ssl_context") is not None:
            raise ConfigurationError(
                "ssl_context= cannot be sent to Spark's workers: set ssl_cafile= and the other "
                "ssl_* settings, or the option spark_above='never'"
            )
        if (context := self._context) is not None and await trio.to_thread.run_sync(
            shared_context.answers, context, abandon_on_cancel=True, limiter=self._limiter
        ):
            return
        await self.close(STOP_LIMIT)
        unwanted = threading.Event()
        try:
            await trio.to_thread.run_sync(
                self._start, unwanted, abandon_on_cancel=True, limiter=self._limiter
            )
        except BaseException:
            with self._handing_over:
                unwanted.set()
            raise

    def _start(self, unwanted: threading.Event) -> None:
        """Start the context, and hand it over; release it if it is not wanted any more."""
        context = shared_context.acquire(*self._settings)
        with self._handing_over:
            wanted = not unwanted.is_set()
            if wanted:
                self._context = context
        if not wanted:
            shared_context.release(context)
        from . import spark_job  # noqa: F401  (slow imports belong in this thread)

    async def run(
        self, tasks: Sequence[Any], report: Callable[[int, int], None]
    ) -> Sequence[Exception | None]:
        """Run the tasks as Spark jobs; see :class:`SparkJob`."""
        from .spark_job import SparkJob

        assert self._context is not None, "the runner was started"
        job = SparkJob(self._context, tasks, self._limiter)
        try:
            return await job.run(report)
        finally:
            self._silent = job.silent

    async def close(self, limit: float) -> None:
        """Release Spark.

        The context is stopped if an export started it and no other export uses it. A JVM that was
        started here and does not stop within ``limit`` seconds is killed.
        """
        context = self._context
        self._context = None
        if context is None:
            return
        with trio.move_on_after(_SILENT_LIMIT if self._silent else limit, shield=True) as scope:
            await trio.to_thread.run_sync(
                shared_context.release, context, abandon_on_cancel=True, limiter=self._limiter
            )
        if scope.cancelled_caught:
            shared_context.kill(context)
