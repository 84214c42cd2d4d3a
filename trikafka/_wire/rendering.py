"""Records as lines of text, made of parts.

A part is a sign and bytes. Sign 0 writes these bytes. The other signs are the letters of ``SIGNS``,
which write a field of the record. ``_native_lines.pxi`` writes the same lines from columns.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence

from trikafka.types import AnyRecord, TimestampType

#: A sign, and the bytes of sign 0.
Part = tuple[int, bytes]

_quote = json.JSONEncoder(ensure_ascii=False).encode
_TYPES = {TimestampType.CREATE_TIME: b'"create"', TimestampType.LOG_APPEND_TIME: b'"append"'}


def json_of(data: bytes | None) -> str:
    """Return text as a JSON string, other bytes as an object with base64, and ``None`` as null."""
    if data is None:
        return "null"
    try:
        return _quote(str(data, "utf-8"))
    except UnicodeDecodeError:
        return f'{{"base64":"{base64.b64encode(data).decode()}"}}'


def _headers(record: AnyRecord) -> bytes:
    return b",".join(
        name.encode() + b"=" + (b"NULL" if value is None else bytes(value))
        for name, value in record.headers
    )


def _json_headers(record: AnyRecord) -> bytes:
    pairs = ",".join(f"[{_quote(name)},{json_of(value)}]" for name, value in record.headers)
    return f"[{pairs}]".encode()


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


#: The bytes that each sign writes of a record. The second argument is written for a null key or
#: value.
SIGNS: dict[str, Callable[[AnyRecord, bytes], bytes]] = {
    "k": lambda r, null: null if r.key is None else bytes(r.key),
    "s": lambda r, null: null if r.value is None else bytes(r.value),
    "o": lambda r, null: b"%d" % r.offset,
    "T": lambda r, null: b"%d" % (-1 if r.timestamp is None else r.timestamp),
    "K": lambda r, null: b"%d" % _length(r.key),
    "S": lambda r, null: b"%d" % _length(r.value),
    "R": lambda r, null: _length(r.value).to_bytes(4, "big", signed=True),
    "h": lambda r, null: _headers(r),
    "m": lambda r, null: b"null" if r.timestamp is None else b"%d" % r.timestamp,
    "c": lambda r, null: _TYPES[r.timestamp_type],
    "x": lambda r, null: json_of(r.key).encode(),
    "y": lambda r, null: json_of(r.value).encode(),
    "z": lambda r, null: _json_headers(r),
}
_BY_NUMBER = {ord(sign): write for sign, write in SIGNS.items()}


def line_of(record: AnyRecord, parts: Sequence[Part], null: bytes) -> bytes:
    """Return the line of one record."""
    return b"".join([data if not sign else _BY_NUMBER[sign](record, null) for sign, data in parts])


def literal_json(text: str) -> bytes:
    """Return a text as a JSON string, encoded."""
    return _quote(text).encode()
