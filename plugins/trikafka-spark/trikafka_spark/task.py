"""What one Spark task of an export does: read an offset range, write it as one Parquet file, publish that under its name.

Runs in a Python worker of Spark and uses nothing of Spark. A file stands whole or not at all; two attempts at one file, at
the same time or one after the other, leave one file with the same rows.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trikafka import DirectoryStore, ExportError, OffsetRange, RecordBatch, TrikafkaError, errors
from trikafka.interfaces import PlannedFile

from .columns import SCHEMA, spark_columns
from .reading import read_range

#: A row group is written when it has so many rows or bytes.
_GROUP_ROWS, _GROUP_BYTES = 262_144, 64 << 20
_FOOTER_KEY = "trikafka.range"
#: How much is carried to the driver of an error: of its message, and of the errors in its attributes.
_TEXT_LIMIT, _DEPTH_LIMIT = 10_000, 3


@dataclass(frozen=True, slots=True)
class WriteTask:
    """One file to write. Pickled by Spark."""

    root: str
    planned: PlannedFile
    settings: Mapping[str, Any]
    fail_on_data_loss: bool
    compression: str


def run_task(task: WriteTask, secret: str) -> tuple[int, int]:
    """Write the file; return its rows and bytes, (0, 0) when the range has no record and so no file.

    Raises a RuntimeError that :func:`error_of` can read in the driver by the same ``secret``, a word of the job that no
    broker can know: the text of an error may repeat what a broker said.
    """
    try:
        return write_file(task)
    except Exception as error:
        raise RuntimeError(f"{task.planned}: {type(error).__name__}: {error} {_marked(task, error, secret)}") from error


def write_file(task: WriteTask) -> tuple[int, int]:
    """The work of :func:`run_task`, with errors as they are."""
    planned, final = task.planned, Path(task.root) / task.planned.name
    if final.exists():
        return _check(final, planned)
    wanted = OffsetRange(planned.topic, planned.partition, planned.start, planned.end)
    batches = read_range(wanted, task.settings, fail_on_data_loss=task.fail_on_data_loss)
    partial = DirectoryStore.partial_path(Path(task.root))
    try:
        rows = _write(partial, planned, batches, task.compression)
        if not rows:
            return 0, 0
        DirectoryStore.publish_file(partial, final)
    finally:
        batches.close()  # type: ignore[attr-defined]
        partial.unlink(missing_ok=True)
    return _check(final, planned, rows)


def _write(partial: Path, planned: PlannedFile, batches: Iterator[RecordBatch], compression: str) -> int:
    rows, writer = 0, None
    try:
        for table in _row_groups(batches):
            if writer is None:
                writer = pq.ParquetWriter(
                    partial,
                    SCHEMA,
                    compression=compression,
                    use_dictionary=["topic", "partition", "timestampType", "key"],
                    write_statistics=["partition", "offset", "timestamp"],
                )
                writer.add_key_value_metadata({_FOOTER_KEY: _label(planned)})
            writer.write_table(table, row_group_size=_GROUP_ROWS)
            rows += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


def _row_groups(batches: Iterator[RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(spark_columns(batch.to_arrow()))
        rows, size = rows + len(batch), size + batch.nbytes
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _label(planned: PlannedFile) -> str:
    return json.dumps([planned.topic, planned.partition, planned.start, planned.end])


def _check(final: Path, planned: PlannedFile, rows: int | None = None) -> tuple[int, int]:
    """Return the rows and bytes of a finished file, seen in its footer. Raises :exc:`ExportError` if it is another's."""
    try:
        footer = pq.read_metadata(final)
    except (OSError, pa.ArrowException) as error:
        raise ExportError(f"{final} is not a whole Parquet file: {error}") from error
    if (footer.metadata or {}).get(_FOOTER_KEY.encode()) != _label(planned).encode():
        raise ExportError(f"{final} was not written by this export")
    if rows is not None and footer.num_rows != rows:
        raise ExportError(f"{final} has {footer.num_rows} rows, but {rows} were read")
    return footer.num_rows, final.stat().st_size


# --- errors, from the worker to the driver: Spark carries text only, and nothing in it is ever run ---


def _marked(task: WriteTask, error: Exception, secret: str) -> str:
    body = json.dumps({"where": str(task.planned), "error": _to_json(error)})
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
    cls = vars(errors).get(name)
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
