"""The signals by which a program stops a run."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable

import trio

_log = logging.getLogger("trikafka.tasks")


async def stop_on_signal(numbers: tuple[signal.Signals, ...], stop: Callable[[], object]) -> None:
    """Call ``stop`` on the first of these signals.

    The receiver is closed then: a second signal has its usual effect in this program.
    """
    with trio.open_signal_receiver(*numbers) as received:
        async for number in received:
            _log.info("stopping in order on %s", _name(number))
            stop()
            return


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name in Python
        return f"signal {number}"
