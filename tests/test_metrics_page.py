"""docs/metrics.md has each field of statistics, health and events, and each observer's method."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import trikafka
import trikafka.interfaces

PAGE = (Path(__file__).parent.parent / "docs" / "metrics.md").read_text(encoding="utf-8")
#: Public classes with numbers and states of a client.
KINDS = ("Statistics", "Health", "Event", "Latency", "Throttle")


def tables() -> dict[str, list[list[str]]]:
    """Return the rows of each table of the page, by the first cell of its head."""
    found: dict[str, list[list[str]]] = {}
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        rows = [
            [cell.strip().strip("`") for cell in line.strip("|\n").split("|")]
            for line in table.splitlines()
        ]
        found[rows[0][0]] = rows[2:]
    return found


def test_page_has_each_field_with_unit() -> None:
    classes = {
        name: [field.name for field in dataclasses.fields(getattr(trikafka, name))]
        for name in trikafka.__all__
        if name.endswith(KINDS)
    }
    found = {name: rows for name, rows in tables().items() if name.endswith(KINDS)}
    assert {name: [row[0] for row in rows] for name, rows in found.items()} == classes
    assert [row for rows in found.values() for row in rows if not row[1]] == []


def test_page_has_each_method_of_observers() -> None:
    wanted = {
        (name, method)
        for name in trikafka.interfaces.__all__
        if name.endswith("Observer")
        for method in vars(getattr(trikafka.interfaces, name))
        if not method.startswith("_")
    }
    assert {(row[0], row[1]) for row in tables()["observer"]} == wanted
