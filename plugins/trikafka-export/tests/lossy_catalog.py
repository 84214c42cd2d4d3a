"""Catalogs with the behaviour of some servers: a request that arrives twice, or temporary keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException


class ResendingCatalog(SqlCatalog):
    """A catalog that sends each successful commit twice, as a proxy after a lost response would.

    The client sees the second response.
    """

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        super().commit_table(table, requirements, updates)
        return super().commit_table(table, requirements, updates)


class LateCatalog(SqlCatalog):
    """A catalog that refuses the first commit, and carries it out when the second one arrives.

    A server does so if the first request was sent twice, and one of both held the table's lock.
    """

    _late: tuple[Any, ...] | None = None
    _is_first = True

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        if self._is_first:
            self._is_first = False
            self._late = (table, requirements, updates)
            raise CommitFailedException("another commit holds the lock")
        if self._late is not None:
            late, self._late = self._late, None
            super().commit_table(*late)
        return super().commit_table(table, requirements, updates)


class FaultyCatalog(SqlCatalog):
    """A catalog whose commits end with an error, and are carried out or not."""

    #: The outcome of each further commit: an error, and whether the commit is carried out.
    script: ClassVar[list[tuple[Exception, bool]]] = []
    #: The requests for commits, also those of the script.
    requests: ClassVar[list[Any]] = []

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        self.requests.append(updates)
        if not self.script:
            return super().commit_table(table, requirements, updates)
        error, is_carried_out = self.script.pop(0)
        if is_carried_out:
            super().commit_table(table, requirements, updates)
        raise error


class VendingCatalog(SqlCatalog):
    """A catalog that returns keys for the store with each table.

    The keys are in the file that the property ``keys`` names.
    """

    def _load_file_io(self, properties: Any = None, location: str | None = None) -> Any:
        keys = json.loads(Path(self.properties["keys"]).read_text())
        return super()._load_file_io({**(properties or {}), **keys}, location)
