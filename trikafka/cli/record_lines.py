"""Conversion between records and lines of text. Pure functions.

A line of JSON is an object. ``key``, ``value`` and the values of headers are ``null``, or text
where the bytes are valid UTF-8, or else ``{"base64": "..."}``. Every record therefore survives
``consume | produce``. ``headers`` are pairs of name and value in order, since names may repeat.
``timestamp`` is in milliseconds since the epoch.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from ..types import Record, TimestampType

Format = Callable[[Record], bytes]

_quote = json.JSONEncoder(ensure_ascii=False).encode
_TYPES = {TimestampType.CREATE_TIME: '"create"', TimestampType.LOG_APPEND_TIME: '"append"'}
#: The fields of a line. ``produce`` ignores some that ``consume`` prints.
_FIELDS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")


class Line(NamedTuple):
    """The record that a line of input describes."""

    topic: str | None
    partition: int | None
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class BadLineError(click.ClickException):
    """A line of input is malformed."""


# --- JSON -----------------------------------------------------------------------------------------


def to_json(record: Record) -> bytes:
    """Return the record as one line of JSON."""
    headers = ",".join(f"[{_quote(name)},{_data(value)}]" for name, value in record.headers)
    timestamp = "null" if record.timestamp is None else record.timestamp
    return (
        f'{{"topic":{_quote(record.topic)},"partition":{record.partition},"offset":{record.offset},"timestamp":{timestamp},'
        f'"timestamp_type":{_TYPES[record.timestamp_type]},'
        f'"key":{_data(record.key)},"value":{_data(record.value)},"headers":[{headers}]}}\n'
    ).encode()


def _data(data: bytes | None) -> str:
    if data is None:
        return "null"
    try:
        return _quote(str(data, "utf-8"))
    except UnicodeDecodeError:
        return f'{{"base64":"{base64.b64encode(data).decode()}"}}'


def from_json(text: bytes) -> Line:
    """Return the record that a line of JSON describes.

    Raises:
        BadLineError: The line is malformed.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadLineError(
            f"this is not JSON ({_why(error)}); for lines as they are use --format raw"
        ) from None
    if not isinstance(found, dict):
        raise BadLineError(
            "this is JSON, but not an object; for lines as they are use --format raw"
        )
    for name in found:
        if name not in _FIELDS:
            near = difflib.get_close_matches(name, _FIELDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_FIELDS)}"
            raise BadLineError(f"unknown field {name!r}; {hint}")
    topic = found.get("topic")
    if topic is not None and not (isinstance(topic, str) and topic.isascii()):
        raise BadLineError("topic must be the name of a topic")
    return Line(
        topic,
        _whole(found, "partition"),
        _whole(found, "timestamp"),
        _bytes("key", found.get("key")),
        _bytes("value", found.get("value")),
        _headers(found.get("headers")),
    )


def _whole(found: dict[str, Any], name: str) -> int | None:
    value = found.get(name)
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63
    ):
        raise BadLineError(f"{name} must be a whole number from 0, or null")
    return value


