"""One task of an export: read an offset range, and write it piece by piece as data files.

A task runs in a thread of the exporting process or in a Python worker of Spark, and uses nothing of
Spark. A file is whole or absent. Two attempts at one range, at the same time or in sequence, write
each row once.
"""

# Why two attempts leave each row once
# ------------------------------------
#
# An executor that Spark believes dead may still write, and a killed export is run again. So a range
# is written in pieces, and a piece is decided by a record that replaces no other record (see
# ``PieceLog``). Each attempt asks the log first and begins behind the last decided piece. Of two
# attempts at the same piece one decides. The other gets the decided piece from ``finish``, whose
# end differs from its own as a rule, drops its files, and goes on from that end (``_write_on``
# returns it). The offsets decide, not the rows: two attempts may cut the pieces at different
# offsets.
#
# A piece also carries the offsets that were lost within it. They come from the reading thread,
# which may be ahead of the piece: ``_within`` takes only the gaps that end in the piece.

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from trikafka import ConfigurationError, ConsumerConfig, ExportError, OffsetRange, TrikafkaError
from trikafka.interfaces import FileFormat, PlannedRange

from .directory_pieces import RangeWork
from .formats.range_parsing import ParsingOptions, RangeParsing
from .parquet_files import FOOTER_KEY, ParquetFiles, footer_of
from .piece_log import ExportPiece, PieceLog, StagedFile
from .pieces import PieceWriter, Shape
from .reader import Reader
from .reading import NothingYet, read_range


class Workplace(Protocol):
    """The place where a plan is worked on, if that is not a directory. Pickled with the task."""

    def pieces(self, planned: PlannedRange) -> PieceLog:
        """Return the log of the pieces that are decided of a range."""


@dataclass(frozen=True, slots=True)
class WriteTask:
    """One range to write, pickled by Spark.

    ``root`` is the directory to write to, unless there is a ``place``. Without a ``place`` it must
    be a path that all workers see.
    """

    root: str
    number: int
    planned: PlannedRange
    topic_id: str | None
    settings: Mapping[str, Any]
    fail_on_data_loss: bool
    format: Mapping[str, Any]
    shape: Shape
    place: Workplace | None = None
    reading: ParsingOptions = field(default_factory=ParsingOptions)
    files: FileFormat = field(default_factory=ParquetFiles)


class Stopped(Exception):
    """The task was stopped; the files that it has published stay."""


