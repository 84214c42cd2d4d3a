"""``trikafka.export``, and the exporter that exports again and again: the arguments, and the plugin that writes."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import trio

from .._net.retry import Retry
from ..config import ConsumerConfig, settings_of
from ..config.secrets import holds_secret, secret
from ..errors import ConfigurationError, ExportError, PluginError
from ..hooks import answers, call_first, load_plugins
from ..interfaces import CheckableSink, ExportCheck, Sink
from ..types import TopicPartition
from . import export_plan
from .export_job import ExportJob, ExportOptions
from .export_report import ExportProgress, ExportResult
from .export_source import ExportSource
from .export_store import DirectoryStore
from .given import check_options, shown
from .opens import opens

#: Settings of a consumer that mean nothing here, because the export decides them.
_OURS = frozenset(
    {
        "auto_offset_reset",
        "enable_auto_commit",
        "auto_commit_interval_ms",
        "group_instance_id",
        "max_poll_interval_ms",
        "session_timeout_ms",
        "heartbeat_interval_ms",
        "partition_assignment_strategy",
        "allow_auto_create_topics",
    }
)
#: What :func:`export` takes beside settings: who misspells one is told of it.
_KEYWORDS = (
    "topics", "destination", "start", "max_records_per_file", "group_id", "fail_on_data_loss", "task_timeout_ms", "sink_options",
    "on_progress",
)  # fmt: skip
#: What the name of a sink's option has in it whose value is nobody's business.
_SECRET_WORDS = ("auth", "password", "secret", "token")
#: How the names of options begin that lead into a store or a catalog.
_LEADING = ("store.", "catalog.")


class Exporter:
    """Exports again and again into one destination, which it keeps locked, with one session of what the sink works with.

    Made by :func:`open_exporter`. One call at a time: each raises :exc:`trio.BusyResourceError` while another one is under way, and
    :exc:`trio.ClosedResourceError` when the block was left, for then the destination is not locked any more.
    """

    def __init__(self, sink: Sink, options: ExportOptions) -> None:
        self._sink, self._options = sink, options
        self._source = ExportSource(options.settings)
        self._busy = self._closed = False

    async def run(self) -> ExportResult:
        """Export what is new, as :func:`export` does, which says what is raised. A cancelled run is finished by the next."""
        with self._alone() as job:
            return await job.run()

    async def abandon(self) -> ExportResult:
        """Give up the plan that an earlier run has left unfinished; nothing is lost by that, and nothing is read.

        What is done of it is published, and what is not is left to the next plan. Raises :exc:`ExportError`.
        """
        with self._alone() as job:
            return await job.abandon()

    @contextmanager
    def _alone(self) -> Iterator[ExportJob]:
        if self._closed:
            raise trio.ClosedResourceError("the exporter's block was left, and its destination is not locked any more")
        if self._busy:
            raise trio.BusyResourceError("another task exports with this exporter: one call at a time")
        self._busy = True
        try:
            yield ExportJob(self._options, self._sink, self._source)
        finally:
            self._busy = False

    def _close(self) -> None:
        self._closed = True


@opens
async def open_exporter(
    topics: str | Iterable[str],
    destination: str | os.PathLike[str],
    *,
    start: str | int | Mapping[TopicPartition, int] = "earliest",
    max_records_per_file: int = 1_000_000,
    group_id: str | None = None,
    fail_on_data_loss: bool = True,
    task_timeout_ms: int = 300_000,
    sink_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[ExportProgress], None] | None = None,
    **client_settings: Any,
) -> AsyncIterator[Exporter]:
    """Open an :class:`Exporter`; the arguments are those of :func:`export`, which says what is raised."""
    sink_options = hidden_options(sink_options)
    names, where = _names(topics), path_of(destination)
    _check_whole("max_records_per_file", max_records_per_file, 1)
    _check_whole("task_timeout_ms", task_timeout_ms, 0)
    _check_start(start)
    if not isinstance(fail_on_data_loss, bool):
        raise ConfigurationError(f"fail_on_data_loss must be True or False, not {shown(fail_on_data_loss)}")
    if on_progress is not None and (not callable(on_progress) or inspect.iscoroutinefunction(on_progress)):
        told = "an async one" if callable(on_progress) else shown(on_progress)
        raise ConfigurationError(f"on_progress must be a plain function (def), called with an ExportProgress, not {told}")
    _check_settings(client_settings, where)
    client_settings = ConsumerConfig.hidden(client_settings)  # they go to a sink, and from there perhaps to other machines
    config = ConsumerConfig.build({**client_settings, "group_id": group_id}, given_to="export()", beside=_KEYWORDS)
    options = ExportOptions(
        destination=where,
        topics=tuple(names),
        start=start,
        max_records_per_file=max_records_per_file,
        group_id=group_id,
        fail_on_data_loss=fail_on_data_loss,
        task_timeout_ms=task_timeout_ms,
        retry=partial(Retry, config),
        settings=client_settings,
        on_progress=on_progress,
    )
    async with find_sink(options.destination, sink_options, config.plugins) as sink:
        exporter = Exporter(sink, options)
        try:
            yield exporter
        finally:
            exporter._close()


async def export(
    topics: str | Iterable[str],
    destination: str | os.PathLike[str],
    *,
    start: str | int | Mapping[TopicPartition, int] = "earliest",
    max_records_per_file: int = 1_000_000,
    group_id: str | None = None,
    fail_on_data_loss: bool = True,
    task_timeout_ms: int = 300_000,
    sink_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[ExportProgress], None] | None = None,
    **client_settings: Any,
) -> ExportResult:
    """Write all records of ``topics`` that ``destination`` does not hold yet, each exactly once.

    The first export begins at ``start`` (``"earliest"``, a time in ms since the epoch, or an offset for each partition);
    later ones go on where the last one ended. An export that was killed is finished first. With a ``group_id``, the
    group's offsets are committed after the manifest, so that its lag tells what is not exported yet. ``on_progress`` is
    called in this task and must be quick. ``client_settings`` are those of :func:`open_consumer`; ``isolation_level`` is
    ``read_committed`` unless it is given, and a destination keeps the one that it began with.

    A partition that times out holds up nobody: the others are published, and it is tried again until it has timed out for
    ``task_timeout_ms`` without progress (KIP-572; 0: no second try). Then, and for other errors of a partition,
    :exc:`ExportIncompleteError` is raised with the report of what was done. ``fail_on_data_loss=False`` goes on where records
    are gone from the log (or their topic is): the report and the manifest say which.

    Raises :exc:`ExportError` when the destination cannot be written or belongs to something else, when another export is
    at work there, when records are gone from the log, and when the work failed; :exc:`PluginError` when no plugin can
    write there; :exc:`ConfigurationError`. Cancelling leaves an unfinished plan, which the next export finishes.
    """
    client_settings, sink_options = ConsumerConfig.hidden(client_settings), hidden_options(sink_options)
    async with open_exporter(
        topics,
        destination,
        start=start,
        max_records_per_file=max_records_per_file,
        group_id=group_id,
        fail_on_data_loss=fail_on_data_loss,
        task_timeout_ms=task_timeout_ms,
        sink_options=sink_options,
        on_progress=on_progress,
        **client_settings,
    ) as exporter:
        return await exporter.run()


async def check_export(
    destination: str | os.PathLike[str],
    *,
    topics: str | Iterable[str] = (),
    sink_options: Mapping[str, Any] | None = None,
    plugins: Iterable[object] = (),
) -> ExportCheck:
    """Count what an export's destination holds, beside what its manifests say: lost, changed and foreign files are told.

    All of it is counted, whatever the ``topics``, which are those that it is to hold. Nothing is asked of Kafka. Where
    ``sink_options`` name no format, a directory's own is taken. Exports that found no record have left nothing to
    count, nor the names of their topics: all is well then, whatever the ``topics``. Raises :exc:`ExportError` when there was no
    export, or records were exported of others than one of the ``topics``, when one is at work, when its manifests are damaged,
    and when its files cannot be asked for, and :exc:`PluginError` when what writes there cannot check. May be cancelled at any
    time.
    """
    where, options = path_of(destination), hidden_options(sink_options)
    whatever = isinstance(topics, Collection) and not isinstance(topics, str) and not topics
    wanted = [] if whatever else _names(topics)
    if "format" not in options and (format := await trio.to_thread.run_sync(_format_in, where)) is not None:
        options["format"] = format
    sink: Sink = find_sink(where, options, plugins)
    if not isinstance(sink, CheckableSink):
        raise PluginError(f"what writes to {where!r} cannot check it")
    async with sink:
        state = await sink.load()
        if not state.last_number:
            if not state.visited:
                raise ExportError(f"{where} holds no export: there is no plan in it")
            return ExportCheck(0, 0, 0, ())
        held = export_plan.topics_of(state)
        if absent := [topic for topic in wanted if topic not in held]:
            raise ExportError(f"{where} holds no export of {', '.join(absent)}: it is one of {export_plan.listed(held)}")
        unfinished = None if state.unfinished is None else state.unfinished.number
        return replace(await sink.check(), unfinished=unfinished, topics=held)


def _format_in(destination: str) -> str | None:
    """The format that the plans in a directory name, if it is one that has any. Blocks."""
    try:
        return DirectoryStore(DirectoryStore.directory_of(destination)).format_name()
    except (ConfigurationError, ExportError):
        return None  # the sink knows better


def find_sink(destination: str, options: Mapping[str, Any], plugins: Iterable[object] = (), shape: type = Sink) -> Any:
    """Return the sink of this ``shape`` (a Protocol) that a plugin offers there. Raises :exc:`PluginError` when none does."""
    if not destination.strip():
        raise ConfigurationError("the destination of an export is empty; write '.' for the current folder")
    scheme = _scheme(destination)
    try:
        sink = call_first(
            load_plugins(plugins), "trikafka_sink", shape, scheme=scheme, options={**options, "destination": destination}
        )
    except PluginError as error:
        if isinstance(error.__cause__, ConfigurationError):  # a wrong sink option is not the plugin's fault
            raise error.__cause__ from None
        raise
    if sink is None:
        install = "; install trikafka-spark, which writes Parquet files (from a clone: pip install ./plugins/trikafka-spark)"
        also = install if scheme in ("file", "s3", "s3a", "gs", "az", "abfs", "abfss") else ""
        raise PluginError(f"no plugin writes exports to {scheme!r} destinations{also}")
    return sink


def path_of(destination: str | os.PathLike[str]) -> str:
    """The destination as text: of a path object one that is a folder's for everybody. Raises :exc:`ConfigurationError`."""
    where = os.fspath(destination) if isinstance(destination, str | os.PathLike) else destination
    if not isinstance(where, str):
        raise ConfigurationError(f"the destination must be a path or an address, such as '/data/flights', not {shown(where)}")
    # Path("./shop.flights") has forgotten its first letters, and without them it may be a table's name.
    return os.path.join(os.curdir, where) if where is not destination and where == os.path.basename(where) else where


