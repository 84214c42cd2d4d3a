"""The way of one export: look, plan, have the sink write, publish, commit. Knows neither Spark nor files.

What it holds together: the plan is stored before the work and the manifest is published after it, so that a run killed
anywhere is finished by the next one, with the same ranges into the same files. The group's offsets are committed last and
only show how far the export is; the destination itself is what the next export goes on from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from ..config import ConsumerConfig
from ..errors import ConfigurationError, ExportError, PluginError, TrikafkaError
from ..hooks import call_first, load_plugins
from ..interfaces import ExportManifest, ExportPlan, ExportStage, ExportState, Sink, WrittenFile
from ..types import OffsetAndMetadata, TopicPartition
from . import export_plan
from .consumer import Consumer
from .export_plan import SourceView
from .opening import open_consumer

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
_NO_TOPIC_ID = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class ExportProgress:
    """How far an export is. ``rows_total`` is an upper bound: compacted topics have fewer rows than offsets."""

    stage: ExportStage
    plan: ExportPlan
    files_done: int
    files_total: int
    rows_done: int
    rows_total: int


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What an export did.

    ``plans`` are the ids of the plans it published: that of a killed run, which it finished (``resumed``), and its own.
    ``positions`` are the offsets that the next export goes on from; ``committed`` those that it committed to the group.
    """

    destination: str
    plans: tuple[str, ...]
    resumed: bool
    files: tuple[WrittenFile, ...]
    positions: Mapping[TopicPartition, int]
    committed: Mapping[TopicPartition, int]

    @property
    def already_done(self) -> bool:
        """Whether there was nothing new, so that nothing was written."""
        return not self.plans

    @property
    def rows(self) -> int:
        """The rows that were written."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """The bytes that were written."""
        return sum(file.bytes for file in self.files)


async def export(
    topics: str | Iterable[str],
    destination: str | os.PathLike[str],
    *,
    start: str | int | Mapping[TopicPartition, int] = "earliest",
    max_records_per_file: int = 1_000_000,
    group_id: str | None = None,
    fail_on_data_loss: bool = True,
    sink_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[ExportProgress], None] | None = None,
    **client_settings: Any,
) -> ExportResult:
    """Write all records of ``topics`` that ``destination`` does not hold yet, each exactly once.

    The first export begins at ``start`` (``"earliest"``, a time in ms since the epoch, or an offset for each partition);
    later ones go on where the last one ended. An export that was killed is finished first. With a ``group_id``, the
    group's offsets are committed after the manifest, so that its lag tells what is not exported yet. ``on_progress`` is
    called in this task and must be quick. ``client_settings`` are those of :func:`open_consumer`.

    Raises :exc:`ExportError` when the destination cannot be written or belongs to something else, when another export is
    at work there, when records are gone from the log, and when the work failed; :exc:`PluginError` when no plugin can
    write there. Cancelling leaves an unfinished plan, which the next export finishes.
    """
    names = [topics] if isinstance(topics, str) else list(dict.fromkeys(topics))
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError("export needs the names of one or more topics")
    if isinstance(max_records_per_file, bool) or not isinstance(max_records_per_file, int) or max_records_per_file < 1:
        raise ConfigurationError(f"max_records_per_file must be a whole number of at least 1, not {max_records_per_file!r}")
    _check_start(start)
    for name in client_settings:
        if name in _OURS:
            raise ConfigurationError(f"{name} is not a setting of an export")
    client_settings = ConsumerConfig.hidden(client_settings)  # they go to a sink, and from there perhaps to other machines
    config = ConsumerConfig.build({**client_settings, "group_id": group_id})
    where = os.fspath(destination)
    sink = find_sink(where, sink_options or {}, config.plugins)
    async with sink:
        job = _Job(sink, where, names, start, max_records_per_file, group_id, fail_on_data_loss, client_settings, on_progress)
        return await job.run()


def find_sink(destination: str, options: Mapping[str, Any], plugins: Iterable[object] = ()) -> Sink:
    """Return the sink that a plugin offers for ``destination``. Raises :exc:`PluginError` when none does."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", destination)
    scheme = match[1].lower() if match else "file"
    try:
        sink = call_first(
            load_plugins(plugins), "trikafka_sink", Sink, scheme=scheme, options={**options, "destination": destination}
        )
    except PluginError as error:
        if isinstance(error.__cause__, ConfigurationError):  # a wrong sink option is not the plugin's fault
            raise error.__cause__ from None
        raise
    if sink is None:
        also = "; install trikafka-spark, which writes Parquet files" if scheme == "file" else ""
        raise PluginError(f"no plugin writes exports to {scheme!r} destinations{also}")
    found: Sink = sink
    return found


def _check_start(start: str | int | Mapping[TopicPartition, int]) -> None:
    if isinstance(start, str) and start != "earliest":
        raise ConfigurationError(f"start must be 'earliest', a time in milliseconds or a mapping of offsets, not {start!r}")
    if isinstance(start, int) and start < 0:
        raise ConfigurationError(f"start must not be negative, as {start} is")


