"""Catalogs with the behaviour of some servers: a request that arrives twice, or temporary keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog


class ResendingCatalog(SqlCatalog):
    """A catalog that sends each successful commit twice, as a proxy after a lost response would.

    The client sees the second response.
    """

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        super().commit_table(table, requirements, updates)
        return super().commit_table(table, requirements, updates)


class VendingCatalog(SqlCatalog):
    """A catalog that returns keys for the store with each table.

    The keys are in the file that the property ``keys`` names.
    """

    def _load_file_io(self, properties: Any = None, location: str | None = None) -> Any:
        keys = json.loads(Path(self.properties["keys"]).read_text())
        return super()._load_file_io({**(properties or {}), **keys}, location)
