"""The checks for Trio: that it runs, and that a client stays in the run that opened it."""

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


class HomeRun:
    """The Trio run in which a client was opened.

    The client's tasks and sockets belong to that run. Trio's own error in another run would be an
    ``AssertionError``, or a task would be scheduled in the wrong run.
    """

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()

    def check(self) -> None:
        """Raise :exc:`IllegalStateError` in another Trio run.

        Outside of Trio this raises nothing: what needs Trio fails there by itself.
        """
        try:
            here = trio.lowlevel.current_trio_token()
        except RuntimeError:
            return
        if here is not self._token:
            raise IllegalStateError(
                "this client was opened in another trio.run(), and works only there: open a client "
                "in each run, or call this one by trio.from_thread.run(..., trio_token=token), "
                "with the trio.lowlevel.current_trio_token() of its run"
            )
