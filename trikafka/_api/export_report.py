"""What an export tells: how far it is while it works, and what it did. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..interfaces import ExportPlan, ExportStage, LostRange, WrittenFile
from ..types import OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class ExportProgress:
    """How far an export is. ``rows_total`` is an upper bound: compacted topics have fewer rows than offsets.

    ``seconds`` have passed since the plan's work began.
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
        """Rows a second since the work began; ``None`` before the first."""
        return self.rows_done / self.seconds if self.rows_done and self.seconds > 0 else None

    @property
    def lag(self) -> int:
        """The rows of the plan that are not written yet, at most."""
        return max(self.rows_total - self.rows_done, 0)

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this rate; ``None`` while that is not known."""
        return self.lag / self.rate if self.rate else None


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What an export did.

    ``plans`` are the ids of the plans it published: that of a killed run, which it finished (``resumed``), and its own.
    ``positions`` are the offsets that the next export goes on from; ``committed`` those that it committed to the group.
    ``carried`` is planned and not exported yet: the next export begins with it. ``lost`` is gone for ever: the export was
    told to go on without it. ``dead_letters`` counts the records that could not be read as asked and were put aside.
    ``started`` is the time (ISO 8601, UTC), ``seconds`` what it took. ``format`` is the name that the sink gives to what it writes.
    Not ``exactly_once``: of a killed export that the next one has finished, rows may stand twice, for the format has no key to
    know them by. ``location`` is where the files are, of a table whose name does not say it.
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

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions of the table that it wrote, where the sink writes a table of a format that has versions."""
        return tuple(sorted({file.version for file in self.files if file.version is not None}))
