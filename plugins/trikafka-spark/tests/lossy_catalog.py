"""Catalogs that do what others do: a request comes twice, as by a proxy that lost the first response; keys are handed out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog


class ResendingCatalog(SqlCatalog):
    """Each commit is sent once more when it has succeeded; the client sees what the second time says."""

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        super().commit_table(table, requirements, updates)
        return super().commit_table(table, requirements, updates)


class VendingCatalog(SqlCatalog):
    """Hands out keys for the store with each table: those in the file that its property ``keys`` names."""

    def _load_file_io(self, properties: Any = None, location: str | None = None) -> Any:
        keys = json.loads(Path(self.properties["keys"]).read_text())
        return super()._load_file_io({**(properties or {}), **keys}, location)
