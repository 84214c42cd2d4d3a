"""Iceberg's REST catalogs, whose every call ends: the library sets no limit, and a call that hangs would keep its thread for ever.

The limits have the names that Iceberg's Java client gives them. They stand at the session, below all that the library does with it
(its configuration, tokens of the catalog's own, signed requests), and hold for each wait, not for a whole response.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, Response, Session
from requests.exceptions import ConnectionError, Timeout

from trikafka import ConfigurationError

#: How long (ms) a connection may take, and what comes over it after a request.
CONNECTION, SOCKET = "rest.client.connection-timeout-ms", "rest.client.socket-timeout-ms"
_DEFAULTS = {CONNECTION: 10_000, SOCKET: 60_000}
#: What an error shows of an object of Python's: it is another one each time, and an outage is to be told once.
_OBJECT = re.compile(r"<[\w.]+ object at 0x[0-9a-f]+>:? ?")


class TimedRestCatalog(RestCatalog):  # type: ignore[misc]  # pyiceberg is not looked at
    """The library's own, with limits."""

    def _config_headers(self, session: Session) -> None:
        """What the library calls for each new session, before anything is sent by it."""
        super()._config_headers(session)
        limits = (_seconds(self.properties, CONNECTION), _seconds(self.properties, SOCKET))
        session.send = _Sending(session.send, limits)  # type: ignore[method-assign]


class _Sending:
    """A session's ``send``, which sets limits where the caller has none, and says in a line what went wrong."""

    def __init__(self, send: Callable[..., Response], limits: tuple[float, float]) -> None:
        self._send, self._limits = send, limits

    def __call__(self, request: PreparedRequest, **given: Any) -> Response:
        address = urlsplit(str(request.url))
        where = f"{address.scheme}://{address.hostname}" + (f":{address.port}" if address.port else "")
        try:
            return self._send(request, **{**given, "timeout": given.get("timeout") or self._limits})
        except (ConnectionError, Timeout) as error:
            if isinstance(error, Timeout) or "timed out" in str(error):
                connecting = "connect" in type(error).__name__.lower() and isinstance(error, Timeout)
                raise Timeout(f"{where} has not responded for {self._limits[not connecting]:g} s", request=request) from error
            raise ConnectionError(f"{where} cannot be reached: {_reason(error)}", request=request) from error


def _reason(error: BaseException) -> str:
    """The system's word, at the end of a long chain; otherwise what the library says, without what changes from time to time."""
    shown, found = error, error.__cause__ or error.__context__
    while found is not None:
        if isinstance(found, OSError) and found.strerror:
            return found.strerror
        shown, found = found, found.__cause__ or found.__context__
    return _OBJECT.sub("", str(shown)) or type(shown).__name__


def _seconds(properties: Mapping[str, Any], name: str) -> float:
    given = str(properties.get(name, _DEFAULTS[name]))
    if not given.isdecimal() or not int(given):
        raise ConfigurationError(f"catalog.{name} must be a number of milliseconds")
    return int(given) / 1000
