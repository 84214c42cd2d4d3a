"""Ctrl-C comes out as ``KeyboardInterrupt``, not in the group of a nursery of ours.

Trio hands Ctrl-C to the main task where the code that runs is protected against it, and else raises it in the middle of that code.
So the tasks of a client are protected, those in nurseries too: the main task gets it, in the user's code or in a call of ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def interrupt_in(error: BaseException) -> BaseException | None:
    """The ``KeyboardInterrupt`` or ``SystemExit`` that ``error`` is, or holds as a group."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(interrupt_in, error.exceptions)), None)
    return error if isinstance(error, KeyboardInterrupt | SystemExit) else None


@contextmanager
def interrupts_unwrapped() -> Iterator[None]:
    """For a nursery whose tasks are ours: an interrupt that it has put into a group comes out of that."""
    try:
        yield
    except BaseExceptionGroup as group:
        if (interrupt := interrupt_in(group)) is None:
            raise
        raise interrupt from None
