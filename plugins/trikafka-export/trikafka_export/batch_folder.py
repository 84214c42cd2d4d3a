"""A folder of Parquet files that the consumers of a group write, one file a batch."""

# How a row stands once, though batches come again
# ------------------------------------------------
#
# A consumer commits a batch's offset after it has written the batch, so a worker that is killed
# between the two makes its successor write the batch again. There is no plan and no manifest. The
# files themselves are the evidence:
#
# * A file is named by the offset of its first record. It is staged aside, synced, and linked to its
#   name, which never replaces another file. So a file is whole once it is visible.
# * Its footer says where it ends. A batch that comes again finds the file that holds its beginning,
#   and only the rest is written. The same holds for a worker that has lost its partition and does
#   not yet know.
# * The folder is synced before ``write`` returns, and the offset is committed after that.
#
# This holds as long as the group's offsets go forward, or the log is the same. So records at known
# offsets must have the known timestamps (``_check_same``): a recreated topic is an error.

from __future__ import annotations

import json
import os
import re
import stat
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import trio

from trikafka import ConfigurationError, DirectoryStore, ExportError
from trikafka.interfaces import SinkBatch

from .in_tables import refuse_tables
from .sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow

#: Where files are staged, below the destination. Readers that glob skip it.
_ASIDE = "_trikafka_batches"
_FOOTER_KEY = "trikafka.batch"
#: The age (seconds) at which the staged files of killed workers are removed.
_LEFT = 86_400.0


class BatchFolder:
    """The folder that :func:`trikafka.sink_batches` writes to.

    Members of one group share it, from as many machines as have it.
    """

    def __init__(self, root: Path, options: SinkOptions) -> None:
        parsed = any(
            (options.parsing.of(column).format or "binary") != "binary"
            for column in ("key", "value")
        )
        if (
            options.partition_by
            or parsed
            or options.parsing.registry
            or options.parsing.dead_letter_topic
        ):
            told = (
                "partition_by, key_format, value_format, schema_registry and dead_letter_topic "
                "are for exports:"
                " sink_batches() writes keys and values as they are"
            )
            raise ConfigurationError(told)
        self._root = root
        self._options = options
        self._limiter = trio.CapacityLimiter(options.threads)
        self._closed = threading.Event()

    async def __aenter__(self) -> Self:
        await trio.to_thread.run_sync(self._open, limiter=self._limiter)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closed.set()  # a thread whose caller was cancelled publishes nothing after this
        await trio.lowlevel.checkpoint()

    async def write(self, batch: SinkBatch) -> None:
        """Write the rows of the batch that the folder does not hold yet.

        The rows are durable on return: file and folder are synced.

        Cancellation: the thread is left alone, and publishes nothing once the folder is closed.
        """
        await trio.to_thread.run_sync(
            self._write, batch, abandon_on_cancel=True, limiter=self._limiter
        )

    # In threads.

    def _open(self) -> None:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if (self._root / "_trikafka").exists():
                raise ExportError(
                    f"{self._root} belongs to an export, which counts its files; choose another "
                    "destination"
                )
            aside = self._root / _ASIDE
            refuse_tables(self._root, begun=aside.exists())
            aside.mkdir(exist_ok=True)
            found = aside.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise ExportError(f"{aside} is not a folder of this user; remove it")
            _sync(self._root)
            _sync(self._root.parent)
            for old in aside.glob("*.partial"):
                with suppress(FileNotFoundError):  # others clear as well
                    if old.lstat().st_mtime < time.time() - _LEFT:
                        old.unlink()
        except OSError as error:
            raise ExportError(f"cannot write to {self._root}: {error.strerror or error}") from error

    def _write(self, batch: SinkBatch) -> None:
        from .columns import spark_table  # imports pyarrow, which is slow: here in a thread

        try:
            start, table = batch.start, batch.table
            while table.num_rows and not self._closed.is_set():
                path, held = self._holder(batch, start)
                if path is not None and held > start:
                    _check_same(path, held, table, batch)
                    table = _from(table, held)
                    if table.num_rows:
                        start = int(table["offset"][0].as_py())
                    continue
                self._publish(spark_table(table.to_batches()), batch, start)
        except OSError as error:
            raise ExportError(
                f"cannot write {batch} to {self._root}: {error.strerror or error}"
            ) from error

    def _holder(self, batch: SinkBatch, offset: int) -> tuple[Path | None, int]:
        """Return the file that may hold ``offset``, and the offset at which the file ends.

        It is the file with the last beginning up to ``offset``.
        """
        pattern = re.compile(re.escape(_prefix(batch)) + r"(\d{20})\.parquet")
        found = [
            int(match[1])
            for entry in os.scandir(self._root)
            if (match := pattern.fullmatch(entry.name))
        ]
        before = max((start for start in found if start <= offset), default=None)
        return (None, 0) if before is None else (path := self._path(batch, before), _end_of(path))

    def _publish(self, table: pyarrow.Table, batch: SinkBatch, start: int) -> None:
        """Write the file that begins at ``start``, unless another worker has written it."""
        import pyarrow.parquet as pq

        from .columns import SCHEMA

        own = self._options
        staged = self._root / _ASIDE / f"{uuid.uuid4()}.partial"
        footer = json.dumps([batch.topic, batch.partition, start, batch.end])
        compression: Any = own.compression.upper()
        try:
            with staged.open("xb") as file:
                with pq.ParquetWriter(
                    file, SCHEMA.with_metadata({_FOOTER_KEY: footer}), compression=compression
                ) as writer:
                    writer.write_table(table, row_group_size=own.row_group_rows)
                file.flush()
                os.fsync(file.fileno())
            if not self._closed.is_set():
                with suppress(FileExistsError):
                    os.link(staged, self._path(batch, start), follow_symlinks=False)
                _sync(self._root)
        finally:
            staged.unlink(missing_ok=True)

    def _path(self, batch: SinkBatch, start: int) -> Path:
        return self._root / f"{_prefix(batch)}{start:020d}.parquet"


