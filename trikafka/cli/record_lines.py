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
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import click

from .._wire.rendering import Part, json_of, line_of, literal_json
from ..config.whole import is_whole
from ..types import Record

Transform = Callable[[bytes | None], bytes | None]

#: The fields of a line. ``produce`` ignores some that ``consume`` prints.
FIELDS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")


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


def from_json(text: bytes) -> Line:
    """Return the record that a line of JSON describes.

    Raises:
        BadLineError: The line is malformed.
    """
    twice: list[tuple[str, object]] = []

    # Python's parser would keep the last of two members with one name, and the record would lack
    # the other one, such as a header.
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            names = [name for name, _ in pairs]
            twice.append((next(name for name in names if names.count(name) > 1), members))
        return members

    try:
        found = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        if text.strip() in (b"{", b"["):
            raise BadLineError(
                "this is JSON over several lines, but each record needs a line of its own (jq -c)"
            ) from None
        raise BadLineError(
            f"this is not JSON ({_why(error)}); for lines as they are use --format raw"
        ) from None
    if not isinstance(found, dict):
        raise BadLineError(
            "this is JSON, but not an object; for lines as they are use --format raw"
        )
    for name, members in twice:
        below_headers = members is found.get("headers")
        hint = "; headers of one name need a list of pairs" if below_headers else ""
        raise BadLineError(f"{name!r} occurs twice{hint}")
    for name in found:
        if name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the fields are {', '.join(FIELDS)}"
            if found.keys().isdisjoint(("key", "value")) and not near:
                hint += "; for lines that are the values themselves use --format raw"
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
    if value is not None and not is_whole(value, most=2**63 - 1):
        raise BadLineError(f"{name} must be a whole number from 0, or null")
    return value


