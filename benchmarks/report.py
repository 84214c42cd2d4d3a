"""The output of a run: tables for the terminal, made from the document alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from .chart import configurations, grids, label, least_of, of_kind, spread_of, value_of


def show(found: dict[str, Any], console: Console) -> None:
    """Print all tables, and the aims last."""
    for table in _tables(found):
        console.print(table)
    for title, notes in (("not measured", found["missing"]), ("failed", found["failed"])):
        for name, why in notes.items():
            console.print(f"{title}: {name}: {why}", highlight=False)


def _tables(found: dict[str, Any]) -> Iterator[Table]:
    cases = found["cases"]
    for kind, title in (("consume", "Reading"), ("produce", "Writing")):
        chosen = of_kind(cases, kind, main=True)
        if chosen:
            yield _rates(
                f"{title} values of {chosen[0]['size']} bytes, compression: "
                f"{chosen[0]['compression']}",
                chosen,
            )
        chosen = of_kind(cases, kind)
        if chosen:
            yield _grid(f"{title}: thousand records a second", chosen)
    for title, head, rows in grids(found):
        table = Table(*head[:2], title=title, title_justify="left")
        for each in head[2:]:
            table.add_column(each, justify="right")
        for row in rows:
            table.add_row(*(cell.strip("`") for cell in row))
        yield table
    yield _aims(found["aims"])


def _rates(title: str, cases: list[dict[str, Any]]) -> Table:
    table = Table("client", "call", title=title, title_justify="left")
    for head in ("records/s", "spread", "MB/s", "CPU s/million", "peak MB", "idle MB"):
        table.add_column(head, justify="right")
    for case in sorted(cases, key=lambda case: -float(case["median"]["records_per_second"])):
        median, (low, high) = case["median"], case["spread"]
        figures = [
            f"{median['records_per_second']:,.0f}",
            f"{low:,.0f} to {high:,.0f}",
            f"{median['mb_per_second']:,.0f}",
        ]
        figures += [
            f"{median['cpu_per_million']:.2f}",
            f"{median['peak_mb']:.0f}",
            f"{median['idle_mb']:.0f}",
        ]
        table.add_row(case["peer"], case["call"], *figures)
    return table


def _grid(title: str, cases: list[dict[str, Any]]) -> Table:
    setups = configurations(cases)
    table = Table("client", "call", title=title, title_justify="left")
    for size, compression in setups:
        table.add_column(f"{size} B\n{compression}", justify="right")
    rows: dict[tuple[str, str], dict[tuple[int, str], float]] = {}
    for case in cases:
        row = rows.setdefault((case["peer"], case["way"]), {})
        row[case["size"], case["compression"]] = case["median"]["records_per_second"] / 1e3
    for (peer, way), row in rows.items():
        table.add_row(
            peer,
            label(cases, peer, way),
            *(f"{row[setup]:,.0f}" if setup in row else "" for setup in setups),
        )
    return table


def _aims(aims: list[dict[str, Any]]) -> Table:
    table = Table(
        "aim",
        title="The aims (ratios of medians; the spread is of single rounds)",
        title_justify="left",
    )
    for head in ("at least", "found", "spread", ""):
        table.add_column(head, justify="right")
    for aim in aims:
        verdict = {True: "met", False: "[red]missed[/]", None: "not measured"}[aim["met"]]
        table.add_row(aim["aim"], least_of(aim), value_of(aim), spread_of(aim), verdict)
    return table
