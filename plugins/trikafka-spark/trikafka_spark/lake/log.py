"""What an export asks of a table's log. All methods block; each looks at the newest state of the table."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trikafka import ExportStore
from trikafka.interfaces import ExportPlan

from .footers import DataFile

if TYPE_CHECKING:
    import pyarrow as pa

#: Where plans, manifests and the lock are called what they are of in a commit.
KEY = "trikafka"
#: How often a commit is tried again while others commit to the same table.
ATTEMPTS = 30


class TableLog(Protocol):
    """One table. Raises :exc:`trikafka.ExportError` and :exc:`trikafka.ConfigurationError`, which repeat no secret."""

    title: str

    def place(self) -> ExportStore | None:
        """Where the table's files are, and so its plans; ``None`` while there is no table that says so."""

    def pin(
        self, format: Mapping[str, Any], columns: pa.Schema, partition_by: Sequence[str] | None
    ) -> Mapping[str, Any]:
        """Make the table, or take the one that is there if these columns fit into it; return the format with what it is known by.

        ``partition_by`` is ``None`` where that was not asked for: then it is the table's.
        """

    def found(self, plan: ExportPlan) -> bool:
        """Whether the table has the plan's commit, or that of who has given it up."""

    def commit(self, plan: ExportPlan, files: Sequence[DataFile]) -> None:
        """Add the files by one commit, unless the table has the plan's: of all who try, in whatever process, one does.

        Raises :exc:`trikafka.ExportError` where the plan was given up.
        """

    def give_up(self, plan: ExportPlan) -> None:
        """Take the plan's place by a commit without files, unless the table has the plan's: :meth:`given_up` tells."""

    def given_up(self, format: Mapping[str, Any], number: int) -> bool:
        """Whether the plan of that number was given up: none of its files is in the table, and none will be.

        Raises :exc:`trikafka.ExportError` if the table is another one than was pinned.
        """

    def version(self, plan: ExportPlan) -> int | None:
        """The version that the plan's commit has made, as long as the table's history tells."""

    def offsets(self, format: Mapping[str, Any], topic: str, partition: int, low: int, high: int) -> Iterator[pa.Array]:
        """The offsets ``low <= offset < high`` of a partition that the table's rows have."""


def pause(attempt: int) -> float:
    """How long (seconds) to wait before a commit is tried again."""
    longest: float = min(0.02 * 2**attempt, 1.0)
    return random.uniform(longest / 2, longest)


def sync(paths: Iterable[Path]) -> None:
    """Have files and their folders written to the disk: libraries of table formats leave that to the system."""
    paths = list(paths)
    for path in [*paths, *{path.parent for path in paths}]:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
