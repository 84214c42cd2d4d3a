"""The Parquet sink of ``trikafka.export``: small plans in threads of this process, large ones by Spark, one task a range.

Everything that blocks runs in threads of this sink's own limiter. The layout of the destination is not known here:
:class:`trikafka.ExportStore` owns it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import trio

from trikafka import ConfigurationError, DirectoryStore, ExportError, ExportStore, OffsetRange, TrikafkaError
from trikafka.config.secrets import secret
from trikafka.interfaces import ExportCheck, ExportManifest, ExportPlan, ExportState, PlannedRange, RangeResult, SinkReport

from . import session
from .batch_folder import BatchFolder, refuse_batches
from .formats.missing import MissingSchemas
from .formats.options import SECRET_OPTIONS, check_schemas
from .formats.pinning import check, check_letters, formats, look_up, pin, unpinned, with_schemas
from .in_tables import refuse_name, refuse_tables
from .kept_spark import CANCELLED_LIMIT, STOP_LIMIT, KeptSpark
from .sink_options import SinkOptions, refuse_other_format, sink_options
from .stores import store_of

if TYPE_CHECKING:
    from .task import Stopper

T = TypeVar("T")
_log = logging.getLogger("trikafka.spark")
#: How long a cancelled export waits for an object store to take back the lock (seconds), which otherwise ends by itself.
_RELEASE_LIMIT = 0.8


class SparkSink:
    """Writes an export as Parquet. :class:`SinkOptions` says what can be asked for.

    A Spark context that the process has already is used, and left running; ``master`` and ``spark.*`` then mean nothing.
    """

    format = "parquet"

    def __init__(self, root: Path | ExportStore | None, options: SinkOptions | None = None, given: str = "") -> None:
        self._place: ExportStore | None = DirectoryStore(root) if isinstance(root, Path) else root
        self._options = options or SinkOptions()
        self._given = given  # the destination, as it was written
        self._gone_told = False
        self._limiter = trio.CapacityLimiter(4)
        #: One call at a time, also when one was not waited for.
        self._store_limiter = trio.CapacityLimiter(1)
        self._missing = MissingSchemas()
        self._spark = KeptSpark(self._options.master, self._options.app_name, self._options.conf, self._limiter)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Make a sink of what ``export(..., sink_options=)`` was given. Raises :exc:`ConfigurationError`."""
        rest = {name: secret(value) if name in SECRET_OPTIONS else value for name, value in options.items()}
        given = str(rest.pop("destination"))
        store, rest = store_of(given, rest)
        return cls(store, sink_options(rest), given)

    @property
    def title(self) -> str:
        """How messages call the destination."""
        return self._store.title

    @property
    def _store(self) -> ExportStore:
        assert self._place is not None, "nothing is stored before the place is known"
        return self._place

    def open_batches(self) -> BatchFolder:
        """Take a consumer's batches instead of an export (:func:`trikafka.sink_batches`): a file for each."""
        if not isinstance(self._store, DirectoryStore):
            raise ConfigurationError("sink_batches() writes to a directory of this machine, and not to an object store")
        return BatchFolder(self._store.root, self._options)

    async def __aenter__(self) -> Self:
        """Check the destination, then Spark and Java where nothing else will do; starts nothing yet."""
        await self._enter_store()
        try:
            await self._thread(lambda: check_schemas(self._options.parsing))
            if self._options.spark_above == 0:
                await self._thread(session.check_requirements)
        except BaseException:
            await self._leave(CANCELLED_LIMIT)
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop Spark if it was started here and nobody else uses it; remove what is partial; unlock."""
        try:
            await self._leave(STOP_LIMIT if exc is None or isinstance(exc, Exception) else CANCELLED_LIMIT)
        except ExportError:
            if exc is None:
                raise
            _log.debug("the destination could not be tidied up", exc_info=True)  # what has ended the export says why

    async def _enter_store(self) -> None:
        try:
            await self._stored(self._open)
        except trio.Cancelled:
            self._store.give_up()
            raise

    def _open(self) -> None:
        if isinstance(self._store, DirectoryStore):
            refuse_batches(self._store.root)
            refuse_name(self._given)
            refuse_tables(self._store.root, begun=Path(self._store.own_title).exists())
            self._gone_told = False
        self._store.open()

    async def _leave(self, limit: float) -> None:
        await self._spark.leave(limit)
        if self._place is None:
            return
        patience = _RELEASE_LIMIT if limit == CANCELLED_LIMIT else limit
        with trio.move_on_after(patience if self._store.remote else math.inf, shield=True) as scope:
            await self._stored(self._store.close)
        if scope.cancelled_caught:
            self._store.give_up()

    async def load(self) -> ExportState:
        """Return what the destination holds."""
        state = await self._stored(self._store.load)
        root = self._store.root if isinstance(self._store, DirectoryStore) else None
        await self._thread(lambda: refuse_other_format(state, self.format, self._store.title, root))
        if isinstance(self._store, DirectoryStore) and not self._gone_told:
            self._gone_told = await self._stored(partial(_tell_gone, self._store))
        return state

    async def store_plan(self, plan: ExportPlan) -> None:
        """Store the plan."""
        await self._stored(lambda: self._store.store_plan(plan))

    async def settle(self, plan: ExportPlan, ranges: Sequence[PlannedRange]) -> Sequence[RangeResult]:
        """Return how far the ranges have come."""
        return await self._stored(lambda: self._store.settle(plan, ranges))

    async def publish(self, manifest: ExportManifest) -> None:
        """Publish the manifest."""
        await self._stored(lambda: self._store.publish(manifest))

    async def note_visit(self) -> None:
        """Note that an export was here; of a table that is not there yet there is no place to."""
        if self._place is not None:
            await self._stored(self._store.note_visit)

    async def check(self) -> ExportCheck:
        """Count the files again, by their footers. Cancelled: what is asked for just now is not waited for, and is the last."""
        given_up = Event()
        work = partial(_checked, self._store, given_up)
        try:
            return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)
        finally:
            given_up.set()

    async def pin(self, state: ExportState, wanted: Sequence[OffsetRange], settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """The format of the destination's files: the partition folders, and how values are parsed; schemas are inferred once.

        A topic whose schema cannot be found gets none: its ranges are planned, and left for the next plan. An error where that
        is so of each topic.
        """
        parsing, topics = self._options.parsing, list(dict.fromkeys(each.topic for each in wanted))
        check_letters(parsing, [*topics, *state.topic_ids])
        format = with_schemas(pinned(state, self._options, self.title))
        self._missing.clear()
        for column, topic in unpinned(format, parsing, topics):
            if self._missing.skips(topic, f"{column}_framing" in format):
                continue
            ranges = [each for each in wanted if each.topic == topic]
            try:
                pin(format, column, topic, await self._looked_up(format, column, ranges, settings))
            except TrikafkaError as error:
                self._missing.note(topic, error)
        self._missing.check(format, topics)
        if topics and parsing.dead_letter_topic is not None:
            from .formats.letters import check_topic  # imports pyarrow

            await check_topic(parsing.dead_letter_topic, settings)
        return format

    async def _looked_up(
        self, format: Mapping[str, Any], column: str, ranges: Sequence[OffsetRange], settings: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """In a thread; a cancelled scope ends the reading, which may be waiting for a broker."""
        stopper = await self._thread(_stopper)
        try:
            work = partial(look_up, format, column, ranges, settings, self._options.parsing.registry, stopper)
            return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)
        finally:
            stopper.stop()

    async def write(
        self, plan: ExportPlan, ranges: Sequence[PlannedRange], settings: Mapping[str, Any], report: SinkReport
    ) -> Mapping[PlannedRange, Exception]:
        """Write the ranges, here or by a Spark job; a cancelled scope ends them."""
        check_letters(self._options.parsing, plan.topic_ids)  # also those of which there was nothing new when it was planned
        unread = self._missing.of(plan.format, ranges)
        ranges = [each for each in ranges if each not in unread]
        if not ranges:
            return unread
        report("starting", 0, 0)
        width = sum(planned.end - planned.start for planned in ranges)
        by_spark = await self._wants_spark(width)
        if by_spark and settings.get("ssl_context") is not None:
            raise ConfigurationError(
                "ssl_context= cannot be sent to Spark's workers: give ssl_cafile= and the like, or the option spark_above='never'"
            )
        context = await self._spark.started() if by_spark else None
        tasks = await self._thread(lambda: self._tasks(plan, ranges, settings))
        report("writing", 0, 0)

        def told(done: int, rows: int) -> None:
            report("writing", done, rows)

        if context is not None:
            from .job import SparkJob

            job = SparkJob(context, tasks, self._limiter)
            try:
                errors = await job.run(told)
            finally:
                self._spark.silent = job.silent
        else:
            from .local import LocalJob

            errors = await LocalJob(tasks, self._options.threads).run(told)
        if len(errors) != len(ranges):
            raise ExportError(f"Spark returned {len(errors)} results for {len(ranges)} ranges")
        return unread | {planned: error for planned, error in zip(ranges, errors, strict=True) if error is not None}

    def _tasks(self, plan: ExportPlan, ranges: Sequence[PlannedRange], settings: Mapping[str, Any]) -> list[Any]:
        from .formats.work import ReadOptions
        from .pieces import Shape  # imports pyarrow, which is slow: here in a thread
        from .task import WriteTask

        own = self._options
        shape = Shape(own.compression, own.row_group_rows, own.row_group_bytes, own.max_bytes_per_file)
        client = {name: value for name, value in settings.items() if name != "fail_on_data_loss"}
        strict = bool(settings.get("fail_on_data_loss", True))
        reading = ReadOptions(own.parsing.registry, own.parsing.dead_letter_topic)
        ids, title, place = plan.topic_ids, self._store.title, self._store.place(plan)
        return [
            WriteTask(title, plan.number, each, ids.get(each.topic), client, strict, plan.format, shape, place, reading)
            for each in ranges
        ]

    async def _wants_spark(self, width: int) -> bool:
        above = self._options.spark_above
        if above is None or (above and width <= above):
            return False
        try:
            await self._thread(session.check_requirements)
        except ExportError as error:
            if above == 0:
                raise
            _log.warning("%s; until then all %s records are exported by threads of this process", error, f"{width:,}")
            return False
        return True

    async def _stored(self, function: Callable[[], T]) -> T:
        """Call the store. What goes over a network is not waited for when the scope is cancelled: it harms nothing later either."""
        return await trio.to_thread.run_sync(function, abandon_on_cancel=self._store.remote, limiter=self._store_limiter)

    async def _thread(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function, limiter=self._limiter)


def pinned(state: ExportState, options: SinkOptions, destination: str) -> dict[str, Any]:
    """The format that the destination has or gets. Raises :exc:`ConfigurationError` for an option that contradicts it."""
    read = formats(options.parsing)
    if state.format is None:
        if state.last_number and (options.partition_by or any(name != "binary" for name in read.values())):
            raise ConfigurationError(f"{destination} holds files of another format; choose another destination")
        format = {"name": "parquet", "partition_by": list(options.partition_by or ()), **read}
        check(format, options.parsing, destination)
        return format
    format = dict(state.format)
    folders = None if options.partition_by is None else list(options.partition_by)
    if folders is not None and folders != format.get("partition_by"):
        raise ConfigurationError(
            f"{destination} was exported with partition_by={format.get('partition_by')!r} and keeps it; "
            f"choose another destination for {folders!r}"
        )
    check(format, options.parsing, destination)
    return format


def _tell_gone(store: DirectoryStore) -> bool:
    """Warn of files of the last export that somebody has removed: who wants them again will wait for them in vain."""
    if gone := store.gone_of_last():
        more = "" if len(gone) == 1 else f" and {len(gone) - 1:,} more"
        _log.warning(
            "%s lacks what was exported to it: %s%s. An export writes nothing again: --check tells all that is lost;"
            " a new destination gets all records",
            store.title,
            gone[0],
            more,
        )
    return bool(gone)


def _stopper() -> Stopper:
    from .task import Stopper  # imports pyarrow, which is slow

    return Stopper()


def _checked(store: ExportStore, given_up: Event) -> ExportCheck:
    from .checking import check

    return check(store, given_up)
