"""The destination of an export (hook ``trikafka_sink``), and the values exchanged with it.

No I/O, no behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol, Self, runtime_checkable

from ..types import OffsetRange, TopicPartition

#: The stages of an export, in order. ``planned`` or ``resumed``: the plan is stored. ``starting``:
#: the sink prepares. ``writing``: reported repeatedly. ``written``: all data files are complete.
#: ``published``: the manifest is stored. ``committed``: the group's offsets are in Kafka.
ExportStage = Literal[
    "planned", "resumed", "starting", "writing", "written", "published", "committed"
]


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """The records ``start <= offset < end`` of one partition, as planned.

    ``name`` is the name of the first file that holds them.
    """

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
    """Offsets that were deleted before they were exported.

    The export was configured to continue without them.
    """

    topic: str
    partition: int
    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The plan of one export, stored before the export begins and never changed.

    Attributes:
        number: The number of the export at this destination, from 1.
        plan_id: A unique id.
        created: The time of creation.
        cluster_id: The cluster's id; ``None`` where the broker returns none.
        topic_ids: The id of each topic (KIP-516); ``None`` where the broker returns none.
        isolation_level: ``read_committed`` or ``read_uncommitted``.
        ranges: The ranges to export.
        positions: For each partition ever exported here, the offset after the plan's last one.
        format: Values of the sink that stay the same for all files of a destination. Reports show
            its ``name``, and its ``exactly_once`` where that is false.
        lost: Ranges that were gone from the log when the plan was made.
        since: For each topic whose first export began at a time, that time in milliseconds.
            Partitions that are added to the topic begin there, too.
        partitions: For each topic, its number of partitions at its first export. A partition of
            this number or a higher one was added later, so all of its records are new.
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
    since: Mapping[str, int] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file with the records ``start <= offset < end`` of a planned range.

    For a table, the file is the one by which the rows arrived. The table format may rewrite it
    later.

    Attributes:
        planned: The range that the file belongs to.
        name: The file's name below the destination.
        start: The offset of the first record.
        end: The offset after the last record.
        rows: The number of rows.
        bytes: The file's size; 0 where the sink does not write the files itself.
        version: The version or snapshot id of the table that added the rows, if the table's
            history shows it.
        crc32c: The checksum of all bytes as eight hexadecimal digits, computed while writing;
            ``None`` where the sink, or an older release of it, computed none.
    """

    planned: PlannedRange
    name: str
    start: int
    end: int
    rows: int
    bytes: int
    version: int | None = None
    crc32c: str | None = None


@dataclass(frozen=True, slots=True)
class RangeResult:
    """The result of a planned range.

    The range is exported up to ``reached``. The next plan continues there, because of ``error``. A
    range without records has no files. ``dead_letters`` counts the records that the sink could not
    parse and set aside; ``letters`` are the files that contain them, if any.
    """

    planned: PlannedRange
    reached: int
    files: tuple[WrittenFile, ...] = ()
    lost: tuple[LostRange, ...] = ()
    dead_letters: int = 0
    error: Exception | None = field(default=None, compare=False)
    letters: tuple[WrittenFile, ...] = ()

    @property
    def done(self) -> bool:
        """True if nothing of the range is left."""
        return self.reached >= self.planned.end

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class ExportManifest:
    """The result of a finished export.

    The manifest is published last and atomically. Without it none of the export's files count.
    """

    plan: ExportPlan
    results: tuple[RangeResult, ...]
    finished: str

    @property
    def files(self) -> tuple[WrittenFile, ...]:
        """All data files."""
        return tuple(file for result in self.results for file in result.files)

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """The size of all files in bytes."""
        return sum(file.bytes for file in self.files)

    @property
    def carried(self) -> tuple[OffsetRange, ...]:
        """Planned ranges that are not done; the next plan begins with them."""
        return tuple(
            OffsetRange(
                result.planned.topic, result.planned.partition, result.reached, result.planned.end
            )
            for result in self.results
            if not result.done
        )

    @property
    def lost(self) -> tuple[LostRange, ...]:
        """Ranges that were deleted before they were exported."""
        return (*self.plan.lost, *(lost for result in self.results for lost in result.lost))

    @property
    def dead_letters(self) -> int:
        """The number of records that could not be parsed and were set aside."""
        return sum(result.dead_letters for result in self.results)


