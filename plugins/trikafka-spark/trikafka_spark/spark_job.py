"""The Spark jobs of a large export: run, watched and cancelled through threads.

A job has one task for each unit of ranges. The Trio loop never blocks. The jobs carry a tag, by
which any thread can cancel them (``interruptTag`` works only in the thread that set the tag). Tags
belong to a thread, and Trio reuses threads. So the thread that set the tag removes it.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import trio
from trikafka_export.rounds import RangeAttempt, Rounds, units
from trikafka_export.task import WriteTask

from trikafka import ExportError
from trikafka.toolkit import with_background

from .cancellable_call import CancellableCall
from .range_units import Unit, error_from_text, error_of, run_unit
from .shared_context import answers, first_line, text_of

if TYPE_CHECKING:
    from pyspark import SparkContext

Results = list[Exception | None]
_POLL_EVERY = 0.2


class SparkJob:
    """The ranges of an export as Spark jobs, one job a round.

    The result has for each range the error of Kafka that ended it, or ``None``. All methods but
    :meth:`run` block.
    """

    def __init__(
        self, context: SparkContext, tasks: Sequence[WriteTask], limiter: trio.CapacityLimiter
    ) -> None:
        self._context = context
        self._limiter = limiter
        self._tag = f"trikafka-export-{uuid.uuid4()}"
        self._secret = secrets.token_hex(16)
        self._call = CancellableCall(
            self._tagged, lambda: context.cancelJobsWithTag(self._tag), limiter
        )
        self._tasks = tasks
        self._rows: Any = None
        self._done: Any = None

    @property
    def silent(self) -> bool:
        """True once the JVM did not respond to a cancellation."""
        return self._call.silent

    async def run(self, report: Callable[[int, int], None]) -> Results:
        """Do the work, and call ``report(ranges done, rows done)`` a few times a second.

        Raises:
            ExportError: The work failed; the cause is the worker's own error.
            Exception: The error of ``report``.

        When cancelled, the jobs are cancelled, and the call waits for at most five seconds
        (:class:`CancellableCall`).
        """
        results: list[Results] = []

        async def work() -> None:
            results.append(await self._call.run())

        async def look() -> None:
            done = await trio.to_thread.run_sync(
                self._progress, abandon_on_cancel=True, limiter=self._limiter
            )
            report(*done)

        async def watch() -> None:
            while True:
                await trio.sleep(_POLL_EVERY)
                await look()

        await with_background([watch], work)
        await look()
        return results[0]

    def _run_rounds(self) -> Results:
        rounds = Rounds([task.planned for task in self._tasks])
        number = 0
        while (tries := rounds.next()) and not self._call.cancelled:
            number += 1
            rounds.record(self._round(tries, f"{self._tag}-{number}"))
        return rounds.results

    def _round(
        self, tries: Sequence[RangeAttempt], name: str
    ) -> list[tuple[int, Exception | None]]:
        secret, rows, done = self._secret, self._rows, self._done

        def run(unit: Unit) -> list[str | None]:
            return run_unit(unit, secret, rows.add, done.add)

        planned = [self._tasks[each.index].planned for each in tries]
        together = [
            [tries[at] for at in unit] for unit in units(planned, self._context.defaultParallelism)
        ]
        work = [
            Unit(name, [(self._tasks[each.index], each.patience) for each in unit])
            for unit in together
        ]
        texts = itertools.chain.from_iterable(
            self._context.parallelize(work, len(work)).map(run).collect()
        )
        order = [each.index for unit in together for each in unit]
        return [
            (index, None if text is None else error_from_text(text))
            for index, text in zip(order, texts, strict=True)
        ]

    def _tagged(self) -> Results:
        context = self._context
        try:
            context.addJobTag(self._tag)
            context.setJobGroup(self._tag, "trikafka export")
            self._rows = context.accumulator(0)
            self._done = context.accumulator(0)
            return self._run_rounds()
        except ExportError:
            raise
        except Exception as error:
            self._explain(error)
        finally:
            with contextlib.suppress(Exception):  # The JVM may be gone, and the tag with it.
                context.removeJobTag(self._tag)
                for name in ("spark.jobGroup.id", "spark.job.description"):
                    context.setLocalProperty(name, None)  # type: ignore[arg-type]

    def _progress(self) -> tuple[int, int]:
        try:
            # Two accumulators: the ranges and the rows of the Spark tasks that have ended.
            return (self._done.value, self._rows.value) if self._done is not None else (0, 0)
        except Exception as error:
            self._explain(error)

    def _explain(self, error: Exception) -> NoReturn:
        """Raise an :exc:`ExportError` for an error of Spark.

        Its cause is the worker's own error if the text has one.
        """
        text = text_of(error)
        if (known := error_of(text, self._secret)) is not None:
            where, cause = known
            raise ExportError(f"exporting {where} failed: {cause}") from cause
        if "ModuleNotFoundError" in text:
            name = text.partition("ModuleNotFoundError: ")[2].partition("\n")[0].strip()
            why = (
                f"Spark's Python workers lack a package ({name}); install trikafka-spark where "
                "they run"
            )
        elif not answers(self._context):
            why = "Spark ended during the export: its JVM was killed, or the context was stopped"
        else:
            why = f"the Spark job failed: {first_line(error)}"
        raise ExportError(why) from error
