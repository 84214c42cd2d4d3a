"""One writer of each state (DESIGN, section 3a): what a class keeps is assigned to in its own module alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "trikafka"
ROOMS = ("_state", "_managers", "_api", "_net")
FILES = sorted(path for room in ROOMS for path in (PACKAGE / room).rglob("*.py"))
NAMES = [str(path.relative_to(PACKAGE)) for path in FILES]
#: Attributes that the language, Trio and our errors have: written where they are made or handed on.
FOREIGN = {
    "__cause__", "__context__", "__traceback__", "deadline", "shield", "custom_sleep_data",  # Python's and Trio's
    "minimum_version", "check_hostname", "verify_flags",  # of an SSLContext that was just made
    "retriable", "args",  # of an error, by who knows better than the table
}  # fmt: skip


def targets(node: ast.stmt) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        yield node.target
    elif isinstance(node, ast.Delete):
        yield from node.targets


def written(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """Each attribute that is assigned to: its name, the line, and whether it is of the method's own object."""
    for node in ast.walk(tree):
        found: list[ast.expr] = list(targets(node)) if isinstance(node, ast.stmt) else []
        if isinstance(node, ast.For | ast.AsyncFor):
            found.append(node.target)
        if isinstance(node, ast.withitem) and node.optional_vars is not None:
            found.append(node.optional_vars)
        for target in found:
            if isinstance(target, ast.Attribute):
                yield target.attr, target.lineno, isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")


def kept(tree: ast.Module) -> set[str]:
    """The attributes of a module's own classes: assigned to by their methods, declared, or in their slots."""
    names = {name for name, _, own in written(tree) if own}
    for cls in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in cls.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__slots__" for t in node.targets):
                names |= set(ast.literal_eval(node.value))
    return names


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_nobody_writes_what_another_module_keeps(path: Path) -> None:
    tree = ast.parse(path.read_text())
    mine = kept(tree) | FOREIGN
    foreign = [f"line {line}: .{name}" for name, line, own in written(tree) if not own and name not in mine]
    assert not foreign, f"{path.relative_to(PACKAGE)} assigns to what is not its own: tell its owner what happened instead"


def test_only_the_owners_of_a_change_wake_those_who_wait_for_it() -> None:
    """``notify`` stands where a signal belongs; the consumer's are notified by its state (through Wake) and by closing."""
    allowed = {
        "_api/consumer.py",  # closing
        "_api/consumer_core.py",  # where Wake leads to
        "_managers/membership_base.py",  # its own signal
        "_managers/fetch.py",  # its own, and: the metadata changed, so others may be fetchable
    }
    callers = {
        name
        for path, name in zip(FILES, NAMES, strict=True)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "notify"
    }
    consumer = {name for name in callers if not any(part in name for part in ("produce", "accumulator", "intake", "ack", "arrow"))}
    assert consumer <= allowed, f"{sorted(consumer - allowed)} notify a signal: does the state not own that change?"


def test_a_write_from_outside_would_be_found() -> None:
    assert [own for _, _, own in written(ast.parse("def f(p, self):\n    p.position = 1\n    self.x = 2"))] == [False, True]
    assert kept(ast.parse("class A:\n    __slots__ = ('a', 'b')\n    c: int\n    def f(self):\n        self.d = 1")) == set("abcd")
