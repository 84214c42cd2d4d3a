"""The sink of exports into tables: the Parquet sink, whose files no reader sees before a plan's one commit.

In this order: the plan is stored, its files are written, its work is closed (from then on the files are the same for everybody),
they are committed, the manifest is published. A run that finds a plan closed commits it as it is, unless the table has it already.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import trio

from trikafka import ConfigurationError, ExportError, OffsetRange
from trikafka.config.secrets import secret
from trikafka.interfaces import ExportCheck, ExportPlan, ExportState, PlannedRange, RangeResult

from ..batch_folder import refuse_batches
from ..folders import AGAIN
from ..formats.options import SECRET_OPTIONS
from ..sink import SparkSink
from .explaining import check_library
from .giving_up import FilesGoneError
from .options import LakeOptions, lake_options
from .stores import folder_of

if TYPE_CHECKING:
    from .log import TableLog

T = TypeVar("T")
#: How long a catalog, or the store of a table, may take for one thing that it is asked (seconds), such as the commit of a plan, its
#: files looked at. The libraries of table formats wait for ever for who has taken their request and says nothing.
_LIMIT = 600.0
#: What marks the plans of this sink: those of Spark's writer had no files of ours.
_OURS = "files"


class LakeSink(SparkSink):
    """Writes an export into a table of Delta's or Iceberg's. :class:`LakeOptions` says what can be asked for."""

    def __init__(self, options: LakeOptions) -> None:
        super().__init__(None, options.files)
        self.format = options.format
        self._lake = options
        self._known: TableLog | None = None
        #: Calls that were left alone keep their threads, and those only: what is silent here is to hold up nothing else.
        self._log_limiter = trio.CapacityLimiter(4)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Make a sink of what ``export(..., sink_options=)`` was given. Raises :exc:`ConfigurationError`."""
        made = cls(lake_options({name: secret(value) if name in SECRET_OPTIONS else value for name, value in options.items()}))
        check_library(made.format)
        return made

    @property
    def title(self) -> str:
        """How messages call the destination."""
        return self._lake.destination

    @property
    def _log(self) -> TableLog:
        assert self._known is not None, "the sink was entered"
        return self._known

    def open_batches(self) -> Any:
        """Raise :exc:`ConfigurationError`: a consumer's batches become Parquet files."""
        raise ConfigurationError(f"sink_batches() writes Parquet files to a directory, and nothing with format={self.format}")

    async def _enter_store(self) -> None:
        """Look for the table; only where there is none yet, and nobody knows where it will be, is nothing locked."""
        self._known = await self._asked(lambda: _log_of(self._lake))
        self._place = await self._asked(self._log.place)
        if self._place is not None:
            await super()._enter_store()

    def _open(self) -> None:
        if (root := folder_of(self._store)) is not None:
            refuse_batches(root)
        self._store.open()

    async def load(self) -> ExportState:
        """Return what was exported to the table."""
        if self._place is None:
            return ExportState()
        state = await super().load()
        if state.unfinished is not None and _OURS not in state.unfinished.format:
            raise ExportError(
                f"plan {state.unfinished.number} of {self.title} was begun by an earlier trikafka, which wrote {self.format}"
                " by Spark: finish it with that one"
            )
        return state

    async def pin(self, state: ExportState, wanted: Sequence[OffsetRange], settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """The columns, which are the table's, and what the table is known by; it is made when the first plan is."""
        format = {**await super().pin(state, wanted, settings), "name": self.format}
        if state.format is not None and not wanted:
            return format
        columns = await self._thread(lambda: _columns(format, wanted))
        if state.format is not None and "table" in format:
            if await self._asked(lambda: self._log.given_up(format, state.last_number)):
                format[AGAIN] = f"again-{state.last_number + 1:06d}"  # its files may stand there still
            return format
        found = await self._asked(lambda: self._log.pin(format, columns, self._options.partition_by))
        if self._place is None:
            await self._enter_new()
        return {**found, _OURS: 1, "app_id": format.get("app_id") or f"trikafka-{uuid.uuid4()}"}

    async def _enter_new(self) -> None:
        """Lock the table that was made just now, by us or by another export."""
        place = await self._asked(self._log.place)
        if place is None:
            raise ExportError(f"the table {self.title} was made and is gone")
        self._place = place
        await super()._enter_store()
        if (await super().load()).last_number:
            raise ExportError(f"another export to {self.title} began at the same time")

    async def settle(self, plan: ExportPlan, ranges: Sequence[PlannedRange]) -> Sequence[RangeResult]:
        """Close the plan's work, and commit its files."""
        return await self._ended(plan, await super().settle(plan, ranges), give_up=False)

    async def give_up(self, plan: ExportPlan) -> Sequence[RangeResult]:
        """The same; but where files of it are gone that were not committed, nothing of it ever is, and all is left to the next."""
        return await self._ended(plan, await super().settle(plan, plan.ranges), give_up=True)

    async def _ended(self, plan: ExportPlan, results: Sequence[RangeResult], *, give_up: bool) -> Sequence[RangeResult]:
        if not any(result.files for result in results):
            return results
        given_up, version = await self._asked(lambda: self._commit(plan, results, give_up))
        if given_up:
            return [RangeResult(each.planned, each.planned.start) for each in results]
        return [replace(each, files=tuple(replace(file, version=version) for file in each.files)) for each in results]

    def _commit(self, plan: ExportPlan, results: Sequence[RangeResult], give_up: bool) -> tuple[bool, int | None]:
        """Whether the plan was given up, now or before; the version of the table that it made, if it did."""
        from .footers import read_footers  # imports pyarrow, which is slow

        if not self._log.found(plan):
            try:
                files = read_footers(self._store, [file for result in results for file in result.files])
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
        """Count the table's rows again."""
        from .checking import check_lake

        return await self._asked(lambda: check_lake(self._log, self._store), limit=math.inf)  # all rows are counted

    async def _asked(self, function: Callable[[], T], *, limit: float | None = None) -> T:
        """Call the log. A catalog is not waited for when the scope is cancelled: a late commit is the plan's own.

        Raises :exc:`ExportError` where it takes longer than ``limit`` seconds.
        """
        limit = _LIMIT if limit is None else limit
        with trio.move_on_after(limit):
            return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self._log_limiter)
        raise ExportError(
            f"{self.title}: the table's catalog or store has not answered for {limit:g} s; the next export goes on from there"
        )


def _log_of(options: LakeOptions) -> TableLog:
    """Imports what is slow."""
    if options.format == "delta":
        from .delta import DeltaLog

        return DeltaLog(options)
    from .iceberg import IcebergLog

    return IcebergLog(options)


def _columns(format: Mapping[str, Any], wanted: Sequence[OffsetRange]) -> Any:
    from .columns import table_schema

    pinned = [format[name] for name in ("schemas", "key_schemas") if name in format]
    topics = dict.fromkeys([*(topic for schemas in pinned for topic in schemas), *(each.topic for each in wanted)])
    return table_schema(format, [topic for topic in topics if all(topic in schemas for schemas in pinned)])
