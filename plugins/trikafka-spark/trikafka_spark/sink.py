"""The Spark sink of ``trikafka.export``: one Spark task a file, Parquet written in the task, published by name.

Everything of Spark runs in threads of this sink's own limiter. The layout of the destination is not known here:
:class:`trikafka.DirectoryStore` owns it.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import trio

from trikafka import ConfigurationError, DirectoryStore, ExportError
from trikafka.interfaces import ExportManifest, ExportPlan, ExportState, SinkReport, WrittenFile

from . import session

if TYPE_CHECKING:
    from pyspark import SparkContext

T = TypeVar("T")
_OPTIONS = ("destination", "master", "app_name", "compression")
_COMPRESSIONS = ("snappy", "zstd", "gzip", "lz4", "brotli", "none")


class SparkSink:
    """Writes an export with Spark. Options: ``master`` (default ``local[*]``), ``app_name``, ``compression``, ``spark.*``.

    A Spark context that the process has already is used, and left running; ``master`` and ``spark.*`` then mean nothing.
    """

    def __init__(
        self,
        root: Path,
        *,
        master: str | None = None,
        app_name: str = "trikafka export",
        compression: str = "snappy",
        conf: Mapping[str, str] | None = None,
    ) -> None:
        if compression not in _COMPRESSIONS:
            raise ConfigurationError(f"compression must be one of {', '.join(_COMPRESSIONS)}, not {compression!r}")
        self._root, self._master, self._app_name = root, master, app_name
        self._compression, self._conf = compression, dict(conf or {})
        self._store = DirectoryStore(root)
        self._limiter = trio.CapacityLimiter(4)
        # Handed over by the thread that starts Spark, unless the sink has given up waiting for it by then.
        self._handing_over = threading.Lock()
        self._context: SparkContext | None = None
        self._unwanted = False

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Make a sink of what ``export(..., sink_options=)`` was given. Raises :exc:`ConfigurationError`."""
        conf = {name: str(value) for name, value in options.items() if name.startswith("spark.")}
        rest = {name: value for name, value in options.items() if name not in conf}
        for name in rest:
            if name not in _OPTIONS:
                near = difflib.get_close_matches(name, _OPTIONS, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigurationError(f"unknown option {name!r} of the Spark sink{hint}")
        return cls(DirectoryStore.directory_of(rest.pop("destination")), conf=conf, **rest)

    async def __aenter__(self) -> Self:
        """Check the destination, then Spark and Java; starts nothing yet."""
        await self._thread(self._store.open)
        try:
            await self._thread(session.check_requirements)
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop Spark if it was started here and nobody else uses it; remove what is partial; unlock."""
        await self._leave()

    async def _leave(self) -> None:
        with trio.CancelScope(shield=True):
            if (context := self._context) is not None:
                self._context = None
                await self._thread(lambda: session.release(context))
            await self._thread(self._store.close)

    async def load(self) -> ExportState:
        """Return what the destination holds."""
        return await self._thread(self._store.load)

    async def store_plan(self, plan: ExportPlan) -> None:
        """Store the plan."""
        await self._thread(lambda: self._store.store_plan(plan))

    async def publish(self, manifest: ExportManifest) -> None:
        """Publish the manifest."""
        await self._thread(lambda: self._store.publish(manifest))

    async def write(self, plan: ExportPlan, settings: Mapping[str, Any], report: SinkReport) -> Sequence[WrittenFile]:
        """Write the plan's files by a Spark job; a cancelled scope cancels the job."""
        report("starting", 0, 0)
        context = await self._started()
        from .job import SparkJob  # imports pyarrow, which the thread that started Spark has done by now
        from .task import WriteTask

        client = {name: value for name, value in settings.items() if name != "fail_on_data_loss"}
        fail_on_data_loss = bool(settings.get("fail_on_data_loss", True))
        tasks = [WriteTask(str(self._root), file, client, fail_on_data_loss, self._compression) for file in plan.files]
        report("writing", 0, 0)
        results = await SparkJob(context, tasks, self._limiter).run(lambda files, rows: report("writing", files, rows))
        if len(results) != len(plan.files):
            raise ExportError(f"Spark answered for {len(results)} of {len(plan.files)} files")
        return [
            WrittenFile(file, file.name if rows else None, rows, size)
            for file, (rows, size) in zip(plan.files, results, strict=True)
        ]

    async def _started(self) -> SparkContext:
        if self._context is not None:
            return self._context

        try:
            return await trio.to_thread.run_sync(self._start, abandon_on_cancel=True, limiter=self._limiter)
        except BaseException:
            with self._handing_over:
                self._unwanted = True
            raise

    def _start(self) -> SparkContext:
        """Either hand the context over, to be given back when the sink is left, or give it back at once."""
        context = session.acquire(self._master, self._app_name, self._conf)
        with self._handing_over:
            wanted = not self._unwanted
            if wanted:
                self._context = context
        if not wanted:
            session.release(context)
        from . import job  # noqa: F401  (slow imports belong in this thread)

        return context

    async def _thread(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function, limiter=self._limiter)
