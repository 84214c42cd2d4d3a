"""The runners of a sink's ranges: threads of this process, and a plugin's for large plans.

Runners come from plugins, by the hook ``trikafka_export_runner``. This module owns the choice
between them. A runner for large plans has options of its own, which its plugin declares by the hook
``trikafka_sink_options``, and says itself which plans are large.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import trio

from trikafka import ConfigurationError, ExportError, PluginError
from trikafka.hooks import first_answer, load_plugins
from trikafka.interfaces import ExportRunner

from .guarded import GuardedRunner
from .sink_options import SinkOptions

_log = logging.getLogger("trikafka.export")
#: How long a runner may take to stop (seconds): at the end, and when the export was cancelled.
STOP_LIMIT, CANCELLED_LIMIT = 15.0, 2.0
#: The names of the runners that a sink asks for.
THREADS, LARGE = "threads", "large"


class ThreadRunner:
    """Runs the ranges in threads of this process."""

    above = 0

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
    """The runners of one sink, made with it and kept.

    Raises :exc:`ConfigurationError` for a wrong option of a runner.
    """

    def __init__(
        self, options: SinkOptions, plugins: Collection[object], limiter: trio.CapacityLimiter
    ) -> None:
        self._options = {**options.runner, "threads": options.threads}
        self._plugins = plugins
        self._limiter = limiter
        threads = self._made(THREADS)
        assert threads is not None, "this package's plugin has it"
        self._threads = threads
        self._large = self._made(LARGE)
        #: The name of the runner that was chosen last.
        self.name = THREADS

    async def check(self) -> None:
        """Check the requirements of the runner that takes all plans, if there is one.

        Raises:
            ExportError: Something is missing.
        """
        if self._large is not None and self._large.above == 0:
            await self._checked(self._large)

    async def fitting(self, width: int) -> ExportRunner:
        """Return the runner for a plan of ``width`` offsets.

        If the runner for large plans lacks a package or program, threads write all records, with a
        warning. If that runner is to take every plan (``above`` is 0), the lack is an error.
        """
        large = self._large
        self.name = THREADS
        if large is None or large.above is None or 0 < width <= large.above:
            return self._threads
        try:
            await self._checked(large)
        except ExportError as error:
            if large.above == 0:
                raise
            _log.warning(
                "%s; until then all %s records are exported by threads of this process",
                error,
                f"{width:,}",
            )
            return self._threads
        self.name = LARGE
        return large

    async def close(self, limit: float) -> None:
        """Close all runners."""
        for runner in (self._threads, self._large):
            if runner is not None:
                await runner.close(limit)

    async def _checked(self, runner: ExportRunner) -> None:
        await trio.to_thread.run_sync(runner.check, limiter=self._limiter)

    def _made(self, name: str) -> ExportRunner | None:
        try:
            found = first_answer(
                load_plugins(self._plugins),
                "trikafka_export_runner",
                ExportRunner,
                name=name,
                options=self._options,
            )
        except PluginError as error:
            # A wrong option is not the plugin's fault.
            if isinstance(error.__cause__, ConfigurationError):
                raise error.__cause__ from None
            raise
        if found is None:
            return None
        plugin, runner = found
        return runner if type(runner) is ThreadRunner else GuardedRunner(plugin, name, runner)
