"""The exporter behind ``trikafka.open_exporter``: its checked arguments, its sink, its runs.

Each run is a job (:mod:`.job`), which plans what to write, and lets the sink (:mod:`.sink`) write
the plan.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import trio

from trikafka import (
    ConfigurationError,
    ExportError,
    ExportProgress,
    ExportResult,
    PluginError,
    TopicPartition,
)
from trikafka.config import ConsumerConfig, settings_of
from trikafka.config.topics import check_topic_name
from trikafka.config.whole import is_whole
from trikafka.hooks import answers, load_plugins
from trikafka.interfaces import CheckableSink, DeepCheckableSink, ExportCheck, Sink
from trikafka.toolkit import Retry, shown

from . import plan as plans
from .destination import find_sink, hidden_options, path_of, scheme_of
from .directory_store import DirectoryStore
from .gathering import Gathering
from .job import ExportJob, ExportOptions
from .shared_log import ExportLog
from .source import ExportSource

#: Settings of a consumer that an export decides.
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
        "key_deserializer",
        "value_deserializer",
    }
)
#: The arguments of :func:`export` beside settings, for the hint about a misspelled one.
_KEYWORDS = (
    "topics",
    "destination",
    "start",
    "max_records_per_file",
    "min_records_per_file",
    "min_bytes_per_file",
    "max_file_delay_ms",
    "group_id",
    "fail_on_data_loss",
    "task_timeout_ms",
    "sink_options",
    "on_progress",
)


class Exporter:
    """The :class:`trikafka.Exporter` for one destination.

    The exporter keeps the destination locked, and one session of the sink open. One call at a time:
    each method raises :exc:`trio.BusyResourceError` while another call runs. After the block of
    :func:`open_exporter` each method raises :exc:`trio.ClosedResourceError`, because the
    destination is no longer locked.
    """

    def __init__(self, sink: Sink, options: ExportOptions, gathering: Gathering) -> None:
        self._sink = sink
        self._options = options
        self._gathering = gathering
        self._source = ExportSource(options.settings)
        self._log = ExportLog()
        self._busy = False
        self._closed = False

    async def run(self) -> ExportResult:
        """Export the new records.

        Returns:
            The report of what was done.

        Raises:
            TrikafkaError: As :func:`export`.

        When cancelled, an unfinished plan remains, and the next run finishes it.
        """
        with self._alone() as job:
            result = await job.export_new()
        self._log.succeeded()
        return result

    async def abandon(self) -> ExportResult:
        """Discard the plan that an earlier run left unfinished; nothing is read.

        The finished files of the plan are published. The rest is left to the next plan, so no
        record is lost.

        Returns:
            The report of what was published.

        Raises:
            ExportError: The destination cannot be written, or its files are damaged.

        When cancelled, the plan may or may not have been published; the next call finds out.
        """
        with self._alone() as job:
            return await job.abandon()

    @contextmanager
    def _alone(self) -> Iterator[ExportJob]:
        """Yield the job of one call; refuse other calls meanwhile."""
        if self._closed:
            raise trio.ClosedResourceError(
                "the exporter's block was left, and its destination is not locked any more"
            )
        if self._busy:
            raise trio.BusyResourceError(
                "another task exports with this exporter: one call at a time"
            )
        self._busy = True
        try:
            with self._log.used():
                yield ExportJob(self._options, self._sink, self._source, self._gathering)
        finally:
            self._busy = False

    def mark_closed(self) -> None:
        """Refuse further calls: the block of the exporter was left."""
        self._closed = True


@asynccontextmanager
async def open_exporter(
    topics: str | Iterable[str],
    destination: str | os.PathLike[str],
    *,
    start: str | int | Mapping[TopicPartition, int],
    max_records_per_file: int,
    min_records_per_file: int,
    min_bytes_per_file: int,
    max_file_delay_ms: int,
    group_id: str | None,
    fail_on_data_loss: bool,
    task_timeout_ms: int,
    sink_options: Mapping[str, Any] | None,
    on_progress: Callable[[ExportProgress], None] | None,
    **client_settings: Any,
) -> AsyncIterator[Exporter]:
    """Open an exporter: the work of :func:`trikafka.open_exporter`, which has the arguments."""
    sink_options = hidden_options(sink_options)
    names = _names(topics)
    where = path_of(destination)
    _check_whole("max_records_per_file", max_records_per_file, 1)
    _check_whole("min_records_per_file", min_records_per_file, 1)
    _check_whole("min_bytes_per_file", min_bytes_per_file, 1)
    _check_whole("max_file_delay_ms", max_file_delay_ms, 0)
    if min_records_per_file > max_records_per_file:
        raise ConfigurationError(
            f"min_records_per_file ({min_records_per_file}) must not be above "
            f"max_records_per_file ({max_records_per_file})"
        )
    _check_whole("task_timeout_ms", task_timeout_ms, 0)
    _check_start(start)
    if not isinstance(fail_on_data_loss, bool):
        raise ConfigurationError(
            f"fail_on_data_loss must be True or False, not {shown(fail_on_data_loss)}"
        )
    if on_progress is not None and (
        not callable(on_progress) or inspect.iscoroutinefunction(on_progress)
    ):
        given = "an async one" if callable(on_progress) else shown(on_progress)
        raise ConfigurationError(
            "on_progress must be a plain function (def), called with an ExportProgress, not "
            f"{given}"
        )
    _check_settings(client_settings, where)
    # The settings are passed to a sink, which may log them, or send them to other machines.
    client_settings = ConsumerConfig.hidden(client_settings)
    config = ConsumerConfig.build(
        {**client_settings, "group_id": group_id}, given_to="export()", beside=_KEYWORDS
    )
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
        gathering = Gathering(
            min_records_per_file, max_records_per_file, max_file_delay_ms / 1000, min_bytes_per_file
        )
        exporter = Exporter(sink, options, gathering)
        try:
            yield exporter
        finally:
            exporter.mark_closed()


async def check_export(
    destination: str | os.PathLike[str],
    *,
    topics: str | Iterable[str],
    sink_options: Mapping[str, Any] | None,
    plugins: Iterable[object],
    deep: bool,
) -> ExportCheck:
    """Check a destination: the work of :func:`trikafka.check_export`, which has the arguments."""
    where = path_of(destination)
    options = hidden_options(sink_options)
    all_topics = isinstance(topics, Collection) and not isinstance(topics, str) and not topics
    wanted = [] if all_topics else _names(topics)
    if "format" not in options:
        # The program's own threads may have used up Trio's default limiter.
        format = await trio.to_thread.run_sync(_format_in, where, limiter=trio.CapacityLimiter(1))
        if format is not None:
            options["format"] = format
    sink: Sink = find_sink(where, options, plugins)
    if not isinstance(sink, CheckableSink):
        raise PluginError(f"the sink for {where!r} cannot check a destination")
    if deep and not isinstance(sink, DeepCheckableSink):
        raise PluginError(f"the sink for {where!r} cannot compare bytes: leave out deep")
    async with sink:
        state = await sink.load()
        if not state.last_number:
            if not state.visited:
                raise ExportError(f"{where} holds no export: there is no plan in it")
            return ExportCheck(0, 0, 0, ())
        held = plans.topics_of(state)
        if absent := [topic for topic in wanted if topic not in held]:
            raise ExportError(
                f"{where} holds no export of {', '.join(absent)}: it is one of {plans.listed(held)}"
            )
        unfinished = None if state.unfinished is None else state.unfinished.number
        found = await (
            sink.check_deep() if deep and isinstance(sink, DeepCheckableSink) else sink.check()
        )
        return replace(found, unfinished=unfinished, topics=held)


def _format_in(destination: str) -> str | None:
    """Return the format that a directory's plans name, if it has plans. Blocks."""
    try:
        return DirectoryStore(DirectoryStore.directory_of(destination)).format_name()
    except (ConfigurationError, ExportError):
        return None  # The sink reports what is wrong with the destination.


