"""A proxy between a REST catalog and its clients: forwards requests, loses them, or is silent.

It only looks at bytes. In front of a real catalog it stands for the network, and for the part of
the service that checks tokens.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


class Door:
    """A proxy; clients use ``url``.

    A test sets its mode by plain attributes, from another thread.
    """

    def __init__(self, behind: str) -> None:
        self._behind = urlsplit(behind)
        #: ``open``, ``shut`` (connections end at once), ``silent`` (no response), ``away`` (503),
        #: ``broken`` (connections end in the middle of a response).
        self.mode = "open"
        #: Called for each request that is not forwarded because of the mode.
        self.refuse: Callable[[], object] = lambda: None
        #: True to forward the next commit and lose its response.
        self.lose_a_commit = False
        #: The only accepted token, if any; a client gets a new one for its credential.
        self.token: str | None = None
        self.tokens_given = 0
        self._ended = threading.Event()
        door = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                door.handle(self)

            do_GET = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        """Handle one request."""
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if self.mode != "open":
            self.refuse()
        if self.mode == "silent":
            self._ended.wait(600)
        if self.mode in ("shut", "silent"):
            request.close_connection = True
        elif self.mode == "broken":
            request.send_response(200)
            request.send_header("Content-Length", "100")
            request.end_headers()
            request.wfile.write(b"{")
            request.close_connection = True
        elif self.mode == "away":
            self._refuse(request, 503, "closed for a while")
        else:
            self._open(request, body)

    def _open(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        path = urlsplit(request.path).path
        if self.token is not None and path.endswith("/oauth/tokens"):
            self.tokens_given += 1
            self.token = f"token-{self.tokens_given}"
            told = json.dumps(
                {"access_token": self.token, "token_type": "bearer", "expires_in": 3600}
            )
            self._answer(request, 200, told.encode(), "application/json")
            return
        if (
            self.token is not None
            and request.headers.get("Authorization") != f"Bearer {self.token}"
        ):
            self._refuse(request, 401, "the token is not good any more")
            return
        status, headers, text = self._passed(request, body)
        if self.lose_a_commit and request.command == "POST" and "/tables/" in path:
            self.lose_a_commit = False
            request.close_connection = True
            return
        self._answer(request, status, text, headers.get("Content-Type") or "application/json")

    def _passed(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection(
            self._behind.hostname or "", self._behind.port, timeout=180
        )
        try:
            ours = ("host", "connection", "authorization")
            kept = {
                name: value for name, value in request.headers.items() if name.lower() not in ours
            }
            connection.request(
                request.command, self._behind.path.rstrip("/") + request.path, body or None, kept
            )
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def _refuse(self, request: BaseHTTPRequestHandler, status: int, why: str) -> None:
        body = {"error": {"message": why, "type": "Refused", "code": status}}
        self._answer(request, status, json.dumps(body).encode(), "application/json")

    def _answer(self, request: BaseHTTPRequestHandler, status: int, text: bytes, kind: str) -> None:
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(text)


@contextmanager
def door(behind: str = "http://127.0.0.1:1") -> Iterator[Door]:
    """Run a proxy until the end of the block."""
    made = Door(behind)
    try:
        yield made
    finally:
        made.close()
