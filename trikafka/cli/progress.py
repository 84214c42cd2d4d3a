"""Progress on the standard error, if that is a terminal. Only then rich is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Protocol

import click


class Meter(Protocol):
    """A function that reports a command's progress."""

    def __call__(self, done: int, total: int | None = None, text: str | None = None) -> None: ...


def _silent(done: int, total: int | None = None, text: str | None = None) -> None:
    """Report nothing."""


@contextmanager
def meter(
    text: str, unit: str, total: int | None = None, *, beside_output: bool = False
) -> Iterator[Meter]:
    """Show a progress bar, or a count without ``total``.

    With ``beside_output`` the command prints records; nothing is shown if both streams are the same
    terminal.
    """
    # click may have been installed without the extra 'cli'.
    shown = _on_terminal() and find_spec("rich") is not None
    if not shown or (beside_output and os.isatty(1)):
        yield _silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class ProgressCount(ProgressColumn):
        def render(self, task: Any) -> Text:
            of = f"/{int(task.total):,}" if task.total is not None else ""
            rate = f"  {task.speed:,.0f}/s" if task.speed else ""
            return Text(f"{int(task.completed):,}{of} {unit}{rate}", no_wrap=True)

    # A hidden cursor would stay hidden after a signal that ends or stops the process, also after
    # those that no program can catch.
    class ConsoleWithCursor(Console):
        def show_cursor(self, show: bool = True) -> bool:
            return show and super().show_cursor()

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        ProgressCount(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=ConsoleWithCursor(stderr=True), transient=False) as progress:
        task = progress.add_task(text, total=total)

        def report(done: int, total: int | None = None, text: str | None = None) -> None:
            progress.update(task, completed=done, total=total, description=text)

        yield report


def note(text: str) -> None:
    """Print a message to the standard error, if that is a terminal."""
    if _on_terminal():
        click.echo(text, err=True)


def warn(text: str) -> None:
    """Print a warning to the standard error; drop it if that is closed."""
    # print() would write to the standard output then, between the records.
    click.echo(f"Warning: {text}", err=True)


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
