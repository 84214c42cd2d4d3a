"""The sink of ``trikafka.export`` that writes files, to a directory or an object store.

A runner writes the ranges, each by :mod:`.task`: threads of this process (:mod:`.local`), or the
runner of a plugin (:mod:`.runners`). All blocking work runs in threads of the sink's own limiters.
The layout of the destination belongs to :class:`.store.ExportStore`, the order of the steps to
:mod:`.job`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import trio

from trikafka import ConfigurationError, ExportError, OffsetRange, TrikafkaError
from trikafka.interfaces import (
    ExportCheck,
    ExportFormat,
    ExportManifest,
    ExportPlan,
    ExportState,
    FileFormat,
    PlannedRange,
    RangeResult,
    SinkReport,
)

from .destination import store_of
from .directory_store import DirectoryStore
from .formats.missing_schemas import MissingSchemas
from .formats.options import check_schemas
from .formats.schema_pinning import (
    check,
    check_letters,
    formats,
    log_alike,
    look_up,
    pin,
    unpinned,
    with_schemas,
)
from .parquet_files import ParquetFiles, ParquetFormat
from .plan import DEFAULT_SUFFIX, SUFFIX_KEY
from .runners import CANCELLED_LIMIT, STOP_LIMIT, Runners
from .sink_options import (
    SinkOptions,
    files_of,
    format_options,
    refuse_other_format,
    without_secrets,
)
from .store import ExportStore
from .table_places import refuse_name, refuse_tables

if TYPE_CHECKING:
    from .task import Stopper

T = TypeVar("T")
_log = logging.getLogger("trikafka.export")
#: How long a cancelled export waits for an object store to release the lock (seconds). A lock that
#: is not released expires.
_RELEASE_LIMIT = 0.8


class FileSink:
    """The sink that writes an export as files; :class:`SinkOptions` lists its options."""

    def __init__(
        self,
        root: Path | ExportStore | None,
        options: SinkOptions | None = None,
        given: str = "",
        plugins: Collection[object] = (),
        format: ExportFormat | None = None,
        files: FileFormat | None = None,
    ) -> None:
        #: The name of the format.
        self.format = (format or ParquetFormat()).name
        self._files = files or ParquetFiles()
        self._place: ExportStore | None = DirectoryStore(root) if isinstance(root, Path) else root
        self._options = options or SinkOptions()
        self._given = given  # the destination, as the caller wrote it
        self._gone_reported = False
        self._limiter = trio.CapacityLimiter(4)
        #: One call of the store at a time, also when a cancelled caller no longer waits for the
        #: last one.
        self._store_limiter = trio.CapacityLimiter(1)
        self._missing = MissingSchemas()
        self._runners = Runners(self._options, plugins, self._limiter)

    @classmethod
    def from_options(
        cls,
        options: Mapping[str, Any],
        plugins: Collection[object] = (),
        format: ExportFormat | None = None,
        others: Collection[str] = (),
    ) -> Self:
        """Return a sink for the ``sink_options`` of ``trikafka.export()``.

        Args:
            options: The options of the sink, and the destination as ``destination``. Passwords and
                tokens are wrapped, so that no text shows them.
            plugins: The objects of the setting ``plugins``, which may bring a runner.
            format: The format; Parquet files without it.
            others: The names of other plugins' options, which their runner gets.

        Raises:
            ConfigurationError: An option is unknown or its value is not valid.
        """
        given = str(options["destination"])
        store, rest = store_of(given, without_secrets(options))
        format = format or ParquetFormat()
        files = files_of(format, options)
        return cls(store, format_options(format, rest, others), given, plugins, format, files)

    @property
    def title(self) -> str:
        """The destination's name in messages."""
        return self._store.title

    @property
    def _store(self) -> ExportStore:
        assert self._place is not None, "nothing is stored before the place is known"
        return self._place

    async def __aenter__(self) -> Self:
        """Open and lock the destination, and check what the runner needs.

        No runner is started yet.
        """
        await self._enter_store()
        try:
            await self._thread(lambda: check_schemas(self._options.parsing))
            await self._runners.check()
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
        """Close the runners, remove partial work, and unlock the destination.

        A cancelled export waits for less time.
        """
        try:
            await self._leave(
                STOP_LIMIT if exc is None or isinstance(exc, Exception) else CANCELLED_LIMIT
            )
        except ExportError:
            if exc is None:
                raise
            # The exception that ended the export matters more.
            _log.debug("the destination could not be tidied up", exc_info=True)

    async def _enter_store(self) -> None:
        self._store.suffix = self._files.suffix
        try:
            await self._stored(self._open)
        except trio.Cancelled:
            self._store.give_up()
            raise

    def _open(self) -> None:
        if isinstance(self._store, DirectoryStore):
            refuse_name(self._given)
            with self._store.explained(f"cannot write to {self._store.root}"):
                refuse_tables(self._store.root, begun=Path(self._store.own_title).exists())
            self._gone_reported = False
        self._store.open()

    async def _leave(self, limit: float) -> None:
        await self._runners.close(limit)
        if self._place is None:
            return
        patience = _RELEASE_LIMIT if limit == CANCELLED_LIMIT else limit
        with trio.move_on_after(patience if self._store.remote else math.inf, shield=True) as scope:
            await self._stored(self._store.close)
        if scope.cancelled_caught:
            self._store.give_up()

    async def load(self) -> ExportState:
        """Return the state of the destination: its last plan and its manifests."""
        state = await self._stored(self._store.load)
        root = self._store.root if isinstance(self._store, DirectoryStore) else None
        await self._thread(lambda: refuse_other_format(state, self.format, self._store.title, root))
        if isinstance(self._store, DirectoryStore) and not self._gone_reported:
            self._gone_reported = await self._stored(partial(_report_gone, self._store))
        return state

    async def store_plan(self, plan: ExportPlan) -> None:
        """Store the plan, before any work on it."""
        await self._stored(lambda: self._store.store_plan(plan))

    async def settle(
        self, plan: ExportPlan, ranges: Sequence[PlannedRange]
    ) -> Sequence[RangeResult]:
        """Close the work of the plan, and return how far the ranges have come."""
        return await self._stored(lambda: self._store.settle(plan, ranges))

    async def publish(self, manifest: ExportManifest) -> None:
        """Publish the manifest, which makes the plan's files count."""
        await self._stored(lambda: self._store.publish(manifest))

    async def note_visit(self) -> None:
        """Record that an export found no new record.

        No-op for a table that does not exist yet: the sink has no place for the record.
        """
        if self._place is not None:
            await self._stored(self._store.note_visit)

    async def check(self) -> ExportCheck:
        """Count the rows of the files again, by their footers.

        Cancellation: the request in flight is not waited for, and no other request follows.
        """
        return await self._checked(deep=False)

    async def check_deep(self) -> ExportCheck:
        """Check the files as :meth:`check` does, and compare all bytes with their checksums.

        The checksums stand in the manifests.
        """
        return await self._checked(deep=True)

    async def _checked(self, *, deep: bool) -> ExportCheck:
        stopped = Event()
        work = partial(_checked, self._store, stopped, deep, self._files)
        try:
            return await trio.to_thread.run_sync(
                work, abandon_on_cancel=True, limiter=self._limiter
            )
        finally:
            stopped.set()

    async def pin(
        self, state: ExportState, wanted: Sequence[OffsetRange], settings: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the format of the destination's files, with the schemas of its topics.

        The format has the partition folders and the parsing of keys and values. A schema is
        inferred once, and is part of the format from then on. If the schema of one topic cannot be
        found, the topic's ranges are planned and left to the next plan.

        Raises:
            ConfigurationError: An option contradicts the format of the destination.
            TrikafkaError: No topic has a schema.
        """
        parsing = self._options.parsing
        topics = list(dict.fromkeys(each.topic for each in wanted))
        check_letters(parsing, [*topics, *state.topic_ids])
        format = with_schemas(
            pinned(state, self._options, self.title, self.format, self._files.suffix)
        )
        self._missing.clear()
        for column, topic in unpinned(format, parsing, topics):
            if self._missing.skips(topic, f"{column}_framing" in format):
                continue
            ranges = [each for each in wanted if each.topic == topic]
            try:
                pin(format, column, topic, await self._looked_up(format, column, ranges, settings))
            except TrikafkaError as error:
                self._missing.add(topic, error)
        self._missing.check(format, topics)
        if topics and isinstance(self._files, ParquetFiles) and self.format != "delta":
            await self._thread(lambda: log_alike(format, state.format, self.title))
        if topics and parsing.dead_letter_topic is not None:
            from .formats.dead_letters import check_topic  # imports pyarrow

            await check_topic(parsing.dead_letter_topic, settings)
        return format

    async def _looked_up(
        self,
        format: Mapping[str, Any],
        column: str,
        ranges: Sequence[OffsetRange],
        settings: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        """Return the schema of a column of one topic, found in a thread.

        A cancelled scope stops the read, which may be waiting for a broker.
        """
        stopper = await self._thread(_stopper)
        try:
            work = partial(
                look_up, format, column, ranges, settings, self._options.parsing.registry, stopper
            )
            return await trio.to_thread.run_sync(
                work, abandon_on_cancel=True, limiter=self._limiter
            )
        finally:
            stopper.stop()

    async def write(
        self,
        plan: ExportPlan,
        ranges: Sequence[PlannedRange],
        settings: Mapping[str, Any],
        report: SinkReport,
    ) -> Mapping[PlannedRange, Exception]:
        """Write the ranges by the runner that fits their size.

        Returns:
            The ranges that failed, each with its error. A range that is missing here was written.

        Raises:
            ConfigurationError: A setting cannot reach the runner's workers.
            ExportError: The destination or the runner failed.

        Cancellation: the tasks stop within about a second. What they have published stays.
        """
        # This includes topics without new records at planning.
        check_letters(self._options.parsing, plan.topic_ids)
        unread = self._missing.of(plan.format, ranges)
        ranges = [each for each in ranges if each not in unread]
        if not ranges:
            return unread
        report("starting", 0, 0)
        width = sum(planned.end - planned.start for planned in ranges)
        runner = await self._runners.fitting(width)
        await runner.start(settings)
        tasks = await self._thread(lambda: self._tasks(plan, ranges, settings))
        report("writing", 0, 0)

        def report_rows(done: int, rows: int) -> None:
            report("writing", done, rows)

        errors = await runner.run(tasks, report_rows)
        return unread | {
            planned: error
            for planned, error in zip(ranges, errors, strict=True)
            if error is not None
        }

    def _tasks(
        self, plan: ExportPlan, ranges: Sequence[PlannedRange], settings: Mapping[str, Any]
    ) -> list[Any]:
        from .formats.range_parsing import ParsingOptions
        from .pieces import Shape  # imports pyarrow, which is slow: here in a thread
        from .task import WriteTask

        own = self._options
        shape = Shape(
            own.compression, own.row_group_rows, own.row_group_bytes, own.max_bytes_per_file
        )
        client = {name: value for name, value in settings.items() if name != "fail_on_data_loss"}
        strict = bool(settings.get("fail_on_data_loss", True))
        reading = ParsingOptions(own.parsing.registry, own.parsing.dead_letter_topic)
        ids = plan.topic_ids
        title = self._store.title
        place = self._store.place(plan)
        return [
            WriteTask(
                title,
                plan.number,
                each,
                ids.get(each.topic),
                client,
                strict,
                plan.format,
                shape,
                place,
                reading,
                self._files,
            )
            for each in ranges
        ]

    async def _stored(self, function: Callable[[], T]) -> T:
        """Call the store in a thread.

        A call over a network is not waited for when the scope is cancelled. Such a call does no
        harm when it completes later.
        """
        return await trio.to_thread.run_sync(
            function, abandon_on_cancel=self._store.remote, limiter=self._store_limiter
        )

    async def _thread(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function, limiter=self._limiter)


def pinned(
    state: ExportState,
    options: SinkOptions,
    destination: str,
    name: str = ParquetFormat.name,
    suffix: str = DEFAULT_SUFFIX,
) -> dict[str, Any]:
    """Return the format that the destination has, or gets from the options.

    Args:
        state: The state of the destination.
        options: The options of this export.
        destination: The destination's name in messages.
        name: The name of the format.
        suffix: The suffix of its files.

    Raises:
        ConfigurationError: An option contradicts the destination's format.
    """
    read = formats(options.parsing)
    if state.format is None:
        if state.last_number and (
            options.partition_by or any(name != "binary" for name in read.values())
        ):
            raise ConfigurationError(
                f"{destination} holds files of another format; choose another destination"
            )
        format = {"name": name, "partition_by": list(options.partition_by or ()), **read}
        if suffix != DEFAULT_SUFFIX:
            format[SUFFIX_KEY] = suffix
        check(format, options.parsing, destination)
        return format
    format = dict(state.format)
    folders = None if options.partition_by is None else list(options.partition_by)
    if folders is not None and folders != format.get("partition_by"):
        raise ConfigurationError(
            f"{destination} was exported {_by(format.get('partition_by'))} and stays so; choose "
            f"another destination for an export {_by(folders)}"
        )
    check(format, options.parsing, destination)
    return format


def _by(columns: Sequence[str] | None) -> str:
    return f"with partition_by={','.join(columns)}" if columns else "without partition_by"


def _report_gone(store: DirectoryStore) -> bool:
    """Return whether files of the last export are gone, and warn of them.

    An export writes nothing again, so these files would be missing for ever.
    """
    if gone := store.gone_of_last():
        more = "" if len(gone) == 1 else f" and {len(gone) - 1:,} more"
        _log.warning(
            (
                "%s lacks files that were exported to it: %s%s. An export does not write them "
                "again; --check lists what is missing, and an export to a new destination writes "
                "all records"
            ),
            store.title,
            gone[0],
            more,
        )
    return bool(gone)


def _stopper() -> Stopper:
    from .task import Stopper  # imports pyarrow, which is slow

    return Stopper()


def _checked(store: ExportStore, stopped: Event, deep: bool, files: FileFormat) -> ExportCheck:
    from .checking import check

    return check(store, stopped, deep=deep, files=files)
