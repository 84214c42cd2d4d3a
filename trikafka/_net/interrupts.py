"""Ctrl-C as a plain ``KeyboardInterrupt``, not in the group of an internal nursery.

Trio delivers Ctrl-C to the main task if the running code is protected against it, and otherwise
raises it in the middle of that code. So the tasks of a client are protected, those in nurseries
too: the main task gets it, in the user's code or in a call of this package.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from ..errors.groups import members, outlined

_INTERRUPTS = (KeyboardInterrupt, SystemExit)


def interrupt_in(error: BaseException) -> BaseException | None:
    """Return the ``KeyboardInterrupt`` or ``SystemExit`` that ``error`` is, or holds as a group.

    Errors beside it in the group are not lost: they become its cause, or a note if it has one.
    """
    interrupt = next((one for one in members(error) if isinstance(one, _INTERRUPTS)), None)
    if interrupt is None or not isinstance(error, BaseExceptionGroup):
        return interrupt
    beside = error.split(lambda one: one is interrupt or isinstance(one, trio.Cancelled))[1]
    if beside is not None and interrupt.__cause__ is None:
        interrupt.__cause__ = beside
    elif beside is not None:
        interrupt.add_note(f"beside it: {outlined(beside)}")
    return interrupt


@contextmanager
def interrupts_unwrapped() -> Iterator[None]:
    """Raise an interrupt outside of the group into which a nursery in this block has put it.

    An interrupt is a ``KeyboardInterrupt`` or a ``SystemExit``. Errors beside it are not lost: they
    become its cause, or a note if it has one. Other groups are raised as they are.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        if (interrupt := interrupt_in(group)) is None:
            raise
        raise interrupt from interrupt.__cause__
