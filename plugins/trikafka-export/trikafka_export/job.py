"""The steps of one export: look, plan, let the sink write, publish, commit.

The module knows neither runners nor files.
"""
# The order of an export, and what a kill leaves
# ---------------------------------------------
#
# A run may be killed at any step, and each record must still be written exactly once. So an export
# is a fixed order of steps. Each step is durable before the next one begins, and each can be seen
# afterwards by another process.
#
# 1. Plan stored. It fixes which offsets go into which files, with the format and the topic ids.
# 2. Files written aside. A task stages the files of a piece where no reader looks, and syncs them.
# 3. Files published. A record that replaces no other record decides the piece; then the files get
#    their names. A file is whole when it appears.
# 4. Work closed. From now on each process that looks finds the same files, and no late worker can
#    add one.
# 5. Table committed: one commit that has the files and the plan's number. Only for tables.
# 6. Manifest published, at once. A file counts only if a manifest lists it.
# 7. Group offsets committed in Kafka.
#
# Killed after   the destination has               the next run
# ------------   -------------------------------   -------------------------------------------------
# nothing        what it had                       makes a plan
# 1              a plan without a manifest         writes exactly its ranges, into the same names
# 2              staged files that no reader sees  writes the pieces again; 6 removes their folder
# 3              some whole files of the plan      publishes the other decided pieces, and goes on
# 4              closed work                       a table: commits these files, carries the rest; a
#                                                  folder: opens the work again, writes the rest
# 5              rows in the table, no manifest    finds the plan in the table's log, goes on with 6
# 6              a finished export, old lag        commits the group's offsets
# 7              a finished export                 makes the next plan
#
# Why the plan comes first: a new plan for the same records would name other files beside those of
# the killed run, and readers would see the records twice.
#
# Why the table is committed before the manifest, and with the number in the same commit: a manifest
# says that its files count. Were it first, a kill would leave files that count and are in no table.
# The number makes a second commit of the plan impossible for every process (``lake/sink.py``).
#
# Why the offsets come last, and nothing reads them back: the manifests decide where an export goes
# on. The offsets only show the lag in other tools, and committed too early they would hide it.
#
# Steps 1, 5, 6 and 7 are this module's, by its sink. Steps 2 and 3 are a task's (``task.py``,
# ``directory_pieces.py``, ``object_pieces.py``); 4 is the store's ``settle``. What is synced when
# is in ``durable_files.py``.
#
# Each range has its own result. What one partition could not deliver is *carried* by the manifest
# into the next plan, and the other partitions are published. So one leaderless partition delays no
# other. Partitions that time out are retried in rounds, until ``task_timeout_ms`` has passed since
# the first timeout of each without progress (KIP-572).

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from trikafka import (
    BootstrapError,
    ConfigurationError,
    ExportError,
    ExportIncompleteError,
    ExportProgress,
    ExportResult,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
    OffsetRange,
    TopicPartition,
    TrikafkaError,
)
from trikafka.errors import topic_missing
from trikafka.errors.groups import every, members, outlined, unwrapped
from trikafka.interfaces import (
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
from trikafka.tasks.plan import TimeoutBudget, warn_skipped
from trikafka.tasks.timer import TaskTimer, timeout_in
from trikafka.toolkit import Retry

from . import plan as plans
from .gathering import Gathering
from .plan import ExportWork, SourceView
from .source import ExportSource, Look, Start

_log = logging.getLogger("trikafka.export")
#: The time of a leader in the first round (seconds), so that the others' partitions do not wait for
#: it.
_FIRST_LOOK = 5.0


@dataclass(frozen=True)
class ExportOptions:
    """The checked arguments of :func:`trikafka.export`."""

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
    """The topic of a planned range has been deleted."""


def _may_pass(error: Exception) -> bool:
    """Return whether every member of the error is a timeout, or an unreachable cluster."""
    return all(
        timeout_in(each) is not None or isinstance(each, BootstrapError) for each in members(error)
    )


@dataclass
class ExportJob:
    """A run of an export; the sink is open."""

    options: ExportOptions
    sink: Sink
    source: ExportSource
    gathering: Gathering = field(default_factory=Gathering)
    state: ExportState = field(default_factory=ExportState)
    published: list[ExportManifest] = field(default_factory=list)
    _broken: dict[TopicPartition, Exception] = field(default_factory=dict)
    _waiting: dict[TopicPartition, KafkaTimeoutError] = field(default_factory=dict)
    _only: frozenset[TopicPartition] | None = None
    _level: str = plans.DEFAULT_ISOLATION
    _began: float = 0.0

    async def export_new(self) -> ExportResult:
        """Export what is new.

        Raises :exc:`ExportIncompleteError` when some partitions could not be exported.
        """
        started = plans.now()
        begun = trio.current_time()
        self._began = begun
        resumed = await self._load()
        if (plan := self.state.unfinished) is not None:
            if self.state.settled:
                # What is not written yet is carried into the next plan.
                await self._publish(plan, await self.sink.settle(plan, plan.ranges))
            else:
                await self._carry_out(plan, "resumed")
        await self._rounds()
        if not (self.state.last_number or self.state.visited or self._broken) and isinstance(
            self.sink, VisitedSink
        ):
            await self.sink.note_visit()
        result = await self._result(started, begun, resumed)
        if self._broken:
            raise self._incomplete(result) from next(iter(self._broken.values()))
        return result

    async def abandon(self) -> ExportResult:
        """Publish the finished part of the unfinished plan, and leave the rest to the next plan.

        Reads nothing.
        """
        started = plans.now()
        begun = trio.current_time()
        resumed = await self._load()
        if (plan := self.state.unfinished) is not None:
            sink = self.sink
            settled = await (
                sink.give_up(plan)
                if isinstance(sink, AbandoningSink)
                else sink.settle(plan, plan.ranges)
            )
            await self._publish(plan, settled)
        return await self._result(started, begun, resumed)

    async def _load(self) -> bool:
        self.state = await self.sink.load()
        asked = self.options.settings.get("isolation_level")
        self._level = plans.isolation_of(self.state, asked, self.options.destination)
        if self.state.last_number:
            # This refuses settings that contradict the destination's format.
            await self.sink.pin(self.state, (), self._settings())
        return self.state.unfinished is not None

    def _settings(self) -> dict[str, Any]:
        return {
            **self.options.settings,
            "isolation_level": self._level,
            "fail_on_data_loss": self.options.fail_on_data_loss,
        }

    # --- rounds ---

    async def _rounds(self) -> None:
        """Export all partitions in the first round, later those that timed out."""
        budgets: dict[TopicPartition, TimeoutBudget] = {}
        while True:
            before = self._reached()
            self._waiting = {}
            await self._round()
            for tp, reached in self._reached().items():
                if reached > before.get(tp, -1):
                    self.source.skipped.forget(tp)
                    if tp in budgets:
                        budgets[tp].succeeded()
            delays = {}
            for tp, error in self._waiting.items():
                budgets[tp] = tried = budgets.get(tp) or self._budget(tp)
                try:
                    delays[tp] = tried.failed(error)
                except KafkaTimeoutError as last:
                    self._broken[tp] = last
            if not delays:
                return
            self._only = frozenset(delays)
            await trio.sleep(min(delays.values()))

    def _budget(self, tp: TopicPartition) -> TimeoutBudget:
        """Return the attempts at a partition.

        The log has its suspension once, then every five minutes, until it makes progress.
        """

        def warn(who: str, delay: float, error: Exception) -> None:
            if self.source.skipped.is_due(tp):
                warn_skipped(who, delay, error)

        return TimeoutBudget(
            f"exporting {tp}", [TaskTimer(self.options.task_timeout_ms)], self.options.retry(), warn
        )

    def _reached(self) -> dict[TopicPartition, int]:
        return plans.exported_up_to(self.state)

    async def _round(self) -> None:
        try:
            view, work, is_wanted = await self._look()
        except (BootstrapError, KafkaTimeoutError) as error:
            self._wait_for_all(error)
            return
        if is_wanted:
            await self._plan(view, work)

    async def _look(self) -> tuple[SourceView, ExportWork, bool]:
        """Ask the cluster what there is to do; return whether this round needs a plan."""
        quick = self._only is None and self.options.task_timeout_ms > 0
        look = await self.source.look(
            self.options.topics, self._level, self._only, _FIRST_LOOK if quick else None
        )
        self._waiting.update(look.errors)
        view = self._known(look)
        first = await self._first_offsets(view, look)
        work = plans.work_of(
            self.state, view, first, fail_on_data_loss=self.options.fail_on_data_loss
        )
        self._broken.update(work.errors)
        if self._only is None:
            self.gathering.forget_others(work.starts)
        view = replace(
            view,
            ends={**view.ends, **self.gathering.ends(work.starts, view.ends, trio.current_time())},
        )
        fresh = any(work.starts[tp] < view.ends[tp] for tp in work.starts)
        begun = plans.begun_at(self.state, view, self.options.start)
        return view, work, bool(await self._carried() or fresh or work.lost or begun)

    def _wait_for_all(self, error: BootstrapError | KafkaTimeoutError) -> None:
        """Count a round in which no broker answered as a timeout of every partition.

        Raises ``error`` if no broker has answered since the start.
        """
        topics = self.options.topics
        tps = self._only or {
            tp
            for manifest in self.published
            for tp in manifest.plan.positions
            if tp.topic in topics
        }
        if not tps:
            raise error
        self._waiting.update({tp: self._patient(tp, error) for tp in tps if tp not in self._broken})

    def _known(self, look: Look) -> SourceView:
        """Return the view without topics that are missing or were recreated; those are broken."""
        view, destination = look.view, self.options.destination
        plans.check_cluster(self.state, view.cluster_id, destination)
        for topic in look.missing:
            if topic not in self.state.topic_ids:
                raise ExportError(topic_missing(topic, look.known, make=False))
            if self.options.fail_on_data_loss:
                self._mark_broken(
                    topic,
                    ExportError(
                        f"topic {topic!r} does not exist any more: leave it out, or "
                        f"{plans.LOSS_OPTION} goes on without it"
                    ),
                )
            elif self.source.is_news(topic):
                _log.warning("topic %r does not exist: it is not exported", topic)
        wrong = set()
        for topic, topic_id in view.topic_ids.items():
            try:
                plans.check_identity(
                    self.state, replace(view, topic_ids={topic: topic_id}), destination
                )
            except ExportError as error:
                wrong.add(topic)
                self._mark_broken(topic, error)
        return replace(
            view,
            topic_ids={
                topic: known for topic, known in view.topic_ids.items() if topic not in wrong
            },
            beginnings={tp: at for tp, at in view.beginnings.items() if tp.topic not in wrong},
            ends={tp: at for tp, at in view.ends.items() if tp.topic not in wrong},
        )

    def _mark_broken(self, topic: str, error: Exception) -> None:
        for tp in [tp for tp in self.state.positions if tp.topic == topic] or [
            TopicPartition(topic, 0)
        ]:
            self._broken.setdefault(tp, error)

    async def _first_offsets(self, view: SourceView, look: Look) -> Mapping[TopicPartition, int]:
        start = self.options.start
        if isinstance(start, Mapping) and self._only is None:
            unknown = [
                str(tp) for tp in start if tp not in look.view.beginnings and tp not in look.errors
            ]
            if unknown:
                raise ExportError(
                    "start names partitions that do not exist or are not exported: "
                    f"{', '.join(unknown)}"
                )
        first = await self.source.first_offsets(start, self.state, view, self._level)
        if first.late:
            assert isinstance(start, int)
            raise ConfigurationError(
                f"start={start} ({plans.time_text(start)}) has not come yet, and no record of "
                f"{plans.listed(first.late)} is as late: the export would begin at the end, with "
                "records before that time (milliseconds since the epoch have 13 digits)"
            )
        return first.offsets

    def _to_try(self, tp: TopicPartition) -> bool:
        return tp not in self._broken and (self._only is None or tp in self._only)

    async def _carried(self) -> list[OffsetRange]:
        """Return what earlier plans left, and what can be read, or declared lost, now."""
        left = [
            each
            for each in self.state.carried
            if self._to_try(TopicPartition(each.topic, each.partition))
        ]
        gone = await self._gone(self.state.topic_ids, {each.topic for each in left})
        for each in left:
            if each.topic in gone and self.options.fail_on_data_loss:
                self._broken.setdefault(
                    TopicPartition(each.topic, each.partition), _GoneError(gone[each.topic])
                )
        return [
            each for each in left if each.topic not in gone or not self.options.fail_on_data_loss
        ]

    async def _plan(self, view: SourceView, work: ExportWork) -> None:
        fresh = [
            OffsetRange(*tp, at, view.ends[tp])
            for tp, at in work.starts.items()
            if at < view.ends[tp]
        ]
        wanted = [*work.carried, *fresh]
        try:
            format = await self.sink.pin(self.state, wanted, self._settings())
        except plans.NoColumnsError as error:
            if not self._waiting and self.source.skipped.is_due(str(error)):
                _log.warning(
                    "%s: %s, so the next export begins at its own start time",
                    self.options.destination,
                    error,
                )
            return
        except (TrikafkaError, ExceptionGroup) as error:
            late = timeout_in(error)
            if late is not None and wanted:
                # From a broker, or from anything else that the sink asks: nothing is planned until
                # it responds.
                self._waiting.update(
                    {TopicPartition(each.topic, each.partition): late for each in wanted}
                )
                return
            wrong = any(
                isinstance(each, ConfigurationError) or not isinstance(each, TrikafkaError)
                for each in members(error)
            )
            if late is not None or self._only is None or wrong:
                raise
            # These partitions are broken; the others are published.
            self._broken.update(
                {TopicPartition(each.topic, each.partition): error for each in wanted}
            )
            return
        plan = plans.new_plan(
            self.state,
            view,
            work,
            max_records_per_file=self.options.max_records_per_file,
            isolation_level=self._level,
            format=format,
            start=self.options.start,
        )
        if plan is not None:
            self._log_new_topic(plan)
            self._log_quiet_start(plan)
            await self.sink.store_plan(plan)
            await self._carry_out(plan, "planned")

    def _log_quiet_start(self, plan: ExportPlan) -> None:
        """Log a start time that no record has reached: it is kept, and may be a slip."""
        begun = sorted({*plan.since}.difference(self.state.since))
        if begun and not plan.ranges and not self.gathering.left and not self._waiting:
            time = plans.time_text(plan.since[begun[0]])
            _log.warning(
                "%s: no record of %s is as young as the start, %s; later exports begin there, too "
                "(another destination may have another start)",
                self.options.destination,
                plans.listed(begun),
                time,
            )

    def _log_new_topic(self, plan: ExportPlan) -> None:
        """Log a new topic in a destination of others: on purpose, or a slip of the name."""
        before = plans.topics_of(self.state)
        new = sorted({*plan.topic_ids}.difference(before))
        if before and new:
            _log.warning(
                "%s holds an export of %s, and gets %s beside it: its readers see both (column "
                "topic)",
                self.options.destination,
                plans.listed(before),
                plans.listed(new),
            )

    # --- one plan ---

    async def _carry_out(self, plan: ExportPlan, stage: ExportStage) -> None:
        """Let the sink write the ranges that can be read, and publish the result."""
        self._began = trio.current_time()
        self._report_progress(stage, plan, 0, 0)
        errors: dict[PlannedRange, Exception] = {}
        try:
            gone = await self._gone(plan.topic_ids, {planned.topic for planned in plan.ranges})
        except (BootstrapError, KafkaTimeoutError) as error:
            if stage == "resumed":  # no broker has answered since the start
                raise
            gone, errors = {}, dict.fromkeys(plan.ranges, error)  # carried into the next plan
        ranges = []
        for planned in plans.turns(plan.ranges):
            if planned.topic in gone:
                errors[planned] = _GoneError(gone[planned.topic])
            elif planned.tp in self._broken:
                errors[planned] = self._broken[planned.tp]
            elif planned not in errors:
                ranges.append(planned)

        def report(stage: ExportStage, ranges_done: int, rows_done: int) -> None:
            self._report_progress(stage, plan, ranges_done, rows_done)

        if ranges:
            errors |= await self.sink.write(plan, ranges, self._settings(), report)
        settled = await self.sink.settle(plan, plan.ranges)
        await self._publish(
            plan, [self._judged(result, errors.get(result.planned)) for result in settled]
        )

    async def _gone(
        self, topic_ids: Mapping[str, str | None], topics: Iterable[str]
    ) -> dict[str, str]:
        """Return which of these topics are deleted or recreated, with a sentence for each."""
        topics = sorted(topics)
        if not topics:
            return {}
        cluster_id, now = await self.source.topic_ids(topics, self._level)
        plans.check_cluster(self.state, cluster_id, self.options.destination)
        gone = {topic: f"topic {topic!r} was deleted" for topic in topics if topic not in now}
        for topic, topic_id in now.items():
            if topic_id and (planned := topic_ids.get(topic)) and planned != topic_id:
                gone[topic] = f"topic {topic!r} was deleted and created again"
        advice = (
            f"; what was planned of it and is not exported yet is lost: {plans.LOSS_OPTION} "
            "notes that and goes on"
        )
        return {topic: text + advice for topic, text in gone.items()}

    def _judged(self, result: RangeResult, error: Exception | None) -> RangeResult:
        """Return the result with its error, or as lost where that is allowed."""
        if result.done:
            return result
        planned, at = result.planned, result.reached
        if (
            error is not None
            and every(error, (OffsetOutOfRangeError, _GoneError))
            and not self.options.fail_on_data_loss
        ):
            gap = LostRange(
                planned.topic,
                planned.partition,
                at,
                planned.end,
                outlined(error).partition("; what was")[0],
            )
            return replace(result, reached=planned.end, lost=(*result.lost, gap))
        return replace(
            result, error=error or ExportError(f"the sink left a part of {planned} undone")
        )

    async def _publish(self, plan: ExportPlan, results: Iterable[RangeResult]) -> None:
        manifest = plans.complete(plan, results)
        done = sum(result.done for result in manifest.results)
        self._report_progress("written", plan, done, manifest.rows)
        await self.sink.publish(manifest)
        self.published.append(manifest)
        self.state = plans.after(manifest)
        self._sort_rest(manifest)
        self.gathering.learn(manifest.results)
        self._report_progress("published", plan, done, manifest.rows)

    def _sort_rest(self, manifest: ExportManifest) -> None:
        """Sort the unfinished ranges of a manifest: those to be retried, and broken ones."""
        for lost in manifest.lost:
            _log.warning("%s is lost for ever: %s", lost, lost.reason)
        for result in manifest.results:
            if result.done:
                self._broken.pop(result.planned.tp, None)
        for result in manifest.results:
            if result.done or result.error is None:
                continue
            tp, error = result.planned.tp, result.error
            if _may_pass(error):
                self._waiting.setdefault(tp, self._patient(tp, error))
            else:
                self._broken.setdefault(tp, error)

    def _patient(self, tp: TopicPartition, error: Exception) -> KafkaTimeoutError:
        """Return the timeout to retry after.

        An unreachable cluster counts as a timeout once the export has begun.
        """
        if isinstance(error, KafkaTimeoutError):
            return error
        return KafkaTimeoutError(
            f"reading {tp}", trio.current_time() - self._began, last_error=unwrapped(error)
        )

    def _report_progress(
        self, stage: ExportStage, plan: ExportPlan, ranges_done: int, rows_done: int
    ) -> None:
        if self.options.on_progress is not None:
            total = sum(planned.end - planned.start for planned in plan.ranges)
            seconds = trio.current_time() - self._began if self._began else 0.0
            self.options.on_progress(
                ExportProgress(
                    stage, plan, ranges_done, len(plan.ranges), rows_done, total, seconds
                )
            )

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
            waiting=self.gathering.left,
        )

    async def _commit(self) -> Mapping[TopicPartition, int]:
        """Commit the group's offsets up to what is published, and what a killed run left."""
        exported = {
            *self.options.topics,
            *(file.topic for m in self.published for file in m.plan.ranges),
        }
        ours = {
            tp: offset
            for tp, offset in plans.exported_up_to(self.state).items()
            if tp.topic in exported
        }
        ours = {tp: offset for tp, offset in ours.items() if tp not in self._broken}
        if self.options.group_id is None or not ours:
            return {}
        behind = await self.source.commit(self.options.group_id, self._level, ours)
        if behind and self.published:
            plan = self.published[-1].plan
            self._report_progress(
                "committed",
                plan,
                len(plan.ranges),
                sum(manifest.rows for manifest in self.published),
            )
        return behind

    def _incomplete(self, result: ExportResult) -> ExportIncompleteError:
        tps = sorted(self._broken)
        shown = ", ".join(map(str, tps[:5])) + (f" and {len(tps) - 5} more" if len(tps) > 5 else "")
        done = f"; {result.rows:,} rows are published" if result.rows else ""
        return ExportIncompleteError(
            f"{shown} could not be exported: {outlined(self._broken[tps[0]])}{done}", result
        )
