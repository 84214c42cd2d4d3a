"""The stores of tables: a folder, or a prefix of an object store.

A table's plans lie beside its files and nowhere else. A program that may write the files may also
write the plans, and the plans move with the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trikafka.interfaces import WrittenFile

from ..directory_store import DirectoryStore
from ..object_address import SCHEMES, ObjectAddress
from ..store import ExportStore
from .table_store import TableStore

_OF_KEYS = ("access_key_id", "secret_access_key", "session_token")


def lake_store(
    place: str, options: Mapping[str, Any], keys: Callable[[], Mapping[str, Any]] | None = None
) -> ExportStore:
    """Return the store of an existing table.

    An object store calls ``keys`` for its credentials, if ``options`` has none.

    Raises:
        ConfigurationError: An option is wrong.
    """
    if urlsplit(place).scheme.lower() not in SCHEMES:
        return TableStore(DirectoryStore.directory_of(place))
    from ..object_store import ObjectStore  # needs a package of its own

    class LakeObjects(ObjectStore):
        """An object store without checks of the data files, which only the table's log lists."""

        def _refuse_foreign(self) -> None:
            if keys is None:  # the keys of a table may not be good for another place
                self._refuse_moved()

        def _check_written(self, files: Sequence[WrittenFile]) -> None:
            pass

    address = ObjectAddress.of(place, options)
    if keys is not None:
        # The keys of the environment are left out.
        rest = {name: value for name, value in address.config.items() if name not in _OF_KEYS}
        address = replace(address, config=rest, keys=keys)
    return LakeObjects(address)


def folder_of(store: ExportStore) -> Path | None:
    """Return the store's folder; ``None`` for an object store."""
    return store.root if isinstance(store, DirectoryStore) else None
