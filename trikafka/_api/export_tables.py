"""The state of an export into a table: plans, manifests and the lock beside it, in ``_trikafka``; the data is the table format's.

The folder lies in the table's own. Readers of every format skip it, as all that begins with an underscore, and so does Delta's
``VACUUM``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import ExportError
from ..interfaces import ExportPlan, PlannedRange, WrittenFile
from . import export_files as files
from .export_store import CLOSED, DirectoryStore
from .export_work import RangeWork, work_folder

_COMMITTED = "committed.json"


class _TableWork(RangeWork):
    """Where files may be gone: they were committed, and the table was compacted before the export that was killed then is ended."""

    def _gone(self, final: Path) -> None:
        """Who commits looks at each file."""


class TableStore(DirectoryStore):
    """Plans, manifests and the lock of one table, and a note that a plan's rows are in it, for formats that cannot tell."""

    def _refuse_foreign(self) -> None:
        """What is there may be a table already; who writes the table knows."""

    def gone_of_last(self) -> list[str]:
        """Nothing: a table's files are compacted and go."""
        return []

    def _check_written(self, written: Sequence[WrittenFile]) -> None:
        """Which files there are is the format's affair."""

    def _resume(self, plan: ExportPlan) -> bool:
        """What is closed stays closed: the commit that was made of it, or will be, is of these files and no others."""
        folder = work_folder(self.root, plan.number)
        if folder.with_name(folder.name + CLOSED).exists():
            return True
        return super()._resume(plan)

    def _closed(self, plan: ExportPlan, planned: PlannedRange, folder: Path) -> RangeWork:
        return _TableWork(self.root, plan.number, planned, folder=folder)

    def note_committed(self, number: int, text: str) -> None:
        """Note durably that the rows of the plan of that number are in the table."""
        with self.explained(f"cannot note in {self.root} what was written"):
            folder = work_folder(self.root, number)
            if not files.write_once(folder / _COMMITTED, text):
                raise ExportError(f"{folder / _COMMITTED} is there already: another export wrote to {self.root} at the same time")

    def committed(self, number: int) -> str | None:
        """What was noted of that plan, if anything was."""
        with self.explained(f"cannot read what was written to {self.root}"):
            try:
                return files.read_file(work_folder(self.root, number) / _COMMITTED).decode()
            except FileNotFoundError:
                return None