@dataclass(frozen=True, slots=True)
class ExportState:
    """The state of a destination.

    Attributes:
        last_number: The number of the last export; 0 before the first.
        cluster_id: The cluster of the exports; ``None`` if unknown.
        topic_ids: The id of each exported topic.
        positions: The offset after the last planned one, by partition.
        unfinished: A stored plan without a manifest; ``None`` if there is none.
        carried: Ranges below ``positions`` that are not exported yet.
        isolation_level: The isolation level of the first export, which later ones keep; ``None``
            before it.
        format: The format of the first export, which later ones keep; ``None`` before it.
        settled: True if the work of the unfinished plan is closed and stays so. The finished part
            is published, and the rest goes to the next plan.
        visited: True if there is no plan because exports found no record.
        since: As in the last plan.
        partitions: As in the last plan.
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
    since: Mapping[str, int] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)


#: ``report(stage, ranges_done, rows_done)``: a plain, quick function, called in the task that
#: called ``write``.
SinkReport = Callable[[ExportStage, int, int], None]


# An export is exactly once because nothing counts before one atomic step:
#
# 1. store_plan() writes which offsets go where. A run that finds a stored plan without a manifest
#    resumes that plan; it never makes another one for the same offsets.
# 2. write() makes data files under names that the plan determines. A second run, or a late worker
#    of a first one, makes the same file and not a second one.
# 3. settle() closes the work, so the set of files is final. A sink of tables commits them here, in
#    one commit that has the plan's number: a second commit of the same plan is recognized.
# 4. publish() writes the manifest. Readers count only files that a manifest lists.
# 5. Only then are the group's offsets committed in Kafka. They are a copy for people and
#    monitoring: after a crash between 4 and 5 the next export begins at the destination's own
#    `positions`.
#
# A crash at any point leaves either a plan to resume or a finished export.
@runtime_checkable
class Sink(Protocol):
    """A destination of an export.

    The sink is entered before anything else happens, and left in every case. All methods raise
    :exc:`trikafka.ExportError` with the cause chained. They may be cancelled at any checkpoint, and
    none may block the Trio thread.
    """

    async def __aenter__(self) -> Self:
        """Check and lock the destination.

        The check covers write access and the software that the sink needs.

        Raises:
            ExportError: The destination cannot be written, or another export is running there.
        """

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove the leftovers of a cancelled or failed write; release the lock.

        Published files stay.
        """

    async def load(self) -> ExportState:
        """Return the state of the destination."""

    async def pin(
        self, state: ExportState, wanted: Sequence[OffsetRange], settings: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the ``format`` of a plan for ``wanted``.

        The format is stored with the plan, so JSON must be able to represent it. Values that the
        destination has already (``state.format``) stay.

        Args:
            state: The state of the destination.
            wanted: The ranges to export.
            settings: As in :meth:`write`.

        Raises:
            ExportError: An option contradicts the destination's format.
        """

    async def store_plan(self, plan: ExportPlan) -> None:
        """Store the plan atomically, unless a plan with its number exists."""

    async def write(
        self,
        plan: ExportPlan,
        ranges: Sequence[PlannedRange],
        settings: Mapping[str, Any],
        report: SinkReport,
    ) -> Mapping[PlannedRange, Exception]:
        """Write these ranges of the plan.

        A file becomes visible to readers only when it is complete. Files that an earlier run
        completed are kept.

        Args:
            plan: The stored plan.
            ranges: The ranges to write.
            settings: The settings of a consumer without a group, and ``fail_on_data_loss``: whether
                deleted offsets are an error.
            report: Called with the progress.

        Returns:
            The Kafka errors by range. Such an error does not stop the other ranges.

        Raises:
            ExportError: Any other failure.
        """

    async def settle(
        self, plan: ExportPlan, ranges: Sequence[PlannedRange]
    ) -> Sequence[RangeResult]:
        """Close these ranges and return one result for each.

        Nothing is read. No late worker can add to these ranges afterwards.
        """

    async def publish(self, manifest: ExportManifest) -> None:
        """Publish the manifest atomically. This step completes the export."""


@runtime_checkable
class AbandoningSink(Sink, Protocol):
    """A sink whose written plans may become impossible to publish."""

    async def give_up(self, plan: ExportPlan) -> Sequence[RangeResult]:
        """Close all ranges of an abandoned plan, as :meth:`settle`.

        A range that cannot be published is never written.
        """


@dataclass(frozen=True, slots=True)
class ExportCheck:
    """The content of a destination compared with its manifests.

    Attributes:
        files: The number of data files.
        rows: The number of rows in the data files.
        bytes: The size of the data files.
        problems: One sentence for each difference.
        unfinished: The number of a plan that a run has begun and not finished. Its files are not
            counted; the next run finishes the plan. Set by :func:`trikafka.check_export`.
        topics: The topics of the exports, from their plans. Set by :func:`trikafka.check_export`.
        unhashed: Files that a deep check decoded instead, because their manifests have no checksum.
    """

    files: int
    rows: int
    bytes: int
    problems: tuple[str, ...]
    unfinished: int | None = None
    topics: tuple[str, ...] = ()
    unhashed: int = 0


@runtime_checkable
class CheckableSink(Sink, Protocol):
    """A sink that can count its files and rows."""

    async def check(self) -> ExportCheck:
        """Count every file again.

        The check compares sizes and rows, and reports files that are missing, listed twice or not
        listed.
        """


@runtime_checkable
class DeepCheckableSink(CheckableSink, Protocol):
    """A sink that can compare the content of its files."""

    async def check_deep(self) -> ExportCheck:
        """Check as :meth:`check`, and compare all bytes with the manifest's checksums."""


@runtime_checkable
class VisitedSink(Sink, Protocol):
    """A sink that records that an export ran and found no records to plan.

    :class:`CheckableSink` distinguishes such a destination from an empty directory.
    """

    async def note_visit(self) -> None:
        """Store that an export ran; ``load`` returns ``visited`` until there is a plan."""
