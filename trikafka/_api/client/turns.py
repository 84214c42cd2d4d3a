"""The turns of iteration over buffered records: other tasks run at least once a millisecond."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import trio

from ..._wire import _implementation
from ...types import Record

if TYPE_CHECKING:
    from ..._wire._fallback_iterating import RecordIterator

#: Iteration over buffered records lets other tasks run at least this often (seconds).
TURN = 0.001
#: A turn also ends after this many decoded bytes. A broker over TLS encrypts some 200 KB ahead (its
#: ``socket.send.buffer.bytes``), then waits until the connection's reader has taken those: a reader
#: that had its turn every millisecond only kept it waiting for as long as the decoding took.
TURN_BYTES = 524_288


def record_iterator(whole_way: Callable[[], Coroutine[Any, Any, Record]]) -> RecordIterator:
    """Return the iterator that ``async for`` takes records from.

    It takes the next record from the cursor where nothing else has to be done, else from
    ``whole_way``.
    """
    # A buffered record must not cost a trip through the event loop, or even a Python frame: the
    # compiled iterator hands over the next record of the cursor itself. It does so only while three
    # things hold: the cursor lives (no seek, reset or rebalance has overtaken the batch), the
    # task is not cancelled, and the turn of 1 ms is not over. Otherwise ``whole_way`` runs, an
    # ordinary async function that does all that a receive has to do.
    #
    # The turn is what keeps the loop responsive. Without it, a loop over a full buffer would never
    # reach a checkpoint, and heartbeats, fetches and the user's other tasks would wait until the
    # buffer is empty.
    #
    # The iterator reads the monotonic clock itself where Trio does; a test's virtual clock has to
    # be asked.
    now = None if uses_system_clock() else trio.current_time
    native = _implementation.current
    return native.RecordIterator(whole_way, native.Turn(TURN, known_current_task(), now))


def uses_system_clock() -> bool:
    """Return whether Trio runs on the monotonic clock, and not on the clock of a test."""
    return type(trio.lowlevel.current_clock()).__name__ == "SystemClock"


def known_current_task() -> Callable[[], object] | None:
    """Return Trio's function for the running task; ``None`` if its tasks have other attributes.

    Each record looks at two attributes of the task that ``checkpoint_if_cancelled`` looks at. They
    are not public, so their presence is checked here. The public ways cost more than all the rest
    of a record (0.2 µs): 0.7 µs and more for ``current_effective_deadline``, 0.8 µs for a
    checkpoint. The call of this function is 0.03 µs of it.
    """
    task: Any = trio.lowlevel.current_task()
    try:
        known = isinstance(task._cancel_status.effectively_cancelled, bool)
        known &= isinstance(task._runner.ki_pending, bool)
    except AttributeError:
        return None
    return trio.lowlevel.current_task if known else None
