"""The output of the demo: steps with their progress, the checks, and the tables at the end.

Progress is shown as bars on a terminal, and as lines elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

_LINE_EVERY = 5.0


@dataclass(frozen=True)
class Check:
    """A comparison.

    ``found`` must equal ``expected``. ``shown`` is printed instead of both if they are long.
    """

    what: str
    expected: object
    found: object
    shown: str = ""

    @property
    def ok(self) -> bool:
        return self.expected == self.found


@dataclass
class Step:
    """A step of the demo, in progress."""

    title: str
    total: int | None
    screen: Screen
    bar: TaskID | None = None
    done: int = 0
    began: float = field(default_factory=time.monotonic)
    printed_at: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    def at(self, done: int, note: str = "") -> None:
        """Show that ``done`` items are done."""
        self.done = done
        if self.bar is not None:
            self.screen.bars.update(self.bar, completed=done, note=note or self._amount())
        elif time.monotonic() - self.printed_at >= _LINE_EVERY:
            self.printed_at = time.monotonic()
            self.screen.say(f"  {self.title}: {note or self._amount()}")

    def end(self) -> None:
        self.seconds = time.monotonic() - self.began
        if self.bar is not None:
            self.screen.bars.update(
                self.bar, total=self.total or 1, completed=self.total or 1, note=self._amount()
            )
            self.screen.bars.stop_task(self.bar)
        else:
            self.screen.say(f"{self.title}: {self._amount() or 'done'} in {self.seconds:.1f} s")

    def _amount(self) -> str:
        return (
            f"{self.done:,} of {self.total:,}"
            if self.total is not None
            else f"{self.done:,}"
            if self.done
            else ""
        )


class Screen:
    """The output of the demo: a context manager, which leaves the terminal as it was."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = 120
        self.steps: list[Step] = []
        self.checks: list[Check] = []
        columns = (
            TextColumn("{task.description:<48}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self.bars = Progress(*columns, console=self.console, refresh_per_second=8)

    def __enter__(self) -> Screen:
        if self.console.is_terminal:
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def say(self, line: str) -> None:
        """Print a line of text."""
        self.console.print(line, markup=False, soft_wrap=True)

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Step]:
        """Show a step while the block runs; its count and time go into the table of rates."""
        step = Step(title, total, self)
        if self.console.is_terminal:
            step.bar = self.bars.add_task(title, total=total, note="")
        yield step
        step.end()
        self.steps.append(step)

    def check(self, what: str, expected: object, found: object, shown: str = "") -> None:
        """Record a comparison. A difference is printed at once."""
        check = Check(what, expected, found, shown)
        self.checks.append(check)
        if not check.ok:
            self.say(f"DIFFERENT: {what}: expected {_short(expected)}, found {_short(found)}")

    @property
    def ok(self) -> bool:
        """True if there are comparisons and all of them are equal."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    def summary(self) -> None:
        """Print the table of checks, and the table of times and rates."""
        self.bars.stop()
        checks = Table(title="What was checked", title_justify="left", expand=False)
        checks.add_column("what")
        for name in ("expected", "found"):
            checks.add_column(name, justify="right")
        checks.add_column("")
        for check in self.checks:
            sign = "[green]equal[/]" if check.ok else "[bold red]DIFFERENT[/]"
            equal = (
                (check.shown, check.shown)
                if check.ok and check.shown
                else (_short(check.expected), _short(check.found))
            )
            checks.add_row(check.what, *equal, sign)
        rates = Table(title="How long it took", title_justify="left", expand=False)
        rates.add_column("step")
        for name in ("records", "seconds", "records/s"):
            rates.add_column(name, justify="right")
        for step in self.steps:
            rate = f"{step.done / step.seconds:,.0f}" if step.done and step.seconds else ""
            rates.add_row(
                step.title, f"{step.done:,}" if step.done else "", f"{step.seconds:.1f}", rate
            )
        self.console.print(checks, rates)


def _short(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