def _bytes(name: str, value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise BadLineError(
                f"{name} holds half of a surrogate pair, which is not text"
            ) from None
    if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise BadLineError(f"the base64 of {name} is not valid") from None
    raise BadLineError(f'{name} must be text, null or {{"base64": "..."}}')


def _headers(value: object) -> tuple[tuple[str, bytes | None], ...]:
    pairs: Any = () if value is None else value.items() if isinstance(value, dict) else value
    shape = "headers must be a list of pairs [name, value], or an object"
    # A text of two letters and an object of two fields would be taken apart, too.
    if not isinstance(value, dict | None) and not (
        isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
    ):
        raise BadLineError(shape)
    found = [(name, data) for name, data in pairs]
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
    """Return a function that reads a line: a value, or a key, the delimiter and a value."""

    def part(data: bytes) -> bytes | None:
        return data if data or not empty_is_null else None

    def read(line: bytes) -> Line:
        if key_delimiter is None:
            return Line(None, None, None, None, part(line), ())
        key, found, value = line.partition(key_delimiter)
        if not found:
            shown = key_delimiter.decode("utf-8", "backslashreplace")
            raise BadLineError(f"the line has no key delimiter {shown!r}")
        return Line(None, None, None, part(key), part(value), ())

    return read


def argument_bytes(text: str) -> bytes:
    """Return the bytes of an argument of the command line, even if they are not UTF-8."""
    return text.encode("utf-8", "surrogateescape")


# --- lines of records -----------------------------------------------------------------------------

#: How a key or a value is printed.
VALUE_FORMATS = ("text", "json", "hex", "base64")
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(.)|\\x([0-9A-Fa-f]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)
#: The signs of formats, as of kcat. Topic and partition are the same for all records of a batch.
_TOPIC = ord("t")
_PARTITION = ord("p")
_JSON_TOPIC = ord("j")
_SIGNS = "tpoTkshKSR"


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The line of a record: its parts, and the bytes that stand for a null.

    ``key`` and ``value`` turn the bytes of a record into the bytes to print. ``None`` prints the
    record's bytes.
    """

    parts: tuple[Part, ...]
    null: bytes = b""
    key: Transform | None = None
    value: Transform | None = None

    @property
    def of_columns(self) -> bool:
        """True if whole batches are formatted from their columns, without a ``Record`` each."""
        return self.key is None and self.value is None

    def parts_of(self, topic: str, partition: int) -> tuple[Part, ...]:
        """Return the parts of the lines of one partition."""
        fixed = {
            _TOPIC: topic.encode(),
            _PARTITION: b"%d" % partition,
            _JSON_TOPIC: literal_json(topic),
        }
        return tuple(
            (0, fixed[sign]) if sign in fixed else (sign, data) for sign, data in self.parts
        )

    def __call__(self, record: Record) -> bytes:
        """Return the line of one record."""
        if self.key is not None:
            record = record._replace(key=self.key(record.key))
        if self.value is not None:
            record = record._replace(value=self.value(record.value))
        return line_of(record, self.parts_of(record.topic, record.partition), self.null)


def literal(text: str) -> bytes:
    """Return a text as bytes, with its backslash escapes replaced."""
    parts = (
        bytes([int(m[2], 16)])
        if m[2]
        else _ESCAPES.get(m[3], argument_bytes(m[0]))
        if m[3]
        else argument_bytes(m[0])
        for m in _TOKEN.finditer(text)
    )
    return b"".join(parts)


def from_template(template: str, null: bytes = b"") -> OutputFormat:
    r"""Return the output format of a text like kcat's.

    ``%t`` topic, ``%p`` partition, ``%o`` offset, ``%k`` key, ``%s`` value, ``%T`` timestamp,
    ``%h`` headers, ``%K`` and ``%S`` lengths of key and value (-1: null), ``%R`` the value's length
    as 4 bytes, ``%%``; escapes such as ``\\n``, ``\\t``, ``\\x00``.

    Raises:
        click.BadParameter: The format has an unknown sign.
    """
    parts: list[Part] = []
    for match in _TOKEN.finditer(template):
        sign = match[1]
        if sign is not None and sign != "%":
            if sign not in _SIGNS:
                raise click.BadParameter(
                    f"%{sign} is not known in a format; the signs are "
                    f"{', '.join('%' + t for t in _SIGNS)}, %%",
                    param_hint="--format",
                )
            parts.append((ord(sign), b""))
        else:
            _add(parts, b"%" if sign else literal(match[0]))
    return OutputFormat(tuple(parts), null)


def _add(parts: list[Part], text: bytes) -> None:
    """Add constant bytes, to the last part if that is constant, too."""
    if parts and not parts[-1][0]:
        text = parts.pop()[1] + text
    parts.append((0, text))


#: The name of a format, or a plugin's: a function of bytes that returns whether it could decode
#: them, and the value.
ValueFormat = str | Callable[[bytes], tuple[bool, object]]


def json_format(key: ValueFormat = "text", value: ValueFormat = "text") -> OutputFormat:
    """Return the format of JSON lines, with keys and values in these formats.

    With ``json`` a key or value that is JSON becomes a part of the line, and so does one that a
    plugin decodes. All others are printed as with ``text``.
    """
    # In the signs of _wire.rendering: x and y print key and value as a text of JSON, k and s as the
    # bytes that _transform() returns.
    signs = {"text": "xy", "hex": "xy", "base64": "xy"}
    parts: list[Part] = []
    for text, sign in (
        ('{"topic":', "j"),
        (',"partition":', "p"),
        (',"offset":', "o"),
        (',"timestamp":', "m"),
        (',"timestamp_type":', "c"),
        (',"key":', signs.get(str(key), "ks")[0]),
        (',"value":', signs.get(str(value), "ks")[1]),
        (',"headers":', "z"),
    ):
        parts += [(0, text.encode()), (ord(sign), b"")]
    parts.append((0, b"}\n"))
    return OutputFormat(
        tuple(parts), b"null", _transform(key, in_json=True), _transform(value, in_json=True)
    )


def _transform(form: ValueFormat, *, in_json: bool) -> Transform | None:
    if not isinstance(form, str):
        return partial(_decoded, form, in_json)
    return _embedded if in_json and form == "json" else _TRANSFORMS[form]


def _decoded(
    decode: Callable[[bytes], tuple[bool, object]], in_json: bool, data: bytes | None
) -> bytes | None:
    """Return the value that a plugin decodes from bytes, as JSON.

    Outside of a line of JSON, a text or bytes are returned without quotes and escapes.
    """
    if data is None:
        return None
    known, value = decode(data)
    if not known:
        return json_of(data).encode() if in_json else data
    if isinstance(value, bytes):
        return json_of(value).encode() if in_json else value
    if isinstance(value, str) and not in_json:
        return value.encode("utf-8", "backslashreplace")
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:  # a NaN, or a value within itself
        text = json.dumps(str(value), ensure_ascii=False)
    # The escape for half of a surrogate pair is the same in JSON.
    return text.encode("utf-8", "backslashreplace")


def _embedded(data: bytes | None) -> bytes | None:
    """Return JSON as one line of JSON, and other bytes as :func:`json_of` writes them."""
    if data is None:
        return None
    compact = _compact(data)
    return json_of(data).encode() if compact is None else compact


def _one_line(data: bytes | None) -> bytes | None:
    """Return JSON as one line, and other bytes as they are."""
    compact = None if data is None else _compact(data)
    return data if compact is None else compact


def _compact(data: bytes) -> bytes | None:
    """Return JSON on one line; ``None`` if the bytes are not JSON.

    Line ends stand only between the tokens of JSON, so numbers and texts stay as they are.
    """
    try:
        json.loads(str(data, "utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return data.replace(b"\r", b" ").replace(b"\n", b" ").strip()


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


_TRANSFORMS: dict[str, Transform | None] = {
    "text": None,
    "json": _one_line,
    "hex": lambda data: None if data is None else data.hex().encode(),
    "base64": lambda data: None if data is None else base64.b64encode(data),
}


def output_format(
    text: str,
    key_delimiter: str | None,
    null: bytes = b"",
    *,
    key: ValueFormat = "text",
    value: ValueFormat = "text",
    headers: bool = False,
) -> OutputFormat:
    """Return the format for ``--format``, ``--key-delimiter`` and the options beside them."""
    if key_delimiter is None and text == "json":
        return json_format(key, value)
    before = "%h\t" if headers else ""
    if key_delimiter is not None:
        parts = list(from_template(before + "%k").parts)
        _add(parts, literal(key_delimiter))
        parts += from_template(r"%s\n").parts
    elif text == "raw":
        parts = list(from_template(before + r"%s\n").parts)
    elif "%" in text:
        if headers:
            raise click.BadParameter("in a format, %h prints the headers", param_hint="--headers")
        parts = list(from_template(text).parts)
    else:
        near = difflib.get_close_matches(text.lower(), ("json", "raw"), n=1)
        hint = (
            f"did you mean {near[0]!r}?" if near else r"give 'json', 'raw', or such as '%k: %s\n'"
        )
        raise click.BadParameter(
            f"{text!r} prints the same for each record; {hint}", param_hint="--format"
        )
    return OutputFormat(
        tuple(parts), null, _transform(key, in_json=False), _transform(value, in_json=False)
    )


# Text is matched as text: in bytes, "[äö]" would be a set of four bytes, and match a part of "ü",
# too. Bytes that are not UTF-8 have no characters, so the bytes of the pattern are matched.
def matching(pattern: str) -> Callable[[Record], bool]:
    """Return a function that returns whether a record matches.

    The pattern may match a part of the key, of the value or of a header's value.

    Raises:
        click.BadParameter: The pattern is not a regular expression.
    """
    try:
        in_text = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise click.BadParameter(
            f"{pattern!r} is not a regular expression: {error}", param_hint="--grep"
        ) from None
    in_bytes = None
    with suppress(re.error, ValueError):  # Some patterns are for text only, such as (?u).
        in_bytes = re.compile(argument_bytes(pattern))

    def found(data: bytes) -> bool:
        try:
            text = str(data, "utf-8")
        except UnicodeDecodeError:
            return in_bytes is not None and in_bytes.search(data) is not None
        return in_text.search(text) is not None

    def keep(record: Record) -> bool:
        parts = (record.value, record.key, *(value for _, value in record.headers))
        return any(part is not None and found(part) for part in parts)

    return keep
