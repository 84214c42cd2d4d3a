"""The options of a table, in addition to those of its files. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trikafka import ConfigurationError
from trikafka.config.secrets import secret

from ..object_address import PREFIX

#: The formats, with the Python package that each needs.
FORMATS = {"delta": "deltalake", "iceberg": "pyiceberg"}
_CATALOG = "catalog"


@dataclass(frozen=True)
class LakeOptions:
    """The options of a table.

    ``catalog`` and ``location`` are for Iceberg. The catalog's ``properties`` and the options of
    the ``store`` are never shown.
    """

    format: str
    destination: str
    catalog: str | None = None
    location: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    store: Mapping[str, Any] = field(default_factory=dict, repr=False)


def lake_options(given: Mapping[str, Any]) -> LakeOptions:
    """Return the checked options of a table; the options of its files are left to the sink.

    Raises:
        ConfigurationError: An option is wrong.
    """
    rest = dict(given)
    format = str(rest.pop("format")).strip().lower()
    destination = str(rest.pop("destination"))
    store = {name: rest.pop(name) for name in list(rest) if name.startswith(PREFIX)}
    properties = {
        name.removeprefix(f"{_CATALOG}."): secret(str(rest.pop(name)))
        for name in list(rest)
        if name.startswith(f"{_CATALOG}.")
    }
    own = {name: str(rest.pop(name)) for name in (_CATALOG, "location") if name in rest}
    if format != "iceberg" and (own or properties):
        name = next(iter(own), f"{_CATALOG}.{next(iter(properties), '')}")
        raise ConfigurationError(
            f"{name} is an option of format=iceberg: a table of format={format} is its folder"
        )
    for name in rest:
        if name.startswith("write."):
            raise ConfigurationError(
                f"{name} is for a writer of Spark's: the files of {format} are written here, as "
                "Parquet's"
            )
    return LakeOptions(
        format, destination, own.get(_CATALOG), own.get("location"), properties, store
    )
