"""Chooses who does the work on bytes: the compiled ``_native`` if it was built, else ``_fallback``.

``TRIKAFKA_PURE=1`` in the environment forces the fallback. Only the tests of the record path call :func:`use`.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def _load(name: str) -> Any:
    return importlib.import_module({"native": "trikafka._wire._native", "pure": "trikafka._wire._fallback"}[name])


def available() -> tuple[str, ...]:
    """The implementations that can be imported here."""
    names = []
    for name in ("native", "pure"):
        try:
            _load(name)
        except ImportError:
            continue
        names.append(name)
    return tuple(names)


def use(name: str) -> str:
    """Switches to the implementation ``name`` and returns the name of the one before."""
    global current, name_in_use
    before, current, name_in_use = name_in_use, _load(name), name
    return before


name_in_use = "pure"
if os.environ.get("TRIKAFKA_PURE") != "1":
    try:
        current = _load("native")
        name_in_use = "native"
    except ImportError:
        current = _load("pure")
else:
    current = _load("pure")
