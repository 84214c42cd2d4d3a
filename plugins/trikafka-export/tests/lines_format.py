"""A format of another package: JSON lines, one record a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trikafka import hookimpl
from trikafka.interfaces import FileShape, PlannedRange, TableLog

if TYPE_CHECKING:
    # Not at run time: children block a signal before the threads of pyarrow begin.
    import pyarrow as pa


class LinesWriter:
    """A file of lines that is being written."""

    def __init__(self, stream: Any, indent: str) -> None:
        self._stream = stream
        self._indent = indent

    def write(self, table: pa.Table) -> None:
        for row in table.select(["partition", "offset", "value"]).to_pylist():
            row["value"] = None if row["value"] is None else row["value"].decode()
            self._stream.write(f"{self._indent}{json.dumps(row)}\n".encode())

    def close(self) -> None:
        self._stream.write(b"end\n")


@dataclass(frozen=True)
class LinesFiles:
    """Files of lines, which end with a line of their own."""

    indent: str = ""
    title = "lines"
    suffix = ".jsonl"

    def open(
        self, stream: Any, schema: pa.Schema, planned: PlannedRange, shape: FileShape
    ) -> LinesWriter:
        return LinesWriter(stream, self.indent)

    def count(self, file: Any) -> int:
        lines = file.read().splitlines()
        if lines[-1:] != [b"end"]:
            raise ValueError("it has no end")
        return len(lines) - 1


class LinesFormat:
    """The format, and the plugin that brings it."""

    name = "lines"
    option_names = ("indent",)

    def files(self, options: Mapping[str, Any]) -> LinesFiles:
        return LinesFiles(" " * int(options.get("indent", 0)))

    def table(self, options: Mapping[str, Any]) -> Callable[[], TableLog] | None:
        return None

    @hookimpl
    def trikafka_export_format(self, name: str) -> LinesFormat | None:
        return self if name == "lines" else None
