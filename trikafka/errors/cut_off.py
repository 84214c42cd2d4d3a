"""Calls of the user's functions that are cut off by a cancellation."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from .groups import text_by

T = TypeVar("T")


async def await_user_call(
    what: str,
    call: Callable[[], Awaitable[T]],
    log: logging.Logger,
    text: Callable[[BaseException], str] = repr,
) -> T:
    """Await a call of the user's function; if it was cut off, raise the cancellation alone.

    A function that is cut off may still fail in its clean-up. Its exception then replaces
    ``Cancelled``, or is in one group with it. Such an error says nothing of what the function was
    called for, so it is only logged. An interrupt in the group is raised with the group.

    Args:
        what: The function, for the log.
        call: Calls it.
        log: Gets a warning of an error beside the cancellation.
        text: Returns the text of that error for the log, without secrets.

    Returns:
        The function's result.
    """
    try:
        return await call()
    except Exception as error:
        if trio.current_effective_deadline() == -math.inf:
            log.warning("%s was cut off, and failed in that: %s", what, text_by(text, error))
            await trio.lowlevel.checkpoint_if_cancelled()
        raise
    except BaseExceptionGroup as group:
        cancelled, beside = group.split(trio.Cancelled)
        if cancelled is None or not (beside is None or isinstance(beside, Exception)):
            raise
        if beside is not None:
            log.warning("%s was cut off, and failed in that: %s", what, text_by(text, beside))
        raise cancelled from None
