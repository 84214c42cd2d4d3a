"""One writer of each state (DESIGN, section 3a): only a class's own module sets its attributes."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from pathlib import Path

from parsed import nodes, tree_of

from trikafka._state.producer.producer_batch import ProducerBatch
from trikafka.interfaces import RecordAccumulator

PACKAGE = Path(__file__).parent.parent / "trikafka"
#: Not checked: the brokers of tests are scripts, and what comes from kafka-python and the table of
#: errors is made there.
OTHERS = ("testing/", "_kafka_python.py", "errors/table.py")
FILES = sorted(
    path for path in PACKAGE.rglob("*.py") if not str(path.relative_to(PACKAGE)).startswith(OTHERS)
)
NAMES = [str(path.relative_to(PACKAGE)) for path in FILES]
#: Attributes of the language, Trio and our errors: written where such objects are made or passed
#: on.
FOREIGN = {
    # Python's and Trio's
    "__cause__",
    "__context__",
    "__traceback__",
    "__notes__",
    "deadline",
    "shield",
    "custom_sleep_data",
    "minimum_version",
    "check_hostname",
    "verify_flags",  # of an SSLContext that was just created
    "retriable",
    "args",  # of an error, by a caller that knows better than the table
    # a docstring that is made, the module warnings', and click's context
    "__doc__",
    "showwarning",
    "obj",
}


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Return the parsed files by name. Not at the import, which each process of a run makes."""
    return {name: tree_of(path) for path, name in zip(FILES, NAMES, strict=True)}


def targets(node: ast.stmt) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        yield node.target
    elif isinstance(node, ast.Delete):
        yield from node.targets


def written(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """Return each attribute that is assigned to: its name, the line, and whether it is of ``self``."""
    for node in nodes(tree):
        found: list[ast.expr] = list(targets(node)) if isinstance(node, ast.stmt) else []
        if isinstance(node, ast.For | ast.AsyncFor):
            found.append(node.target)
        if isinstance(node, ast.withitem) and node.optional_vars is not None:
            found.append(node.optional_vars)
        for target in found:
            if isinstance(target, ast.Attribute):
                yield (
                    target.attr,
                    target.lineno,
                    isinstance(target.value, ast.Name) and target.value.id in ("self", "cls"),
                )


def kept(tree: ast.Module) -> set[str]:
    """Return the attributes of a module's own classes: assigned by methods, declared, or in slots."""
    names = {name for name, _, own in written(tree) if own}
    for cls in (node for node in nodes(tree) if isinstance(node, ast.ClassDef)):
        for node in cls.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
            if isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == "__slots__" for t in node.targets
            ):
                names |= set(ast.literal_eval(node.value))
    return names


#: Methods that change a list, a dict, a set, a deque or a bytearray.
MUTATORS = {
    "append",
    "appendleft",
    "extend",
    "insert",
    "pop",
    "popleft",
    "popitem",
    "remove",
    "discard",
    "add",
    "clear",
    "update",
    "setdefault",
    "sort",
    "reverse",
    "difference_update",
    "intersection_update",
    "symmetric_difference_update",
    "move_to_end",
}
#: Attributes that hold an object of ours, not a container. Its method has a container's name.
NO_CONTAINERS = {"subscription", "accumulator", "session"}
#: Attributes of the compiled part that have no methods, and the one module that makes and changes
#: them.
PARTS = {
    ("_state/producer/accumulator.py", "waiters"),
    ("_state/producer/accumulator.py", "topics"),
}
#: Ways around an assignment.
SETTERS = {"setattr", "delattr", "__setattr__", "__delattr__"}


