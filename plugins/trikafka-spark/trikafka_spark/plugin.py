"""What trikafka finds by entry point: the hook that answers for destinations on a file system and in object stores."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from trikafka.hooks import hookimpl

from .object_address import SCHEMES

if TYPE_CHECKING:
    from trikafka.interfaces import Sink


@hookimpl
def trikafka_sink_options(scheme: str) -> Collection[str] | None:
    """Name what exports to files and tables can be asked for."""
    if scheme != "file" and scheme not in SCHEMES:
        return None
    from .sink_options import sink_option_names

    return {*sink_option_names(), "catalog", "location"}


@hookimpl
def trikafka_sink(scheme: str, options: Mapping[str, Any]) -> Sink | None:
    """Answer for plain paths, ``file://`` and object stores. Raises :exc:`trikafka.ConfigurationError` for an unknown option."""
    if scheme != "file" and scheme not in SCHEMES:
        return None
    from .lake.options import is_lake
    from .tables.options import is_table

    if is_lake(options):
        from .lake.sink import LakeSink

        return LakeSink.from_options(options)

    if scheme == "file" and is_table(options):
        from .tables.sink import TableSink

        return TableSink.from_options(options)
    from .sink import SparkSink

    return SparkSink.from_options(options)
