"""Where an export writes (hook ``trikafka_sink``), and the values that it exchanges with trikafka. No I/O, no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol, Self, runtime_checkable

from ..types import OffsetRange, TopicPartition

#: What an export is doing, in this order. ``planned`` or ``resumed``: the plan is stored. ``starting``: the sink makes
#: ready. ``writing``: again and again. ``written``: all data files stand. ``published``: the manifest stands.
#: ``committed``: the group's offsets are in Kafka.
ExportStage = Literal["planned", "resumed", "starting", "writing", "written", "published", "committed"]


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """The records ``start <= offset < end`` of one partition, and the name of the first file that they go to."""

    topic: str
    partition: int
    start: int
    end: int
    name: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class LostRange:
    """Offsets that are gone for ever: they were not exported, and an export was told to go on without them."""

    topic: str
    partition: int
    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What one export does, stored before it begins and never changed.

    ``positions`` holds, for each partition ever exported to this destination, the offset after the plan's last one.
    ``topic_ids`` and ``cluster_id`` are ``None`` where the broker does not give them. ``format`` is the sink's own: what
    stays as it is for all files of a destination; reports tell its ``name``, and its ``exactly_once`` where that is false.
    ``lost`` was gone from the log already when the plan was made.
    """

    number: int
    plan_id: str
    created: str
    cluster_id: str | None
    topic_ids: Mapping[str, str | None]
    isolation_level: str
    ranges: tuple[PlannedRange, ...]
    positions: Mapping[TopicPartition, int]
    format: Mapping[str, Any] = field(default_factory=dict)
    lost: tuple[LostRange, ...] = ()


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file: its name below the destination, and the offsets ``start <= offset < end`` that it has the records of.

    Where the sink writes a table, which files it has later is the table format's affair: this is how the rows came into it.
    ``version`` is the version of the table (Delta) or the id of its snapshot (Iceberg) that they came with, if its history tells;
    ``bytes`` is 0 where the sink does not write the files itself.
    """

    planned: PlannedRange
    name: str
    start: int
    end: int
    rows: int
    bytes: int
    version: int | None = None


@dataclass(frozen=True, slots=True)
class RangeResult:
    """What became of a planned range.

    It is exported up to ``reached``; what follows is left for the next plan, because of ``error``. A range without
    records has no files. ``dead_letters`` counts the records that the sink could not read and has put aside.
    """

    planned: PlannedRange
    reached: int
    files: tuple[WrittenFile, ...] = ()
    lost: tuple[LostRange, ...] = ()
    dead_letters: int = 0
    error: Exception | None = field(default=None, compare=False)

    @property
    def done(self) -> bool:
        """Whether nothing of the range is left."""
        return self.reached >= self.planned.end

    @property
    def rows(self) -> int:
        """The rows of all files."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class ExportManifest:
    """An export that has ended: published last, and at once. Before it stands, nothing counts."""

    plan: ExportPlan
    results: tuple[RangeResult, ...]
    finished: str

    @property
    def files(self) -> tuple[WrittenFile, ...]:
        """All files."""
        return tuple(file for result in self.results for file in result.files)

    @property
    def rows(self) -> int:
        """The rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """The bytes of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def carried(self) -> tuple[OffsetRange, ...]:
        """What was planned and is not done: the next plan begins with it."""
        return tuple(
            OffsetRange(result.planned.topic, result.planned.partition, result.reached, result.planned.end)
            for result in self.results
            if not result.done
        )

    @property
    def lost(self) -> tuple[LostRange, ...]:
        """What was given up for ever."""
        return (*self.plan.lost, *(lost for result in self.results for lost in result.lost))

    @property
    def dead_letters(self) -> int:
        """The records that were put aside."""
        return sum(result.dead_letters for result in self.results)