def _names(topics: object) -> list[str]:
    """Return the names of topics without repetitions; raise if there is no name."""
    found = (
        [topics]
        if isinstance(topics, str)
        else list(topics)
        if isinstance(topics, Iterable)
        else []
    )
    if not found:
        raise ConfigurationError(
            f"export needs the names of one or more topics, not {shown(topics)}"
        )
    if wrong := [name for name in found if not isinstance(name, str) or not name]:
        raise ConfigurationError(
            f"export needs the names of one or more topics, and one of them is {shown(wrong[0])}"
        )
    if path := next((name for name in found if "/" in name), None):
        raise ConfigurationError(
            f"{path!r} cannot be a topic's name: the topics come first, the destination last"
        )
    return [check_topic_name(name) for name in dict.fromkeys(found)]


def _check_settings(given: Mapping[str, Any], destination: str) -> None:
    """Raise for a setting that an export decides, or that is an option of the sink."""
    for name in given:
        if name in _OURS:
            raise ConfigurationError(f"{name} is not a setting of an export")
    if strange := [name for name in given if name not in settings_of(ConsumerConfig)]:
        manager = load_plugins(given.get("plugins") or ())
        found = answers(manager, "trikafka_sink_options", Collection, scheme=scheme_of(destination))
        options = {option for _, names in found for option in names}
        for name in strange:
            if name in options:
                raise ConfigurationError(
                    f"{name} is an option of the sink: give sink_options={{{name!r}: ...}}"
                )


def _check_whole(name: str, value: object, least: int) -> None:
    if not is_whole(value, least):
        raise ConfigurationError(
            f"{name} must be a whole number of at least {least}, not {value!r}"
        )


def _check_start(start: str | int | Mapping[TopicPartition, int]) -> None:
    if start is None or (isinstance(start, str) and start != "earliest"):
        raise ConfigurationError(
            "start must be 'earliest', a time in milliseconds or a mapping of offsets, not "
            f"{start!r}"
        )
    for place in start if isinstance(start, Mapping) else ():
        if not (isinstance(place, tuple) and tuple(map(type, place)) == (str, int)):
            raise ConfigurationError(
                f"start must map each TopicPartition to an offset, and one key is {place!r:.100}"
            )
    for offset in (
        start.values() if isinstance(start, Mapping) else () if isinstance(start, str) else (start,)
    ):
        if not is_whole(offset, most=2**63 - 1):
            raise ConfigurationError(
                f"start must be a whole number from 0 to 2^63 - 1, not {offset!r}"
            )
