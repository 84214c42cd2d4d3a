"""Imports go one way, ``_state`` never waits, optional packages are imported on use."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from parsed import nodes, tree_of

PACKAGE = Path(__file__).parent.parent / "trikafka"
#: From the bottom up: a room may import itself and the rooms that are listed for it.
BASE = [
    "_importing",
    "_kafka_python",
    "_checksum",
    "error_codes",
    "errors",
    "types",
    "config",
    "interfaces",
    "hooks",
    "http_request",
    "_version",
]
#: Of these, the ones that users import, too.
PUBLIC = [*(room for room in BASE if not room.startswith("_")), "toolkit"]
LOW = [*BASE, "_wire", "_net"]
#: What every wing of a floor may import, beside the wings that are listed for it.
STATE = [*BASE, "_wire", "_state"]
MANAGERS = [*LOW, "_state", "_state.telemetry"]
API = [*LOW, "_state", "_state.telemetry", "_api.client"]
TASKS = [*API, "_api.consumer", "_api.producer", "_api.admin", "_api.share"]
ROOMS: dict[str, list[str]] = {
    **dict.fromkeys(BASE, BASE),
    "_wire": BASE,
    "_net": [*BASE, "_wire"],
    # What a client knows. The wings do not know each other.
    "_state": [*BASE, "_wire"],
    "_state.assignors": STATE,
    "_state.consumer": STATE,
    "_state.group": STATE,
    "_state.producer": STATE,
    "_state.share": STATE,
    "_state.telemetry": STATE,
    # The conversations. A producer's know nothing of a consumer's.
    "_managers": ["_kafka_python"],
    "_managers.cluster": MANAGERS,
    "_managers.group": [
        *MANAGERS,
        "_state.assignors",
        "_state.consumer",
        "_state.group",
        "_managers.cluster",
    ],
    "_managers.commits": [*MANAGERS, "_state.consumer", "_state.group", "_managers.group"],
    "_managers.consumer": [*MANAGERS, "_state.consumer", "_managers.commits"],
    "_managers.producer": [*MANAGERS, "_state.producer", "_managers.commits"],
    "_managers.share": [
        *MANAGERS,
        "_state.group",
        "_state.share",
        "_managers.cluster",
        "_managers.group",
    ],
    # What users hold: the frame below the three kinds of client, which do not know each other.
    "_api.client": [*MANAGERS, "_state.assignors", "_managers.cluster"],
    "_api.consumer": [
        *API,
        "_state.assignors",
        "_state.consumer",
        "_state.group",
        "_managers.cluster",
        "_managers.group",
        "_managers.commits",
        "_managers.consumer",
    ],
    "_api.producer": [*API, "_state.producer", "_managers.cluster", "_managers.producer"],
    "_api.admin": [
        *API,
        "_state.group",
        "_state.producer",
        "_managers.cluster",
        "_managers.group",
        "_managers.commits",
        "_managers.producer",
    ],
    "_api.share": [
        *API,
        "_state.group",
        "_state.share",
        "_managers.cluster",
        "_managers.group",
        "_managers.share",
    ],
    # The tools of the frame for programs over the clients.
    "toolkit": [*LOW, "_api.client"],
    # Programs over the clients. They import what users import.
    "tasks": [*PUBLIC, ""],
    "_api": [*TASKS, "tasks"],  # exports and sinks
    "cli": [*TASKS, "_api", "tasks", ""],
    # asyncio's face stands on the public one: what a user of Trio has. A queue's run opens its own
    # client, and asyncio's has to be opened in asyncio, so this face takes the run without that.
    "aio": ["", "config", "errors", "interfaces", "tasks", "toolkit", "types"],
    # The scripted cluster in the guest.
    "aio.testing": ["", "aio", "errors", "testing"],
    "testing": BASE,
    "": [*TASKS, "_api", "tasks"],  # trikafka itself
    "__main__": ["cli"],
}
OPTIONAL = {
    "pyarrow",
    "pyspark",
    "trikafka_spark",
    "trikafka_export",
    "trikafka_broker",
    "numpy",
    "pandas",
}
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(PACKAGE)) for path in FILES]


def room_of(module: tuple[str, ...]) -> str:
    """Return the room or wing of a module below ``trikafka``.

    For a name in its ``__init__`` it is the package itself.
    """
    wing = ".".join(module[:2])
    return wing if wing in ROOMS else module[0] if module and module[0] in ROOMS else ""


@cache
def imports(path: Path) -> list[tuple[tuple[str, ...], ast.stmt, bool]]:
    """Return every import of a file: its whole name, its statement, and whether it is top-level."""
    return list(_imports(path, tree_of(path)))


def _imports(path: Path, tree: ast.Module) -> Iterator[tuple[tuple[str, ...], ast.stmt, bool]]:
    top = set(
        nodes(ast.Module([n for n in tree.body if not _checks_types(n)], []))
    ) - _inside_functions(tree)
    package = ("trikafka", *path.relative_to(PACKAGE).parts[:-1])
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield tuple(alias.name.split(".")), node, node in top
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            for alias in node.names:
                yield (*base, alias.name), node, node in top


def _checks_types(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


@cache
def _inside_functions(tree: ast.Module) -> set[ast.AST]:
    functions = [
        node for node in nodes(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {inner for function in functions for inner in nodes(function)} - set(functions)


def test_imports_go_one_way() -> None:
    wrong = []
    for path in FILES:
        own = path.relative_to(PACKAGE).with_suffix("").parts
        room = room_of(own)
        for name, node, _ in imports(path):
            if name[0] == "trikafka":
                other = room_of(name[1:])
                if other != room and other not in ROOMS[room]:
                    wrong.append(
                        f"{'.'.join(own)}, line {node.lineno}: {'.'.join(name)} (it may import "
                        f"{ROOMS[room]})"
                    )
    assert not wrong


def test_consumer_and_producer_stand_apart() -> None:
    """No way over other wings leads from one to the other, except by what any client has."""
    reached = {room: {room} for room in ROOMS}
    for _ in ROOMS:
        for below in reached.values():
            below |= {far for near in below for far in ROOMS[near]}
    assert not {each for each in reached["_api.producer"] if each.endswith(".consumer")} - {
        "_state.consumer"  # for the topic ids in the messages of offsets
    }
    assert not {each for each in reached["_api.consumer"] if each.endswith(".producer")}
    assert "tasks" not in reached["_api.consumer"] | reached["_api.admin"] | reached["_api.client"]


def test_circles_of_imports_are_rare() -> None:
    """Imports for type checkers count, those inside of functions do not."""
    modules = {_module(path): path for path in FILES}
    graph = {
        name: {
            found
            for whole, node, _ in imports(path)
            if node not in _inside_functions(tree_of(path))
            for found in [".".join(whole)]
            for found in [found if found in modules else found.rpartition(".")[0]]
            if found in modules and found != name
        }
        for name, path in modules.items()
    }
    beyond = {name: _reached(graph, name) for name in graph}
    circles = {
        frozenset(other for other in beyond[name] if name in beyond[other])
        for name in graph
        if name in beyond[name]
    }
    assert sorted(map(len, circles)) in ([], [2]), circles


def _module(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("trikafka", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        new = graph[todo.pop()] - found
        found |= new
        todo += new
    return found


def test_optional_packages_are_imported_on_use() -> None:
    late = "_wire/arrow.py"  # it is the module that is imported late
    assert not [
        name
        for path in FILES
        for name, _, top in imports(path)
        if top and name[:3] == ("trikafka", "_wire", "arrow")
    ]
    assert not [
        f"{room}, line {node.lineno}: {name[0]}"
        for path, room in zip(FILES, NAMES, strict=True)
        for name, node, top in imports(path)
        if top and name[0] in OPTIONAL and room != late
    ]


def test_core_does_not_import_spark() -> None:
    assert not [
        (room, name)
        for path, room in zip(FILES, NAMES, strict=True)
        for name, _, _ in imports(path)
        if name[0] in ("pyspark", "trikafka_spark", "trikafka_export")
    ]


#: Parquet is a form of the input of ``trikafka produce``.
READ_PARQUET = ("cli/produce.py", "cli/producing.py", "cli/parquet_in.py")


def test_the_core_names_no_product() -> None:
    product = re.compile(r"spark|iceberg|parquet|delta lake|format=delta", re.IGNORECASE)
    assert not [
        (room, line)
        for path, room in zip(FILES, NAMES, strict=True)
        for line in path.read_text().splitlines()
        if product.search(re.sub("parquet", "", line, flags=re.I) if room in READ_PARQUET else line)
    ]


def test_state_never_waits() -> None:
    waits = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef)
    state = [path for path in FILES if path.relative_to(PACKAGE).parts[0] == "_state"]
    assert state
    for path in state:
        assert not [node.lineno for node in nodes(tree_of(path)) if isinstance(node, waits)], (
            path.name
        )
        assert not [name for name, _, _ in imports(path) if name[0] == "trio"], path.name


def test_every_module_has_a_docstring() -> None:
    for path, room in zip(FILES, NAMES, strict=True):
        text = path.read_text()
        assert not text.strip() or ast.get_docstring(tree_of(path)), room


def test_trikafka_imports_nothing_optional() -> None:
    code = f"import sys, trikafka; print(sorted({OPTIONAL!r} & set(sys.modules)))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )
