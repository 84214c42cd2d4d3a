"""The check for Trio, before anything else when a client opens."""

from __future__ import annotations

import trio

from ...errors import IllegalStateError


def check_runs_under_trio(call: str) -> None:
    """Raise :exc:`IllegalStateError` unless the calling task is one of Trio's."""
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        raise IllegalStateError(
            f"{call}() needs Trio, and no Trio runs here: start the program with trio.run(main); "
            f"in a program of asyncio, import trikafka.aio and use trikafka.aio.{call}()"
        ) from None
