"""Copies of errors that several callers raise."""

from __future__ import annotations

import copy
from typing import TypeVar

Error = TypeVar("Error", bound=Exception)


def again(error: Error) -> Error:
    """Return a copy of an error that is raised more than once.

    Each copy has its own traceback, context and notes.
    """
    twin = copy.copy(error)
    twin.__cause__ = error.__cause__
    if notes := getattr(error, "__notes__", None):
        twin.__notes__ = list(notes)
    return twin
