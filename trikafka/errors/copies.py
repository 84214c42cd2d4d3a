"""One error for several: whoever raises an error that others raise too raises a copy of it."""

from __future__ import annotations

import copy
from typing import TypeVar

Error = TypeVar("Error", bound=Exception)


def again(error: Error) -> Error:
    """A copy of an error that is raised more than once, so that each has its own traceback, context and notes."""
    twin = copy.copy(error)
    twin.__cause__ = error.__cause__
    if notes := getattr(error, "__notes__", None):
        twin.__notes__ = list(notes)
    return twin
