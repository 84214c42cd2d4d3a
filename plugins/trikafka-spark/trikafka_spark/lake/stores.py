"""Where the files of a table lie, with its plans beside them: a folder, or a prefix of an object store.

The plans are in the table's own place, not anywhere else: who may write its files may write them, and they go where the table goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trikafka import DirectoryStore, ExportStore, TableStore
from trikafka.interfaces import WrittenFile

from ..object_address import SCHEMES, ObjectAddress

_OF_KEYS = ("access_key_id", "secret_access_key", "session_token")


def lake_store(place: str, options: Mapping[str, Any], keys: Callable[[], Mapping[str, Any]] | None = None) -> ExportStore:
    """The store of a table that is there; an object store asks for ``keys``, where they are not among the ``options``.

    Raises :exc:`trikafka.ConfigurationError`.
    """
    if urlsplit(place).scheme.lower() not in SCHEMES:
        return TableStore(DirectoryStore.directory_of(place))
    from ..object_store import ObjectStore  # needs a package of its own

    class LakeObjects(ObjectStore):
        """Which files a table has is its log's affair."""

        def _refuse_foreign(self) -> None:
            pass

        def _check_written(self, files: Sequence[WrittenFile]) -> None:
            pass

    address = ObjectAddress.of(place, options)
    if keys is not None:
        rest = {name: value for name, value in address.config.items() if name not in _OF_KEYS}  # those of the environment
        address = replace(address, config=rest, keys=keys)
    return LakeObjects(address)


def folder_of(store: ExportStore) -> Path | None:
    """The folder, if it is one."""
    return store.root if isinstance(store, DirectoryStore) else None
