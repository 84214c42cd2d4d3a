"""The work of an export by Spark: run, watched and cancelled through threads.

The Trio loop never blocks. The jobs of the work carry a tag, by which any thread can cancel them
(``interruptTag`` works only in the thread that set the tag). They also carry a group, by which
Spark's status tracker finds them. Both belong to a thread, and Trio uses threads again, so the
thread that set them removes them.
"""

from __future__ import annotations

import contextlib
import secrets
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from trikafka import ExportError

from .cancelling import CancellableCall
from .range_units import error_of
from .session import answers, first_line, text_of

if TYPE_CHECKING:
    from pyspark import SparkContext

T = TypeVar("T")
_POLL_EVERY = 0.2


class SparkWork(ABC, Generic[T]):
    """Work for a Spark context, done by :meth:`_act`.

    All methods but :meth:`run` block.
    """

    def __init__(self, context: SparkContext, limiter: trio.CapacityLimiter) -> None:
        self._context = context
        self._limiter = limiter
        self._tag = f"trikafka-export-{uuid.uuid4()}"
        self._secret = secrets.token_hex(16)
        self._call = CancellableCall(
            self._tagged, lambda: context.cancelJobsWithTag(self._tag), limiter
        )
        self._rows: Any = None

    @property
    def silent(self) -> bool:
        """True once the JVM did not respond to a cancellation."""
        return self._call.silent

    @abstractmethod
    def _act(self) -> T:
        """Do the work, in a thread.

        Jobs that are started here can be cancelled. After a cancellation no more are started.
        """

    async def run(self, report: Callable[[int, int], None]) -> T:
        """Do the work, and call ``report(tasks done, rows done)`` a few times a second.

        Raises:
            ExportError: The work failed; the cause is the worker's own error.
            Exception: The error of ``report``.

        Cancellation: the jobs are cancelled, and the call waits for at most five seconds
        (:class:`CancellableCall`).
        """
        results: list[T] = []
        failures: list[Exception] = []
        finished = trio.Event()

        async def work() -> None:
            try:
                results.append(await self._call.run())
            except Exception as error:
                failures.append(error)
            finally:
                finished.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            try:
                while not finished.is_set():
                    with trio.move_on_after(_POLL_EVERY):
                        await finished.wait()
                    report(
                        *await trio.to_thread.run_sync(
                            self._progress, abandon_on_cancel=True, limiter=self._limiter
                        )
                    )
            except Exception as error:
                failures.append(error)
                nursery.cancel_scope.cancel()
        if failures:
            raise failures[0]
        return results[0]

    def _tagged(self) -> T:
        context = self._context
        try:
            context.addJobTag(self._tag)
            context.setJobGroup(self._tag, "trikafka export")
            self._rows = context.accumulator(0)
            return self._act()
        except ExportError:
            raise
        except Exception as error:
            failure, cause = self._explained(error)
            raise failure from cause
        finally:
            with contextlib.suppress(Exception):  # the JVM may be gone, and the tag with it
                context.removeJobTag(self._tag)
                for name in ("spark.jobGroup.id", "spark.job.description"):
                    context.setLocalProperty(name, None)  # type: ignore[arg-type]

    def _progress(self) -> tuple[int, int]:
        try:
            return self._counted()
        except Exception as error:
            failure, cause = self._explained(error)
            raise failure from cause

    def _counted(self) -> tuple[int, int]:
        tracker = self._context.statusTracker()
        done = 0
        for job in tracker.getJobIdsForGroup(self._tag):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info is not None else ():
                known = tracker.getStageInfo(stage)
                done += known.numCompletedTasks if known is not None else 0
        return done, self._rows.value if self._rows is not None else 0

    def _explained(self, error: Exception) -> tuple[ExportError, Exception]:
        """Return an :exc:`ExportError` for an error of Spark, and its cause.

        The cause is the worker's own error if the text has one.
        """
        text = text_of(error)
        known = error_of(text, self._secret)
        if known is not None:
            where, cause = known
            return ExportError(f"exporting {where} failed: {cause}"), cause
        if "ModuleNotFoundError" in text:
            name = text.partition("ModuleNotFoundError: ")[2].partition("\n")[0].strip()
            return ExportError(
                f"Spark's Python workers lack a package ({name}); install trikafka-spark where "
                "they run"
            ), error
        if not answers(self._context):
            return ExportError(
                "Spark ended in the middle of the export: its JVM was killed, or the context was "
                "stopped"
            ), error
        return ExportError(f"the Spark job failed: {first_line(error)}"), error
