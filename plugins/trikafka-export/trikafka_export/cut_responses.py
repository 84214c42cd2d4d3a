"""Requests to object stores of which the response was cut.

obstore and deltalake repeat some requests without a response. If a listing or the body of an object
ends in its middle, or a conditional write has no response, they raise an error.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
#: The waits (seconds) before a request is sent again.
DELAYS = (0.1, 0.4, 1.6)
#: The sign of a cut response in the errors of both libraries.
_SIGN = "request or response body error"
#: The sign of a request that has no response, and of one that obstore has repeated.
_UNSENT = "error sending request"
_REPEATED = re.compile(r"after \d+ retries")
#: The libraries say the same of a response that stopped, and then name the cause. Its whole limit
#: has passed already, and each further attempt might take as long.
_TOO_LATE = re.compile("timed ?out", re.IGNORECASE)


def uncut(function: Callable[[], T]) -> T:
    """Return the result of ``function``, which is called again if a response was cut.

    Only for functions whose requests may be carried out twice.
    """
    return retried(function, is_cut)


def retried(function: Callable[[], T], may_pass: Callable[[BaseException], bool]) -> T:
    """Return the result of ``function``, which is called again after errors that may pass."""
    delays = iter(DELAYS)
    while True:
        try:
            return function()
        except Exception as error:
            wait_after(error, delays, may_pass)


def wait_after(
    error: Exception, delays: Iterator[float], may_pass: Callable[[BaseException], bool]
) -> None:
    """Wait before the next attempt; raise the error if it stays or no attempt is left."""
    delay = next(delays, None) if may_pass(error) else None
    if delay is None:
        raise error
    time.sleep(delay)


def is_reset(error: BaseException) -> bool:
    """Return whether obstore has sent a request once, and its connection was lost.

    obstore repeats other requests than conditional writes by itself, and says how often.
    """
    text = str(error)
    return _UNSENT in text and not _REPEATED.search(text) and not _TOO_LATE.search(text)


def is_cut(error: BaseException) -> bool:
    """Return whether an error of these libraries means that a response was cut."""
    _, sign, why = str(error).partition(_SIGN)  # object names stand before the sign
    return bool(sign) and not _TOO_LATE.search(why)
