"""The way of one export: look, plan, have the sink write, publish, commit. Knows neither Spark nor files.

What it holds together: the plan is stored before the work and the manifest is published after it, so that a run killed
anywhere is finished by the next one, with the same ranges into the same files. A range's result is its own: what one partition
could not give is *carried* by the manifest into the next plan, and the others are published. Partitions that time out are
tried again, in rounds, until ``task_timeout_ms`` has passed since the first time-out of each without progress (KIP-572, seed
004). The group's offsets are committed last and only show how far the export is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from .._net.retry import Retry
from .._state.task_timer import TaskTimer
from ..errors import (
    BootstrapError,
    ConfigurationError,
    ExportError,
    ExportIncompleteError,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
    TrikafkaError,
    topic_missing,
)
from ..interfaces import (
    AbandoningSink,
    ExportManifest,
    ExportPlan,
    ExportStage,
    ExportState,
    LostRange,
    PlannedRange,
    RangeResult,
    Sink,
    VisitedSink,
)
from ..types import OffsetRange, TopicPartition
from . import export_plan
from .export_plan import SourceView, Work
from .export_report import ExportProgress, ExportResult
from .export_source import ExportSource, Look, Start
from .task_plan import Trials

_log = logging.getLogger("trikafka.export")
#: A leader gets so long (seconds) in the first round, so that the partitions of the others do not wait for it.
_FIRST_LOOK = 5.0


@dataclass(frozen=True)
class ExportOptions:
    """What :func:`trikafka.export` was asked for, checked."""

    destination: str
    topics: tuple[str, ...]
    start: Start
    max_records_per_file: int
    group_id: str | None
    fail_on_data_loss: bool
    task_timeout_ms: int
    retry: Callable[[], Retry]
    settings: Mapping[str, Any]
    on_progress: Callable[[ExportProgress], None] | None


class _GoneError(ExportError):
    """The topic of a planned range is not there any more."""


@dataclass
class ExportJob:
    """One run of an export, the sink being open."""

    options: ExportOptions
    sink: Sink
    source: ExportSource
    state: ExportState = field(default_factory=ExportState)
    published: list[ExportManifest] = field(default_factory=list)
    _broken: dict[TopicPartition, Exception] = field(default_factory=dict)
    _waiting: dict[TopicPartition, KafkaTimeoutError] = field(default_factory=dict)
    _only: frozenset[TopicPartition] | None = None
    _level: str = export_plan.DEFAULT_ISOLATION
    _began: float = 0.0

    async def run(self) -> ExportResult:
        """Carry it out. Raises :exc:`ExportIncompleteError` when some partitions could not be exported."""
        started, begun = export_plan.now(), trio.current_time()
        self._began = begun
        resumed = await self._load()
        if (plan := self.state.unfinished) is not None:
            await (self._publish_settled(plan) if self.state.settled else self._carry_out(plan, "resumed"))
        await self._rounds()
        if not (self.state.last_number or self.state.visited or self._broken) and isinstance(self.sink, VisitedSink):
            await self.sink.note_visit()
        result = await self._result(started, begun, resumed)
        if self._broken:
            raise self._incomplete(result) from next(iter(self._broken.values()))
        return result

    async def abandon(self) -> ExportResult:
        """Give up the unfinished plan: publish what is done of it, and leave the rest to the next plan. Reads nothing."""
        started, begun = export_plan.now(), trio.current_time()
        resumed = await self._load()
        if (plan := self.state.unfinished) is not None:
            sink = self.sink
            settled = await (sink.give_up(plan) if isinstance(sink, AbandoningSink) else sink.settle(plan, plan.ranges))
            await self._publish(plan, settled)
        return await self._result(started, begun, resumed)

    async def _publish_settled(self, plan: ExportPlan) -> None:
        """Publish a plan as far as it has come; its rest is carried to the next one."""
        await self._publish(plan, await self.sink.settle(plan, plan.ranges))

    async def _load(self) -> bool:
        self.state = await self.sink.load()
        asked = self.options.settings.get("isolation_level")
        self._level = export_plan.isolation_of(self.state, asked, self.options.destination)
        if self.state.last_number:
            await self.sink.pin(self.state, (), self._settings())  # refuses what contradicts the destination's format
        return self.state.unfinished is not None

    def _settings(self) -> dict[str, Any]:
        return {**self.options.settings, "isolation_level": self._level, "fail_on_data_loss": self.options.fail_on_data_loss}

    # --- rounds ---

    async def _rounds(self) -> None:
        """All partitions in the first round; later those that have timed out, until their patience ends."""
        trials: dict[TopicPartition, Trials] = {}
        while True:
            before = self._reached()
            self._waiting = {}
            await self._round()
            for tp, reached in self._reached().items():
                if tp in trials and reached > before.get(tp, -1):
                    trials[tp].succeeded()
            delays = {}
            for tp, error in self._waiting.items():
                tried = trials.get(tp) or Trials(f"exporting {tp}", [TaskTimer(self.options.task_timeout_ms)], self.options.retry())
                trials[tp] = tried
                try:
                    delays[tp] = tried.failed(error)
                except KafkaTimeoutError as last:
                    self._broken[tp] = last
            if not delays:
                return
            self._only = frozenset(delays)
            await trio.sleep(min(delays.values()))

    def _reached(self) -> dict[TopicPartition, int]:
        return export_plan.exported_up_to(self.state)

    async def _round(self) -> None:
        try:
            view, work, is_wanted = await self._look()
        except (BootstrapError, KafkaTimeoutError) as error:
            self._wait_for_all(error)
            return
        if is_wanted:
            await self._plan(view, work)

    async def _look(self) -> tuple[SourceView, Work, bool]:
        """Ask the cluster what there is to do, and whether a plan is wanted for it in this round."""
        quick = self._only is None and self.options.task_timeout_ms > 0
        look = await self.source.look(self.options.topics, self._level, self._only, _FIRST_LOOK if quick else None)
        self._waiting.update(look.errors)
        view = self._known(look)
        first = await self._first_offsets(view, look)
        work = export_plan.work_of(self.state, view, first, fail_on_data_loss=self.options.fail_on_data_loss)
        self._broken.update(work.errors)
        fresh = any(work.starts[tp] < view.ends[tp] for tp in work.starts)
        return view, work, bool(await self._carried() or fresh or work.lost)

    def _wait_for_all(self, error: BootstrapError | KafkaTimeoutError) -> None:
        """Nobody could be asked in this round, which has planned nothing. Raises ``error`` if nobody was there to begin with."""
        topics = self.options.topics
        tps = self._only or {tp for manifest in self.published for tp in manifest.plan.positions if tp.topic in topics}
        if not tps:
            raise error
        self._waiting.update({tp: self._patient(tp, error) for tp in tps if tp not in self._broken})

    def _known(self, look: Look) -> SourceView:
        """The view without the topics that are not there, or are others than those that were exported; these are broken."""
        view, destination = look.view, self.options.destination
        export_plan.check_cluster(self.state, view.cluster_id, destination)
        for topic in look.missing:
            if topic not in self.state.topic_ids:
                raise ExportError(topic_missing(topic, self.options.topics))
            error = ExportError(f"topic {topic!r} does not exist")
            if self.options.fail_on_data_loss:
                self._give_up_topic(topic, error)
            elif self.source.is_news(topic):
                _log.warning("%s: it is not exported", error)
        wrong = set()
        for topic, topic_id in view.topic_ids.items():
            try:
                export_plan.check_identity(self.state, replace(view, topic_ids={topic: topic_id}), destination)
            except ExportError as error:
                wrong.add(topic)
                self._give_up_topic(topic, error)
        return replace(
            view,
            topic_ids={topic: known for topic, known in view.topic_ids.items() if topic not in wrong},
            beginnings={tp: at for tp, at in view.beginnings.items() if tp.topic not in wrong},
            ends={tp: at for tp, at in view.ends.items() if tp.topic not in wrong},
        )

    def _give_up_topic(self, topic: str, error: Exception) -> None:
        for tp in [tp for tp in self.state.positions if tp.topic == topic] or [TopicPartition(topic, 0)]:
            self._broken.setdefault(tp, error)

    async def _first_offsets(self, view: SourceView, look: Look) -> Mapping[TopicPartition, int]:
        start = self.options.start
        if isinstance(start, Mapping) and self._only is None:
            unknown = [str(tp) for tp in start if tp not in look.view.beginnings and tp not in look.errors]
            if unknown:
                raise ExportError(f"start names partitions that do not exist or are not exported: {', '.join(unknown)}")
        return await self.source.first_offsets(start, self.state, view, self._level)

    def _to_try(self, tp: TopicPartition) -> bool:
        return tp not in self._broken and (self._only is None or tp in self._only)

    async def _carried(self) -> list[OffsetRange]:
        """What earlier plans have left and can be read now, or given up now."""
        left = [each for each in self.state.carried if self._to_try(TopicPartition(each.topic, each.partition))]
        gone = await self._gone(self.state.topic_ids, {each.topic for each in left})
        for each in left:
            if each.topic in gone and self.options.fail_on_data_loss:
                self._broken.setdefault(TopicPartition(each.topic, each.partition), _GoneError(gone[each.topic]))
        return [each for each in left if each.topic not in gone or not self.options.fail_on_data_loss]

    async def _plan(self, view: SourceView, work: Work) -> None:
        fresh = [OffsetRange(*tp, at, view.ends[tp]) for tp, at in work.starts.items() if at < view.ends[tp]]
        wanted = [*work.carried, *fresh]
        try:
            format = await self.sink.pin(self.state, wanted, self._settings())
        except KafkaTimeoutError as error:  # of a broker, or of whatever else the sink asks: nothing is planned till it responds
            if not wanted:
                raise
            self._waiting.update({TopicPartition(each.topic, each.partition): error for each in wanted})
            return
        except TrikafkaError as error:
            if self._only is None or isinstance(error, ConfigurationError):
                raise
            self._broken.update({TopicPartition(each.topic, each.partition): error for each in wanted})  # others are published
            return
        plan = export_plan.new_plan(
            self.state,
            view,
            work,
            max_records_per_file=self.options.max_records_per_file,
            isolation_level=self._level,
            format=format,
        )
        if plan is not None:
            self._tell_beside(plan)
            await self.sink.store_plan(plan)
            await self._carry_out(plan, "planned")

    def _tell_beside(self, plan: ExportPlan) -> None:
        """A topic that comes into a destination of others may be meant to, or be a slip of the destination's name."""
        before = export_plan.topics_of(self.state)
        new = sorted({*plan.topic_ids}.difference(before))
        if before and new:
            _log.warning(
                "%s holds an export of %s, and gets %s beside it: who reads all of it gets both (column topic)",
                self.options.destination,
                export_plan.listed(before),
                export_plan.listed(new),
            )

    # --- one plan ---

    async def _carry_out(self, plan: ExportPlan, stage: ExportStage) -> None:
        """Have the sink write what is planned and can be read, and publish it."""
        self._began = trio.current_time()
        self._tell(stage, plan, 0, 0)
        errors: dict[PlannedRange, Exception] = {}
        try:
            gone = await self._gone(plan.topic_ids, {planned.topic for planned in plan.ranges})
        except (BootstrapError, KafkaTimeoutError) as error:
            if stage == "resumed":  # nobody was there to begin with
                raise
            gone, errors = {}, dict.fromkeys(plan.ranges, error)  # it is carried into the next plan
        ranges = []
        for planned in export_plan.turns(plan.ranges):
            if planned.topic in gone:
                errors[planned] = _GoneError(gone[planned.topic])
            elif planned.tp in self._broken:
                errors[planned] = self._broken[planned.tp]
            elif planned not in errors:
                ranges.append(planned)

        def report(stage: ExportStage, ranges_done: int, rows_done: int) -> None:
            self._tell(stage, plan, ranges_done, rows_done)

        if ranges:
            errors |= await self.sink.write(plan, ranges, self._settings(), report)
        settled = await self.sink.settle(plan, plan.ranges)
        await self._publish(plan, [self._judged(result, errors.get(result.planned)) for result in settled])

    async def _gone(self, topic_ids: Mapping[str, str | None], topics: Iterable[str]) -> dict[str, str]:
        """Which of these topics are not there any more, with a sentence for each."""
        topics = sorted(topics)
        if not topics:
            return {}
        cluster_id, now = await self.source.topic_ids(topics, self._level)
        export_plan.check_cluster(self.state, cluster_id, self.options.destination)
        gone = {topic: f"topic {topic!r} was deleted" for topic in topics if topic not in now}
        for topic, topic_id in now.items():
            if topic_id and (planned := topic_ids.get(topic)) and planned != topic_id:
                gone[topic] = f"topic {topic!r} was deleted and created anew"
        advice = "; what was planned of it and is not exported yet is lost: fail_on_data_loss=False notes that and goes on"
        return {topic: text + advice for topic, text in gone.items()}

    def _judged(self, result: RangeResult, error: Exception | None) -> RangeResult:
        """The result with its error; lost instead, where the log has lost it and that is allowed."""
        if result.done:
            return result
        planned, at = result.planned, result.reached
        if isinstance(error, OffsetOutOfRangeError | _GoneError) and not self.options.fail_on_data_loss:
            gap = LostRange(planned.topic, planned.partition, at, planned.end, str(error).partition("; what was")[0])
            return replace(result, reached=planned.end, lost=(*result.lost, gap))
        return replace(result, error=error or ExportError(f"the sink left a part of {planned} undone"))

    async def _publish(self, plan: ExportPlan, results: Iterable[RangeResult]) -> None:
        manifest = export_plan.complete(plan, results)
        done = sum(result.done for result in manifest.results)
        self._tell("written", plan, done, manifest.rows)
        await self.sink.publish(manifest)
        self.published.append(manifest)
        self.state = export_plan.after(manifest)
        self._note(manifest)
        self._tell("published", plan, done, manifest.rows)

    def _note(self, manifest: ExportManifest) -> None:
        """What is left, and why: to be tried again, or not."""
        for lost in manifest.lost:
            _log.warning("%s is lost for ever: %s", lost, lost.reason)
        for result in manifest.results:
            if result.done:
                self._broken.pop(result.planned.tp, None)
        for result in manifest.results:
            if result.done or result.error is None:
                continue
            tp, error = result.planned.tp, result.error
            if isinstance(error, BootstrapError | KafkaTimeoutError):
                self._waiting.setdefault(tp, self._patient(tp, error))
            else:
                self._broken.setdefault(tp, error)

    def _patient(self, tp: TopicPartition, error: BootstrapError | KafkaTimeoutError) -> KafkaTimeoutError:
        """What is tried again: no broker at all is a time-out too, once the export has begun, for they may come back."""
        if isinstance(error, KafkaTimeoutError):
            return error
        return KafkaTimeoutError(f"reading {tp}", trio.current_time() - self._began, last_error=error)

    def _tell(self, stage: ExportStage, plan: ExportPlan, ranges_done: int, rows_done: int) -> None:
        if self.options.on_progress is not None:
            total = sum(planned.end - planned.start for planned in plan.ranges)
            seconds = trio.current_time() - self._began if self._began else 0.0
            self.options.on_progress(ExportProgress(stage, plan, ranges_done, len(plan.ranges), rows_done, total, seconds))

    # --- the end ---

    async def _result(self, started: str, begun: float, resumed: bool) -> ExportResult:
        committed = await self._commit()
        format = self.state.format or {}
        return ExportResult(
            destination=self.options.destination,
            plans=tuple(manifest.plan.plan_id for manifest in self.published),
            resumed=resumed,
            files=tuple(file for manifest in self.published for file in manifest.files),
            positions=self.state.positions,
            committed=committed,
            carried=self.state.carried,
            lost=tuple(lost for manifest in self.published for lost in manifest.lost),
            dead_letters=sum(manifest.dead_letters for manifest in self.published),
            started=started,
            seconds=trio.current_time() - begun,
            format=format.get("name"),
            location=format.get("location"),
            exactly_once=format.get("exactly_once") is not False,
        )

    async def _commit(self) -> Mapping[TopicPartition, int]:
        """Bring the group's offsets up to what is published, also where a killed run could not."""
        exported = {*self.options.topics, *(file.topic for m in self.published for file in m.plan.ranges)}
        ours = {tp: offset for tp, offset in export_plan.exported_up_to(self.state).items() if tp.topic in exported}
        ours = {tp: offset for tp, offset in ours.items() if tp not in self._broken}
        if self.options.group_id is None or not ours:
            return {}
        behind = await self.source.commit(self.options.group_id, self._level, ours)
        if behind and self.published:
            plan = self.published[-1].plan
            self._tell("committed", plan, len(plan.ranges), sum(manifest.rows for manifest in self.published))
        return behind

    def _incomplete(self, result: ExportResult) -> ExportIncompleteError:
        tps = sorted(self._broken)
        shown = ", ".join(map(str, tps[:5])) + (f" and {len(tps) - 5} more" if len(tps) > 5 else "")
        done = f"; {result.rows:,} rows are published" if result.rows else ""
        return ExportIncompleteError(f"{shown} could not be exported: {self._broken[tps[0]]}{done}", result)
