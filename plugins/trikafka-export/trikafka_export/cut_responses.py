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
#: The signs of a cut response, and of a request without one, in the errors of both libraries.
_UNSENT = "error sending request"
_SIGN = re.compile(f"request or response body error|{_UNSENT}")
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


def is_cut(error: BaseException) -> bool:
    """Return whether a response was cut, or a request that was sent once lost its connection.

    The libraries repeat other requests than conditional writes by themselves, and say how often.
    """
    text = str(error)
    sign = _SIGN.search(text)
    if sign is None or (sign[0] == _UNSENT and _REPEATED.search(text)):
        return False
    return not _TOO_LATE.search(text, sign.end())  # object names stand before the sign
