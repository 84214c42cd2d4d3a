"""One piece of Spark's work, seen from Trio: run, watched and cancelled through threads, so that the loop is never held up.

Its jobs carry a tag, by which any thread can cancel them (``interruptTag`` works only in the thread that set the tag), and a
group, by which Spark's status can be asked for them. Both belong to a thread, and Trio uses threads again, so they are taken
back where they were set.
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
from .session import answers, first_line, text_of
from .task import error_of

if TYPE_CHECKING:
    from pyspark import SparkContext

T = TypeVar("T")
_POLL_EVERY = 0.2


class SparkWork(ABC, Generic[T]):
    """Work for a Spark context: what :meth:`_act` does with it. The methods block, except ``run``."""

    def __init__(self, context: SparkContext, limiter: trio.CapacityLimiter) -> None:
        self._context, self._limiter = context, limiter
        self._tag = f"trikafka-export-{uuid.uuid4()}"
        self._secret = secrets.token_hex(16)
        self._call = CancellableCall(self._tagged, lambda: context.cancelJobsWithTag(self._tag), limiter)
        self._rows: Any = None

    @property
    def silent(self) -> bool:
        """Whether the JVM did not answer when it was told to cancel."""
        return self._call.silent

    @abstractmethod
    def _act(self) -> T:
        """The work, in a thread. Jobs that it starts can be cancelled; when the call was cancelled, it starts no more."""

    async def run(self, report: Callable[[int, int], None]) -> T:
        """Do it; ``report(tasks done, rows done)`` a few times a second. A cancelled scope cancels it.

        Raises :exc:`ExportError` with the worker's own error as its cause, and what ``report`` raises.
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
                    report(*await trio.to_thread.run_sync(self._progress, abandon_on_cancel=True, limiter=self._limiter))
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
        """What to say of an error of Spark, and its cause: the worker's own error where there is one."""
        text = text_of(error)
        known = error_of(text, self._secret)
        if known is not None:
            where, cause = known
            return ExportError(f"exporting {where} failed: {cause}"), cause
        if "ModuleNotFoundError" in text:
            name = text.partition("ModuleNotFoundError: ")[2].partition("\n")[0].strip()
            return ExportError(f"Spark's Python workers lack a package ({name}); install trikafka-spark where they run"), error
        if not answers(self._context):
            return ExportError("Spark ended in the middle of the export: its JVM was killed, or the context was stopped"), error
        return ExportError(f"the Spark job failed: {first_line(error)}"), error
