"""One writer of each state (DESIGN, section 3a): what a class keeps is assigned to in its own module alone."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from trikafka._state.producer_batch import Delivery, Outcome, ProducerBatch
from trikafka.interfaces import RecordAccumulator

PACKAGE = Path(__file__).parent.parent / "trikafka"
#: Not looked at: the brokers of tests are scripts, and what is taken from kafka-python and the table of errors is made there.
OTHERS = ("testing/", "_kafka_python.py", "errors/table.py")
FILES = sorted(path for path in PACKAGE.rglob("*.py") if not str(path.relative_to(PACKAGE)).startswith(OTHERS))
NAMES = [str(path.relative_to(PACKAGE)) for path in FILES]
#: Attributes that the language, Trio and our errors have: written where they are made or handed on.
FOREIGN = {
    "__cause__", "__context__", "__traceback__", "__notes__", "deadline", "shield", "custom_sleep_data",  # Python's and Trio's
    "minimum_version", "check_hostname", "verify_flags",  # of an SSLContext that was just made
    "retriable", "args",  # of an error, by who knows better than the table
    "__doc__", "showwarning", "obj",  # a docstring that is made, the module warnings', and click's context
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


#: What changes a list, a dict, a set, a deque or a bytearray.
MUTATORS = {
    "append", "appendleft", "extend", "insert", "pop", "popleft", "popitem", "remove", "discard", "add", "clear", "update",
    "setdefault", "sort", "reverse", "difference_update", "intersection_update", "symmetric_difference_update", "move_to_end",
}  # fmt: skip
#: Attributes that hold an object of ours, not a container: its method has a container's name.
NO_CONTAINERS = {"subscription", "accumulator"}
#: What the compiled part keeps without methods of its own, and the one module that makes and changes it.
PARTS = {("_state/buffer_pool.py", "waiters"), ("_state/accumulator.py", "topics")}
#: Ways around an assignment.
SETTERS = {"setattr", "delattr", "__setattr__", "__delattr__"}


def _own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def changed_within(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Each container that is an attribute of another object, and is changed in place: its name and the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            held = node.func.value
            if isinstance(held, ast.Attribute) and not _own(held.value):
                yield held.attr, node.lineno
        for target in targets(node) if isinstance(node, ast.stmt) else ():
            if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute) and not _own(target.value.value):
                yield target.value.attr, target.lineno


def set_by_name(tree: ast.Module) -> Iterator[int]:
    """The lines where an attribute is set without an assignment, of whatever object."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in SETTERS and not (node.args and _own(node.args[0])):
                yield node.lineno
        if isinstance(node, ast.Attribute) and node.attr == "__dict__" and not _own(node.value):
            yield node.lineno


def annotated(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, set[str]]:
    """The names of the classes in the annotation of each parameter and local variable."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    found = {argument.arg: argument.annotation for argument in arguments if argument.annotation is not None}
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node.annotation
    return {
        name: {part.id for part in ast.walk(annotation) if isinstance(part, ast.Name)} for name, annotation in found.items()
    }


def written_to_another_class(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Assignments to an attribute of what is annotated as a class of another module, whatever the attribute is called."""
    mine = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
        types = annotated(function)
        for node in ast.walk(function):
            for target in targets(node) if isinstance(node, ast.stmt) else ():
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    classes = types.get(target.value.id, set())
                    if classes & imported and not classes & mine and target.attr not in FOREIGN:
                        yield f"{target.value.id}.{target.attr}", target.lineno


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_nobody_writes_what_another_module_keeps(path: Path) -> None:
    tree = ast.parse(path.read_text())
    mine = kept(tree) | FOREIGN
    foreign = [f"line {line}: .{name}" for name, line, own in written(tree) if not own and name not in mine]
    assert not foreign, f"{path.relative_to(PACKAGE)} assigns to what is not its own: tell its owner what happened instead"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_nobody_changes_a_container_that_another_module_keeps(path: Path) -> None:
    tree = ast.parse(path.read_text())
    room = str(path.relative_to(PACKAGE))
    mine = kept(tree) | NO_CONTAINERS | {name for where, name in PARTS if where == room}
    foreign = [f"line {line}: .{name}" for name, line in changed_within(tree) if name not in mine]
    assert not foreign, f"{path.relative_to(PACKAGE)} changes what is not its own: tell its owner what happened instead"


