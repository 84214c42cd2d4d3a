"""State that clients of one process share: each has its place here, and the reason why it may.

Clients may run in several threads, each with an event loop, also on a free-threaded Python.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import pkgutil
import random
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import parsed
import pyspark_trikafka
import pytest
import trikafka_broker
import trikafka_export
import trikafka_spark
from parsed import nodes

import trikafka

RUN = "a value for each run of Trio"
THREAD = "a value for each thread, which has one event loop at a time"
#: What may change within the process, and why threads may share it.
SHARED = {
    "_api.consumer.batches._importing": RUN,
    "_api.consumer.handler_tasks._handlers": RUN,
    "_api.producer.waiting.current": THREAD,
    "_importing._lock": "a lock: modules are imported by one thread at a time",
    "_kafka_python.writing_decoder": "a lock: kafka-python writes one decoder at a time",
    "_net.callers._calls": RUN,
    "_net.callers._hosting": RUN,
    "_net.deadlines._under_way": RUN,
    "_net.decoding._collector": "the garbage collector is the process's; with a lock",
    "_net.decoding._limiter": RUN,
    "_net.retry._random": "Python's generator may be used by several threads",
    "_net.tls_context._shared": "contexts that were made, to resume sessions; with a lock",
    "_wire._implementation._warned": "a warning; two threads may both give it",
    "_wire._implementation.current": "changed by tests alone",
    "_wire._implementation.name_in_use": "changed by tests alone",
    "_wire.compression._gunzip": "a guess of the next size; any value is good",
    "_wire.compression._unlz4": "a guess of the next size; any value is good",
    "_wire.compression._unzstd": "a guess of the next size; any value is good",
    "_wire.compression.Scratch._spare": "spare memory; pop and append are atomic",
    "aio.guest._here": THREAD,
}
#: The same in the plugins. A cache of functools has a lock of its own, and is not listed.
SHARED_BY_PLUGINS = {
    "trikafka_export.directory_store._held": "descriptors; each is added and removed by its owner",
    "trikafka_export.lease._ended_owners": "names of owners that have ended; each is used once",
    "trikafka_export.object_pieces._making": "a lock: one thread makes the folder of the process",
    "trikafka_export.reader._keeping": "a lock, of the reader",
    "trikafka_export.reader._kept": "a reader between two uses; one thread takes it, with the lock",
    "trikafka_spark.active_session._wrapping": "a lock: PySpark's methods are wrapped once",
    "trikafka_spark.shared_context._jvm": "Spark is the process's; with the lock, but to kill it",
    "trikafka_spark.shared_context._lock": "a lock, of the context of Spark",
    "trikafka_spark.shared_context._ours": "Spark is the process's; with the lock",
    "trikafka_spark.shared_context._scratch": "a folder of that Spark; with the lock",
    "trikafka_spark.shared_context._users": "a count of its users; with the lock",
}
PLUGINS = (trikafka_broker, trikafka_export, trikafka_spark, pyspark_trikafka)
#: Constants that a search by types takes for state.
CONSTANTS = {
    "_managers.group.membership_events._STALE",  # without attributes
    "_net.in_flight.NO_METER",  # without attributes
    "_net.connection._CLOSED",  # never raised itself, so it keeps no traceback
}
CHANGES = {"append", "add", "update", "setdefault", "pop", "clear", "remove", "discard", "extend"}
CHANGES |= {"insert", "popitem", "appendleft", "__setitem__"}


def modules(package: ModuleType) -> Iterator[ModuleType]:
    inside = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    for name in [package.__name__, *(found.name for found in inside)]:
        if not name.startswith("trikafka.testing") and not name.endswith("__main__"):
            module = importlib.import_module(name)
            if (module.__file__ or "").endswith(".py"):
                yield module


@cache
def tree_of(module: ModuleType) -> ast.Module:
    return parsed.tree_of(Path(module.__file__ or ""))


def is_state(value: Any) -> bool:
    """Return whether an object may change, by its type; dicts, lists and sets are looked for."""
    kind = type(value)
    if isinstance(value, type | enum.Enum | tuple | click.Command):
        return False
    if dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return False
    if isinstance(value, threading.local | type(threading.Lock()) | BaseException | random.Random):
        return True
    return kind.__module__.partition(".")[0] in {
        package.__name__ for package in (trikafka, *PLUGINS)
    }


def instances(package: ModuleType) -> set[str]:
    """Return the module-level objects that may change, each by the module that is first in order."""
    found: dict[int, str] = {}
    for module in modules(package):
        own = {
            target.id
            for each in tree_of(module).body
            if isinstance(each, ast.Assign | ast.AnnAssign)
            for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
            if isinstance(target, ast.Name)
        }
        for name in own & vars(module).keys():
            if is_state(value := vars(module)[name]):
                found.setdefault(id(value), f"{module.__name__}.{name}")
    return set(found.values())


def changed(package: ModuleType) -> set[str]:
    """Return the names of modules and classes that a function assigns to, or whose value it changes."""
    found = set()
    for module in modules(package):
        tree = tree_of(module)
        for scope in [tree, *(each for each in nodes(tree) if isinstance(each, ast.ClassDef))]:
            prefix = module.__name__ + (f".{scope.name}" if isinstance(scope, ast.ClassDef) else "")
            held = {
                target.id
                for each in scope.body
                if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None
                for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
                if isinstance(target, ast.Name)
                and isinstance(each.value, ast.Dict | ast.List | ast.Set | ast.Call)
                and not _is_field(each.value)
            }
            if held:
                found |= {f"{prefix}.{name}" for name in held & _changes(scope, prefix)}
        for each in nodes(tree):
            if isinstance(each, ast.Global):
                found |= {f"{module.__name__}.{name}" for name in each.names}
    return found


def _is_field(value: ast.expr) -> bool:
    """Return whether a value is a dataclass's ``field()``, which each instance has for itself."""
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id == "field"
    )


def _changes(scope: ast.AST, prefix: str) -> set[str]:
    """Return names of ``scope`` on which a changing method is called, or an item is set."""
    owner = {"cls", "self", prefix.rpartition(".")[2]}

    def name_of(value: ast.expr) -> str | None:
        if isinstance(scope, ast.ClassDef):
            is_own = isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name)
            return value.attr if is_own and value.value.id in owner else None  # type: ignore[attr-defined]
        return value.id if isinstance(value, ast.Name) else None

    found: set[str | None] = set()
    for function in nodes(scope):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        local = {each.arg for each in nodes(function) if isinstance(each, ast.arg)}
        local |= {
            each.id
            for each in nodes(function)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        }
        here: set[str | None] = set()
        for each in nodes(function):
            if isinstance(each, ast.Attribute) and each.attr in CHANGES:
                here.add(name_of(each.value))
            if isinstance(each, ast.Subscript) and not isinstance(each.ctx, ast.Load):
                here.add(name_of(each.value))
        found |= here - (local if not isinstance(scope, ast.ClassDef) else set())
    return {name for name in found if name is not None}


def test_shared_state_has_its_reason() -> None:
    found = {name.removeprefix("trikafka.") for name in instances(trikafka) | changed(trikafka)}
    assert found - CONSTANTS == SHARED.keys()


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.__name__)
def test_shared_state_of_plugins_has_its_reason(plugin: ModuleType) -> None:
    found = instances(plugin) | changed(plugin)
    listed = {name for name in SHARED_BY_PLUGINS if name.startswith(f"{plugin.__name__}.")}
    assert found == listed
