"""The Spark job of a large export: one task a range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from .spark_work import SparkWork
from .task import WriteTask, error_from_text, run_task

if TYPE_CHECKING:
    from pyspark import SparkContext


class SparkJob(SparkWork[list[Exception | None]]):
    """Tasks to run, one Spark task each. The result: for each task the error of Kafka's that ended it, or ``None``."""

    def __init__(self, context: SparkContext, tasks: Sequence[WriteTask], limiter: trio.CapacityLimiter) -> None:
        super().__init__(context, limiter)
        self._tasks = tasks

    def _act(self) -> list[Exception | None]:
        secret, rows = self._secret, self._rows

        def counted(task: WriteTask) -> str | None:
            return run_task(task, secret, rows.add)

        work = self._context.parallelize(self._tasks, len(self._tasks)).map(counted)
        if self._call.cancelled:
            return []
        return [None if text is None else error_from_text(text) for text in work.collect()]