def _own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def changed_within(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Return each attribute of another object whose container is changed in place: name and line."""
    for node in nodes(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in MUTATORS
        ):
            held = node.func.value
            if isinstance(held, ast.Attribute) and not _own(held.value):
                yield held.attr, node.lineno
        for target in targets(node) if isinstance(node, ast.stmt) else ():
            if (
                isinstance(target, ast.Subscript)
                and isinstance(target.value, ast.Attribute)
                and not _own(target.value.value)
            ):
                yield target.value.attr, target.lineno


def set_by_name(tree: ast.Module) -> Iterator[int]:
    """Return the lines where an attribute is set without an assignment."""
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            name = (
                node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            )
            if name in SETTERS and not (node.args and _own(node.args[0])):
                yield node.lineno
        if isinstance(node, ast.Attribute) and node.attr == "__dict__" and not _own(node.value):
            yield node.lineno


def annotated(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, set[str]]:
    """Return the names of the classes in the annotation of each parameter and local variable."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    found = {
        argument.arg: argument.annotation
        for argument in arguments
        if argument.annotation is not None
    }
    for node in nodes(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node.annotation
    return {
        name: {part.id for part in nodes(annotation) if isinstance(part, ast.Name)}
        for name, annotation in found.items()
    }


def written_to_another_class(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Return assignments to an object that is annotated with another module's class."""
    mine = {node.name for node in nodes(tree) if isinstance(node, ast.ClassDef)}
    imported = {
        alias.asname or alias.name
        for node in nodes(tree)
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    for function in (
        node for node in nodes(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ):
        types = annotated(function)
        for node in nodes(function):
            for target in targets(node) if isinstance(node, ast.stmt) else ():
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    classes = types.get(target.value.id, set())
                    if classes & imported and not classes & mine and target.attr not in FOREIGN:
                        yield f"{target.value.id}.{target.attr}", target.lineno


def test_attributes_are_assigned_by_their_module() -> None:
    foreign = [
        f"{room}, line {line}: .{name}"
        for room, tree in trees().items()
        for mine in [kept(tree) | FOREIGN]
        for name, line, own in written(tree)
        if not own and name not in mine
    ]
    assert not foreign, "they assign to what is not their own: call a method of the owner instead"


def test_containers_are_changed_by_their_module() -> None:
    foreign = [
        f"{room}, line {line}: .{name}"
        for room, tree in trees().items()
        for mine in [kept(tree) | NO_CONTAINERS | {name for where, name in PARTS if where == room}]
        for name, line in changed_within(tree)
        if name not in mine
    ]
    assert not foreign, "they change what is not their own: call a method of the owner instead"


def test_no_attribute_is_set_by_its_name() -> None:
    # clients.py sets attributes of frozen classes.
    rooms = {room: tree for room, tree in trees().items() if Path(room).name != "clients.py"}
    assert not [
        f"{room}, line {line}" for room, tree in rooms.items() for line in set_by_name(tree)
    ], "no way around the rule"


def test_annotated_objects_are_not_assigned_to() -> None:
    """The annotation names a class of another module."""
    foreign = [
        f"{room}, line {line}: {name}"
        for room, tree in trees().items()
        for name, line in written_to_another_class(tree)
    ]
    assert not foreign, "they assign to what is not their own: call a method of the owner instead"


def test_signals_are_notified_by_their_owners() -> None:
    """``notify`` is called where a signal belongs.

    The consumer's signals are notified by its state (through ChangeCallbacks) and by closing.
    """
    allowed = {
        "_api/consumer/consumer.py",  # closing
        "_api/consumer/core.py",  # where ChangeCallbacks leads to
        "_api/share/consumer.py",  # a receive has begun
        "_api/share/parts.py",  # closing
        "_managers/group/membership_base.py",  # its own signal
        "_managers/share/fetch.py",  # its own, and: there is something to deliver
        "_managers/share/membership.py",  # an error that each receive has to raise
        "_net/refusals.py",  # its own: an attempt to authenticate ended
        "_managers/consumer/positions.py",  # an attempt of its own ended: look again what is due
        "_managers/consumer/fetch.py",  # its own, and: the metadata changed, so others may be fetchable
    }
    callers = {
        name
        for name, tree in trees().items()
        for node in nodes(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "notify"
    }
    consumer = {
        name
        for name in callers
        if not any(part in name for part in ("produce", "accumulator", "intake", "ack", "arrow"))
    }
    assert consumer <= allowed, (
        f"{sorted(consumer - allowed)} notify a signal: does the state not own that change?"
    )


#: The modules of the produce manager, which alone changes the accumulator.
MANAGER = (
    "_managers/producer/produce.py",
    "_managers/producer/produce_senders.py",
)
#: Methods of a batch and its timeline that others than the accumulator may read or
#: wait for.
READS = {
    "place",
    "size",
    "in_flight",
    "settled",
    "unknown",
    "pieces",
    "to_bytes",
    "part",
    "metadata",
    "time_spent",
    "claim",
    "unclaim",
    "signal_for",
}
CHANGES = {
    name
    for name, what in vars(ProducerBatch).items()
    if inspect.isfunction(what) and not name.startswith("__") and name not in READS
}
#: Of these, those that other objects have, too: looked for only where what has them is called as a
#: batch is.
COMMON = {"close", "delayed", "done", "flush", "number", "seal", "sent", "split", "wake"}


def used_of(tree: ast.Module, *names: str) -> Iterator[tuple[str, int]]:
    """Return the uses of objects with these names, also under another variable, with their lines."""
    known = set(names)
    for node in nodes(tree):
        if isinstance(node, ast.Assign) and _called(node.value) in names:
            known |= {_called(target) for target in node.targets}
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and _called(node.value) in known:
            yield node.attr, node.lineno


def _called(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def test_accumulator_is_changed_by_produce_alone() -> None:
    views = {name for name in vars(RecordAccumulator) if not name.startswith("_")}
    foreign = [
        f"{room}, line {line}: .{name}"
        for room, tree in trees().items()
        if not room.startswith((*MANAGER, "_state/"))
        for name, line in used_of(tree, "accumulator", "_accumulator")
        if name not in views
    ]
    assert not foreign, "tell the produce manager instead"


def test_accumulator_alone_changes_its_batches() -> None:
    called = ("batch", "_batch", "each", "leaf", "part", "ProducerBatch", "time")
    looked_at, foreign = [], []
    for path, (room, tree) in zip(FILES, trees().items(), strict=True):
        if room.startswith("_state/") or "ProducerBatch" not in path.read_text():
            continue
        looked_at.append(room)
        found = [(name, line) for name, line in used_of(tree, *called) if name in CHANGES]
        everywhere = (
            (node.attr, node.lineno) for node in nodes(tree) if isinstance(node, ast.Attribute)
        )
        found += [(name, line) for name, line in everywhere if name in CHANGES - COMMON]
        foreign += [f"{room}, line {line}: .{name}" for name, line in found]
    assert looked_at
    assert not foreign, "tell the accumulator instead"


def test_foreign_write_would_be_found() -> None:
    assert [
        own
        for _, _, own in written(ast.parse("def f(p, self):\n    p.position = 1\n    self.x = 2"))
    ] == [False, True]
    assert kept(
        ast.parse(
            "class A:\n    __slots__ = ('a', 'b')\n    c: int\n    def f(self):\n        self.d = 1"
        )
    ) == set("abcd")
    changes = "p.waiting.append(1)\nself.waiting.append(1)\nq.table[2] = 3"
    assert sorted(changed_within(ast.parse(changes))) == [("table", 3), ("waiting", 1)]
    uses = "self._accumulator.append(1)\nbatch.seal()\nx.batch.close()\nother.append(2)"
    uses += "\nknown = self._accumulator\nknown.abort(3)"
    found = [("abort", 6), ("append", 1), ("close", 3), ("seal", 2)]
    assert sorted(used_of(ast.parse(uses), "_accumulator", "batch")) == found
    ways = "setattr(p, 'position', 1)\nobject.__setattr__(p, 'x', 2)\np.__dict__['y'] = 3"
    assert list(set_by_name(ast.parse(ways))) == [1, 2, 3]
    other = (
        "from .a import P\nclass A:\n    position: int\n\ndef f(p: P | None, a: A):\n    "
        "p.position = 1\n    a.position = 2"
    )
    assert list(written_to_another_class(ast.parse(other))) == [("p.position", 6)]
