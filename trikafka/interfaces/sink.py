"""Where an export writes (hook ``trikafka_sink``), and the values that it exchanges with trikafka. No I/O, no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol, Self, runtime_checkable

from ..types import TopicPartition

#: What an export is doing, in this order. ``planned`` or ``resumed``: the plan is stored. ``starting``: the sink makes
#: ready. ``writing``: again and again. ``written``: all data files stand. ``published``: the manifest stands.
#: ``committed``: the group's offsets are in Kafka.
ExportStage = Literal["planned", "resumed", "starting", "writing", "written", "published", "committed"]


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """The records ``start <= offset < end`` of one partition, and the name of the file that they go to."""

    topic: str
    partition: int
    start: int
    end: int
    name: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What one export does, stored before it begins and never changed.

    ``positions`` holds, for each partition ever exported to this destination, the offset after the plan's last one.
    ``topic_ids`` and ``cluster_id`` are ``None`` where the broker does not give them.
    """

    number: int
    plan_id: str
    created: str
    cluster_id: str | None
    topic_ids: Mapping[str, str | None]
    isolation_level: str
    files: tuple[PlannedFile, ...]
    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What became of a planned file. ``name`` is ``None``, and there is no file, where the range held no record."""

    planned: PlannedFile
    name: str | None
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ExportManifest:
    """An export that is done: published last, and at once. Before it stands, nothing counts."""

    plan: ExportPlan
    files: tuple[WrittenFile, ...]

    @property
    def rows(self) -> int:
        """The rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """The bytes of all files."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class ExportState:
    """What a destination says of itself. ``unfinished`` is a stored plan without its manifest."""

    last_number: int = 0
    cluster_id: str | None = None
    topic_ids: Mapping[str, str | None] = field(default_factory=dict)
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    unfinished: ExportPlan | None = None


#: ``report(stage, files_done, rows_done)``: plain, quick, called in the task that called ``write``.
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

    async def store_plan(self, plan: ExportPlan) -> None:
        """Store the plan, atomically, unless one of its number is there already."""

    async def write(self, plan: ExportPlan, settings: Mapping[str, Any], report: SinkReport) -> Sequence[WrittenFile]:
        """Write the plan's files, each visible to readers only when it is whole; answer once for each planned file.

        A file that an earlier run has finished is kept. ``settings`` are those of a consumer without a group; beside
        them stands ``fail_on_data_loss``: whether offsets that the broker has deleted are an error.
        """

    async def publish(self, manifest: ExportManifest) -> None:
        """Publish the manifest, atomically: after this, and not before, the export is done."""
