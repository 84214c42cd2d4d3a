"""Values that belong to one run of Trio, not to the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class RunLocal(Generic[T]):
    """A value for each run of Trio, made when it is first wanted in that run.

    For state that tasks share without a client between them. Event loops in several threads have
    one each, and nothing is left of it when a run ends.
    """

    def __init__(self, name: str, make: Callable[[], T]) -> None:
        self._value: trio.lowlevel.RunVar[T] = trio.lowlevel.RunVar(name)
        self._make = make

    def get(self) -> T:
        """Return the value of the current run."""
        try:
            return self._value.get()
        except LookupError:
            made = self._make()
            self._value.set(made)
            return made
