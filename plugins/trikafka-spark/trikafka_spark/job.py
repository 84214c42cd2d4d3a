"""The Spark job of a large export, with one task for each unit of ranges."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import trio
from trikafka_export.rounds import Rounds, Try, units
from trikafka_export.task import WriteTask

from .range_units import Unit, error_from_text, run_unit
from .spark_work import SparkWork

if TYPE_CHECKING:
    from pyspark import SparkContext


class SparkJob(SparkWork[list[Exception | None]]):
    """The ranges of an export as Spark jobs, one job a round.

    The result has for each range the error of Kafka that ended it, or ``None``.
    """

    def __init__(
        self, context: SparkContext, tasks: Sequence[WriteTask], limiter: trio.CapacityLimiter
    ) -> None:
        super().__init__(context, limiter)
        self._tasks = tasks
        self._done: Any = None

    def _act(self) -> list[Exception | None]:
        self._done = self._context.accumulator(0)
        rounds = Rounds([task.planned for task in self._tasks])
        number = 0
        while (tries := rounds.next()) and not self._call.cancelled:
            number += 1
            rounds.note(self._round(tries, f"{self._tag}-{number}"))
        return rounds.results

    def _round(self, tries: Sequence[Try], name: str) -> list[tuple[int, Exception | None]]:
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

    def _counted(self) -> tuple[int, int]:
        """Return the numbers of ranges and rows of the Spark tasks that have ended."""
        return (self._done.value, self._rows.value) if self._done is not None else (0, 0)
