"""Tables and JSON for the commands' output. Pure except for the printing functions."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence

import click

from .running import NobodyReadsError


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return columns padded to their widest cell; numbers to the right, ``None`` as ``-``."""
    body = list(rows)
    numeric = [
        bool(body) and all(isinstance(row[at], int | None) for row in body)
        for at in range(len(header))
    ]
    cells = [list(header), *([_text(cell) for cell in row] for row in body)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(header))]
    lines = (
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def say(text: str) -> None:
    """Print to the standard output.

    Raises:
        NobodyReadsError: The reader has gone.
    """
    if sys.stdout is None:
        raise click.ClickException("the standard output is closed")
    try:
        click.echo(text)
    except BrokenPipeError as error:
        raise NobodyReadsError from error


def say_json(what: object) -> None:
    """Print one JSON document to the standard output."""
    say(json.dumps(what, indent=2, ensure_ascii=False))


def say_done(output: str, line: str, what: Mapping[str, object]) -> None:
    """Print what a command has done: one line, or one object with ``json``."""
    if output == "json":
        say_json(what)
    else:
        say(line)


def _text(cell: object) -> str:
    return "-" if cell is None or cell == "" else str(cell)
