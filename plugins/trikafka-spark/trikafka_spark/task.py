"""What one task of an export does: read an offset range, write it piece by piece as Parquet files, publish those.

Runs in a thread of the exporting process or in a Python worker of Spark, and uses nothing of Spark. A file stands whole or not
at all; two attempts at one range, at the same time or one after the other, leave each row once.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from trikafka import (
    ConfigurationError,
    ExportError,
    ExportPiece,
    OffsetRange,
    PieceLog,
    RangeWork,
    StagedFile,
    TrikafkaError,
    errors,
)
from trikafka.interfaces import PlannedRange

from .formats import errors as format_errors
from .formats.work import Reading, ReadOptions
from .pieces import FOOTER_KEY, PieceWriter, Shape, footer_of
from .reader import Reader, kept_reader
from .reading import NothingYet, read_range
from .rounds import Aside
from .worker import settle

#: How much is carried to the driver of an error: of its message, and of the errors in its attributes.
_TEXT_LIMIT, _DEPTH_LIMIT = 10_000, 3
#: :exc:`NothingYet`, as text.
_NOTHING_YET = "nothing yet"


class Workplace(Protocol):
    """Where a plan is worked on, when that is no directory: pickled with the task."""

    def pieces(self, planned: PlannedRange) -> PieceLog:
        """What is decided of a range."""


@dataclass(frozen=True, slots=True)
class WriteTask:
    """One range to write. Pickled by Spark. ``root`` is a directory, where there is no ``place``."""

    root: str
    number: int
    planned: PlannedRange
    topic_id: str | None
    settings: Mapping[str, Any]
    fail_on_data_loss: bool
    format: Mapping[str, Any]
    shape: Shape
    place: Workplace | None = None
    reading: ReadOptions = field(default_factory=ReadOptions)


class Stopped(Exception):
    """The task was told to stop; what it has published stays."""


class Stopper:
    """Ends tasks from another thread, also one that waits for Kafka."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []
        self._stop = threading.Event()

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End them all; those that begin later end at once."""
        with self._lock:
            self._stop.set()
            ends, self._ends = self._ends, []
        for end in ends:
            end()

    def add(self, end: Callable[[], None]) -> None:
        """Have ``end`` called by :meth:`stop`."""
        with self._lock:
            if not self.stopped:
                self._ends.append(end)
                return
        end()

    def wait(self, seconds: float) -> None:
        """Wait so long. Raises :exc:`Stopped` at :meth:`stop`."""
        self._stop.wait(seconds)
        self.check()

    def check(self) -> None:
        """Raise :exc:`Stopped` after :meth:`stop`."""
        if self.stopped:
            raise Stopped


def write_range(
    task: WriteTask,
    stopper: Stopper,
    tell: Callable[[int], None] = lambda rows: None,
    reader: Reader | None = None,
    patience: float | None = None,
) -> Exception | None:
    """Write the range as far as that goes; ``tell(rows)`` as rows are written. Returns the error of Kafka's that ended it.

    That is :exc:`NothingYet` where nothing of what is left came within ``patience`` seconds. Raises :exc:`Stopped`, and what is not
    Kafka's fault, such as a full disk. A ``reader`` has the client; without one the range gets one of its own.
    """
    work = RangeWork(Path(task.root), task.number, task.planned) if task.place is None else task.place.pieces(task.planned)
    told = 0
    try:
        pieces = work.pieces() or _adopted(task, work)
        told = sum(file.rows for piece in pieces for file in piece.files if file.data)
        tell(told)
        at = pieces[-1].end if pieces else task.planned.start
        while at < task.planned.end:
            at = _write_on(task, work, at, stopper, tell, reader, patience)
            patience = None
    except (ExportError, ConfigurationError):
        raise
    except NothingYet as error:
        tell(-told)  # the next try tells them again
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
    tell: Callable[[int], None],
    reader: Reader | None,
    patience: float | None,
) -> int:
    """Read from ``at`` on and write pieces; return where to go on: the end, or where another worker has decided otherwise."""
    planned = task.planned
    lost: list[tuple[int, int, str]] = []
    batches = read_range(
        OffsetRange(planned.topic, planned.partition, at, planned.end),
        task.settings,
        fail_on_data_loss=task.fail_on_data_loss,
        topic_id=task.topic_id,
        on_lost=lambda low, high, why: lost.append((low, high, why)),
        on_start=stopper.add,
        reader=reader,
        patience=patience,
    )
    reading = Reading.of(
        task.format, planned.topic, task.reading, task.settings, wait=stopper.wait, on_start=stopper.add
    )
    writer = PieceWriter(work, planned, at, task.shape, task.format, reading)
    try:
        with closing(batches):
            for batch in batches:
                stopper.check()
                tell(writer.add(batch))
                if writer.full and batch.next_offset < planned.end:
                    piece, rows = writer.finish(batch.next_offset, _within(lost, batch.next_offset))
                    tell(rows)
                    if piece.end != batch.next_offset:
                        return piece.end
                    for gap in _within(lost, piece.end):  # the reading thread adds to it meanwhile
                        lost.remove(gap)
                    writer = PieceWriter(work, planned, piece.end, task.shape, task.format, reading)
        stopper.check()
        piece, rows = writer.finish(planned.end, tuple(lost))
        tell(rows)
        return piece.end
    except BaseException:
        writer.drop()
        raise


def _within(lost: list[tuple[int, int, str]], end: int) -> tuple[tuple[int, int, str], ...]:
    return tuple(gap for gap in lost if gap[1] <= end)


def _adopted(task: WriteTask, work: PieceLog) -> list[ExportPiece]:
    """A file that an export of the first format has left, which wrote a range as one file and no records of it."""
    planned, final = task.planned, Path(task.root) / task.planned.name
    if task.place is not None or task.format.get("name", "parquet") != "parquet" or not final.exists():
        return []  # a table's is of a plan that was given up: it may be removed at any time
    try:
        footer = pq.read_metadata(final)
    except (OSError, pa.ArrowException) as error:
        raise ExportError(f"{final} is not a whole Parquet file: {error}") from error
    if (footer.metadata or {}).get(FOOTER_KEY.encode()) != footer_of(planned).encode():
        raise ExportError(f"{final} was not written by this export")
    file = StagedFile("none", planned.name, footer.num_rows, final.stat().st_size)
    return [work.decide(ExportPiece(planned.start, planned.end, (file,)))]


# --- in Spark: errors from the worker to the driver. Spark carries text only, and nothing in it is ever run ---


@dataclass(frozen=True, slots=True)
class Unit:
    """Ranges that one task of Spark writes, one after the other, by one client: of a ``round`` of a job. Pickled by Spark."""

    round: str
    tasks: Sequence[tuple[WriteTask, float | None]]


def run_unit(
    unit: Unit, secret: str, tell: Callable[[int], None], done: Callable[[int], None] = lambda ranges: None
) -> list[str | None]:
    """:func:`run_task` for each range of the unit; ``done(1)`` for each that ended."""
    aside = _aside(unit.round)
    texts = []
    with kept_reader(unit.tasks[0][0].settings) as reader:
        for task, patience in unit.tasks:
            tp = task.planned.tp
            if (error := aside.errors.get(tp)) is None:
                error = run_task(task, secret, tell, reader, patience)
                aside.note(tp, error)
            texts.append(None if error is None else _to_text(error))
            done(not isinstance(error, NothingYet))
    settle()
    return texts


@functools.lru_cache(1)
def _aside(round: str) -> Aside:
    """What this worker knows of the round: its units come one after the other."""
    return Aside()


def run_task(
    task: WriteTask, secret: str, tell: Callable[[int], None], reader: Reader | None = None, patience: float | None = None
) -> Exception | None:
    """:func:`write_range` in a worker of Spark.

    Raises a RuntimeError that :func:`error_of` can read in the driver by the same ``secret``, a word of the job that no
    broker can know: the text of an error may repeat what a broker said.
    """
    try:
        return write_range(task, Stopper(), tell, reader, patience)
    except Exception as failed:
        mark = marked(str(task.planned), failed, secret)
        raise RuntimeError(f"{task.planned}: {type(failed).__name__}: {failed} {mark}") from failed


def _to_text(error: Exception) -> str:
    return _NOTHING_YET if isinstance(error, NothingYet) else json.dumps(_to_json(error))


def error_from_text(text: str) -> Exception:
    """The error that :func:`run_unit` returned."""
    if text == _NOTHING_YET:
        return NothingYet(text)
    return _from_json(json.loads(text))


def marked(where: str, error: Exception, secret: str) -> str:
    """What :func:`error_of` finds in the text of Spark's exception."""
    body = json.dumps({"where": where, "error": _to_json(error)})
    return f"trikafka-task-error:{secret}:{base64.b64encode(body.encode()).decode()}"


