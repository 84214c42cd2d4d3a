"""Iceberg's REST catalogs with a time limit for every call, and with patience for a busy server.

pyiceberg sets no limit, and a call that hangs would keep its thread forever. The limits have the
names of Iceberg's Java client. They are set at the HTTP session, below everything that the library
does with it (configuration, the catalog's tokens, signed requests). They bound each wait, not a
whole response.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, Response, Session
from requests.exceptions import (
    ChunkedEncodingError,
    ConnectionError,
    ProxyError,
    SSLError,
    Timeout,
)
from urllib3.exceptions import InvalidHeader
from urllib3.util.retry import Retry

from trikafka import ConfigurationError
from trikafka.errors.groups import chain
from trikafka.errors.peer_text import peer_text

from ..cut_responses import DELAYS
from .waiting import responded

_log = logging.getLogger("trikafka.export")
#: The limits (milliseconds) for connecting, and for waiting for bytes of a response.
CONNECTION = "rest.client.connection-timeout-ms"
SOCKET = "rest.client.socket-timeout-ms"
_DEFAULTS = {CONNECTION: 10_000, SOCKET: 60_000}
#: The most seconds that the pauses of one request may take together (``Retry-After``). A call for a
#: store's keys is one of these requests, and the lease of a destination waits for such keys.
_MOST_PAUSES = 20.0
#: Responses that refuse a request because the rate is too high. If a proxy has passed the request
#: on nevertheless, a commit that is sent again is refused, and the export finds it in the table.
_REFUSALS = frozenset({429})
#: Responses after which a request that changes nothing is sent again: of a server that is starting
#: or stopping, has lost its own database for a moment, or of a proxy that has no server.
_OUTAGES = _REFUSALS | {500, 502, 503, 504}
#: Python objects in error texts. Their addresses differ each time, and an outage is to be reported
#: once.
_OBJECT = re.compile(r"<[\w.]+ object at 0x[0-9a-f]+>:? ?")


class TimedRestCatalog(RestCatalog):  # type: ignore[misc]  # pyiceberg is not looked at
    """pyiceberg's REST catalog with time limits."""

    def _config_headers(self, session: Session) -> None:
        """Prepare a new session; the library calls this before it sends anything."""
        super()._config_headers(session)
        limits = (_seconds(self.properties, CONNECTION), _seconds(self.properties, SOCKET))
        session.send = _Sending(session.send, limits)  # type: ignore[method-assign]


class _Sending:
    """The ``send`` of a session with default limits, and errors of one line."""

    def __init__(self, send: Callable[..., Response], limits: tuple[float, float]) -> None:
        self._send = send
        self._limits = limits

    def __call__(self, request: PreparedRequest, **given: Any) -> Response:
        where = _server_of(request)
        try:
            return self._patient(
                request, {**given, "timeout": given.get("timeout") or self._limits}
            )
        except ChunkedEncodingError as error:
            raise ConnectionError(
                f"{where} ended the connection in the middle of a response", request=request
            ) from error
        except (ConnectionError, Timeout) as error:
            if _is_late(error):
                connecting = "connect" in type(error).__name__.lower() and isinstance(
                    error, Timeout
                )
                raise Timeout(
                    f"{where} has not responded for {self._limits[not connecting]:g} s",
                    request=request,
                ) from error
            raise ConnectionError(
                f"{where} cannot be reached: {_reason(error)}", request=request
            ) from error

    # A commit is sent once, unless the server has refused it before carrying it out. With another
    # response it may still be carried out, so the export first has to look for it in the table.
    def _patient(self, request: PreparedRequest, given: Mapping[str, Any]) -> Response:
        """Send a request, up to four times; return the last response.

        Raises :exc:`trio.Cancelled` after a pause if the caller has abandoned this thread.
        """
        is_read = request.method in ("GET", "HEAD")
        left = _MOST_PAUSES
        for delay in DELAYS:
            try:
                response = self._send(request, **given)
            except (ChunkedEncodingError, ConnectionError) as error:
                if not is_read or _lasts(error):
                    raise
                time.sleep(delay)
                continue
            pause = max(_asked_pause(response), delay)
            left -= pause
            if response.status_code not in (_OUTAGES if is_read else _REFUSALS) or left < 0:
                return response
            _log.info(
                "%s responded with status %d; the request is sent again in %g s",
                _server_of(request),
                response.status_code,
                pause,
            )
            time.sleep(pause)
            responded()
        return self._send(request, **given)


def _server_of(request: PreparedRequest) -> str:
    """Return the scheme, host and port of a request's address."""
    address = urlsplit(str(request.url))
    port = f":{address.port}" if address.port else ""
    return f"{address.scheme}://{address.hostname}{port}"


def _is_late(error: Exception) -> bool:
    """Return whether the whole limit has passed, so that another attempt might take as long."""
    return isinstance(error, Timeout) or "timed out" in str(error)


def _lasts(error: Exception) -> bool:
    """Return whether another attempt would fail, too, or take too long."""
    return _is_late(error) or isinstance(error, ProxyError | SSLError)


def _asked_pause(response: Response) -> float:
    """Return the seconds that a response asks to wait; 0 if it names none."""
    with suppress(InvalidHeader, ValueError, OverflowError):  # no number, no date, or too long
        return Retry().parse_retry_after(response.headers.get("Retry-After", "0"))
    return 0.0


def _reason(error: BaseException) -> str:
    """Return the operating system's reason at the end of a chain of exceptions.

    Without one, return the library's text without its changing parts.
    """
    shown = error
    for shown in chain(error):
        if shown is not error and isinstance(shown, OSError) and shown.strerror:
            return shown.strerror
    return peer_text(_OBJECT.sub("", str(shown))) or type(shown).__name__


def _seconds(properties: Mapping[str, Any], name: str) -> float:
    given = str(properties.get(name, _DEFAULTS[name]))
    if not given.isdecimal() or not int(given):
        raise ConfigurationError(f"catalog.{name} must be a number of milliseconds")
    return int(given) / 1000
