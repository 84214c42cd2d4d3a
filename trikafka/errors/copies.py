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


def without_traces(error: Error) -> Error:
    """Return an error that is kept, without its traceback and those of its causes.

    Their frames would stay alive with it, and with them buffers and what keeps the error.
    Its context stays as it is: that may be an exception which the program is handling.
    """
    each: BaseException | None = error
    while each is not None and each.__traceback__ is not None:
        each.__traceback__ = None
        each = each.__cause__
    return error
