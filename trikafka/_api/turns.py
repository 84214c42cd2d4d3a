"""Whose turn it is, where records are handed out one by one: others have theirs at least once a millisecond."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import trio

from .._wire import _implementation
from ..types import Record

if TYPE_CHECKING:
    from .._wire._fallback_iterating import RecordIterator

#: Iteration over buffered records lets other tasks run at least this often (seconds).
TURN = 0.001


def record_iterator(whole_way: Callable[[], Coroutine[Any, Any, Record]]) -> RecordIterator:
    """What ``async for`` takes records from: from a cursor where that is all that there is to do, else by ``whole_way``."""
    own_clock = type(trio.lowlevel.current_clock()).__name__ == "SystemClock"  # else one of a test's: virtual time
    return _implementation.current.RecordIterator(whole_way, TURN, _context(), None if own_clock else trio.current_time)


def _context() -> object | None:
    """Where Trio has the task that runs, if all is there that ``checkpoint_if_cancelled`` looks at; else ``None``.

    That is looked at for every record, and asking by the public way costs more than all the rest of it.
    """
    try:
        from trio._core._run import GLOBAL_RUN_CONTEXT

        task: Any = GLOBAL_RUN_CONTEXT.task
        known = task is trio.lowlevel.current_task()
        known &= isinstance(task._cancel_status.effectively_cancelled, bool) and isinstance(task._runner.ki_pending, bool)
    except (ImportError, AttributeError):
        return None
    return GLOBAL_RUN_CONTEXT if known else None
