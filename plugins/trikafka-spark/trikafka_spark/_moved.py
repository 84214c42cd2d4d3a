"""The old places of names that are now in trikafka-export. They go with the next release."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any


def moved(old: str, new: str, **renamed: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module whose names have moved.

    Args:
        old: The module's name.
        new: The module that has the names now.
        renamed: The new names of those that have changed.
    """

    def find(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        now = renamed.get(name, name)
        value = getattr(import_module(new), now)
        warnings.warn(
            f"{old}.{name} is now {new}.{now}; the old name goes with the next release",
            DeprecationWarning,
            stacklevel=2,
        )
        return value

    return find
