"""Nothing grows until nobody can hold it in mind: attributes of a class, lines of a file and of a function (issue: A2)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "trikafka"
FILES = sorted(path for path in PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(PACKAGE)) for path in FILES]
ROOMS = ("_api", "_managers", "_state", "_net")
IN_ROOMS = [path for path in FILES if path.relative_to(PACKAGE).parts[0] in ROOMS]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def attributes(cls: ast.ClassDef) -> set[str]:
    """What an object of the class keeps."""
    found = {node.target.id for node in cls.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    for node in ast.walk(cls):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
    return found


def length(function: Function) -> int:
    """The lines of a function without its signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return 0 if not body else (body[-1].end_lineno or 0) - body[0].lineno + 1


@pytest.mark.parametrize("path", IN_ROOMS, ids=[str(path.relative_to(PACKAGE)) for path in IN_ROOMS])
def test_no_class_keeps_more_than_fifteen_things(path: Path) -> None:
    classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    assert not {cls.name: len(attributes(cls)) for cls in classes if len(attributes(cls)) > 15}


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_no_file_and_no_function_is_too_long(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 500
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, Function)]
    assert not {function.name: length(function) for function in functions if length(function) > 50}


def test_a_class_that_keeps_too_much_would_be_found() -> None:
    tree = ast.parse("class A:\n    x: int\n    def f(self, other):\n        self.y, self.z = 1, 2\n        other.w = 3")
    assert isinstance(tree.body[0], ast.ClassDef)
    assert attributes(tree.body[0]) == {"x", "y", "z"}
