"""Whether the caller runs under Trio; asked first of all when a client is opened."""

from __future__ import annotations

import trio

from ..errors import IllegalStateError


def check_runs_under_trio(call: str) -> None:
    """Raises :exc:`IllegalStateError` unless the calling task is one of Trio's, such as under ``asyncio.run``."""
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        raise IllegalStateError(
            f"{call}() needs Trio, and no Trio runs here: start the program with trio.run(main), not with asyncio.run(main())"
        ) from None
