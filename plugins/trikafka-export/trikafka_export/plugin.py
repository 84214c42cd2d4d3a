"""The hooks of the entry point: sinks, formats, the runner with threads, the command ``export``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from trikafka import ConfigurationError
from trikafka.hooks import first_answer, hookimpl, load_plugins
from trikafka.interfaces import ExportFormat, Subcommand

from .object_address import HDFS, STORES

if TYPE_CHECKING:
    from trikafka.interfaces import ExportRunner, Sink

_TABLES = ("delta", "iceberg")


@hookimpl
def trikafka_sink_options(scheme: str) -> Collection[str] | None:
    """Return the names of the options of exports to files and tables.

    A dot at the end stands for all names that begin so.
    """
    if scheme != "file" and scheme not in STORES:
        return None
    from .sink_options import OWN_OPTIONS

    return OWN_OPTIONS


@hookimpl
def trikafka_sink(
    scheme: str, options: Mapping[str, Any], plugins: Collection[object]
) -> Sink | None:
    """Return the sink for plain paths, ``file://``, object stores and HDFS.

    The option ``format`` selects it, by the hook ``trikafka_export_format``.

    Returns ``None`` for other schemes.

    Raises:
        ConfigurationError: An option is unknown or not valid.
    """
    if scheme != "file" and scheme not in STORES:
        return None
    name = str(options.get("format", "parquet")).strip()
    found = first_answer(load_plugins(plugins), "trikafka_export_format", ExportFormat, name=name)
    if found is None:
        from .sink_options import refuse_format

        refuse_format(name)
    from .guarded import GuardedFormat

    format = GuardedFormat(*found)
    from .sink_options import files_of, format_options, options_of_others, without_secrets

    others = options_of_others(plugins, scheme)
    open_log = format.table(options)
    if open_log is None:
        from .sink import FileSink

        return FileSink.from_options(options, plugins, format, others)
    if scheme == HDFS:
        raise ConfigurationError(
            f"tables are not written to {HDFS}://, which takes exports to plain files only"
        )
    from .lake.sink import LakeSink
    from .object_address import PREFIX

    rest = {
        name: value
        for name, value in without_secrets(options).items()
        if not name.startswith(PREFIX)  # of the table's log
    }
    return LakeSink(
        format_options(format, rest, others),
        str(options["destination"]),
        plugins,
        format,
        files_of(format, options),
        open_log,
    )


@hookimpl
def trikafka_export_format(name: str) -> ExportFormat | None:
    """Return the format of Parquet files, or of a table of Delta or Iceberg."""
    name = name.lower()
    if name == "parquet":
        from .parquet_files import ParquetFormat

        return ParquetFormat()
    if name not in _TABLES:
        return None
    from .lake.formats import TableFormat

    return TableFormat(name)


@hookimpl
def trikafka_export_runner(name: str, options: Mapping[str, Any]) -> ExportRunner | None:
    """Return the runner by threads of this process."""
    from .runners import THREADS, ThreadRunner

    return ThreadRunner(options["threads"]) if name == THREADS else None


@hookimpl
def trikafka_command() -> Subcommand:
    """Return the command ``export``."""
    return Subcommand("export", "Write all new records of topics to a destination.", _command)


def _command() -> Any:
    from .command import command  # imports click, which only the command line needs

    return command
