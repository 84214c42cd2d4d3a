"""An S3 server on this machine: moto's, as a process, with faults at the level of requests.

Run as a program it serves until its standard input ends. Requests are handled one at a time,
because moto's conditional writes are not atomic. The name of a bucket selects its fault:

* ``careless-...`` ignores ``If-Match`` and ``If-None-Match``, as some stores do that call
  themselves compatible.
* ``forgetful-...`` carries out each conditional write, and answers its first attempt with 500.
* ``contended-...`` answers the first attempt to write a new object with 409, and does not write it.
* ``unskilled-...`` answers conditional writes with 501.
* ``broken-...`` cuts the first response to each request in its middle. It resets the connection of
  a conditional write, of which it carries out only those of an object that is there.
* ``embattled-...`` answers each write of a lock with 409, as during another write of it.

After ``POST /-/budget?bucket=B&requests=N`` the bucket refuses all but the next N requests, as if
the client were killed then; -1 ends that. With ``&hold=yes`` the further requests wait until the
next such call, and are refused then. The call returns the number of requests since the last such
call. ``POST /-/held`` returns the number of waiting requests.

After ``POST /-/key?bucket=B&key=K&key=L`` the bucket refuses requests that are not signed by one of
these access keys, as if other keys had expired.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs

_numbers = itertools.count()


class S3Server:
    """The server as a test sees it."""

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def options(self) -> dict[str, str]:
        """Return the options with which an export reaches the server."""
        return {
            "store.endpoint": self.url,
            "store.region": "us-east-1",
            "store.access_key_id": "the-key",
            "store.secret_access_key": "the-secret-word",
        }

    def bucket(self, kind: str = "bucket") -> str:
        """Make a new bucket; return its name."""
        name = f"{kind}-{next(_numbers)}"
        self.request("PUT", f"/{name}")
        return name

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send a plain request, which is not signed."""
        request = urllib.request.Request(self.url + path, method=method, data=body)
        with urllib.request.urlopen(request, timeout=180) as response:
            content: bytes = response.read()
            return content

    def allow(self, bucket: str, requests: int, hold: str = "") -> int:
        """Refuse all but the next ``requests`` requests to the bucket; -1 refuses none.

        Returns the number of requests since the last call.
        """
        return int(
            self.request("POST", f"/-/budget?bucket={bucket}&requests={requests}&hold={hold}", b"")
        )

    def only(self, bucket: str, *keys: str) -> None:
        """Refuse requests that are signed by other access keys."""
        self.request(
            "POST", f"/-/key?bucket={bucket}" + "".join(f"&key={key}" for key in keys), b""
        )

    def held(self) -> int:
        """Return the number of waiting requests."""
        return int(self.request("POST", "/-/held", b""))

    def store(self, bucket: str) -> Any:
        """Return a client of the bucket that has no limits."""
        from obstore.store import S3Store

        return S3Store(
            bucket,
            endpoint=self.url,
            region="us-east-1",
            access_key_id="reader",
            secret_access_key="reader",
            client_options={"allow_http": True, "default_headers": {"x-reader": "yes"}},
        )

    def objects(self, bucket: str) -> dict[str, bytes]:
        """Return all objects, with their bytes."""
        import obstore

        store = self.store(bucket)
        names = [each["path"] for page in obstore.list(store) for each in page]
        return {name: bytes(obstore.get(store, name).bytes()) for name in names}


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Start a server, and end it with the block."""
    command = [sys.executable, "-W", "ignore", __file__]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield S3Server(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.stdin.close()
            process.wait(600)


class _Doorman:
    """A filter of requests in front of moto."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._lock = threading.Condition()
        self._held = 0
        self._holding: set[str] = set()
        self._left: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._answered: set[str] = set()
        self._keys: dict[str, list[str]] = {}

    def __call__(self, environ: dict[str, Any], start: Any) -> list[bytes]:
        with self._lock:
            path = environ["PATH_INFO"]
            if path == "/-/budget":
                return self._budget(parse_qs(environ["QUERY_STRING"]), start)
            if path == "/-/held":
                start("200 OK", [])
                return [str(self._held).encode()]
            if path == "/-/key":
                query = parse_qs(environ["QUERY_STRING"])
                self._keys[query["bucket"][0]] = query["key"]
                start("200 OK", [])
                return [b""]
            bucket = path.split("/")[1]
            signed, keys = environ.get("HTTP_AUTHORIZATION", ""), self._keys.get(bucket, [])
            if (
                keys
                and "HTTP_X_READER" not in environ
                and not any(f"Credential={key}/" in signed for key in keys)
            ):
                return _refused(start, "403 Forbidden", "ExpiredToken")
            if "HTTP_X_READER" not in environ and not self._may(bucket):
                return _refused(start, "403 Forbidden", "AccessDenied")
            return self._handled(bucket.partition("-")[0], environ, start)

    def _budget(self, query: dict[str, list[str]], start: Any) -> list[bytes]:
        bucket = query["bucket"][0]
        self._left[bucket] = int(query["requests"][0])
        self._holding = self._holding - {bucket} | ({bucket} if "hold" in query else set())
        self._lock.notify_all()
        start("200 OK", [])
        return [str(self._seen.pop(bucket, 0)).encode()]

    def _may(self, bucket: str) -> bool:
        self._seen[bucket] = self._seen.get(bucket, 0) + 1
        left = self._left.get(bucket, -1)
        self._left[bucket] = max(left - 1, 0) if left >= 0 else -1
        if not left and bucket in self._holding:
            self._held += 1
            self._lock.wait_for(lambda: self._left[bucket] != 0)
            self._held -= 1
        return left != 0

    def _handled(self, kind: str, environ: dict[str, Any], start: Any) -> list[bytes]:
        conditions = [name for name in ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH") if name in environ]
        if kind == "unskilled" and conditions:
            return _refused(start, "501 Not Implemented", "NotImplemented")
        if kind == "careless":
            for name in conditions:
                del environ[name]
        if kind == "forgetful" and conditions and environ["PATH_INFO"] not in self._answered:
            self._answered.add(environ["PATH_INFO"])
            list(self._application(environ, lambda status, headers, *rest: lambda data: None))
            return _refused(start, "500 Internal Server Error", "InternalError")
        query = re.sub("uploadId=[^&]*", "", environ["QUERY_STRING"])  # of each attempt another
        request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}?{query}"
        if kind == "broken" and request not in self._answered and "HTTP_X_READER" not in environ:
            self._answered.add(request)
            if conditions:
                if "HTTP_IF_MATCH" in environ:
                    list(
                        self._application(environ, lambda status, headers, *rest: lambda data: None)
                    )
                _reset(environ["werkzeug.socket"])
                return _refused(start, "500 Internal Server Error", "InternalError")
            return self._cut(environ, start)
        put = (kind, environ["REQUEST_METHOD"]) == ("embattled", "PUT")
        if put and environ["PATH_INFO"].endswith("/lock"):
            return _refused(start, "409 Conflict", "ConditionalRequestConflict")
        if (
            kind == "contended"
            and "HTTP_IF_NONE_MATCH" in conditions
            and environ["PATH_INFO"] not in self._answered
        ):
            self._answered.add(environ["PATH_INFO"])
            return _refused(start, "409 Conflict", "ConditionalRequestConflict")
        return list(self._application(environ, start))

    def _cut(self, environ: dict[str, Any], start: Any) -> list[bytes]:
        """Carry out a request, and send a half of its response."""

        def begin(status: str, headers: list[tuple[str, str]], *rest: Any) -> None:
            start(status, [*headers, ("Connection", "close")], *rest)

        body = b"".join(self._application(environ, begin))
        return [body[: len(body) // 2]]


def _reset(connection: socket.socket) -> None:
    """End a connection by a reset. The server then finds a connection that has ended."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    ended, other = socket.socketpair()
    other.close()
    with ended:
        os.dup2(ended.fileno(), connection.fileno())


def _refused(start: Any, status: str, code: str) -> list[bytes]:
    start(status, [("Content-Type", "application/xml")])
    return [f"<Error><Code>{code}</Code><Message>as a test wants it</Message></Error>".encode()]


def main() -> None:
    from moto.server import create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_expect_100(self) -> bool:
            return True

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # Moto's own dispatcher takes a quarter of a request's time to find out that it is for S3.
    application = _Doorman(create_backend_app("s3"))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