@dataclass
class _Job:
    """One call of :func:`export`, the sink being open."""

    sink: Sink
    destination: str
    topics: list[str]
    start: str | int | Mapping[TopicPartition, int]
    max_records_per_file: int
    group_id: str | None
    fail_on_data_loss: bool
    settings: Mapping[str, Any]
    on_progress: Callable[[ExportProgress], None] | None
    published: list[ExportManifest] = field(default_factory=list)

    async def run(self) -> ExportResult:
        state = await self.sink.load()
        resumed = state.unfinished
        if resumed is not None:
            before = ExportState(resumed.number, resumed.cluster_id, resumed.topic_ids, resumed.positions)
            view = await self._look(dict.fromkeys(file.topic for file in resumed.files))
            export_plan.check_identity(before, view, self.destination)
            await self._carry_out(resumed, "resumed")
            state = before
        view = await self._look(self.topics)
        export_plan.check_identity(state, view, self.destination)
        starts = export_plan.starting_offsets(
            state, view, await self._first_offsets(state, view), fail_on_data_loss=self.fail_on_data_loss
        )
        level = self.settings.get("isolation_level", "read_uncommitted")
        plan = export_plan.new_plan(state, view, starts, max_records_per_file=self.max_records_per_file, isolation_level=level)
        if plan is not None:
            await self.sink.store_plan(plan)
            await self._carry_out(plan, "planned")
        last = plan or resumed
        positions = plan.positions if plan is not None else state.positions
        committed = await self._commit(positions, last)
        return ExportResult(
            destination=self.destination,
            plans=tuple(manifest.plan.plan_id for manifest in self.published),
            resumed=resumed is not None,
            files=tuple(file for manifest in self.published for file in manifest.files),
            positions=positions,
            committed=committed,
        )

    async def _carry_out(self, plan: ExportPlan, stage: ExportStage) -> None:
        """Have the sink write what is planned, and publish it."""

        def report(stage: ExportStage, files_done: int, rows_done: int) -> None:
            self._tell(stage, plan, files_done, rows_done)

        report(stage, 0, 0)
        settings = {
            **self.settings,
            "isolation_level": plan.isolation_level,
            "fail_on_data_loss": self.fail_on_data_loss,
        }
        written = await self.sink.write(plan, settings, report)
        manifest = export_plan.complete(plan, written)
        report("written", len(plan.files), manifest.rows)
        await self.sink.publish(manifest)
        self.published.append(manifest)
        report("published", len(plan.files), manifest.rows)

    def _tell(self, stage: ExportStage, plan: ExportPlan, files_done: int, rows_done: int) -> None:
        if self.on_progress is not None:
            rows_total = sum(file.end - file.start for file in plan.files)
            self.on_progress(ExportProgress(stage, plan, files_done, len(plan.files), rows_done, rows_total))

    # --- what is asked of Kafka ---

    def _client(self, group_id: str | None) -> AbstractAsyncContextManager[Consumer]:
        return open_consumer(**self.settings, group_id=group_id, enable_auto_commit=False, auto_offset_reset="none")

    async def _look(self, topics: Iterable[str]) -> SourceView:
        async with self._client(None) as consumer:
            tps: list[TopicPartition] = []
            for topic in topics:
                partitions = await consumer.partitions_for(topic)
                if not partitions:
                    raise ExportError(f"topic {topic!r} does not exist")
                tps.extend(TopicPartition(topic, info.partition) for info in partitions)
            beginnings = await consumer.beginning_offsets(tps)
            ends = await consumer.end_offsets(tps)
            cluster_id, topic_ids = _identity(consumer, {tp.topic for tp in tps})
            return SourceView(cluster_id, topic_ids, beginnings, ends)

    async def _first_offsets(self, state: ExportState, view: SourceView) -> Mapping[TopicPartition, int]:
        """Where ``start`` says that partitions begin which were not exported yet; the others begin at their beginning."""
        if isinstance(self.start, str):
            return {}
        new = [tp for tp in view.beginnings if tp not in state.positions]
        if isinstance(self.start, Mapping):
            unknown = [str(tp) for tp in self.start if tp not in view.beginnings]
            if unknown:
                raise ExportError(f"start names partitions that do not exist or are not exported: {', '.join(unknown)}")
            return {tp: self.start[tp] for tp in new if tp in self.start}
        if not new:
            return {}
        async with self._client(None) as consumer:
            found = await consumer.offsets_for_times(dict.fromkeys(new, self.start))
        return {tp: min(at.offset, view.ends[tp]) if (at := found.get(tp)) is not None else view.ends[tp] for tp in new}

    async def _commit(self, positions: Mapping[TopicPartition, int], plan: ExportPlan | None) -> Mapping[TopicPartition, int]:
        """Bring the group's offsets up to what is published, also where a killed run could not."""
        exported = {*self.topics, *(file.topic for file in plan.files)} if plan is not None else {*self.topics}
        ours = {tp: offset for tp, offset in positions.items() if tp.topic in exported}
        if self.group_id is None or not ours:
            return {}
        try:
            async with self._client(self.group_id) as consumer:
                known = await consumer.committed(list(ours))
                behind = {tp: at for tp, at in ours.items() if (now := known.get(tp)) is None or now.offset < at}
                if behind:
                    await consumer.commit({tp: OffsetAndMetadata(at) for tp, at in behind.items()})
        except TrikafkaError as error:
            raise ExportError(
                f"the data is published, but the offsets of group {self.group_id!r} could not be committed "
                f"(the next export will try again): {error}"
            ) from error
        if behind and plan is not None:
            self._tell("committed", plan, len(plan.files), sum(manifest.rows for manifest in self.published))
        return behind


def _identity(consumer: Consumer, topics: Iterable[str]) -> tuple[str | None, dict[str, str | None]]:
    snapshot = consumer._parts.metadata.snapshot
    ids = {topic: getattr(snapshot.topics.get(topic), "topic_id", None) for topic in topics}
    return snapshot.cluster_id, {topic: None if known == _NO_TOPIC_ID else known for topic, known in ids.items()}
