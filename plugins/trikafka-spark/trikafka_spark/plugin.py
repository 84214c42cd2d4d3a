"""The hooks of the entry point: the runner of large exports, and its options."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from trikafka.hooks import hookimpl

if TYPE_CHECKING:
    from trikafka.interfaces import ExportRunner


@hookimpl
def trikafka_sink_options(scheme: str) -> Collection[str] | None:
    """Return the options of Spark's runner, for exports to files and tables."""
    from trikafka_export.object_address import STORES

    if scheme != "file" and scheme not in STORES:
        return None
    return ("spark_above", "master", "app_name", "spark.")


@hookimpl
def trikafka_export_runner(name: str, options: Mapping[str, Any]) -> ExportRunner | None:
    """Return Spark's runner for large plans; ``None`` for other names."""
    if name != "large":
        return None
    from .spark_runner import SparkRunner

    return SparkRunner.from_options(options)
