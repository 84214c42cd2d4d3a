"""Records of CSV and Parquet files, read by a worker thread in bounded pieces.

A column named ``key``, ``value``, ``partition``, ``timestamp`` or (Parquet) ``headers`` is that
part of the record; two options name other columns for key and value. If no column holds the values,
the value of a row is a JSON object of all its columns, and only the key has a column besides.
"""

from __future__ import annotations

import base64
import codecs
import csv
import io
import json
from collections import deque
from collections.abc import Iterator
from datetime import date, datetime
from datetime import time as clock_time
from typing import Any, Self

import click
import trio

from . import source
from .record_lines import BadLineError, Line
from .source import Lines
from .start import whole

#: Rows of a piece.
_ROWS = 5_000
_ROLES = ("partition", "timestamp")


class CsvFile:
    """The records of a CSV file, whose first line names the columns."""

    def __init__(self, path: str, key: str | None, value: str | None, empty_is_null: bool) -> None:
        """Open ``path``; ``-`` is the standard input.

        Raises:
            OSError: The file cannot be opened.
        """
        csv.field_size_limit(source.LONGEST)  # a value may be as long as a line of other inputs
        self._lines = Lines(path)
        self._buffered: deque[str] = deque()
        self._rows = csv.reader(self._next_lines(), strict=True)
        self._failed: BadLineError | None = None
        self._key = key
        self._value = value
        self._empty_is_null = empty_is_null
        self._names: list[str] | None = None
        self._limiter = trio.CapacityLimiter(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._lines.close()

    async def read(self) -> list[tuple[int, Line]] | None:
        """Return the next records with the numbers of their lines; ``None`` at the end.

        They are those that have arrived, at least one. If cancelled, the call returns at once, even
        if no input arrives.

        Raises:
            BadLineError: A line is malformed; the error names it. The records before it have been
                returned.
        """
        return await trio.to_thread.run_sync(
            self._next, limiter=self._limiter, abandon_on_cancel=True
        )

    def _next(self) -> list[tuple[int, Line]] | None:
        found: list[tuple[int, Line]] = []
        try:
            if self._failed is not None:
                raise self._failed
            if self._names is None:
                self._names = next(self._rows, [])
                self._roles = self._choose(self._names)
            for row in self._rows:
                if row:
                    found.append((self._rows.line_num, self._line(row)))
                if found and (len(found) == _ROWS or not self._buffered):
                    break
        except BadLineError as error:
            self._failed = self._failed or _at_line(self._rows.line_num, error.message)
        except csv.Error as error:
            self._failed = _at_line(self._rows.line_num, f"this is no CSV ({error})")
        if self._failed is not None and not found:
            raise self._failed
        return found or None

    def _next_lines(self) -> Iterator[str]:
        """Yield the lines of the file, each as soon as it has arrived."""
        begun = False
        try:
            while (block := self._lines.read_sync(lambda block: block)) is not None:
                if block and not begun:
                    begun = True
                    block = block.removeprefix(codecs.BOM_UTF8)
                try:
                    yield from self._buffer(block.decode())
                except UnicodeDecodeError as error:
                    good = block[: block.rfind(b"\n", 0, error.start) + 1]
                    yield from self._buffer(good.decode())
                    raise BadLineError(f"this is not UTF-8 ({error.reason})") from None
        except BadLineError as error:  # the reader has not counted this line
            self._failed = _at_line(self._rows.line_num + 1, error.message)
            raise

    def _buffer(self, text: str) -> Iterator[str]:
        # As a file with newline="": a line ends at \\r, too, and keeps its end.
        self._buffered.extend(io.StringIO(text, newline=""))
        while self._buffered:
            yield self._buffered.popleft()

    def _choose(self, names: list[str]) -> dict[str, int]:
        """Return the place of each role's column."""
        if len(set(names)) != len(names):
            raise BadLineError("two columns have one name")
        return {
            role: names.index(name) for role, name in _roles(names, self._key, self._value).items()
        }

    def _line(self, row: list[str]) -> Line:
        names, roles = self._names or [], self._roles
        if len(row) != len(names):
            raise BadLineError(f"it has {len(row)} fields, and there are {len(names)} columns")
        texts: list[str | None] = [
            None if self._empty_is_null and not text else text for text in row
        ]
        fields = {role: texts[at] for role, at in roles.items()}
        whole = dict(zip(names, texts, strict=True))
        value = fields["value"] if "value" in roles else json.dumps(whole, ensure_ascii=False)
        key = fields.get("key")
        partition, timestamp = (_number(role, fields.get(role)) for role in _ROLES)
        return Line(
            None,
            partition,
            timestamp,
            None if key is None else key.encode(),
            None if value is None else value.encode(),
            (),
        )


def _at_line(number: int, text: str) -> BadLineError:
    return BadLineError(f"line {number}: {text}")


def _number(role: str, text: str | None) -> int | None:
    if not text:
        return None
    if whole(text) is None:
        raise BadLineError(f"{role} must be a whole number from 0, not {text!r:.100}")
    return whole(text)


def _roles(names: list[str], key: str | None, value: str | None) -> dict[str, str]:
    """Return the columns of the roles.

    Raises:
        BadLineError: A column that an option names is not there.
    """
    for name, option in ((key, "--key-column"), (value, "--value-column")):
        if name is not None and name not in names:
            raise BadLineError(
                f"there is no column {name!r} ({option}); the columns are: {', '.join(names)}"
            )
    wanted = {"key": key or "key"}
    if (value or "value") in names:
        wanted |= {"value": value or "value", **{role: role for role in _ROLES}}
    return {role: name for role, name in wanted.items() if name in names}


class ParquetFile:
    """The rows of a Parquet file as tables for ``Producer.enqueue_arrow``.

    ``names``: that method's arguments which name the columns.
    """

    def __init__(self, path: str, key: str | None, value: str | None, any_partition: bool) -> None:
        self._path = path
        self._any_partition = any_partition
        self._key, self._value = key, value
        self._file: Any = None
        self._batches: Iterator[Any]
        self._limiter = trio.CapacityLimiter(1)
        self._as_json = False
        self.names: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()

    async def open(self) -> int:
        """Open the file; return the number of its rows.

        Raises:
            click.ClickException: pyarrow is missing, or this is no Parquet file.
        """
        return await trio.to_thread.run_sync(
            self._open, limiter=self._limiter, abandon_on_cancel=True
        )

    def _open(self) -> int:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise click.ClickException(
                "to read Parquet needs pyarrow: pip install 'trikafka[arrow]' (from a clone: pip "
                "install '.[arrow]')"
            ) from None
        try:
            source = pyarrow.BufferReader(_standard_input()) if self._path == "-" else self._path
            self._file = parquet.ParquetFile(source)
            schema = self._file.schema_arrow
        except pyarrow.ArrowException as error:
            what = "the standard input" if self._path == "-" else self._path
            raise click.ClickException(f"{what} is no Parquet file: {error}") from None
        roles = _roles(schema.names, self._key, self._value)
        self._as_json = "value" not in roles
        self._key = roles.get("key")
        self.names = {} if self._as_json else {"key": self._key, "value": roles["value"]}
        self._batches = self._file.iter_batches(_ROWS)
        return int(self._file.metadata.num_rows)

    async def read(self) -> Any:
        """Return the next rows as a ``pyarrow.RecordBatch``; ``None`` at the end."""
        return await trio.to_thread.run_sync(self._next, limiter=self._limiter)

    def _next(self) -> Any:
        import pyarrow

        try:
            batch = next(self._batches, None)
        except (pyarrow.ArrowException, OSError) as error:
            raise click.ClickException(f"{self._path} cannot be read: {error}") from None
        if batch is None:
            return None
        place = -1 if self._key is None else batch.schema.get_field_index(self._key)
        keys = None if place < 0 else batch.column(place)
        if keys is not None and pyarrow.types.is_integer(keys.type):  # numbers as text, as in CSV
            keys = keys.cast(pyarrow.string())
            if not self._as_json:
                batch = batch.set_column(place, self._key, keys)
        if not self._as_json:
            ignored = {"partition"} if self._any_partition else set()
            return batch.select([name for name in batch.schema.names if name not in ignored])
        try:
            values = [
                json.dumps(row, ensure_ascii=False, allow_nan=False, default=_json_value).encode()
                for row in batch.to_pylist()
            ]
        except ValueError:
            raise click.ClickException(
                f"{self._path} has a NaN or an infinite number, which JSON has not"
            ) from None
        columns = {"value": pyarrow.array(values, pyarrow.binary())}
        if keys is not None:
            columns["key"] = keys
        return pyarrow.RecordBatch.from_pydict(columns)


def _standard_input() -> bytes:
    """Return all of the standard input.

    Without Python's buffer: a thread that waits there would hold its lock when the process ends.
    """
    with open(0, "rb", buffering=0, closefd=False) as source:
        return source.read()


def _json_value(value: object) -> object:
    """Return what JSON has for a value of a column: text for times and decimals, base64 for bytes."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime | date | clock_time):
        return value.isoformat()
    return str(value)
