"""Makes kafka-python's protocol layer importable on its own. Runs once, before the first ``import kafka.…`` of this package.

Two things stand between us and its message classes. ``import kafka.protocol.x`` first runs ``kafka/__init__.py``, which imports
kafka-python's consumer, producer, admin client and network: 100 ms in which a Trio program that opens its first client does
nothing else. And every message class reads its schema through a function that Python 3.11 and 3.12 deprecate, so that nothing
could be opened under ``-W error``. So the package ``kafka`` is made here without running its body, which runs when somebody
asks it for anything but a submodule (``from kafka import KafkaConsumer`` does); and the schemas are read by the function that
took the deprecated one's place. Whoever has imported ``kafka`` before us has paid for both: then nothing is changed.
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
#: Of its own: who finds a package may wait for another thread's import of its parent, which may want the other lock.
_deferring = threading.Lock()


class _Deferred(ModuleType):
    """A package whose body has not run yet. Asked for what is not there, it runs it and is an ordinary module from then on."""

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
    """Put ``package`` among the imported modules without running its body, unless it is there. Any thread may call."""
    with _deferring:  # event loops in several threads may want it at the same time
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
    if parent:  # as the import does that finds it there from now on
        setattr(sys.modules[parent], name, module)


def _read_text(package: str, resource: str) -> str:
    return resources.files(package).joinpath(resource).read_text(encoding="utf-8")


if "kafka" not in sys.modules:
    defer("kafka")
    if sys.version_info < (3, 13):  # from then on the function that kafka-python calls is not deprecated any more
        _loader: Any = importlib.import_module("kafka.protocol.schemas.load_json")
        _loader.importlib = SimpleNamespace(resources=SimpleNamespace(read_text=_read_text))