def refuse_batches(root: Path) -> None:
    """Raise :exc:`ExportError` if consumers write to this folder.

    An export would not know their files.
    """
    if (root / _ASIDE).exists():
        raise ExportError(
            f"{root} is written by consumers (sink_batches); choose another destination for an "
            "export"
        )


def _prefix(batch: SinkBatch) -> str:
    return f"{DirectoryStore.name_of_topic(batch.topic)}-{batch.partition:05d}-"


def _end_of(path: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(path).metadata or {}
        return int(json.loads(footer[_FOOTER_KEY.encode()])[3])
    except (pa.ArrowException, KeyError, ValueError, IndexError, TypeError) as error:
        raise ExportError(f"{path} was not written by sink_batches(); move it away") from error


def _check_same(path: Path, end: int, table: pyarrow.Table, batch: SinkBatch) -> None:
    """Raise :exc:`ExportError` if the file has other records at the batch's offsets.

    Only offsets before ``end`` are compared, by their timestamps.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from .columns import spark_table

    again = spark_table(table.to_batches())
    again = again.filter(pc.less(again["offset"], end))
    known = pq.ParquetFile(path).read(["offset", "timestamp"])
    places = pc.index_in(again["offset"], known["offset"])
    there = pc.is_valid(places)
    same = pc.equal(again["timestamp"].filter(there), known["timestamp"].take(places.filter(there)))
    if not pc.all(same, min_count=0).as_py():
        raise ExportError(
            f"{path} has other records at the offsets of {batch}: the topic was created anew, or "
            "is another cluster's;"
            " choose another destination"
        )


def _from(table: pyarrow.Table, offset: int) -> pyarrow.Table:
    """Return a copy of the rows from ``offset`` on, since a slice has no columns of its own."""
    import pyarrow.compute as pc

    return table.filter(pc.greater_equal(table["offset"], offset))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
