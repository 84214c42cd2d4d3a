"""A destination that is a table of Delta's or Iceberg's, or lies in one: what has forgotten its format is to put no files there.

Readers of the table would not see them, and its clean-up (``VACUUM``, ``remove_orphan_files``) would remove them.
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
#: The names of Iceberg's metadata: of catalogs, ``00001-<uuid>.metadata.json``; of tables without one, ``v1.metadata.json``; with
#: the name of a compression before or, of old, after it. Whatever else is called so is somebody's note beside a file.
_ICEBERG = re.compile(r"(\d+-[\w-]{36}|v\d+)(\.\w+)?\.metadata\.json(\.gz)?")
#: So many names of a folder are looked at: it may be anybody's, and huge.
_MOST = 5_000
_DELTA_WAY = "exports go there with format=delta (--format delta, also with --check), else choose another destination"
_ICEBERG_WAY = (
    "exports go there with format=iceberg (--format iceberg, also with --check), by the table's name, such as lake.flights,"
    " else choose another destination"
)
#: What may be meant as a table in a catalog: names with dots between, and no hint of a folder.
_NAME = re.compile(r"\w+(\.\w+)+")


def refuse_tables(root: Path, *, begun: bool = False) -> None:
    """Raise :exc:`ConfigurationError` if the folder is a table, or lies in one. Blocks.

    What was ``begun`` there goes on when somebody makes a table around it: only the folder itself is looked at.
    """
    place = root.resolve()  # it may be a link into a table, or lead out of one again
    for folder in (place,) if begun else (place, *place.parents):
        told = f"{root} is" if folder == place else f"{root} lies in {folder}, which is"
        refuse_found(told, os.path.exists(folder / _DELTA), _names_in(folder / "metadata"))


def refuse_found(told: str, is_delta: bool, metadata: Iterable[str]) -> None:
    """Raise :exc:`ConfigurationError` if what is ``told`` is a table, as its log or the names in its ``metadata`` say."""
    if is_delta:
        raise ConfigurationError(f"{told} a Delta table, to which files are not just added; {_DELTA_WAY}")
    if any(_ICEBERG.fullmatch(name) for name in metadata):
        raise ConfigurationError(f"{told} the place of an Iceberg table, to which files are not just added; {_ICEBERG_WAY}")


def _names_in(folder: Path) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as entries:  # there is none, or it is nobody's business
        yield from (entry.name for entry in islice(entries, _MOST))


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
