"""The hook of the entry point: the runner of large exports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trikafka.hooks import hookimpl

if TYPE_CHECKING:
    from trikafka.interfaces import ExportRunner


@hookimpl
def trikafka_export_runner(name: str, options: Mapping[str, Any]) -> ExportRunner | None:
    """Return the runner by Spark."""
    if name != "spark":
        return None
    from .spark_runner import SparkRunner

    return SparkRunner.from_options(options)
