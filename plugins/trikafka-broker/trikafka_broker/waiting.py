"""Waiting for a condition with a limit: the one place where this package sleeps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import trio

POLL_INTERVAL = 0.05


def pause() -> None:
    """One step of a poll loop.

    In a worker thread of Trio, when the task that waits for the thread is cancelled: raises `trio.Cancelled`.
    """
    with contextlib.suppress(RuntimeError):  # not a thread that Trio started: there is nothing to be cancelled
        trio.from_thread.check_cancelled()
    time.sleep(POLL_INTERVAL)


def wait_until(condition: Callable[[], bool], limit: float) -> bool:
    """Poll `condition` until it holds (true) or `limit` seconds have gone by (false). It is asked at least once."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() >= deadline:
            return False
        pause()
    return True
