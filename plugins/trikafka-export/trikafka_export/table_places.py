"""Destinations that are a Delta or Iceberg table, or lie in one, which plain exports refuse.

Readers of the table would not see plain files in it, and the table's clean-up (``VACUUM``,
``remove_orphan_files``) would remove them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from trikafka import ConfigurationError

_DELTA = "_delta_log"
#: The names of Iceberg's metadata files: ``00001-<uuid>.metadata.json`` in catalogs and
#: ``v1.metadata.json`` without one. The name of a compression may stand before ``.metadata.json``
#: or, in old tables, after it. Other names that end so are not Iceberg's.
_ICEBERG = re.compile(r"(\d+-[\w-]{36}|v\d+)(\.\w+)?\.metadata\.json(\.gz)?")
#: The most names of a folder to look at: it may be of any origin, and huge.
_MOST = 5_000
_DELTA_WAY = (
    "exports go there with format=delta (--format delta, also with --check), else choose another "
    "destination"
)
_ICEBERG_WAY = (
    "exports go there with format=iceberg (--format iceberg, also with --check), by the table's "
    "name, such as lake.flights, else choose another destination"
)
#: A destination that may be the name of a table in a catalog: names with dots, no sign of a folder.
_NAME = re.compile(r"\w+(\.\w+)+")
#: A destination that begins with a format, as addresses do in other tools.
_FORMAT = re.compile(r"(parquet|delta|iceberg):")


def refuse_tables(root: Path, *, begun: bool = False) -> None:
    """Raise :exc:`ConfigurationError` if the folder is a table, or lies in one. Blocks.

    An export that has ``begun`` there goes on if a table is made around it later: then only the
    folder itself is looked at.
    """
    place = root.resolve()  # a link may lead into a table, or out of one again
    for folder in (place,) if begun else (place, *place.parents):
        subject = f"{root} is" if folder == place else f"{root} lies in {folder}, which is"
        refuse_found(subject, os.path.exists(folder / _DELTA), _names_in(folder / "metadata"))


def refuse_found(subject: str, is_delta: bool, metadata: Iterable[str]) -> None:
    """Raise :exc:`ConfigurationError` if a log of Delta's or names of Iceberg's were found.

    ``subject`` is the beginning of the message, such as "/data/t is". ``metadata`` has the names in
    the folder ``metadata``.
    """
    if is_delta:
        raise ConfigurationError(
            f"{subject} a Delta table, in which plain files are not part of the table; {_DELTA_WAY}"
        )
    if any(_ICEBERG.fullmatch(name) for name in metadata):
        raise ConfigurationError(
            f"{subject} the place of an Iceberg table, in which plain files are not part of the "
            f"table; {_ICEBERG_WAY}"
        )


def _names_in(folder: Path) -> Iterator[str]:
    # OSError: the folder does not exist, or may not be read.
    with (
        suppress(OSError),
        os.scandir(folder) as entries,
    ):
        yield from (entry.name for entry in islice(entries, _MOST))


def refuse_name(destination: str) -> None:
    """Raise :exc:`ConfigurationError` for a new folder that is probably not meant. Blocks.

    Its name may be a table's, if pyiceberg knows a catalog, or it begins with a format.
    """
    refuse_prefix(destination)
    if _NAME.fullmatch(destination) and not os.path.exists(destination) and _has_catalogs():
        raise ConfigurationError(
            f"{destination!r} may be the name of an Iceberg table (pyiceberg knows catalogs here) "
            f"or a new folder: give format=iceberg (--format iceberg), or write './{destination}' "
            "for the folder"
        )


def refuse_prefix(destination: str) -> None:
    """Raise :exc:`ConfigurationError` for a new destination that begins with a format. Blocks."""
    if (found := _FORMAT.match(destination)) and not os.path.exists(destination):
        raise ConfigurationError(
            f"{destination!r} begins with a format, which is an option: format={found[1]} "
            f"(--format {found[1]}); write './{destination}' for a folder of that name"
        )


def _has_catalogs() -> bool:
    """Return whether pyiceberg has catalogs configured, in the places where it looks itself."""
    places = (os.environ.get("PYICEBERG_HOME"), Path.home(), os.curdir)
    files = (os.path.join(place, ".pyiceberg.yaml") for place in places if place)
    return any(name.upper().startswith("PYICEBERG_CATALOG__") for name in os.environ) or any(
        map(os.path.isfile, files)
    )
