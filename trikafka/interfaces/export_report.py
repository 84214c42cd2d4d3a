"""The exporter's public interface, and the reports of an export. No I/O, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ..types import OffsetRange, TopicPartition
from .sink import ExportPlan, ExportStage, LostRange, WrittenFile


@dataclass(frozen=True, slots=True)
class ExportProgress:
    """The progress of an export.

    Attributes:
        stage: The step that the export has reached.
        plan: The current plan.
        ranges_done: Finished ranges of the plan.
        ranges_total: All ranges of the plan.
        rows_done: Rows written.
        rows_total: The most rows that the plan can have; compacted topics have fewer.
        seconds: Seconds since the work on the plan began.
    """

    stage: ExportStage
    plan: ExportPlan
    ranges_done: int
    ranges_total: int
    rows_done: int
    rows_total: int
    seconds: float = 0.0

    @property
    def rate(self) -> float | None:
        """Rows per second since the work began; ``None`` before the first row."""
        return self.rows_done / self.seconds if self.rows_done and self.seconds > 0 else None

    @property
    def lag(self) -> int:
        """The rows of the plan that are not written yet, at most."""
        return max(self.rows_total - self.rows_done, 0)

    @property
    def seconds_left(self) -> float | None:
        """The seconds that the rest takes at this rate; ``None`` without a rate."""
        return self.lag / self.rate if self.rate else None


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The report of an export.

    Attributes:
        destination: The destination.
        plans: The ids of the published plans: that of a killed run, if there was one, and its own.
        resumed: True if this run has finished the plan of a killed run.
        files: The files written.
        positions: The offsets at which the next export begins.
        committed: The offsets that were committed to the group.
        carried: Ranges that are planned and not exported yet; the next export begins with them.
        lost: Ranges that were deleted before they could be exported. Only an export with
            ``fail_on_data_loss=False`` goes on without them.
        dead_letters: Records that could not be parsed, and were written as dead letters.
        started: The time of the start (ISO 8601, UTC).
        seconds: The duration.
        format: The sink's name for the format.
        exactly_once: False if rows of a killed run may be stored twice, because the format has no
            key by which a repeated write is recognized.
        location: The location of the files, for a table whose name does not contain it.
        waiting: Records left to a later run, because there are too few for a file
            (``min_records_per_file``, ``min_bytes_per_file``).
    """

    destination: str
    plans: tuple[str, ...]
    resumed: bool
    files: tuple[WrittenFile, ...]
    positions: Mapping[TopicPartition, int]
    committed: Mapping[TopicPartition, int]
    carried: tuple[OffsetRange, ...] = ()
    lost: tuple[LostRange, ...] = ()
    dead_letters: int = 0
    started: str = ""
    seconds: float = field(default=0.0, compare=False)
    format: str | None = None
    exactly_once: bool = True
    location: str | None = None
    waiting: int = 0

    @property
    def already_done(self) -> bool:
        """True if there were no new records, so that nothing was written."""
        return not self.plans

    @property
    def rows(self) -> int:
        """The number of rows written."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """The number of bytes written."""
        return sum(file.bytes for file in self.files)

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions of the table that were written, if its format has versions."""
        return tuple(sorted({file.version for file in self.files if file.version is not None}))


class Exporter(Protocol):
    """An exporter for one destination, for repeated exports; made by :func:`open_exporter`.

    It keeps the destination locked, and one session of the sink open. A method raises
    :exc:`trio.BusyResourceError` while another call runs. After the ``async with`` block it raises
    :exc:`trio.ClosedResourceError`, because the destination is no longer locked.
    """

    async def run(self) -> ExportResult:
        """Export the records that the destination does not have yet.

        Returns:
            The report of the export.

        Raises:
            TrikafkaError: As :func:`export`.

        When cancelled, an unfinished plan remains, and the next run finishes it.
        """

    async def abandon(self) -> ExportResult:
        """Discard the plan that an earlier run left unfinished, without reading any records.

        Finished files of the plan are published. The rest is left to the next plan, so no record is
        lost.

        Returns:
            The report of the published files.

        Raises:
            ExportError: The destination cannot be written, or its files are damaged.

        When cancelled, the plan may or may not have been published; the next call finds out.
        """
