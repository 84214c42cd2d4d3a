"""The HTTP requests to token endpoints (OAuth) and schema registries.

Each one runs in a thread; another thread can end it at any time.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import socket
import ssl
import threading
import urllib.request
from typing import Any


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirect, because the request's secrets would be sent there."""

    def redirect_request(self, *args: Any) -> None:
        """Return ``None``: the redirect is not followed, and ``urllib`` raises it as an error."""


class Exchange:
    """A request and its response. ``urllib`` makes it, with its proxies and without redirects.

    ``urllib`` limits each single wait for bytes, but not the whole request: an endpoint that sends
    a byte now and then would keep a thread for ever. So the event loop has a limit for the whole.
    It calls :meth:`end`, which shuts the socket down and so wakes the thread. Only the resolution
    of a host name cannot be ended.
    """

    def __init__(self, wait: float) -> None:
        """``wait`` limits each single wait (seconds)."""
        self._wait = wait
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._ended = False

    def open(self, request: urllib.request.Request, context: ssl.SSLContext) -> Any:
        """Send the request and return the response, a context manager.

        Blocks. Raises the errors of ``urllib``, also for a redirect. The frames in their tracebacks
        hold the request with its secrets.
        """
        opener = urllib.request.build_opener(_NoRedirects, _Http(self), _Https(self, context))
        return opener.open(request, timeout=self._wait)

    def end(self) -> None:
        """End the request, and refuse any further connection. Does not block."""
        with self._lock:
            self._ended = True
            for opened in self._sockets:
                with contextlib.suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)
                opened.close()
            self._sockets.clear()

    def watch(self, opened: socket.socket) -> socket.socket:
        """Record a new connection, so that :meth:`end` can shut it down; return it.

        Raises :exc:`TimeoutError` if the exchange has ended.
        """
        with self._lock:
            if self._ended:
                opened.close()
                raise TimeoutError("the request has ended")
            # TLS takes the descriptor out of the socket that it wraps. A duplicate stays valid, and
            # shutting it down shuts down the connection.
            self._sockets.append(opened.dup())
        return opened


class _Http(urllib.request.HTTPHandler):
    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(_Watched, self._exchange), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, exchange: Exchange, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._exchange = exchange
        self._tls = context

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(_WatchedTls, self._exchange, context=self._tls), req)


# The exchange gets the socket as soon as it is connected, before connect() talks to a proxy or
# begins TLS. Otherwise `end` could not interrupt these steps.
class _Watched(http.client.HTTPConnection):
    _create_connection: Any

    def __init__(self, exchange: Exchange, host: str, **settings: Any) -> None:
        super().__init__(host, **settings)
        create = self._create_connection
        self._create_connection = lambda *args, **more: exchange.watch(create(*args, **more))


class _WatchedTls(_Watched, http.client.HTTPSConnection):
    pass
