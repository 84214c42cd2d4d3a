"""Imports within ``_wire`` have no circles.

Imports for types count, imports inside functions do not.
"""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

WIRE = Path(__file__).parent.parent.parent / "trikafka" / "_wire"
MODULES = {path.stem for path in WIRE.glob("*.py")} - {"__init__"}


def imported(path: Path) -> set[str]:
    """Return the modules of ``_wire`` that a file imports at its top level or for types."""
    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    late = {inner for function in functions for inner in ast.walk(function)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in late:
            own = node.level == 1 or (node.module or "").startswith("trikafka._wire")
            module = (node.module or "").removeprefix("trikafka._wire").removeprefix(".")
            if own:
                found |= {module} if module else {alias.name for alias in node.names}
    return found & MODULES


def test_modules_import_in_one_direction() -> None:
    graph = {path.stem: imported(path) for path in WIRE.glob("*.py")}
    assert graph["produce"] >= {"messages", "reading"}
    assert graph["columns"] >= {"_columns", "_implementation"}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError, with the circle
    assert set(order) == MODULES | {"__init__"}