class Stopper:
    """The means to end tasks from another thread, also a task that waits for Kafka."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []
        self._stop = threading.Event()

    @property
    def stopped(self) -> bool:
        """True once :meth:`stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End all tasks; a task that begins later ends at once."""
        with self._lock:
            self._stop.set()
            ends = self._ends
            self._ends = []
        for end in ends:
            end()

    def add(self, end: Callable[[], None]) -> None:
        """Have ``end`` called by :meth:`stop`, or now if :meth:`stop` was called already."""
        with self._lock:
            if not self.stopped:
                self._ends.append(end)
                return
        end()

    def wait(self, seconds: float) -> None:
        """Wait for ``seconds``. Raises :exc:`Stopped` after :meth:`stop`."""
        self._stop.wait(seconds)
        self.check()

    def check(self) -> None:
        """Raise :exc:`Stopped` if :meth:`stop` was called."""
        if self.stopped:
            raise Stopped


def write_range(
    task: WriteTask,
    stopper: Stopper,
    count_rows: Callable[[int], None] = lambda rows: None,
    reader: Reader | None = None,
    patience: float | None = None,
) -> Exception | None:
    """Write the range as far as possible, and return the error that ended it.

    The pieces that an earlier attempt has decided are not written again.

    Args:
        task: The range, and the place and the shape of its files.
        stopper: Ends the task from another thread.
        count_rows: Called with the number of rows, as they are written. A negative number takes
            rows back that the next attempt counts again.
        reader: The reader whose client is used. Without it the range opens a client of its own.
        patience: Seconds to wait for the first records; ``None`` waits as long as a client does.

    Returns:
        ``None``, or the error of Kafka that ended the range. This is :exc:`NothingYet` if no record
        of the rest arrived within ``patience`` seconds.

    Raises:
        Stopped: The stopper was used.
        ExportError: The files cannot be written, or a file is not of this export.
        OSError: The file system failed, such as a full disk.
    """
    work = (
        RangeWork(Path(task.root), task.number, task.planned)
        if task.place is None
        else task.place.pieces(task.planned)
    )
    counted = 0
    try:
        pieces = work.pieces() or _adopted(task, work)
        counted = sum(file.rows for piece in pieces for file in piece.files if file.data)
        count_rows(counted)
        at = pieces[-1].end if pieces else task.planned.start
        while at < task.planned.end:
            at = _write_on(task, work, at, stopper, count_rows, reader, patience)
            patience = None
    except (ExportError, ConfigurationError):
        raise
    except NothingYet as error:
        count_rows(-counted)  # the next attempt counts them again
        return error
    except TrikafkaError as error:
        stopper.check()
        return error
    return None


def _write_on(
    task: WriteTask,
    work: PieceLog,
    at: int,
    stopper: Stopper,
    count_rows: Callable[[int], None],
    reader: Reader | None,
    patience: float | None,
) -> int:
    """Read from the offset ``at``, write pieces, and return the offset to go on from.

    The result is the end of the range, or the end of a piece that another worker has decided.
    """
    planned = task.planned
    lost: list[tuple[int, int, str]] = []
    batches = read_range(
        OffsetRange(planned.topic, planned.partition, at, planned.end),
        task.settings,
        fail_on_data_loss=task.fail_on_data_loss,
        stall_limit=_stall_limit(task.settings),
        topic_id=task.topic_id,
        on_lost=lambda low, high, why: lost.append((low, high, why)),
        on_start=stopper.add,
        reader=reader,
        patience=patience,
    )
    reading = RangeParsing.of(
        task.format,
        planned.topic,
        task.reading,
        task.settings,
        wait=stopper.wait,
        on_start=stopper.add,
    )
    writer = PieceWriter(work, planned, at, task.shape, task.format, reading, task.files)
    try:
        with closing(batches):
            for batch in batches:
                stopper.check()
                count_rows(writer.add(batch))
                if writer.full and batch.next_offset < planned.end:
                    piece, rows = writer.finish(batch.next_offset, _within(lost, batch.next_offset))
                    count_rows(rows)
                    if piece.end != batch.next_offset:
                        return piece.end
                    for gap in _within(lost, piece.end):  # the reading thread appends meanwhile
                        lost.remove(gap)
                    writer = PieceWriter(
                        work, planned, piece.end, task.shape, task.format, reading, task.files
                    )
        stopper.check()
        piece, rows = writer.finish(planned.end, tuple(lost))
        count_rows(rows)
        return piece.end
    except BaseException:
        writer.drop()
        raise


def _stall_limit(settings: Mapping[str, Any]) -> float:
    """Return the seconds that a range without progress occupies its worker.

    That is the limit of each request of a client, so that one setting bounds both. It is never 0,
    which means that there is no limit.
    """
    name = "default_api_timeout_ms"
    given = {name: settings[name]} if name in settings else {}
    return max(1.0, ConsumerConfig.build(given).default_api_timeout_ms) / 1000


def _within(lost: list[tuple[int, int, str]], end: int) -> tuple[tuple[int, int, str], ...]:
    return tuple(gap for gap in lost if gap[1] <= end)


def _adopted(task: WriteTask, work: PieceLog) -> list[ExportPiece]:
    """Return the piece of a file that an export of plan format 1 has left.

    That format wrote a range as one file, without records. The file's footer must name the range.
    """
    planned = task.planned
    final = Path(task.root) / task.planned.name
    if (
        task.place is not None
        or task.format.get("name", "parquet") != "parquet"
        or not final.exists()
    ):
        return []  # a table's file is of an abandoned plan, and may be removed at any time
    try:
        footer = pq.read_metadata(final)
    except (OSError, pa.ArrowException) as error:
        raise ExportError(f"{final} is not a whole Parquet file: {error}") from error
    if (footer.metadata or {}).get(FOOTER_KEY.encode()) != footer_of(planned).encode():
        raise ExportError(f"{final} was not written by this export")
    file = StagedFile("none", planned.name, footer.num_rows, final.stat().st_size)
    return [work.decide(ExportPiece(planned.start, planned.end, (file,)))]