@dataclass(frozen=True, slots=True)
class ExportState:
    """What a destination says of itself. ``unfinished`` is a stored plan without its manifest.

    ``settled``: the work of that plan is closed for good; it is published as it is, and its rest goes to the next plan.
    ``carried`` are ranges below ``positions`` that are not exported yet. ``isolation_level`` and ``format`` are those of
    the first export, which later ones keep; ``None`` before it. ``visited``: there is no plan, for exports have found no record.
    """

    last_number: int = 0
    cluster_id: str | None = None
    topic_ids: Mapping[str, str | None] = field(default_factory=dict)
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    unfinished: ExportPlan | None = None
    carried: tuple[OffsetRange, ...] = ()
    isolation_level: str | None = None
    format: Mapping[str, Any] | None = None
    settled: bool = False
    visited: bool = False


#: ``report(stage, ranges_done, rows_done)``: plain, quick, called in the task that called ``write``.
SinkReport = Callable[[ExportStage, int, int], None]


@runtime_checkable
class Sink(Protocol):
    """A place that an export writes to. Entered before anything else is done; left in every case.

    All methods raise :exc:`trikafka.ExportError`, with the cause chained, and may be cancelled at any checkpoint. None
    may block the Trio thread.
    """

    async def __aenter__(self) -> Self:
        """Check that the destination can be written and that what the sink needs is there; lock the destination.

        Raises :exc:`trikafka.ExportError` when another export is at work there.
        """

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove what a cancelled or failed write left aside, give back the lock. Published files stay."""

    async def load(self) -> ExportState:
        """Return what is there."""

    async def pin(
        self, state: ExportState, wanted: Sequence[OffsetRange], settings: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the ``format`` of a plan for ``wanted``: what JSON can say, kept with the plan. ``settings`` as in :meth:`write`.

        What the destination has already (``state.format``) stays; an option that contradicts it is refused.
        """

    async def store_plan(self, plan: ExportPlan) -> None:
        """Store the plan, atomically, unless one of its number is there already."""

    async def write(
        self, plan: ExportPlan, ranges: Sequence[PlannedRange], settings: Mapping[str, Any], report: SinkReport
    ) -> Mapping[PlannedRange, Exception]:
        """Write these ranges of the plan, each file visible to readers only when it is whole.

        What an earlier run has finished is kept. An error of Kafka's in one range does not stop the others: such errors are
        returned; any other is raised. ``settings`` are those of a consumer without a group; beside them stands
        ``fail_on_data_loss``: whether offsets that the broker has deleted are an error.
        """

    async def settle(self, plan: ExportPlan, ranges: Sequence[PlannedRange]) -> Sequence[RangeResult]:
        """Return how far these ranges have come, one result for each; nothing is read, and no late worker adds to them."""

    async def publish(self, manifest: ExportManifest) -> None:
        """Publish the manifest, atomically: after this, and not before, the export is done."""


@runtime_checkable
class AbandoningSink(Sink, Protocol):
    """A sink whose plans may come to need a way out: whose work is done, and cannot be published any more."""

    async def give_up(self, plan: ExportPlan) -> Sequence[RangeResult]:
        """As :meth:`settle` for all ranges of a plan that is abandoned; what cannot be published is left undone, for good."""


@dataclass(frozen=True, slots=True)
class ExportCheck:
    """What a destination really holds, beside what its manifests say. ``problems`` are sentences, one for each difference.

    ``unfinished`` is the number of a plan that a run has begun and not finished, which the next one does: it is not counted.
    ``topics`` are those of the exports there, as their plans say; :func:`trikafka.check_export` adds both.
    """

    files: int
    rows: int
    bytes: int
    problems: tuple[str, ...]
    unfinished: int | None = None
    topics: tuple[str, ...] = ()


@runtime_checkable
class CheckableSink(Sink, Protocol):
    """A sink that can count what it has written."""

    async def check(self) -> ExportCheck:
        """Count every file again: its size, its rows, that it is there once, that nothing else is."""


@runtime_checkable
class VisitedSink(Sink, Protocol):
    """A sink that notes that an export was there, also where there was no record to plan: for :class:`CheckableSink`."""

    async def note_visit(self) -> None:
        """From now on ``load`` returns ``visited``, until there is a plan."""
