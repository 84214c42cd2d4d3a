"""A schema registry over real HTTP on this machine, with a scripted response for each path."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit


class ScriptedRegistry:
    """A registry with the responses ``says[path]``; other paths are unknown.

    A response is a body, or a list of (status, body) to use in turn, the last one for all later
    requests.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.says: dict[str, Any] = {}
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                registry.headers.append(dict(self.headers))
                status, body = registry._next(self.path)
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                if status in (301, 302):
                    self.send_header("Location", json.loads(data))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self.url = (
            f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_address[1]}"
        )

    def _next(self, path: str) -> tuple[int, Any]:
        found = self.says.get(path, self.says.get(urlsplit(path).path))
        if found is None:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        if isinstance(found, list):
            status, body = found.pop(0) if len(found) > 1 else found[0]
            return int(status), body
        return 200, found

    def avro(self, id: int, schema: Any, **more: Any) -> None:
        """Register an Avro schema."""
        self.says[f"/schemas/ids/{id}"] = {"schema": json.dumps(schema), **more}

    def protobuf(self, id: int, file: Any, **more: Any) -> None:
        """Register the descriptor of a file."""
        text = base64.b64encode(file.SerializeToString()).decode()
        self.says[f"/schemas/ids/{id}?format=serialized"] = {
            "schemaType": "PROTOBUF",
            "schema": text,
            **more,
        }

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class WaitedTime:
    """A clock for a client, instead of the module ``time``, that only moves while it waits.

    A process that stands still then meets no time limit.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


def framed(id: int, value: bytes) -> bytes:
    """Return a value as a registry's serializers write it."""
    return b"\0" + id.to_bytes(4, "big") + value
