"""The sink of exports into tables: it writes files, and commits those of a plan at once."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import trio

from trikafka import ConfigurationError, ExportError, OffsetRange
from trikafka.interfaces import (
    ExportCheck,
    ExportFormat,
    ExportPlan,
    ExportState,
    FileFormat,
    PlannedRange,
    RangeResult,
    TableLog,
)

from ..folders import AGAIN
from ..formats.schema_pinning import is_pinned
from ..plan import NoColumnsError
from ..sink import FileSink
from ..sink_options import SinkOptions
from ..table_places import refuse_prefix
from .abandoned_plans import FilesGoneError
from .waiting import restart

T = TypeVar("T")
#: Seconds that a catalog or a table's store may take for one request, such as the commit of a plan
#: with the check of its files. A walk through a long log restarts them with each part. Without
#: a limit, the libraries of table formats would wait forever
#: for a peer that accepts a request and never responds.
_LIMIT = 600.0
#: Marks the plans of this sink. Earlier releases wrote tables with Spark, and their plans list no
#: files.
_OURS = "files"


# The order of the steps is in job.py. A table adds one: settle() commits the closed work.
#
# The plans are stored beside the table's data files. These files alone are not rows yet: a table
# consists of the files that its log lists. settle() checks the footers of the plan's files and
# commits them together. The commit also records app_id (the export) and the plan's number. After a
# kill the next run looks for both in the table's log. If they are there, the commit has happened
# and only the manifest is missing. If not, the run commits the very same files.
#
# The number must be part of the same commit as the files. A record of it elsewhere, written before
# or after, would leave a gap in which a crash duplicates or loses the rows. Two processes that
# commit the same plan at the same time are kept apart by the table's own conflict check: see
# delta.py and iceberg.py.
#
# A closed plan whose files have disappeared can never be committed. To abandon it, the sink makes a
# commit without files under the same number. After that no late commit can add the remaining files,
# and the next plan reads the records again.
class LakeSink(FileSink):
    """The sink for a table, such as one of Delta Lake or Iceberg."""

    def __init__(
        self,
        options: SinkOptions,
        given: str,
        plugins: Collection[object],
        format: ExportFormat,
        files: FileFormat,
        open_log: Callable[[], TableLog],
    ) -> None:
        super().__init__(None, options, given, plugins, format, files)
        self._open_log = open_log
        self._known: TableLog | None = None
        #: Abandoned calls keep their threads. They have a limiter of their own, so that a silent
        #: catalog delays nothing else.
        self._log_limiter = trio.CapacityLimiter(4)

    @property
    def title(self) -> str:
        """The destination as messages name it."""
        return self._given

    @property
    def _log(self) -> TableLog:
        assert self._known is not None, "the sink was entered"
        return self._known

    async def _enter_store(self) -> None:
        """Look for the table and lock it.

        A new table without a known location cannot be locked yet.
        """
        await self._thread(lambda: refuse_prefix(self._given))
        self._known = await self._asked(self._open_log)
        self._place = await self._asked(self._log.place)
        if self._place is not None:
            await super()._enter_store()

    def _open(self) -> None:
        self._store.open()

    async def load(self) -> ExportState:
        """Return the state of the exports to the table."""
        if self._place is None:
            return ExportState()
        state = await super().load()
        if state.unfinished is not None and _OURS not in state.unfinished.format:
            raise ExportError(
                f"plan {state.unfinished.number} of {self.title} was begun by an earlier release "
                f"of trikafka, which wrote {self.format} by Spark: finish it with that release"
            )
        return state

    async def pin(
        self, state: ExportState, wanted: Sequence[OffsetRange], settings: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the format of a plan: the columns, the table's identity and the export's id.

        The first plan with columns creates the table. A plan before it has no records and only
        stores the start of the export, in the folder of the table to be.

        Raises:
            NoColumnsError: The start cannot be stored: the catalog decides where the table will be.
        """
        format = dict(await super().pin(state, wanted, settings))
        if state.format is not None and not wanted:
            return format
        ours = {_OURS: 1, "app_id": format.get("app_id") or f"trikafka-{uuid.uuid4()}"}
        if not wanted and not is_pinned(format, ""):
            if self._place is None:
                raise NoColumnsError("no record since the start shows the columns of the table")
            return {**format, **ours}
        columns = await self._thread(lambda: _columns(format, wanted))
        if state.format is not None and "table" in format:
            if await self._asked(lambda: self._log.given_up(format, state.last_number)):
                # The files of the abandoned plan may still be there, so this one uses a folder of
                # its own.
                format[AGAIN] = f"again-{state.last_number + 1:06d}"
            return format
        by = self._options.partition_by
        if by is None:  # a plan that only stored the start keeps its options
            by = tuple(format.get("partition_by", ())) or None
        found = await self._asked(lambda: self._log.pin(format, columns, by))
        if self._place is None:
            await self._enter_new()
        return {**found, **ours}

    async def _enter_new(self) -> None:
        """Lock a table that this or another export has just created."""
        place = await self._asked(self._log.place)
        if place is None:
            raise ExportError(
                f"the table {self.title} was created by this export, and does not exist any more"
            )
        self._place = place
        await super()._enter_store()
        if (await super().load()).last_number:
            raise ExportError(f"another export to {self.title} began at the same time")

    async def settle(
        self, plan: ExportPlan, ranges: Sequence[PlannedRange]
    ) -> Sequence[RangeResult]:
        """Close the plan's work and commit its files."""
        return await self._ended(plan, await super().settle(plan, ranges), give_up=False)

    async def give_up(self, plan: ExportPlan) -> Sequence[RangeResult]:
        """Close the plan's work and commit its files, or abandon the plan.

        A plan is abandoned if some of its files are gone before they were committed. Then none of
        its files is ever committed, and the next plan reads all its ranges again.
        """
        return await self._ended(plan, await super().settle(plan, plan.ranges), give_up=True)

    async def _ended(
        self, plan: ExportPlan, results: Sequence[RangeResult], *, give_up: bool
    ) -> Sequence[RangeResult]:
        if not any(result.files for result in results):
            return results
        given_up, version = await self._asked(lambda: self._commit(plan, results, give_up))
        if given_up:
            return [RangeResult(each.planned, each.planned.start) for each in results]
        return [
            replace(each, files=tuple(replace(file, version=version) for file in each.files))
            for each in results
        ]

    def _commit(
        self, plan: ExportPlan, results: Sequence[RangeResult], give_up: bool
    ) -> tuple[bool, int | None]:
        """Commit the plan; return whether it was abandoned, and the table version that it made."""
        if not self._log.found(plan):
            try:
                files = self._log.read_files(
                    self._store, [file for result in results for file in result.files]
                )
            except FilesGoneError:
                if not give_up:
                    raise
                self._log.give_up(plan)
            else:
                self._log.commit(plan, files)
                return False, self._log.version(plan)
        if self._log.given_up(plan.format, plan.number):
            return True, None
        return False, self._log.version(plan)

    async def check(self) -> ExportCheck:
        """Count the table's rows again, and compare them with the manifests."""
        from .table_check import check_lake

        # No limit: counting all rows may take long.
        return await self._asked(lambda: check_lake(self._log, self._store), limit=math.inf)

    async def check_deep(self) -> ExportCheck:
        """Raise :exc:`ConfigurationError`: the table format may rewrite committed files."""
        raise ConfigurationError(
            f"{self.title} is a table, whose files other programs may compact and rewrite: a "
            "check without deep counts its rows"
        )

    async def _asked(self, function: Callable[[], T], *, limit: float | None = None) -> T:
        """Call the table's log in a thread.

        On cancellation the thread is abandoned. It may complete a commit later, which does no harm:
        it is the commit of this plan, and the next run finds it.

        Raises:
            ExportError: The call takes longer than ``limit`` seconds without :func:`responded`.
        """
        limit = _LIMIT if limit is None else limit
        with trio.move_on_after(limit) as scope:

            def begin_again() -> None:
                scope.deadline = trio.current_time() + limit

            def restart_limit() -> None:
                trio.from_thread.check_cancelled()
                trio.from_thread.run_sync(begin_again)

            def call() -> T:
                restart.set(restart_limit)
                return function()

            return await trio.to_thread.run_sync(
                call, abandon_on_cancel=True, limiter=self._log_limiter
            )
        raise ExportError(
            f"{self.title}: the table's catalog or store has not responded for {limit:g} s; the "
            "next export continues from there"
        )


def _columns(format: Mapping[str, Any], wanted: Sequence[OffsetRange]) -> Any:
    from .columns import table_schema

    pinned = [format[name] for name in ("schemas", "key_schemas") if name in format]
    topics = dict.fromkeys(
        [*(topic for schemas in pinned for topic in schemas), *(each.topic for each in wanted)]
    )
    return table_schema(
        format, [topic for topic in topics if all(topic in schemas for schemas in pinned)]
    )
