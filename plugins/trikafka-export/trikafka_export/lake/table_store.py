"""The state of an export into a table: plans, manifests and the lock, in ``_trikafka``.

The table's format owns the data. The folder is inside the table's own. Readers of every format skip
it, like all names that begin with an underscore, and so does their clean-up of unlisted files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trikafka.interfaces import ExportPlan, PlannedRange, WrittenFile

from ..directory_pieces import RangeWork, work_folder
from ..directory_store import CLOSED, DirectoryStore


class _TableWork(RangeWork):
    """The work of a range whose files may be gone.

    They were committed to the table, and the table was compacted before the killed export was
    finished.
    """

    def _gone(self, final: Path) -> None:
        """No-op: the commit to the table checks each file."""


class TableStore(DirectoryStore):
    """Plans, manifests and the lock of one table."""

    def _refuse_foreign(self) -> None:
        """No-op: a table may exist already, and its writer checks that."""

    def gone_of_last(self) -> list[str]:
        """Return an empty list: files of a table are compacted and removed."""
        return []

    def _check_written(self, written: Sequence[WrittenFile]) -> None:
        """No-op: the table's format knows its files."""

    def _resume(self, plan: ExportPlan) -> bool:
        """Keep closed work closed.

        The commit to the table, made or yet to be made, is of exactly these files.
        """
        folder = work_folder(self.root, plan.number)
        if folder.with_name(folder.name + CLOSED).exists():
            return True
        return super()._resume(plan)

    def _closed(self, plan: ExportPlan, planned: PlannedRange, folder: Path) -> RangeWork:
        return _TableWork(self.root, plan.number, planned, folder=folder)
