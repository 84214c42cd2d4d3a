"""A probe that asks a broker over plain bytes whether it serves.

Two requests suffice, so they are encoded by hand.
"""

from __future__ import annotations

import contextlib
import socket
import struct

_METADATA, _API_VERSIONS = 3, 18
_CORRELATION = 7
_CLIENT = b"trikafka-broker"


def answers(host: str, port: int, *, timeout: float = 2.0) -> bool:
    """Return whether an ApiVersions request gets a response within `timeout` seconds."""
    return _ask(host, port, _API_VERSIONS, 0, b"", timeout) is not None


def registered_brokers(host: str, port: int, *, timeout: float = 2.0) -> frozenset[int]:
    """Return the ids of the brokers that the broker at this address knows as alive.

    The set is empty if the broker does not respond in time.
    """
    no_topics = struct.pack(">i", 0)
    body = _ask(host, port, _METADATA, 1, no_topics, timeout)
    if body is None:
        return frozenset()
    try:
        return frozenset(_broker_ids(body))
    except struct.error:
        return frozenset()


def _ask(host: str, port: int, api: int, version: int, body: bytes, timeout: float) -> bytes | None:
    """Send one request; return the body of its response, or None if there was none in time."""
    header = struct.pack(">hhih", api, version, _CORRELATION, len(_CLIENT)) + _CLIENT
    request = header + body
    with (
        contextlib.suppress(OSError, struct.error),
        socket.create_connection((host, port), timeout) as connection,
    ):
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _read(connection, 4))
        answer = _read(connection, size)
        (correlation,) = struct.unpack_from(">i", answer)
        return answer[4:] if correlation == _CORRELATION else None
    return None


def _read(connection: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionResetError("the broker closed the connection")
        parts += part
    return parts


def _broker_ids(body: bytes) -> list[int]:
    """Return the node ids in the body of a Metadata response, version 1.

    Each broker has id, host, port and rack.
    """
    (count,) = struct.unpack_from(">i", body)
    position = 4
    ids = []
    for _ in range(count):
        (node,) = struct.unpack_from(">i", body, position)
        ids.append(node)
        position = _skip_string(body, position + 4)  # host
        position = _skip_string(body, position + 4)  # after the port: rack, which may be null
    return ids


def _skip_string(body: bytes, position: int) -> int:
    length: int = struct.unpack_from(">h", body, position)[0]
    return position + 2 + max(length, 0)