def error_of(text: str, secret: str) -> tuple[str, Exception] | None:
    """Find what :func:`run_task` raised in the text of Spark's exception: which range, and the error itself.

    An error of trikafka comes back as what it was, with its plain attributes; another one as a RuntimeError that names it.
    """
    match = re.search(rf"trikafka-task-error:{re.escape(secret)}:([A-Za-z0-9+/=]+)", text)
    if match is None:
        return None
    try:
        body = json.loads(base64.b64decode(match[1], validate=True))
        return str(body["where"]), _from_json(body["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _to_json(error: BaseException, depth: int = 0) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for name, value in vars(error).items():
        if isinstance(value, str | int | float | None):
            known[name] = value
        elif isinstance(value, BaseException) and depth < _DEPTH_LIMIT:
            known[name] = _to_json(value, depth + 1)
        else:
            known[name] = None
    return {"class": type(error).__name__, "text": str(error)[:_TEXT_LIMIT], "attributes": known}


def _from_json(body: Mapping[str, Any]) -> Exception:
    name, text = str(body["class"]), str(body["text"])
    cls = vars(errors).get(name) or vars(format_errors).get(name)
    if not (isinstance(cls, type) and issubclass(cls, TrikafkaError)):
        return RuntimeError(f"{name}: {text}")
    error: TrikafkaError = cls.__new__(cls, text)
    error.args = (text,)
    for attribute, value in body["attributes"].items():
        if not attribute.startswith("_"):
            vars(error)[attribute] = _from_json(value) if isinstance(value, dict) else value
    if isinstance(error.code, int):
        error.code = errors.from_code(error.code).code  # a member of the enum again
    return error
