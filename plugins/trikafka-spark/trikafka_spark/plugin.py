"""The hooks of the entry point: the runner of large exports, and the formats of Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from trikafka.hooks import hookimpl

if TYPE_CHECKING:
    from trikafka.interfaces import ExportFormat, ExportRunner, Sink


@hookimpl
def trikafka_export_runner(name: str, options: Mapping[str, Any]) -> ExportRunner | None:
    """Return the runner by Spark."""
    if name != "spark":
        return None
    from .runner import SparkRunner

    return SparkRunner.from_options(options)


@hookimpl(trylast=True)
def trikafka_export_format(name: str) -> ExportFormat:
    """Return the format that Spark knows by this name.

    Spark is asked for it at the first export only. So other plugins come first.
    """
    return _Table()


class _Table:
    """A table of Spark's."""

    def sink(self, scheme: str, options: Mapping[str, Any], plugins: Collection[object]) -> Sink:
        if scheme != "file":
            from trikafka_export.sink import ParquetSink

            return ParquetSink.from_options(options, plugins)  # raises: these need a folder

        from .tables.sink import TableSink

        return TableSink.from_options(options)
