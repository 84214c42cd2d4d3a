"""Ctrl-C as a plain ``KeyboardInterrupt``, not in the group of an internal nursery.

Trio delivers Ctrl-C to the main task if the running code is protected against it, and otherwise
raises it in the middle of that code. So the tasks of a client are protected, those in nurseries
too: the main task gets it, in the user's code or in a call of this package.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from ..errors.groups import members

_INTERRUPTS = (KeyboardInterrupt, SystemExit)


def interrupt_in(error: BaseException) -> BaseException | None:
    """Return the ``KeyboardInterrupt`` or ``SystemExit`` that ``error`` is, or holds as a group."""
    return next((member for member in members(error) if isinstance(member, _INTERRUPTS)), None)


@contextmanager
def interrupts_unwrapped() -> Iterator[None]:
    """Raise an interrupt outside of the group into which a nursery in this block has put it.

    An interrupt is a ``KeyboardInterrupt`` or a ``SystemExit``. Errors beside it are not lost: an
    interrupt without a cause gets them as its cause. Other groups are raised as they are.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        if (interrupt := interrupt_in(group)) is None:
            raise
        beside = group.split((*_INTERRUPTS, trio.Cancelled))[1]
        raise interrupt from interrupt.__cause__ or beside
