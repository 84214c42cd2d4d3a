"""The runner of exports by Spark (hook ``trikafka_export_runner``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import trio

from trikafka import ConfigurationError

from . import session
from .kept_spark import KeptSpark

if TYPE_CHECKING:
    from pyspark import SparkContext


class SparkRunner:
    """Runs the ranges of an export by Spark jobs.

    A Spark context that the process has already is used, and stays open. The options ``master`` and
    ``spark.*`` have no effect then.
    """

    def __init__(self, master: str | None, app_name: str, conf: Mapping[str, str]) -> None:
        self._limiter = trio.CapacityLimiter(4)
        self._spark = KeptSpark(master, app_name, conf, self._limiter)
        self._context: SparkContext | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Return a runner for the options of a sink: ``master``, ``app_name`` and ``spark.*``."""
        conf = {name: value for name, value in options.items() if name.startswith("spark.")}
        return cls(options["master"], options["app_name"], conf)

    def check(self) -> None:
        """Check that Spark and Java are installed.

        Raises:
            ExportError: One of them is missing.
        """
        session.check_requirements()

    async def start(self, settings: Mapping[str, Any]) -> None:
        """Start Spark unless it runs.

        Raises:
            ConfigurationError: A setting cannot be sent to Spark's workers.
            ExportError: Spark does not start.
        """
        if settings.get("ssl_context") is not None:
            raise ConfigurationError(
                "ssl_context= cannot be sent to Spark's workers: give ssl_cafile= and the like, "
                "or the option spark_above='never'"
            )
        self._context = await self._spark.started()

    async def run(
        self, tasks: Sequence[Any], report: Callable[[int, int], None]
    ) -> Sequence[Exception | None]:
        """Run the tasks as Spark jobs; see :class:`SparkJob`."""
        from .job import SparkJob

        assert self._context is not None, "the runner was started"
        job = SparkJob(self._context, tasks, self._limiter)
        try:
            return await job.run(report)
        finally:
            self._spark.silent = job.silent

    async def close(self, limit: float) -> None:
        """Release Spark.

        The context is stopped if an export started it and no other export uses it.
        """
        self._context = None
        await self._spark.leave(limit)