@pytest.mark.parametrize("path", [path for path in FILES if path.name != "clients.py"], ids=lambda path: path.stem)  # (frozen)
def test_nobody_sets_an_attribute_by_its_name(path: Path) -> None:
    assert not list(set_by_name(ast.parse(path.read_text()))), f"{path.relative_to(PACKAGE)}: no way around the rule"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_nobody_writes_to_an_object_of_another_modules_class(path: Path) -> None:
    foreign = list(written_to_another_class(ast.parse(path.read_text())))
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


#: The modules of the produce manager, which alone changes the accumulator.
MANAGER = ("_managers/produce.py", "_managers/produce_room.py", "_managers/produce_senders.py")
#: What a batch, how it fares and its outcome have for others than the accumulator: to look at, and to wait.
READS = {
    "place", "size", "numbered", "in_flight", "settled", "unknown", "pieces", "to_bytes", "part", "metadata",
    "told", "report", "claim", "signal_for",
}  # fmt: skip
CHANGES = {
    name
    for kind in (ProducerBatch, Delivery, Outcome)
    for name, what in vars(kind).items()
    if inspect.isfunction(what) and not name.startswith("__") and name not in READS
}
#: Of these, those that other objects have, too: looked for only where what has them is called as a batch is.
COMMON = {"close", "delayed", "done", "hurry", "number", "seal", "sent", "split", "tell"}


def used_of(tree: ast.Module, *names: str) -> Iterator[tuple[str, int]]:
    """What is used of an object that is called so, also under a variable that it was given to, and the line."""
    known = set(names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _called(node.value) in names:
            known |= {_called(target) for target in node.targets}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _called(node.value) in known:
            yield node.attr, node.lineno


def _called(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_the_produce_manager_alone_changes_the_accumulator_and_that_alone_its_batches(path: Path) -> None:
    room, tree = str(path.relative_to(PACKAGE)), ast.parse(path.read_text())
    if not room.startswith((*MANAGER, "_state/")):
        views = {name for name in vars(RecordAccumulator) if not name.startswith("_")}
        foreign = [f"line {line}: .{name}" for name, line in used_of(tree, "accumulator", "_accumulator") if name not in views]
        assert not foreign, f"{room}: tell the produce manager instead"
    if not room.startswith("_state/") and "ProducerBatch" in path.read_text():
        called = ("batch", "_batch", "each", "leaf", "part", "ProducerBatch", "outcome", "delivery")
        foreign = [f"line {line}: .{name}" for name, line in used_of(tree, *called) if name in CHANGES]
        everywhere = ((node.attr, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.Attribute))
        foreign += [f"line {line}: .{name}" for name, line in everywhere if name in CHANGES - COMMON]
        assert not foreign, f"{room}: tell the accumulator instead"


def test_a_write_from_outside_would_be_found() -> None:
    assert [own for _, _, own in written(ast.parse("def f(p, self):\n    p.position = 1\n    self.x = 2"))] == [False, True]
    assert kept(ast.parse("class A:\n    __slots__ = ('a', 'b')\n    c: int\n    def f(self):\n        self.d = 1")) == set("abcd")
    changes = "p.waiting.append(1)\nself.waiting.append(1)\nq.table[2] = 3"
    assert sorted(changed_within(ast.parse(changes))) == [("table", 3), ("waiting", 1)]
    uses = "self._accumulator.append(1)\nbatch.seal()\nx.batch.close()\nother.append(2)"
    uses += "\nknown = self._accumulator\nknown.abort(3)"
    found = [("abort", 6), ("append", 1), ("close", 3), ("seal", 2)]
    assert sorted(used_of(ast.parse(uses), "_accumulator", "batch")) == found
    ways = "setattr(p, 'position', 1)\nobject.__setattr__(p, 'x', 2)\np.__dict__['y'] = 3"
    assert list(set_by_name(ast.parse(ways))) == [1, 2, 3]
    other = "from .a import P\nclass A:\n    position: int\n\ndef f(p: P | None, a: A):\n    p.position = 1\n    a.position = 2"
    assert list(written_to_another_class(ast.parse(other))) == [("p.position", 6)]
