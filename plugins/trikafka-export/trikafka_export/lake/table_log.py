"""The interface of a table's log for exports.

All methods block. Each reads the newest state of the table.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trikafka.interfaces import ExportPlan

from ..store import ExportStore
from .footers import DataFile

if TYPE_CHECKING:
    import pyarrow as pa

#: The name of the exports' entries in commits and tables.
KEY = "trikafka"
#: The number of attempts to commit while other writers commit to the same table.
ATTEMPTS = 30


class TableLog(Protocol):
    """The log of one table.

    Methods raise :exc:`trikafka.ExportError` and :exc:`trikafka.ConfigurationError`, which show no
    secret.
    """

    title: str

    def place(self) -> ExportStore | None:
        """Return the store of the table's files and plans.

        ``None`` while the table's location is unknown.
        """

    def pin(
        self, format: Mapping[str, Any], columns: pa.Schema, partition_by: Sequence[str] | None
    ) -> Mapping[str, Any]:
        """Create the table, or accept an existing one whose columns fit.

        Args:
            format: The format so far.
            columns: The columns of the files.
            partition_by: The requested partitioning; ``None`` accepts the table's.

        Returns:
            The format with the table's identity.
        """

    def found(self, plan: ExportPlan) -> bool:
        """Return whether the table has the plan's commit, or the commit that abandoned the plan."""

    def commit(self, plan: ExportPlan, files: Sequence[DataFile]) -> None:
        """Add the files by one commit, unless the table has the plan.

        Of several processes that try, exactly one commits.

        Raises:
            ExportError: The plan was abandoned.
        """

    def give_up(self, plan: ExportPlan) -> None:
        """Take the plan's number by a commit without files, unless the table has the plan.

        :meth:`given_up` returns which of the two happened.
        """

    def given_up(self, format: Mapping[str, Any], number: int) -> bool:
        """Return whether the plan of that number was abandoned.

        None of its files is in the table then, and none ever will be.

        Raises:
            ExportError: The table is not the pinned one.
        """

    def version(self, plan: ExportPlan) -> int | None:
        """Return the version that the plan's commit made, if the table's history has it."""

    def offsets(
        self, format: Mapping[str, Any], topic: str, partition: int, low: int, high: int
    ) -> Iterator[pa.Array]:
        """Yield the offsets ``low <= offset < high`` of a partition in the table's rows."""


def pause(attempt: int) -> float:
    """Return the seconds to wait before the next attempt to commit."""
    longest: float = min(0.02 * 2**attempt, 1.0)
    return random.uniform(longest / 2, longest)


def sync(paths: Iterable[Path]) -> None:
    """Write files and their folders to the disk (fsync).

    The libraries of table formats leave that to the operating system.
    """
    paths = list(paths)
    for path in [*paths, *{path.parent for path in paths}]:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
