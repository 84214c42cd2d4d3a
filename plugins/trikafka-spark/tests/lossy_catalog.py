"""Catalogs between which and their clients requests are sent twice, as by a proxy or a library that lost the first response."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.sql import SqlCatalog


class ResendingCatalog(SqlCatalog):
    """Each commit is sent once more when it has succeeded; the client sees what the second time says."""

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        super().commit_table(table, requirements, updates)
        return super().commit_table(table, requirements, updates)
