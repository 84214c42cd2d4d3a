"""The options of an export into a table of Spark's, checked. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trikafka_export.sink_options import partition_by, refuse_typo, sink_option_names, text_of

from trikafka import ConfigurationError

_NAMES = ("format", "master", "app_name", "partition_by")
_WRITE = "write."
#: Options of Spark's writer that an export sets itself.
_OURS = ("path",)
#: Formats without a place for the rows of a topic, or that need more than a folder, with the
#: reasons.
_NOT = {
    "trikafka": "it would write to Kafka; use the data source in a job of your own",
    "kafka": "it would write to Kafka; use the data source in a job of your own",
    "jdbc": "a database is not a folder, and an export needs one for its plans; use the data source "
    "in a job of your own",
    "csv": "a CSV file cannot hold binary keys and values, nor headers",
    "text": "a text file cannot hold binary keys and values, nor headers",
    "noop": "it writes nothing",
    "console": "it writes nothing",
    "memory": "it writes nothing that stays",
}


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of an export into a table.

    ``write`` is for Spark's writer of the format, ``conf`` for Spark.
    """

    format: str
    master: str | None = None
    app_name: str = "trikafka export"
    partition_by: tuple[str, ...] | None = None
    write: Mapping[str, str] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)


def table_options(given: Mapping[str, Any]) -> TableOptions:
    """Return the checked options of ``export(..., sink_options=)``.

    Raises:
        ConfigurationError: An option is wrong.
    """
    rest = dict(given)
    name = str(rest.pop("format")).strip()
    if not re.fullmatch(r"[A-Za-z][\w.]*", name):
        raise ConfigurationError(
            "format must be the name of a table format, such as delta, iceberg or orc, not "
            f"{name!r}"
        )
    refuse_typo(name)
    name = name.lower() if "." not in name else name
    if name in _NOT:
        raise ConfigurationError(f"nothing is exported with format={name}: {_NOT[name]}")
    conf = {key: text_of(rest.pop(key)) for key in list(rest) if key.startswith("spark.")}
    write = {
        key[len(_WRITE) :]: text_of(rest.pop(key)) for key in list(rest) if key.startswith(_WRITE)
    }
    for key in write:
        if key.lower() in _OURS:
            raise ConfigurationError(f"{_WRITE}{key} is what an export decides itself")
    for key in rest:
        if key in sink_option_names():
            if key not in _NAMES:
                raise ConfigurationError(
                    f"{key} is an option of exports to Parquet, not of format={name}"
                )
        elif key not in _NAMES:
            near = difflib.get_close_matches(key, _NAMES, n=1)
            hint = (
                f"; did you mean {near[0]!r}?"
                if near
                else f"; options of the format's writer begin with {_WRITE!r}"
            )
            raise ConfigurationError(
                f"unknown option {key!r} of an export with format={name}{hint}"
            )
    if "partition_by" in rest:
        rest["partition_by"] = partition_by(rest["partition_by"])
    return TableOptions(format=name, write=write, conf=conf, **rest)
