"""Imports go one way (DESIGN, section 2), ``_state`` never waits, and what is optional is imported only when it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "trikafka"
#: From the bottom up: a room may import itself and what is listed for it.
BASE = ["_kafka_python", "_checksum", "error_codes", "errors", "types", "config", "interfaces", "hooks", "_version"]
ROOMS: dict[str, list[str]] = {
    **dict.fromkeys(BASE, BASE),
    "_wire": BASE,
    "_state": [*BASE, "_wire"],
    "_net": [*BASE, "_wire"],
    "_managers": [*BASE, "_wire", "_state", "_net"],
    "_api": [*BASE, "_wire", "_state", "_net", "_managers"],
    "cli": [*BASE, "_wire", "_state", "_net", "_managers", "_api", ""],
    "testing": [*BASE],
    "": [*BASE, "_wire", "_state", "_net", "_managers", "_api"],  # trikafka itself
    "__main__": ["cli"],
}
OPTIONAL = {"pyarrow", "pyspark", "trikafka_spark", "trikafka_broker", "numpy", "pandas"}
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(PACKAGE)) for path in FILES]


def room_of(module: tuple[str, ...]) -> str:
    """The room of a module below ``trikafka``; of a name in its ``__init__``, the package itself."""
    return module[0] if module and module[0] in ROOMS else ""


@cache
def imports(path: Path) -> list[tuple[tuple[str, ...], ast.stmt, bool]]:
    """Every import of a file: the whole name, the statement, and whether it stands on the module's level."""
    return list(_imports(path, ast.parse(path.read_text())))


def _imports(path: Path, tree: ast.Module) -> Iterator[tuple[tuple[str, ...], ast.stmt, bool]]:
    top = set(ast.walk(ast.Module([n for n in tree.body if not _checks_types(n)], []))) - _inside_functions(tree)
    package = ("trikafka", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield tuple(alias.name.split(".")), node, node in top
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            for alias in node.names:
                yield (*base, alias.name), node, node in top


def _checks_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _inside_functions(tree: ast.Module) -> set[ast.AST]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {inner for function in functions for inner in ast.walk(function)} - set(functions)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_imports_go_one_way(path: Path) -> None:
    own = path.relative_to(PACKAGE).with_suffix("").parts
    room = room_of(own)
    wrong = []
    for name, node, _ in imports(path):
        if name[0] == "trikafka":
            other = room_of(name[1:])
            if other != room and other not in ROOMS[room]:
                wrong.append(f"line {node.lineno}: {'.'.join(name)}")
    assert not wrong, f"{'.'.join(own)} may import {ROOMS[room]}, not {wrong}"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_what_is_optional_is_imported_when_it_is_used(path: Path) -> None:
    if path.relative_to(PACKAGE) == Path("_wire/arrow.py"):
        importers = [
            name for other in FILES for name, _, top in imports(other) if top and name[:3] == ("trikafka", "_wire", "arrow")
        ]
        assert not importers  # it is the module that is imported late
    else:
        assert not [f"line {node.lineno}: {name[0]}" for name, node, top in imports(path) if top and name[0] in OPTIONAL]


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_nobody_but_the_plugin_knows_spark(path: Path) -> None:
    assert not [name for name, _, _ in imports(path) if name[0] in ("pyspark", "trikafka_spark")]


STATE = [path for path in FILES if path.relative_to(PACKAGE).parts[0] == "_state"]


@pytest.mark.parametrize("path", STATE, ids=lambda path: path.name)
def test_the_state_never_waits(path: Path) -> None:
    waits = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef)
    assert not [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, waits)]
    assert not [name for name, _, _ in imports(path) if name[0] == "trio"]


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_every_module_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    assert not text.strip() or ast.get_docstring(ast.parse(text))


def test_importing_trikafka_needs_nothing_optional() -> None:
    code = f"import sys, trikafka; print(sorted({OPTIONAL!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