def _bytes(name: str, value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise BadLineError(f"{name} holds half of a surrogate pair, which is no text") from None
    if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise BadLineError(f"the base64 of {name} is not valid") from None
    raise BadLineError(f'{name} must be text, null or {{"base64": "..."}}')


def _headers(value: object) -> tuple[tuple[str, bytes | None], ...]:
    pairs: Any = () if value is None else value.items() if isinstance(value, dict) else value
    shape = "headers must be a list of pairs [name, value], or an object"
    if isinstance(pairs, str):
        raise BadLineError(shape)
    try:
        found = [(name, data) for name, data in pairs]
    except (TypeError, ValueError):
        raise BadLineError(shape) from None
    for name, _ in found:
        if not isinstance(name, str) or _bytes("header name", name) is None:
            raise BadLineError(shape)
    return tuple((name, _bytes(f"header {name!r}", data)) for name, data in found)


def _why(error: Exception) -> str:
    return (
        f"{error.msg} at column {error.colno}"
        if isinstance(error, json.JSONDecodeError)
        else str(error) or "too deeply nested"
    )


# --- raw lines ------------------------------------------------------------------------------------


def from_raw(key_delimiter: bytes | None, empty_is_null: bool) -> Callable[[bytes], Line]:
    """Return a reader of lines that are values, or keys and values with a delimiter between."""

    def part(data: bytes) -> bytes | None:
        return data if data or not empty_is_null else None

    def read(line: bytes) -> Line:
        if key_delimiter is None:
            return Line(None, None, None, None, part(line), ())
        key, found, value = line.partition(key_delimiter)
        if not found:
            raise BadLineError(f"there is no key delimiter {unescaped(key_delimiter)!r} in it")
        return Line(None, None, None, part(key), part(value), ())

    return read


def unescaped(data: bytes) -> str:
    """Return bytes as text for an error message."""
    return data.decode("utf-8", "backslashreplace")


# --- formats of kcat ------------------------------------------------------------------------------

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(.)|\\x([0-9A-Fa-f]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)


def literal(text: str) -> bytes:
    """Return a text with backslash escapes as bytes."""
    parts = (
        bytes([int(m[2], 16)])
        if m[2]
        else _ESCAPES.get(m[3], m[0].encode())
        if m[3]
        else m[0].encode()
        for m in _TOKEN.finditer(text)
    )
    return b"".join(parts)


def from_template(template: str, null: bytes = b"") -> Format:
    r"""Return the formatter for a format like kcat's.

    ``%t`` topic, ``%p`` partition, ``%o`` offset, ``%k`` key, ``%s`` value, ``%T`` timestamp,
    ``%h`` headers, ``%K`` and ``%S`` lengths of key and value (-1: null), ``%R`` the value's length
    as 4 bytes, ``%%``; escapes such as ``\\n``, ``\\t``, ``\\x00``.

    Raises:
        click.BadParameter: The format has an unknown sign.
    """
    tokens: dict[str, Format] = {
        "t": lambda r: r.topic.encode(),
        "p": lambda r: b"%d" % r.partition,
        "o": lambda r: b"%d" % r.offset,
        "T": lambda r: b"%d" % (-1 if r.timestamp is None else r.timestamp),
        "k": lambda r: null if r.key is None else bytes(r.key),
        "s": lambda r: null if r.value is None else bytes(r.value),
        "K": lambda r: b"%d" % (-1 if r.key is None else len(r.key)),
        "S": lambda r: b"%d" % (-1 if r.value is None else len(r.value)),
        "R": lambda r: (-1 if r.value is None else len(r.value)).to_bytes(4, "big", signed=True),
        "h": lambda r: b",".join(
            n.encode() + b"=" + (b"NULL" if v is None else bytes(v)) for n, v in r.headers
        ),
    }
    parts: list[Format] = []
    for match in _TOKEN.finditer(template):
        sign = match[1]
        if sign is not None and sign != "%":
            if sign not in tokens:
                raise click.BadParameter(
                    f"%{sign} in a format means nothing; there are "
                    f"{', '.join('%' + t for t in tokens)}, %%",
                    param_hint="--format",
                )
            parts.append(tokens[sign])
        else:
            text = b"%" if sign else literal(match[0])
            parts.append(lambda record, text=text: text)  # type: ignore[misc]
    return lambda record: b"".join([part(record) for part in parts])


def output_format(text: str, key_delimiter: str | None, null: bytes = b"") -> Format:
    """Return the formatter for ``--format`` and ``--key-delimiter``."""
    if key_delimiter is not None:
        delimiter = literal(key_delimiter)
        value = from_template("%s\n", null)
        key = from_template("%k", null)
        return lambda record: key(record) + delimiter + value(record)
    if text == "json":
        return to_json
    if text != "raw" and "%" not in text:
        near = difflib.get_close_matches(text.lower(), ("json", "raw"), n=1)
        hint = (
            f"did you mean {near[0]!r}?" if near else r"it is 'json', 'raw', or such as '%k: %s\n'"
        )
        raise click.BadParameter(
            f"{text!r} prints the same for each record; {hint}", param_hint="--format"
        )
    return from_template("%s\n" if text == "raw" else text, null)