def _names(topics: object) -> list[str]:
    found = [topics] if isinstance(topics, str) else list(topics) if isinstance(topics, Iterable) else []
    if not found:
        raise ConfigurationError(f"export needs the names of one or more topics, not {shown(topics)}")
    if wrong := [name for name in found if not isinstance(name, str) or not name]:
        raise ConfigurationError(f"export needs the names of one or more topics, and one of them is {shown(wrong[0])}")
    if path := next((name for name in found if "/" in name), None):
        raise ConfigurationError(f"{path!r} cannot be a topic's name: the topics come first, the destination last")
    return list(dict.fromkeys(found))


def _scheme(destination: str) -> str:
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", destination)
    return match[1].lower() if match else "file"


def _check_settings(given: Mapping[str, Any], destination: str) -> None:
    """Raise for a setting that an export decides, and for one that is an option of what writes there."""
    for name in given:
        if name in _OURS:
            raise ConfigurationError(f"{name} is not a setting of an export")
    if strange := [name for name in given if name not in settings_of(ConsumerConfig)]:
        manager = load_plugins(given.get("plugins") or ())
        found = answers(manager, "trikafka_sink_options", Collection, scheme=_scheme(destination))
        options = {option for _, names in found for option in names}
        for name in strange:
            if name in options:
                raise ConfigurationError(f"{name} is an option of what writes: give sink_options={{{name!r}: ...}}")


def hidden_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy in which what may be secret hides itself: a sink knows more of its options, but is not asked yet."""

    check_options(options)

    def is_secret(name: str, value: Any) -> bool:
        told = name.startswith(_LEADING) or any(word in name.lower() for word in _SECRET_WORDS)
        return isinstance(value, str) and (told or holds_secret(value))

    return {name: secret(value) if is_secret(name, value) else value for name, value in (options or {}).items()}


def _check_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{name} must be a whole number of at least {least}, not {value!r}")


def _check_start(start: str | int | Mapping[TopicPartition, int]) -> None:
    if isinstance(start, str) and start != "earliest":
        raise ConfigurationError(f"start must be 'earliest', a time in milliseconds or a mapping of offsets, not {start!r}")
    if start is None:
        raise ConfigurationError("start must be 'earliest', a time in milliseconds or a mapping of offsets, not None")
    for offset in start.values() if isinstance(start, Mapping) else () if isinstance(start, str) else (start,):
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 2**63:
            raise ConfigurationError(f"start must not be negative, and a whole number below 2^63, not {offset!r}")
