"""The HTTP requests of trikafka and its plugins: each in a thread, which others can end.

They go to token endpoints (OAuth) and to schema registries.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import socket
import ssl
import threading
import urllib.request
from collections.abc import Callable
from typing import Any


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirect: the secrets of the request would go there, too."""

    def redirect_request(self, *args: Any) -> None:
        """Do not follow it: the response is an error, like any that is not a success."""


class Exchange:
    """A request and its response, by ``urllib`` with its proxies, and without redirects.

    ``urllib`` limits each wait for bytes, and not the whole: an endpoint that sends a byte now and
    then would hold a thread for ever. So the event loop has the limit, and :meth:`end` shuts the
    socket from there, which wakes the thread. Only the resolving of a name cannot be cut short.
    """

    def __init__(self, wait: float) -> None:
        """``wait`` limits each single wait (seconds)."""
        self._wait = wait
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._ended = False

    def open(self, request: urllib.request.Request, context: ssl.SSLContext) -> Any:
        """Send the request and return the response, a context manager.

        Raises as ``urllib``, also for a redirect. Blocks. The frames of its errors hold the request
        with its secrets.
        """
        opener = urllib.request.build_opener(_NoRedirects, _Http(self), _Https(self, context))
        return opener.open(request, timeout=self._wait)

    def end(self) -> None:
        """End what is in progress; no connection may be made after that. Does not block."""
        with self._lock:
            self._ended = True
            for opened in self._sockets:
                with contextlib.suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)
                opened.close()
            self._sockets.clear()

    def watch(self, opened: socket.socket) -> socket.socket:
        """Record a connection that was made. Raises :exc:`OSError` if the exchange has ended."""
        with self._lock:
            if self._ended:
                opened.close()
                raise TimeoutError("the request has ended")
            # TLS takes the descriptor out of the socket that it wraps. A duplicate stays valid, and
            # to shut it shuts the connection.
            self._sockets.append(opened.dup())
        return opened


class _Http(urllib.request.HTTPHandler):
    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(_Plain, self._exchange), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, exchange: Exchange, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._exchange = exchange
        self._tls = context

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(_Secured, self._exchange, context=self._tls), req)


# The socket is recorded where it is made, before connect() goes on with a proxy or TLS.


class _Plain(http.client.HTTPConnection):
    _create_connection: Any

    def __init__(self, exchange: Exchange, host: str, **settings: Any) -> None:
        super().__init__(host, **settings)
        self._create_connection = _noted(self._create_connection, exchange)


class _Secured(http.client.HTTPSConnection):
    _create_connection: Any

    def __init__(self, exchange: Exchange, host: str, **settings: Any) -> None:
        super().__init__(host, **settings)
        self._create_connection = _noted(self._create_connection, exchange)


def _noted(
    create: Callable[..., socket.socket], exchange: Exchange
) -> Callable[..., socket.socket]:
    return lambda *args, **settings: exchange.watch(create(*args, **settings))
