"""The options of the sinks of files and tables, checked."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from trikafka import ConfigurationError, PluginError
from trikafka.config.secrets import secret
from trikafka.config.whole import is_whole
from trikafka.hooks import answers, load_plugins
from trikafka.interfaces import ExportFormat, ExportState, FileFormat

from .formats.options import OPTIONS, SECRET_OPTIONS, ParseOptions, parse_options
from .object_address import PREFIX
from .parquet_files import ParquetFormat

_COMPRESSIONS = ("snappy", "zstd", "gzip", "lz4", "brotli", "none")
_PARTITIONS = ("date", "topic")
#: The formats of this package.
_FORMATS = ("parquet", "delta", "iceberg")
#: Folders that a destination may have before any row is published: the export's own, and the one
#: that Spark leaves after a write.
_NOTHING = ("_trikafka", "_temporary")
#: The suffix of data files. It is short, because a topic's name may fill the rest of a file's name.
_SUFFIX = re.compile(r"\.[A-Za-z0-9.]{1,12}")
_NAMES = (
    "format",
    "compression",
    "threads",
    "max_bytes_per_file",
    "row_group_rows",
    "row_group_bytes",
    "partition_by",
    *OPTIONS,
)


#: All options of this package's sinks. A dot at the end stands for all names with this prefix.
OWN_OPTIONS = (*_NAMES, PREFIX, "catalog", "catalog.", "location")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of an export to files; docs/export.md describes them.

    ``runner`` holds the options of other plugins. They go to the runner of large plans.
    """

    compression: str = "zstd"
    threads: int = field(default_factory=lambda: max(4, min(32, os.cpu_count() or 1)))
    max_bytes_per_file: int = 512 << 20
    row_group_rows: int = 262_144
    row_group_bytes: int = 32 << 20
    partition_by: tuple[str, ...] | None = None
    parsing: ParseOptions = field(default_factory=ParseOptions)
    runner: Mapping[str, Any] = field(default_factory=dict)


