"""Numbers that callers pass as another kind of number."""

from __future__ import annotations

import math
import operator
from typing import Any, TypeGuard


def is_whole(value: object, least: int = 0, most: float = math.inf) -> TypeGuard[int]:
    """Return whether ``value`` is an ``int`` from ``least`` to ``most``, and no ``bool``."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object) -> TypeGuard[float]:
    """Return whether ``value`` is an ``int`` or a ``float``, and no ``bool``."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole(number: object) -> Any:
    """Return ``number`` as an ``int``, if it is an integer of another kind, such as numpy's.

    Anything else is returned as it is: the check of the argument comes after this.
    """
    # A function is not a number; unittest's MagicMock is both.
    if isinstance(number, int) or callable(number) or not hasattr(number, "__index__"):
        return number
    try:
        return operator.index(number)
    except Exception:  # numpy's arrays and floats have the method, too; another type's may fail
        return number


def plain_number(value: object) -> Any:
    """Return a number of numpy's as Python's: an ``int``, a ``float`` or a ``bool``.

    Anything else is returned as it is: the check of the argument comes after this.
    """
    if isinstance(value, int | float) and type(value).__module__ == "builtins":
        return value
    if hasattr(value, "dtype") and getattr(value, "shape", None) == ():
        return value.item()  # type: ignore[attr-defined]
    return whole(value)
