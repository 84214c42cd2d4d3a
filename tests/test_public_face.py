"""Programs over the clients stand on the public face: what they cannot do, a user cannot either.

They are ``trikafka.tasks`` and the packages of the plugins. A module is public if no part of its
name begins with an underscore.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from parsed import nodes, tree_of

ROOT = Path(__file__).parent.parent
TASKS = ROOT / "trikafka" / "tasks"
PLUGINS = sorted(
    found.parent for found in ROOT.glob("plugins/*/*/__init__.py") if found.parent.name != "tests"
)
FILES = [path for folder in (TASKS, *PLUGINS) for path in sorted(folder.rglob("*.py"))]
#: Names that begin with an underscore and are public all the same: those of named tuples.
PUBLIC = {"_replace", "_asdict", "_fields", "_make"}
#: The variables that hold a client, or what a client returns.
HOLDERS = {
    *("admin", "consumer", "producer", "client", "exporter"),
    *("stream", "txn", "transaction", "batch", "record", "ack", "config"),
}


def package_of(path: Path) -> tuple[str, ...]:
    """Return the name of the package that holds a file."""
    top = next(folder for folder in (TASKS, *PLUGINS) if path.is_relative_to(folder))
    start = ("trikafka", "tasks") if top == TASKS else (top.name,)
    return (*start, *path.relative_to(top).parts[:-1])


def private_imports(tree: ast.Module, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Return the imports of private modules or names of other packages, with their lines."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            names = [(*base, alias.name) for alias in node.names]
        elif isinstance(node, ast.Constant) and str(node.value).startswith("trikafka._"):
            names = [tuple(str(node.value).split("."))]  # for import_module
        else:
            continue
        for name in names:
            ours = name[0].startswith("trikafka") and name[: len(package)] != package
            if ours and any(part.startswith("_") and part != "__version__" for part in name):
                yield node.lineno, ".".join(name)


def private_attributes(tree: ast.Module, foreign: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Return the uses of private attributes of other objects than ``self``, with their lines.

    A class may use those of another object of its own kind. They are foreign if the name is one of
    ``foreign`` and not the module's own, or if the variable holds a client.
    """
    own = private_names(tree)
    libraries = {
        alias.asname or alias.name
        for node in nodes(tree)
        if isinstance(node, ast.ImportFrom)
        and not node.level
        and not str(node.module).startswith("trikafka")
        for alias in node.names
    }
    for node in nodes(tree):
        if not isinstance(node, ast.Attribute) or not _is_private(node.attr):
            continue
        holder = node.value
        called = getattr(holder, "attr", getattr(holder, "id", "")).lstrip("_")
        if isinstance(holder, ast.Name) and holder.id in ("self", "cls", *libraries):
            continue
        if isinstance(holder, ast.Call) and getattr(holder.func, "id", "") == "super":
            continue
        if called in HOLDERS or (node.attr in foreign and node.attr not in own):
            yield node.lineno, ast.unparse(node)


def private_names(tree: ast.Module) -> set[str]:
    """Return the private names that a module gives to attributes and methods of its classes."""
    names = set()
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return {name for name in names if _is_private(name)}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


@cache
def names_of_core() -> frozenset[str]:
    """Return the private names of the core's classes, but for those of the tasks."""
    files = [path for path in (ROOT / "trikafka").rglob("*.py") if not path.is_relative_to(TASKS)]
    return frozenset(name for path in files for name in private_names(tree_of(path)))


def test_all_packages_are_looked_at() -> None:
    assert {folder.name for folder in PLUGINS} >= {
        "trikafka_broker",
        "trikafka_export",
        "trikafka_spark",
        "pyspark_trikafka",
    }
    assert "_config" in names_of_core()


def test_only_public_modules_are_imported() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}, line {line}: {name}"
        for path in FILES
        for line, name in private_imports(tree_of(path), package_of(path))
    ]
    assert not wrong, "add what is missing to the public face"


def test_no_private_attribute_of_the_core_is_used() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}, line {line}: {text}"
        for path in FILES
        for line, text in private_attributes(tree_of(path), names_of_core())
    ]
    assert not wrong, "add what is missing to the public face"


def test_tasks_use_no_private_attribute_of_any_object() -> None:
    """Their own classes have no need of it either, so the rule has no exception."""
    wrong = [
        f"{path.name}, line {node.lineno}: {ast.unparse(node)}"
        for path in TASKS.rglob("*.py")
        for node in nodes(tree_of(path))
        if isinstance(node, ast.Attribute)
        and _is_private(node.attr)
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        and not (isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()")
    ]
    assert not wrong, "add what is missing to the public face"


@pytest.mark.parametrize(
    "text",
    [
        "from .._api.consumer.consumer import Consumer",
        "from .. import _wire",
        "import trikafka._net.retry",
        "from trikafka._checksum import crc32c",
        "import_module('trikafka._wire.arrow')",
    ],
)
def test_private_import_would_be_found(text: str) -> None:
    assert list(private_imports(ast.parse(text), ("trikafka", "tasks")))


@pytest.mark.parametrize(
    "text",
    [
        "from .. import Consumer, __version__",
        "from .plan import _hidden",  # its own
        "from trikafka.toolkit import Retry",
        "from pyspark._globals import x",
    ],
)
def test_public_import_is_allowed(text: str) -> None:
    assert not list(private_imports(ast.parse(text), ("trikafka", "tasks")))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("consumer._config", True),
        ("self._consumer._parts.metadata", True),
        ("self.made = stream._assigned", True),
        ("class A:\n def f(self, producer):\n  self._closed = producer._closed", True),
        ("x._config", True),
        ("self._config; cls._config; super()._config", False),
        ("class A:\n def f(self, other):\n  self._config = other._config", False),
        ("from pyspark import SparkContext\nSparkContext._config", False),
        ("session._jvm", False),  # another library's
        ("record._replace(key=None)", False),
    ],
)
def test_private_attribute_would_be_found(text: str, found: bool) -> None:
    assert bool(list(private_attributes(ast.parse(text), frozenset({"_config"})))) == found
