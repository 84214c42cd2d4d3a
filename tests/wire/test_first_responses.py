"""The first responses of a kind, decoded by several threads at once.

kafka-python writes the decoder of a message at its first use. The clients of a process may run in
several threads, which then need the same decoder at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from kafka.protocol.consumer import HeartbeatRequest, HeartbeatResponse
from kafka.protocol.schemas.fields import struct as structs

from trikafka._wire import messages
from trikafka._wire.extra_messages import ApiVersionsRequest, ApiVersionsResponse
from trikafka.testing import messages as broker_messages

#: Real seconds for which one thread waits for the other. The other comes at once, or never.
LIMIT = 0.2


class TwoWriters:
    """Two threads that write the same decoder: the second begins before the first has ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, struct: Any) -> None:
        self._first = threading.get_ident()
        self._begun = threading.Event()
        self._ended = threading.Event()
        self._threads = ThreadPoolExecutor(1)
        self._second: Future[Any] | None = None
        self._work: Callable[[], Any] = int
        self._context = structs.CodegenContext
        monkeypatch.setattr(struct, "_compiled_encoders", {})
        monkeypatch.setattr(structs, "CodegenContext", self._begin)
        messages.decoder_of.cache_clear()

    def _begin(self) -> Any:
        """Stop the writer where kafka-python has replaced the class and not read it yet."""
        if threading.get_ident() != self._first:
            self._begun.set()
            self._ended.wait(240)
        elif self._second is None:
            self._second = self._threads.submit(self._work)
            self._begun.wait(LIMIT)
        return self._context()

    def both(self, work: Callable[[], Any]) -> tuple[Any, Any]:
        """Do ``work`` in both threads; return both results."""
        self._work = work
        with self._threads:
            first = work()
            self._ended.set()
            assert self._second is not None
            return first, self._second.result(240)


@pytest.mark.parametrize(
    ("request_", "response", "version", "body"),
    [
        (HeartbeatRequest("g", 1, "m"), HeartbeatResponse, 0, b"\0\x1b"),
        (ApiVersionsRequest(), ApiVersionsResponse, 0, b"\0\0\0\0\0\0"),
        (ApiVersionsRequest(), ApiVersionsResponse, 3, b"\0\0\1\0\0\0\0\0"),
        (ApiVersionsRequest(), ApiVersionsResponse, 3, b"\0\x23\0\0\0\0"),
    ],
    ids=["Heartbeat", "ApiVersions v0", "ApiVersions v3", "ApiVersions refused"],
)
def test_two_threads_decode_a_first_response(
    monkeypatch: pytest.MonkeyPatch, request_: Any, response: Any, version: int, body: bytes
) -> None:
    """The second thread once kept a decoder with which no such response could be read any more."""
    sent = messages.encode_request(request_, version, 7, "me")
    frame = memoryview(b"\0\0\0\7" + body)
    writers = TwoWriters(monkeypatch, response._struct)
    first, second = writers.both(lambda: messages.decode_response(sent, frame))
    third = messages.decode_response(sent, frame)
    assert first.error_code == second.error_code == third.error_code == body[1]


def test_two_clusters_decode_a_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = messages.encode_request(HeartbeatRequest("g", 1, "m"), 0, 7, "me").frame[4:]
    head = broker_messages.read_head(frame)
    writers = TwoWriters(monkeypatch, HeartbeatRequest._struct)
    first, second = writers.both(lambda: broker_messages.decode_request(head, frame))
    third = broker_messages.decode_request(head, frame)
    assert first.group_id == second.group_id == third.group_id == "g"


def test_two_clusters_make_a_first_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scripted cluster decodes the response to ApiVersions that it has kept as bytes."""
    kind = broker_messages.RESPONSES[messages.ApiKey.ApiVersions]
    body = b"\0\0\1\0\0\0\0\0"
    writers = TwoWriters(monkeypatch, kind._struct)
    first, second = writers.both(lambda: broker_messages.decoded(kind, body, version=3))
    assert first.error_code == second.error_code == 0
