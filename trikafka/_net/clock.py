"""The clock of a Trio run, for the code that reads it for every record."""

from __future__ import annotations

from collections.abc import Callable

import trio


def clock_of_run() -> Callable[[], float]:
    """Return the function that gives the time of the current Trio run.

    ``trio.current_time`` finds the run's clock anew at each call, which takes longer than to read
    it. Where a lone record is sent and received, the time is read a dozen times. Unlike
    ``trio.current_time``, this function raises nothing in another thread.
    """
    return trio.lowlevel.current_clock().current_time
