"""Records of CSV and Parquet files, read by a worker thread in bounded pieces.

A column named ``key``, ``value``, ``partition``, ``timestamp`` or (Parquet) ``headers`` is that
part of the record; two options name other columns for key and value. If no column holds the values,
the value of a row is a JSON object of all its columns, and only the key has a column besides.
"""

from __future__ import annotations

import base64
import csv
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime
from datetime import time as clock_time
from itertools import islice
from typing import IO, Any, Self

import click
import trio

from .record_lines import BadLineError, Line

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
        source: str | int = 0 if path == "-" else path
        self._file: IO[str] = open(  # noqa: SIM115  # closed by __exit__
            source, encoding="utf-8-sig", newline="", closefd=source != 0
        )
        self._rows = csv.reader(self._file, strict=True)
        self._key, self._value = key, value
        self._empty_is_null = empty_is_null
        self._names: list[str] | None = None
        self._limiter = trio.CapacityLimiter(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with suppress(OSError):
            self._file.close()

    async def read(self) -> list[tuple[int, Line]] | None:
        """Return the next records with the numbers of their lines; ``None`` at the end.

        Raises:
            BadLineError: A line is malformed; the error names it.
        """
        return await trio.to_thread.run_sync(
            self._next, limiter=self._limiter, abandon_on_cancel=True
        )

    def _next(self) -> list[tuple[int, Line]] | None:
        try:
            if self._names is None:
                self._names = next(self._rows, [])
                self._roles = self._choose(self._names)
            found = [
                (self._rows.line_num, self._line(row)) for row in islice(self._rows, _ROWS) if row
            ]
        except BadLineError as error:
            raise BadLineError(f"line {self._rows.line_num}: {error.message}") from None
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadLineError(f"line {self._rows.line_num}: this is no CSV ({error})") from None
        return found or None

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


def _number(role: str, text: str | None) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise BadLineError(f"{role} must be a whole number from 0, not {text!r}")
    return int(text)


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
        return await trio.to_thread.run_sync(self._open, limiter=self._limiter)

    def _open(self) -> int:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise click.ClickException(
                "to read Parquet needs pyarrow: pip install 'trikafka[arrow]' "
                "(from a clone: pip install '.[arrow]')"
            ) from None
        try:
            source = (
                pyarrow.BufferReader(sys.stdin.buffer.read()) if self._path == "-" else self._path
            )
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
