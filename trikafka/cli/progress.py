"""Progress on the standard error, when it is a terminal. rich is imported only then."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Meter(Protocol):
    """Where a command tells how far it is."""

    def __call__(self, done: int, total: int | None = None, text: str | None = None) -> None: ...


def _silent(done: int, total: int | None = None, text: str | None = None) -> None:
    """Tell nobody."""


@contextmanager
def meter(text: str, unit: str, total: int | None = None, *, beside_output: bool = False) -> Iterator[Meter]:
    """Show a bar (or a count, without ``total``). ``beside_output``: the command prints, so not if both are the same terminal."""
    if not sys.stderr.isatty() or (beside_output and os.isatty(1)):
        yield _silent
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
        from rich.text import Text
    except ModuleNotFoundError:  # click came with something else
        yield _silent
        return

    class Count(ProgressColumn):
        def render(self, task: Any) -> Text:
            of = f"/{int(task.total):,}" if task.total is not None else ""
            rate = f"  {task.speed:,.0f}/s" if task.speed else ""
            return Text(f"{int(task.completed):,}{of} {unit}{rate}", no_wrap=True)

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), Count(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=False) as progress:
        task = progress.add_task(text, total=total)

        def tell(done: int, total: int | None = None, text: str | None = None) -> None:
            progress.update(task, completed=done, total=total, description=text)

        yield tell


def note(text: str) -> None:
    """Say something that is not an error on the standard error, if somebody is there to read it."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Say what the user has to know on the standard error."""
    print(f"Warning: {text}", file=sys.stderr, flush=True)
