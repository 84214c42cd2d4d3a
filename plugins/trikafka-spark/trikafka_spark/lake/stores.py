"""Where the files of a table lie, with its plans beside them: a folder, or a prefix of an object store.

The plans are in the table's own place, not anywhere else: who may write its files may write them, and they go where the table goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trikafka import DirectoryStore, ExportStore, TableStore
from trikafka.interfaces import WrittenFile

from ..object_address import SCHEMES, ObjectAddress


def lake_store(place: str, options: Mapping[str, Any]) -> ExportStore:
    """The store of a table that is there. Raises :exc:`trikafka.ConfigurationError`."""
    if urlsplit(place).scheme.lower() not in SCHEMES:
        return TableStore(DirectoryStore.directory_of(place))
    from ..object_store import ObjectStore  # needs a package of its own

    class LakeObjects(ObjectStore):
        """Which files a table has is its log's affair."""

        def _refuse_foreign(self) -> None:
            pass

        def _check_written(self, files: Sequence[WrittenFile]) -> None:
            pass

    return LakeObjects(ObjectAddress.of(place, options))


def folder_of(store: ExportStore) -> Path | None:
    """The folder, if it is one."""
    return store.root if isinstance(store, DirectoryStore) else None
