"""The runners of a sink's ranges: threads of this process, and Spark for large plans.

Runners come from plugins, by the hook ``trikafka_export_runner``. This module owns the choice
between them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import trio

from trikafka import ExportError
from trikafka.hooks import call_first, load_plugins
from trikafka.interfaces import ExportRunner

from .sink_options import SinkOptions

T = TypeVar("T")
_log = logging.getLogger("trikafka.export")
#: How long a runner may take to stop (seconds): at the end, and when the export was cancelled.
STOP_LIMIT, CANCELLED_LIMIT = 15.0, 2.0
#: The names of the runners that a sink asks for.
THREADS, SPARK = "threads", "spark"


class ThreadRunner:
    """Runs the ranges in threads of this process."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def check(self) -> None:
        """Do nothing: threads need no other package."""

    async def start(self, settings: Mapping[str, Any]) -> None:
        """Do nothing: each run starts its own threads."""
        await trio.lowlevel.checkpoint()

    async def run(
        self, tasks: Sequence[Any], report: Callable[[int, int], None]
    ) -> Sequence[Exception | None]:
        """Run the tasks as :meth:`LocalJob.run` does."""
        from .local import LocalJob  # imports pyarrow, which is slow

        return await LocalJob(tasks, self._threads).run(report)

    async def close(self, limit: float) -> None:
        """Do nothing: each run ends its own threads."""


class Runners:
    """The runners of one sink, each made at its first use and kept."""

    def __init__(
        self, options: SinkOptions, plugins: Collection[object], limiter: trio.CapacityLimiter
    ) -> None:
        self._options = options
        self._plugins = plugins
        self._limiter = limiter
        self._known: dict[str, ExportRunner] = {}
        #: The name of the runner that was chosen last.
        self.name = THREADS

    async def check(self) -> None:
        """Check the requirements of Spark if all plans are for Spark.

        Raises:
            ExportError: Something is missing.
        """
        if self._options.spark_above == 0:
            await self._spark()

    async def fitting(self, width: int) -> ExportRunner:
        """Return the runner for a plan of so many offsets.

        Without Spark or Java all records are written by threads, with a warning. With
        ``spark_above=0`` their absence is an error.
        """
        above = self._options.spark_above
        self.name = THREADS
        if above is None or (above and width <= above):
            return self._made(THREADS)
        try:
            runner = await self._spark()
        except ExportError as error:
            if above == 0:
                raise
            _log.warning(
                "%s; until then all %s records are exported by threads of this process",
                error,
                f"{width:,}",
            )
            return self._made(THREADS)
        self.name = SPARK
        return runner

    async def close(self, limit: float) -> None:
        """Close all runners."""
        for runner in self._known.values():
            await runner.close(limit)

    async def _spark(self) -> ExportRunner:
        runner = self._made(SPARK)
        await trio.to_thread.run_sync(runner.check, limiter=self._limiter)
        return runner

    def _made(self, name: str) -> ExportRunner:
        if name not in self._known:
            own = self._options
            options = {
                "threads": own.threads,
                "master": own.master,
                "app_name": own.app_name,
                **own.conf,
            }
            runner = call_first(
                load_plugins(self._plugins),
                "trikafka_export_runner",
                ExportRunner,
                name=name,
                options=options,
            )
            if runner is None:
                raise ExportError(
                    "exports by Spark need the package trikafka-spark: install it (from a clone: "
                    "pip install ./plugins/trikafka-spark), or give the option spark_above=never"
                    if name == SPARK
                    else f"no plugin runs exports by {name!r}"
                )
            self._known[name] = runner
        return self._known[name]
