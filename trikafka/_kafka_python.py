"""Import kafka-python's protocol layer without the rest of kafka-python.

This module runs once, before the first ``import kafka....`` of this package.

Two facts make a plain import unsuitable:

* ``import kafka.protocol.x`` first runs ``kafka/__init__.py``. That imports kafka-python's
  consumer, producer, admin client and network, and blocks a Trio program for 100 ms when it opens
  its first client.
* Every message class reads its schema through a function that Python 3.11 and 3.12 deprecate. Under
  ``-W error`` no client could be opened.

So this module creates the package ``kafka`` without running its body. The body runs at the first
access to any name other than a submodule, such as ``from kafka import KafkaConsumer``. Schemas are
read by the successor of the deprecated function. If the program has imported ``kafka`` before, both
costs are paid already and nothing is changed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from importlib import resources
from types import ModuleType, SimpleNamespace
from typing import Any

_lock = threading.RLock()
#: A lock of its own: a thread that looks for a package may wait for another thread's import of its
#: parent, and that thread may want ``_lock``.
_deferring = threading.Lock()


class _Deferred(ModuleType):
    """A package whose body has not run yet.

    Access to a missing name runs the body. From then on it is an ordinary module.
    """

    def __getattr__(self, name: str) -> Any:
        with _lock:
            if not self.__dict__.get("_running", True):
                _run(self)
            if name in self.__dict__:
                return self.__dict__[name]
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        with _lock:
            if not self.__dict__.get("_running", True):
                _run(self)
        return sorted(self.__dict__)


def _run(module: ModuleType) -> None:
    spec = module.__spec__
    assert spec is not None
    assert spec.loader is not None
    module.__dict__["_running"] = True  # the body imports from itself
    try:
        spec.loader.exec_module(module)
    except BaseException:
        module.__dict__["_running"] = False
        raise
    module.__class__ = ModuleType
    del module.__dict__["_running"]


def defer(package: str) -> None:
    """Add ``package`` to the imported modules without running its body.

    No-op for a package that is imported already. Safe to call from any thread.
    """
    with _deferring:  # event loops in several threads may open clients at the same time
        if package not in sys.modules:
            _defer(package)


def _defer(package: str) -> None:
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    module = importlib.util.module_from_spec(spec)
    module.__dict__["_running"] = False
    module.__class__ = _Deferred
    sys.modules[package] = module
    parent, _, name = package.rpartition(".")
    if parent:  # as a regular import would; later imports find the module there
        setattr(sys.modules[parent], name, module)


def _read_text(package: str, resource: str) -> str:
    return resources.files(package).joinpath(resource).read_text(encoding="utf-8")


if "kafka" not in sys.modules:
    defer("kafka")
    if sys.version_info < (
        3,
        13,
    ):  # Python 3.13 withdrew the deprecation of the function that kafka-python calls
        _loader: Any = importlib.import_module("kafka.protocol.schemas.load_json")
        _loader.importlib = SimpleNamespace(resources=SimpleNamespace(read_text=_read_text))
