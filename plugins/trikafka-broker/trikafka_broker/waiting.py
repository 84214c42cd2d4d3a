"""Waits for a condition with a limit: the only place where this package sleeps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import trio

#: Seconds between two looks at a condition.
POLL_INTERVAL = 0.05


def pause() -> None:
    """Sleep for one step of a poll loop.

    In a worker thread of Trio, `trio.Cancelled` is raised if the task that waits for the thread is
    cancelled.
    """
    # RuntimeError: Trio did not start this thread, so there is no task to cancel.
    with contextlib.suppress(RuntimeError):
        trio.from_thread.check_cancelled()
    time.sleep(POLL_INTERVAL)


def wait_until(condition: Callable[[], bool], limit: float) -> bool:
    """Poll `condition` for at most `limit` seconds; return whether it became true.

    The condition is evaluated at least once. See `pause` about cancellation.
    """
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() >= deadline:
            return False
        pause()
    return True
