"""A destination that is a table of Delta's or Iceberg's, or lies in one: what has forgotten its format is to put no files there.

Readers of the table would not see them, and its clean-up (``VACUUM``, ``remove_orphan_files``) would remove them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from trikafka import ConfigurationError

_DELTA, _ICEBERG = "_delta_log", ".metadata.json"
_DELTA_WAY = "exports go there with format=delta (--format delta, also with --check), else choose another destination"
_ICEBERG_WAY = (
    "exports go there with format=iceberg (--format iceberg, also with --check), by the table's name, such as lake.flights,"
    " else choose another destination"
)
#: What may be meant as a table in a catalog: names with dots between, and no hint of a folder.
_NAME = re.compile(r"\w+(\.\w+)+")


def refuse_tables(root: Path) -> None:
    """Raise :exc:`ConfigurationError` if the folder is a table, or lies in one. Blocks."""
    for folder in (root, *root.parents):
        told = f"{root} is" if folder == root else f"{root} lies in {folder}, which is"
        refuse_found(told, os.path.exists(folder / _DELTA), _names_in(folder / "metadata"))


def refuse_found(told: str, is_delta: bool, metadata: Iterable[str]) -> None:
    """Raise :exc:`ConfigurationError` if what is ``told`` is a table, as its log or the names in its ``metadata`` say."""
    if is_delta:
        raise ConfigurationError(f"{told} a Delta table, to which files are not just added; {_DELTA_WAY}")
    if any(name.endswith(_ICEBERG) for name in metadata):
        raise ConfigurationError(f"{told} the place of an Iceberg table, to which files are not just added; {_ICEBERG_WAY}")


def _names_in(folder: Path) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as entries:  # there is none, or it is nobody's business
        yield from (entry.name for entry in entries)


def refuse_name(destination: str) -> None:
    """Raise :exc:`ConfigurationError` where a new folder would get what may be a table's name, and there are catalogs. Blocks."""
    if _NAME.fullmatch(destination) and not os.path.exists(destination) and _has_catalogs():
        raise ConfigurationError(
            f"{destination!r} may be the name of an Iceberg table (pyiceberg knows catalogs here) or a new folder:"
            f" give format=iceberg (--format iceberg), or write './{destination}' for the folder"
        )


def _has_catalogs() -> bool:
    """Whether somebody has told pyiceberg of catalogs, where it looks itself."""
    places = (os.environ.get("PYICEBERG_HOME"), Path.home(), os.curdir)
    files = (os.path.join(place, ".pyiceberg.yaml") for place in places if place)
    return any(name.upper().startswith("PYICEBERG_CATALOG__") for name in os.environ) or any(map(os.path.isfile, files))
