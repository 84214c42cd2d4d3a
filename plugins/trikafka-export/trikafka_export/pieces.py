"""One piece of a range as data files.

Rows are gathered into groups, sorted into partition folders, staged, and decided. This runs
wherever a task runs, in a thread or in a Python worker of Spark, and uses nothing of Spark.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trikafka import RecordBatch
from trikafka.interfaces import FileFormat, FileWriter, PlannedRange

from .columns import spark_table
from .folders import Folders
from .formats.parsing import Parser, rows_of
from .formats.range_parsing import RangeParsing
from .guarded import GuardedWriter
from .lake.columns import TableColumns
from .parquet_files import ParquetFiles
from .piece_log import ExportPiece, PieceLog, StagedFile
from .summed_file import SummedFile

#: The most folders of one piece. A piece with rows for more of them ends.
_MOST_FOLDERS = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """The size and the compression of files.

    The shape may differ from export to export, unlike the plan's format.
    """

    compression: str = "zstd"
    row_group_rows: int = 262_144
    row_group_bytes: int = 32 << 20
    max_bytes_per_file: int = 512 << 20


@dataclass
class _File:
    """A data file that is being written.

    ``folder`` is its partition folder below the destination, or empty.
    """

    staged: Path
    folder: str
    writer: FileWriter
    sink: SummedFile
    rows: int = 0
    _begun: int = 0  # the bytes whose write to the disk has begun

    def begin_writeback(self) -> None:
        """Have the system begin to write the new bytes to the disk while the next rows are read.

        The sync at the end has less to do then. The call releases no pages, since those that are
        not yet on the disk cannot be released.
        """
        new = self.size() - self._begun
        if new > 0:
            with contextlib.suppress(AttributeError, OSError):  # not everywhere, and only advice
                os.posix_fadvise(self.sink.fileno(), self._begun, new, os.POSIX_FADV_DONTNEED)
            self._begun += new

    def size(self) -> int:
        return self.sink.size

    def close(self) -> None:
        self.writer.close()
        self.sink.close()

    def drop(self) -> None:
        """Remove the file, even if it cannot be closed.

        On a full disk the footer cannot be written, and the file would keep the disk full. What a
        format's writer raises then does not matter: an earlier error says why the file is dropped.
        """
        for end in (self.writer.close, self.sink.close):
            with contextlib.suppress(Exception):
                end()
        self.staged.unlink(missing_ok=True)


@dataclass
class PieceWriter:
    """The rows of one piece: takes batches, then decides the piece or drops it."""

    work: PieceLog
    planned: PlannedRange
    start: int
    shape: Shape
    format: Mapping[str, Any]
    reading: RangeParsing | None = None
    files: FileFormat = field(default_factory=ParquetFiles)
    _waiting: list[RecordBatch] = field(default_factory=list)
    _rows: int = 0
    _bytes: int = 0
    _files: dict[str, _File] = field(default_factory=dict)
    _written: int = 0

    def __post_init__(self) -> None:
        reading = self.reading or RangeParsing.of(self.format, self.planned.topic)
        self._parser = reading.parser
        self._letters = reading.letters(self.work)
        self._columns = TableColumns.of(self.format, self._parser)
        self._folders = Folders(self.format, self.planned.topic)

    @property
    def full(self) -> bool:
        """True once the piece should end."""
        return (
            self._written + self._letters.bytes >= self.shape.max_bytes_per_file
            or len(self._files) >= _MOST_FOLDERS
        )

    def add(self, batch: RecordBatch) -> int:
        """Take a batch, and return how many rows were written now, when a row group is full."""
        self._waiting.append(batch)
        self._rows += len(batch)
        self._bytes += batch.nbytes
        # Another batch of this size would exceed the row group, and the excess would become a small
        # row group of its own.
        if (
            self._rows + len(batch) > self.shape.row_group_rows
            or self._bytes >= self.shape.row_group_bytes
        ):
            return self._flush()
        return 0

    def finish(
        self, end: int, lost: tuple[tuple[int, int, str], ...] = ()
    ) -> tuple[ExportPiece, int]:
        """Write the waiting rows, and decide the piece up to ``end``.

        Returns the decided piece, which may be another worker's, and the number of rows written
        now.
        """
        rows = self._flush()
        staged = []
        for file in self._files.values():
            file.close()
            name = str(Path(file.folder, self.work.name_of(self.start)))
            staged.append(
                StagedFile(file.staged.name, name, file.rows, file.size(), crc32c=file.sink.crc32c)
            )
        if (letters := self._letters.staged(self.start)) is not None:
            staged.append(letters)
        self._files.clear()  # from here on the record owns them
        return self.work.decide(
            ExportPiece(self.start, end, tuple(staged), lost, self._letters.count)
        ), rows

    def drop(self) -> None:
        """Remove the staged files."""
        self._letters.drop()
        for file in self._files.values():
            file.drop()
        self._files.clear()

    def _flush(self) -> int:
        if not self._waiting:
            return 0
        table = spark_table([batch.to_arrow() for batch in self._waiting])
        self._waiting = []
        self._rows = 0
        self._bytes = 0
        return self._write(table)

    def _write(self, table: pa.Table) -> int:
        taken: int = table.num_rows
        for part in [table] if self._parser is None else self._gathered(table, self._parser):
            self._write_part(part)
        self._written = sum(file.size() for file in self._files.values())
        return taken

    def _write_part(self, table: pa.Table) -> None:
        for folder, part in self._folders.split(table):
            file = self._files.get(folder) or self._open(folder, part.schema)
            file.writer.write(part)
            file.rows += part.num_rows
            file.begin_writeback()
            # The piece ends here, so the file gets no more rows: not all files are open at once.
            if len(self._files) > _MOST_FOLDERS:
                file.close()

    def _gathered(self, table: pa.Table, parser: Parser) -> Iterator[pa.Table]:
        """Yield the table with its keys and values read, as one table if possible.

        The read columns may be many times as large, and then they are yielded in parts.
        """
        parts: list[pa.Table] = []
        most = max(self.shape.row_group_bytes, 2 * table.nbytes)
        # With more folders a file is closed after its first part, so there must be one part only.
        few = len(self._files) + self._folders.count(table) <= _MOST_FOLDERS
        for part in self._read(table, parser):
            parts.append(part)
            if few and sum(each.nbytes for each in parts) >= most:
                yield pa.concat_tables(parts)
                parts = []
        if parts:
            yield pa.concat_tables(parts)

    def _read(self, table: pa.Table, parser: Parser) -> Iterator[pa.Table]:
        """Yield the table with its keys and values read, in parts.

        Values that cannot be read in columns become objects for a while, so the number of rows is
        bounded.
        """
        for at in range(0, max(table.num_rows, 1), parser.at_once):
            records = table.slice(at, parser.at_once)
            read, refused = parser.parse(records)
            if self._columns is not None:
                read, unfit = self._columns.fit(read)
                chosen = records.filter(
                    pc.is_in(records["offset"], pa.array(list(unfit), pa.int64()))
                )
                refused += [(record, unfit[record["offset"]]) for record in rows_of(chosen)]
            self._letters.add(refused)
            yield read

    def _open(self, folder: str, schema: pa.Schema) -> _File:
        staged = self.work.stage()
        if self._columns is not None:
            schema = self._columns.numbered(schema)
        try:
            sink = SummedFile(staged)
            writer: FileWriter = (
                self.files.open(sink, schema, self.planned, self.shape)
                if isinstance(self.files, ParquetFiles)
                else GuardedWriter(self.files, sink, schema, self.planned, self.shape)
            )
        except BaseException:
            staged.unlink(missing_ok=True)
            raise
        file = self._files[folder] = _File(staged, folder, writer, sink)
        return file
