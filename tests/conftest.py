"""Fixtures that tests of several folders use."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest
import trio


@pytest.fixture
def web_server() -> Iterator[str]:
    """Return the address of a port of 127.0.0.1 that answers every input as a web server does."""

    def serve() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            # A client that has closed its connection must not end the server for the next one.
            with peer, suppress(OSError):
                peer.recv(100)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
async def busy_threads() -> AsyncIterator[None]:
    """Let the program's own threads use up Trio's default limiter, as hanging handlers do."""
    limiter = trio.to_thread.current_default_thread_limiter()
    threads = [object() for _ in range(int(limiter.total_tokens))]
    for thread in threads:
        limiter.acquire_on_behalf_of_nowait(thread)
    yield
    for thread in threads:
        limiter.release_on_behalf_of(thread)
