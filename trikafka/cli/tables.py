"""Tables and JSON for the commands' output. Pure except for the printing functions."""

from __future__ import annotations

import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from .options import chosen_output, is_terminal
from .running import ReaderGoneError, printable

if TYPE_CHECKING:
    from ..types import PartitionInfo, TopicPartition

#: The width from which on a column is not cut any more.
_NARROWEST = 8
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return columns padded to their widest cell, with numbers at the right and ``None`` as ``-``.

    On a terminal the header is bold. The widest columns are cut there so that a row is one line,
    except with ``--output wide``.
    """
    body = list(rows)
    numeric = [
        bool(body) and all(isinstance(row[at], int | None) for row in body)
        for at in range(len(header))
    ]
    cells = [list(header), *([_text(cell) for cell in row] for row in body)]
    widths = [max(_width(row[at]) for row in cells) for at in range(len(header))]
    terminal = is_terminal()
    if terminal and _output_option() != "wide":
        _fit(widths, [len(name) for name in header], shutil.get_terminal_size().columns)
    lines = [
        "  ".join(
            _padded(_cut(cell, width), width, right)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    ]
    if terminal and "NO_COLOR" not in os.environ:
        lines[0] = click.style(lines[0], bold=True)
    return "\n".join(lines)


def time_text(ms: int | None, timespec: str = "milliseconds") -> str | None:
    """Return a time in ISO 8601, or the number itself if it is beyond the year 9999."""
    if ms is None:
        return None
    try:
        # No float: a float would lose the last millisecond of a far time.
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec=timespec)
    except OverflowError:  # such as a producer's time in microseconds
        return str(ms)


def _fit(widths: list[int], headers: list[int], room: int) -> None:
    """Make the widest columns narrower, as far as the headers allow, until a row fits."""
    excess = sum(widths) + 2 * (len(widths) - 1) - room
    while excess > 0:
        # Take one character from the widest column.
        spare = [
            width - max(header, _NARROWEST) for width, header in zip(widths, headers, strict=True)
        ]
        at = max(range(len(widths)), key=lambda column: (spare[column] > 0, widths[column]))
        if spare[at] <= 0:
            return
        widths[at] -= 1
        excess -= 1


def _cut(cell: str, width: int) -> str:
    if _width(cell) <= width:
        return cell
    # In one pass: names from other programs, such as client ids, may have thousands of letters.
    kept = 0
    taken = 0
    for letter in cell:
        taken += _width(letter)
        if taken > width - 1:
            break
        kept += 1
    return cell[:kept] + ("…" if _encodable("…") else "~")


def _padded(cell: str, width: int, right: bool) -> str:
    blanks = " " * (width - _width(cell))
    return blanks + cell if right else cell + blanks


def _width(text: str) -> int:
    """Return the columns of a terminal that a text takes: wide letters of East Asia take two."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(sign) else 1 + (unicodedata.east_asian_width(sign) in "WF")
        for sign in text
    )


def _output_option() -> str | None:
    """Return the ``--output`` of the running command; ``None`` if it has no such option."""
    context = click.get_current_context(silent=True)
    if context is None or "output" not in context.params:
        return None
    return chosen_output(context.params["output"], context.params.get("as_json", False))


def say(text: str) -> None:
    """Print to the standard output.

    Raises:
        ReaderGoneError: The reader has gone.
        click.ClickException: The disk is full, or the output is closed.
    """
    if sys.stdout is None:
        raise click.ClickException("the standard output is closed")
    try:
        click.echo(_escaped(text))
    except BrokenPipeError as error:
        raise ReaderGoneError from error
    except OSError as error:
        raise click.ClickException(
            f"cannot write to the standard output: {error.strerror}"
        ) from error


def say_json(what: object) -> None:
    """Print JSON to the standard output: one document, or a line for each element of a list."""
    if _output_option() != "jsonl":
        say(_json(what, indent=2))
        return
    rows = what if isinstance(what, list) else [what]
    if rows:
        say("\n".join(map(_json, rows)))


def _json(what: object, indent: int | None = None) -> str:
    """Return JSON, with JSON's escapes if the output's encoding lacks one of the characters."""
    text = json.dumps(what, indent=indent, ensure_ascii=False)
    return text if _encodable(text) else json.dumps(what, indent=indent)


def _escaped(text: str) -> str:
    """Return a text with escapes for the characters that the output's encoding lacks."""
    if _encodable(text):
        return text
    return text.encode(sys.stdout.encoding, "backslashreplace").decode(sys.stdout.encoding)


# In the C locale Python writes UTF-8. Other locales, PYTHONIOENCODING and pipes on Windows have
# encodings that lack letters.
def _encodable(text: str) -> bool:
    """Return whether the encoding of the standard output has all characters of a text."""
    if text.isascii() or sys.stdout is None:
        return True
    try:
        text.encode(sys.stdout.encoding or "utf-8", sys.stdout.errors or "strict")
    except UnicodeEncodeError:
        return False
    return True


def partition_json(tp: TopicPartition | PartitionInfo) -> dict[str, object]:
    """Return a partition as JSON output names it."""
    return {"topic": tp.topic, "partition": tp.partition}


#: The headers of the fields of :func:`partition_info_json`.
PARTITION_COLUMNS = MappingProxyType(
    {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "leader": "LEADER",
        "replicas": "REPLICAS",
        "in_sync_replicas": "IN SYNC",
    }
)


def partition_info_json(info: PartitionInfo) -> dict[str, object]:
    """Return a partition with its leader and replicas as JSON output shows it."""
    return {
        **partition_json(info),
        "leader": info.leader,
        "replicas": list(info.replicas),
        "in_sync_replicas": list(info.in_sync_replicas),
    }


def table_of(columns: Mapping[str, str], objects: Iterable[Mapping[str, object]]) -> str:
    """Return a table of some fields of objects; ``columns`` has the header of each field."""
    return table(
        tuple(columns.values()), [[_cell(each[name]) for name in columns] for each in objects]
    )


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, list) else value


def say_objects(
    output: str,
    columns: Mapping[str, str],
    objects: Sequence[Mapping[str, object]],
    none: str | None = None,
) -> None:
    """Print objects as a table, or with ``json`` as they are.

    Args:
        output: The way to print, ``table`` or ``json``.
        columns: The fields that a table shows, and the headers of their columns.
        objects: The objects.
        none: The line to print if there are no objects; ``None`` prints the headers alone.
    """
    if output == "json":
        say_json(list(objects))
    elif objects or none is None:
        say(table_of(columns, objects))
    else:
        say(none)


def say_rows(
    output: str,
    columns: Mapping[str, str],
    rows: Iterable[Sequence[object]],
    none: str | None = None,
) -> None:
    """Print objects as :func:`say_objects` does, given as the values of their fields in order."""
    say_objects(output, columns, [dict(zip(columns, row, strict=True)) for row in rows], none)


def say_done(output: str, line: str, what: Mapping[str, object]) -> None:
    """Print what a command has done: one line, or one object with ``json``."""
    if output == "json":
        say_json(what)
    else:
        say(line)


def _text(cell: object) -> str:
    return _escaped(printable("-" if cell is None or cell == "" else str(cell)))