def sink_options(
    given: Mapping[str, Any],
    more: Iterable[str] = (),
    sink: str = "an export to Parquet",
    others: Collection[str] = (),
) -> SinkOptions:
    """Check the ``sink_options`` of ``trikafka.export()``.

    Args:
        given: The options.
        more: Other names that the caller knows; an error may suggest them.
        sink: The words for the sink in error messages.
        others: The names of other plugins' options, which are passed to their runner. A name that
            ends with a dot stands for all options with this prefix.

    Raises:
        ConfigurationError: An option is unknown or not valid.
    """
    runner = {
        name: value
        for name, value in given.items()
        if name not in _NAMES and _is_among(name, others)
    }
    rest = {name: value for name, value in given.items() if name not in (*runner, "format")}
    if (format := str(given.get("format", "parquet")).strip()).lower() != "parquet":
        refuse_format(format)
    for name in rest:
        if name not in _NAMES:
            near = difflib.get_close_matches(name, [*_NAMES, *more, *others], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            hint = hint or ". An option of another package needs that package to be installed"
            if not more and (name in ("catalog", "location") or name.startswith("catalog.")):
                hint = ": it belongs to format=iceberg, so give that, too (--format iceberg)"
            if name.startswith(PREFIX):
                hint = ": it belongs to a destination in an object store or HDFS, such as s3://..."
            raise ConfigurationError(f"unknown option {name!r} of {sink}{hint}")
    for name in ("threads", "max_bytes_per_file", "row_group_rows", "row_group_bytes"):
        if name in rest:
            rest[name] = whole(name, rest[name], 1)
    if rest.get("compression", "zstd") not in _COMPRESSIONS:
        raise ConfigurationError(
            f"compression must be one of {', '.join(_COMPRESSIONS)}, not {rest['compression']!r}"
        )
    if "partition_by" in rest:
        rest["partition_by"] = partition_by(rest["partition_by"])
    parsing = parse_options(rest)  # removes them from `rest`
    return SinkOptions(runner=runner, parsing=parsing, **rest)


def options_of_others(plugins: Collection[object], scheme: str) -> Collection[str]:
    """Return the options that other plugins declare for a scheme.

    Args:
        plugins: The objects of the setting ``plugins``.
        scheme: The scheme of the destination's address.

    Returns:
        The names. A name that ends with a dot stands for all options with this prefix.
    """
    found = answers(load_plugins(plugins), "trikafka_sink_options", Collection, scheme=scheme)
    return frozenset(name for _, names in found for name in names).difference(OWN_OPTIONS)


def format_options(
    format: ExportFormat, given: Mapping[str, Any], others: Collection[str] = ()
) -> SinkOptions:
    """Check all options but those of the format itself, and return them.

    Args:
        format: The format.
        given: All options of the sink.
        others: The names of other plugins' options (:func:`options_of_others`).

    Raises:
        ConfigurationError: An option is unknown or not valid.
    """
    own = format.option_names
    rest = {
        name: value
        for name, value in given.items()
        if name not in ("destination", "format") and not _is_among(name, own)
    }
    sink = (
        "an export to Parquet"
        if format.name == ParquetFormat.name
        else f"an export with format={format.name}"
    )
    return sink_options(rest, [name for name in own if not name.endswith(".")], sink, others)


def _is_among(name: str, names: Collection[str]) -> bool:
    return name in names or any(each.endswith(".") and name.startswith(each) for each in names)


def files_of(format: ExportFormat, options: Mapping[str, Any]) -> FileFormat:
    """Return the writer of a format's files with these options.

    Raises:
        ConfigurationError: An option is not valid.
        PluginError: The format names a suffix that data files cannot have.
    """
    files = format.files(options)
    if not _SUFFIX.fullmatch(files.suffix):
        raise PluginError(
            f"the files of format={format.name} have the suffix {files.suffix!r}; it must be a "
            "dot and up to 12 letters, digits or dots, such as '.csv'"
        )
    return files


def without_secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options; passwords and tokens are wrapped so that no log or error shows them."""
    return {
        name: secret(value) if name in SECRET_OPTIONS else value for name, value in options.items()
    }


def whole(name: str, value: Any, least: int, also: str = "") -> int:
    """Return an option that is a whole number.

    Args:
        name: The option's name.
        value: Its value, a number or text.
        least: The smallest value that is allowed.
        also: What else the option may be, for the error.

    Raises:
        ConfigurationError: The value is not such a number.
    """
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    if not is_whole(value, least):
        raise ConfigurationError(
            f"{name} must be a whole number of at least {least}{also}, not {value!r}"
        )
    return value


def partition_by(value: Any) -> tuple[str, ...]:
    """Return the columns whose values name the folders. Raises :exc:`ConfigurationError`."""
    names = (
        [name.strip() for name in value.split(",") if name.strip()]
        if isinstance(value, str)
        else list(value)
        if isinstance(value, Iterable)
        else [value]
    )
    if any(name not in _PARTITIONS for name in names) or len(set(names)) != len(names):
        raise ConfigurationError(
            f"partition_by must name some of {', '.join(_PARTITIONS)}, not {value!r}"
        )
    return tuple(sorted(names, reverse=True))  # the order of the folders: topic, then date


def refuse_format(name: str) -> NoReturn:
    """Raise :exc:`ConfigurationError`: no plugin writes this format."""
    if near := difflib.get_close_matches(name.lower(), _FORMATS, n=1, cutoff=0.7):
        raise ConfigurationError(f"unknown format {name!r}; did you mean {near[0]!r}?")
    raise ConfigurationError(
        f"no plugin writes format={name}: exports write {', '.join(_FORMATS)}. For another format "
        "of Spark's, read the topic with spark.read.format('trikafka') of trikafka-spark, and "
        "write the frame"
    )


def refuse_other_format(
    state: ExportState, format: str, destination: str, root: Path | None = None
) -> None:
    """Raise :exc:`ConfigurationError` if the destination was exported to in another format.

    Args:
        state: The state of the earlier exports.
        format: The format of this export.
        destination: The address of the destination, for the error.
        root: The destination's directory, if it is one. If no export has published anything there,
            the error says how to begin again.
    """
    known = (state.format or {}).get("name", "parquet") if state.last_number else format
    if known == format:
        return
    if root is not None and _is_without_rows(root):
        raise ConfigurationError(
            f"an export to {destination} was begun with format={known}, and published nothing: "
            f"remove {root / '_trikafka'} to begin again with format={format}, or give "
            f"format={known} to finish it"
        )
    by_name = (
        ", with the table's name, such as lake.flights, instead of its folder"
        if known == "iceberg"
        else ""
    )
    raise ConfigurationError(
        f"{destination} was exported with format={known} and keeps it: give that (--format "
        f"{known}){by_name}, or choose another destination for {format}"
    )


def _is_without_rows(root: Path) -> bool:
    """Return whether no export has ever published a row in this directory."""
    return all(path.name.startswith(".") or path.name in _NOTHING for path in root.iterdir())
