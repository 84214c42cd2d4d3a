"""The sink of exports in formats that Spark knows by name: one write by Spark per plan."""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import trio
from trikafka_export.batch_folder import refuse_batches
from trikafka_export.runners import CANCELLED_LIMIT, STOP_LIMIT
from trikafka_export.sink_options import refuse_other_format

from trikafka import ConfigurationError, ExportError, OffsetRange, TableStore
from trikafka.interfaces import (
    ExportCheck,
    ExportManifest,
    ExportPlan,
    ExportState,
    PlannedRange,
    RangeResult,
    SinkReport,
)

from .. import session
from ..kept_spark import KeptSpark
from .named import NamedTable
from .options import TableOptions, table_options

if TYPE_CHECKING:
    from .work import TableWork

T = TypeVar("T")


class TableSink:
    """Writes an export into a table. :class:`TableOptions` has the options.

    An existing Spark context of the process is used and left running; ``master`` and ``spark.*``
    then have no effect.
    """

    def __init__(self, store: TableStore, options: TableOptions) -> None:
        self._store = store
        self._options = options
        self._table = NamedTable(store, options)
        self._limiter = trio.CapacityLimiter(4)
        self._spark: KeptSpark | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Return a sink for the options of ``export(..., sink_options=)``.

        Raises:
            ConfigurationError: An option is wrong.
        """
        rest = dict(options)
        return cls(
            TableStore(TableStore.directory_of(rest.pop("destination"))), table_options(rest)
        )

    async def __aenter__(self) -> Self:
        """Check and lock the destination, then check Spark and Java; start nothing yet."""
        await self._thread(self._open)
        try:
            await self._thread(session.check_requirements)
            _check_pandas()
            conf = await self._thread(self._table.conf)
            self._spark = KeptSpark(
                self._options.master, self._options.app_name, conf, self._limiter
            )
        except BaseException:
            await self._leave(CANCELLED_LIMIT)
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Unlock the destination; stop Spark if it was started here and no other export uses it."""
        await self._leave(
            STOP_LIMIT if exc is None or isinstance(exc, Exception) else CANCELLED_LIMIT
        )

    def _open(self) -> None:
        refuse_batches(self._store.root)
        self._store.open()

    def open_batches(self) -> Any:
        """Raise :exc:`ConfigurationError`: a consumer's batches become Parquet files."""
        format = self._options.format
        raise ConfigurationError(
            f"sink_batches() writes Parquet files to a directory, and nothing with format={format}"
        )

    async def _leave(self, limit: float) -> None:
        if self._spark is not None:
            await self._spark.leave(limit)
        with trio.CancelScope(shield=True):
            await self._thread(self._store.close)

    async def load(self) -> ExportState:
        """Return the state of the exports to the table."""
        state = await self._thread(self._store.load)
        if not state.last_number:
            await self._thread(self._table.check)
        root = self._store.root
        await self._thread(
            lambda: refuse_other_format(state, self._options.format, str(root), root)
        )
        return state

    async def pin(
        self, state: ExportState, wanted: Sequence[OffsetRange], settings: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the table's format, the export's id and the partitioning."""
        asked = self._options.partition_by
        if state.format is not None:
            known = tuple(state.format.get("partition_by", ()))
            if asked is not None and asked != known:
                raise ConfigurationError(
                    f"{self._store.root} was exported with partition_by={list(known)} and keeps it;"
                    f" choose another destination for {list(asked)}"
                )
            return state.format
        await self._work(_known)  # before a plan pins an unknown format permanently
        return {
            "name": self._options.format,
            "app_id": f"trikafka-{uuid.uuid4()}",
            "exactly_once": False,
            "partition_by": list(asked or ()),
        }

    async def note_visit(self) -> None:
        """Store that an export ran."""
        await self._thread(self._store.note_visit)

    async def store_plan(self, plan: ExportPlan) -> None:
        """Store the plan."""
        await self._thread(lambda: self._store.store_plan(plan))

    async def write(
        self,
        plan: ExportPlan,
        ranges: Sequence[PlannedRange],
        settings: Mapping[str, Any],
        report: SinkReport,
    ) -> Mapping[PlannedRange, Exception]:
        """Write the ranges by a Spark job, which ends when the scope is cancelled."""
        from . import gaps

        if settings.get("ssl_context") is not None:
            raise ConfigurationError(
                "ssl_context= cannot be sent to Spark's workers: give ssl_cafile= and the like"
            )
        report("starting", 0, 0)
        client = {name: value for name, value in settings.items() if name != "fail_on_data_loss"}
        reads, errors = gaps.whole(ranges), dict[PlannedRange, Exception]()
        if not settings.get("fail_on_data_loss", True):
            reads, errors = await gaps.what_is_there(ranges, client)

        def told(done: int, rows: int) -> None:
            report("writing", min(done, len(ranges)), rows)

        def write(work: TableWork[dict[PlannedRange, Exception]]) -> dict[PlannedRange, Exception]:
            from .work import write_plan

            return write_plan(work, plan, reads, client)

        return errors | await self._work(write, told)

    async def settle(
        self, plan: ExportPlan, ranges: Sequence[PlannedRange]
    ) -> Sequence[RangeResult]:
        """Return the results of the plan in the table."""

        def settle(work: TableWork[list[RangeResult]]) -> list[RangeResult]:
            from .work import settle_plan

            return settle_plan(work, plan, ranges)

        return await self._work(settle)

    async def publish(self, manifest: ExportManifest) -> None:
        """Publish the manifest."""
        await self._thread(lambda: self._store.publish(manifest))

    async def check(self) -> ExportCheck:
        """Count the table's rows again, by Spark."""

        def check(work: TableWork[ExportCheck]) -> ExportCheck:
            from .checking import check_table

            return check_table(work, self._store)

        return await self._work(check)

    async def _work(
        self,
        action: Callable[[TableWork[T]], T],
        report: Callable[[int, int], None] = lambda done, rows: None,
    ) -> T:
        assert self._spark is not None
        context = await self._spark.started()
        make = await self._thread(_work_class)
        work = make(context, self._limiter, self._table, action)
        try:
            result: T = await work.run(report)
            return result
        finally:
            self._spark.silent = work.silent

    async def _thread(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function, limiter=self._limiter)


def _known(work: TableWork[None]) -> None:
    work.check_known()


def _check_pandas() -> None:
    """Check that pandas is installed.

    Spark requires it before it accepts Arrow rows from a function, and does not use it then.
    """
    if importlib.util.find_spec("pandas") is None:
        raise ExportError(
            "Spark wants pandas for exports into tables: pip install 'trikafka-spark[tables]'"
        )


def _work_class() -> Any:
    """Return the class :class:`TableWork`. Imports pyarrow, which is slow."""
    from .work import TableWork

    return TableWork
