"""Rows of Parquet files, read by a worker thread in bounded pieces.

A column named ``key``, ``value``, ``partition``, ``timestamp`` or ``headers`` is that
part of the record; two options name other columns for key and value. If no column holds the values,
the value of a row is a JSON object of all its columns, and only the key has a column besides.
"""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Iterator
from datetime import date, datetime
from datetime import time as clock_time
from typing import Any, Self

import click
import trio

from .csv_columns import roles
from .source import standard_input

#: Rows of a piece.
_ROWS = 5_000
#: About the most bytes of a piece (as they are encoded in the file), and of a column that are read
#: from the file at once.
_BYTES = 16 << 20
_BUFFER = 1 << 20


class ParquetFile:
    """The rows of a Parquet file as tables for ``Producer.enqueue_arrow``.

    ``names``: that method's arguments which name the columns.
    """

    def __init__(self, path: str, key: str | None, value: str | None, any_partition: bool) -> None:
        self._path = path
        self._any_partition = any_partition
        self._key = key
        self._value = value
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
            source: Any = self._path
            if self._path == "-" or stat.S_ISFIFO(os.stat(self._path).st_mode):
                source = pyarrow.BufferReader(_whole(self._path))
            # With a buffer, pages are read one by one, and not all of a row group at once.
            self._file = parquet.ParquetFile(source, buffer_size=_BUFFER)
            schema = self._file.schema_arrow
        except pyarrow.ArrowException as error:
            what = "the standard input" if self._path == "-" else self._path
            raise click.ClickException(f"{what} is no Parquet file: {error}") from None
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if twice:
            raise click.ClickException(f"{self._path} has two columns named {twice[0]!r}")
        found = roles(schema.names, self._key, self._value)
        self._as_json = "value" not in found
        self._key = found.get("key")
        self.names = {} if self._as_json else {"key": self._key, "value": found["value"]}
        self._batches = self._file.iter_batches(_rows_at_once(self._file.metadata))
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
        rows = self._rows_of(batch)
        try:
            values = [
                json.dumps(row, ensure_ascii=False, allow_nan=False, default=_json_value).encode()
                for row in rows
            ]
        except ValueError:
            raise click.ClickException(
                f"{self._path} has a NaN or an infinite number, which JSON has not"
            ) from None
        columns = {"value": pyarrow.array(values, pyarrow.binary())}
        if keys is not None:
            columns["key"] = keys
        return pyarrow.RecordBatch.from_pydict(columns)

    def _rows_of(self, batch: Any) -> list[dict[str, Any]]:
        """Return rows as Python's values, which do not hold all of Arrow's (a year 10000)."""
        columns = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                columns[name] = column.to_pylist()
            except (ValueError, OverflowError, LookupError) as error:
                raise click.ClickException(
                    f"{self._path}: column {name!r} ({column.type}) cannot become JSON: {error}"
                ) from None
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _rows_at_once(metadata: Any) -> int:
    """Return how many rows to read at once: by the largest rows of a row group, on average.

    The size is that in the file. Where a few large values are repeated, which a dictionary stores
    once, as many rows as ever are read.
    """
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    largest = max((each.total_byte_size // max(1, each.num_rows) for each in groups), default=0)
    return max(1, min(_ROWS, _BYTES // max(1, largest)))


def _whole(path: str) -> bytes:
    """Return all bytes of a pipe; ``-`` is the standard input.

    Without Python's buffer: a thread that waits there would hold its lock when the process ends.
    """
    with open(
        standard_input() if path == "-" else path, "rb", buffering=0, closefd=path != "-"
    ) as source:
        return source.read()


def _json_value(value: object) -> object:
    """Return a column's value for JSON: text for times and decimals, base64 for bytes."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime | date | clock_time):
        return value.isoformat()
    return str(value)
