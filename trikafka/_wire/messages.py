"""Frames and messages: a thin, strict wrapper around kafka-python's protocol classes. No I/O.

This module decides which version of a request is used, and turns frames into messages. Any bytes
that cannot be decoded raise :exc:`~trikafka.errors.DamagedResponseError`. Only ``_net`` encodes
requests and decodes responses.

The frequent messages are written and read by hand, in ``produce``, ``fetch`` and ``share``. They
derive from :class:`RawRequest` and :class:`RawResponse`.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar, NamedTuple, TypeVar

from kafka.protocol.api_header import RequestHeader
from kafka.protocol.api_key import ApiKey
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.data_container import DataContainer

from .._kafka_python import writing_decoder
from ..errors import (
    ConfigurationError,
    DamagedResponseError,
    ProtocolError,
    UnsupportedVersionError,
)
from ._format import Buffer
from .asking import count_asked, keep_requested, names_something
from .extra_messages import ApiVersionsRequest, ApiVersionsResponse
from .reading import MOST_TAGS
from .releases import needed

__all__ = [
    "PORTION",
    "ApiMessage",
    "ApiVersionsRequest",
    "EncodedRequest",
    "Form",
    "RawRequest",
    "RawResponse",
    "VersionRanges",
    "api_versions_request",
    "choose_version",
    "decode_response",
    "encode_request",
    "finalized_features",
    "late_throttle",
    "portions",
    "read_correlation_id",
    "read_throttle",
    "response_body",
    "version_ranges",
]

T = TypeVar("T")
#: The most partitions in one request of several, and in one step without a checkpoint. kafka-python
#: builds and encodes a request in about 10 microseconds a partition, and reads a response as fast.
#: So a thousand take some 20 ms. Ten thousand would keep other tasks from running for a fifth of a
#: second.
PORTION = 1_000

#: API keys as numbers -> (lowest, highest) version of a broker.
VersionRanges = Mapping[int, tuple[int, int]]

#: The newest version that trikafka uses, if older than kafka-python's. From the next one on these
#: requests name topics by id, which needs metadata of every topic that a response may name.
_NEWEST = {ApiKey.Produce: 12, ApiKey.Fetch: 12, ApiKey.OffsetCommit: 9, ApiKey.OffsetFetch: 9}
#: The oldest versions that trikafka uses: record batches in format 2 begin with these, and share
#: groups.
_OLDEST = {
    ApiKey.Produce: 3,
    ApiKey.Fetch: 4,
    ApiKey.ListOffsets: 1,
    ApiKey.OffsetFetch: 1,
    ApiKey.OffsetCommit: 2,
    # Version 0 was early access.
    ApiKey.ShareGroupHeartbeat: 1,
    ApiKey.ShareFetch: 1,
    ApiKey.ShareAcknowledge: 1,
}

_HEADER = struct.Struct(">hhi")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
#: The most bytes of a text that brokers read.
_LONGEST_TEXT = 0x7FFF
#: The types of fields, and of the items of lists, that hold no text.
_NUMBERS = ("bool", "int8", "int16", "uint16", "int32", "uint32", "int64", "float64", "uuid")
_WITHOUT_TEXTS = frozenset((*_NUMBERS, *(f"[]{kind}" for kind in _NUMBERS), "bytes", "records"))
#: From this size (bytes) on, a copy costs more than a piece of its own.
_LARGE = 16_384
_THROTTLE = "throttle_time_ms"
#: The sizes (bytes) of the types of single values that always take the same room.
_FIXED = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}
#: kafka-python reads a compact length to its end, no matter how long, which takes minutes for some
#: hundred kilobytes of 0xff.
_LONG_RUN = 16_384
_LOOK = 1 << 20
_ENDLESS = re.compile(rb"[\x80-\xff]{%d}" % _LONG_RUN)
#: The plan of one kind of struct in one version: each field's name, whether it may be null, and the
#: plan of the struct in it.
_Plan = tuple[tuple[str, bool, Any], ...]
#: The types of single values that the decoder may return as null. Numbers and ids are never null.
_MAY_COME_AS_NULL = ("string", "bytes", "records")
#: In a plan: an array of such values. Kafka's schemas have no array with null items.
_ITEMS = "items"


class EncodedRequest(NamedTuple):
    """An encoded request, length included, with the means to read its response.

    The request is in one or several pieces.
    """

    pieces: Sequence[Buffer]
    api: str
    version: int
    response_class: Any
    expects_response: bool
    #: The number of records in it.
    records: int = 0
    #: The number of items that it names; ``None``: it asks for all, or the number does not matter.
    asked: int | None = None
    #: The message itself, if the response has to be checked against it.
    request: ApiMessage | None = None

    def __repr__(self) -> str:  # not its bytes, which may have a password
        return f"<{self.api} v{self.version}>"

    @property
    def frame(self) -> bytes:
        """The request in one piece."""
        return b"".join(self.pieces)


class RawResponse:
    """A response that is read by hand, as far as it looks like kafka-python's."""

    API_KEY: ClassVar[int]
    #: The first version with compact lengths and tags.
    flexible: ClassVar[int]
    #: Where the throttle time stands in the body; ``None``: the decoder of the response reads it.
    throttle_position: ClassVar[int | None]
    __slots__ = ()

    @classmethod
    def flexible_version_q(cls, version: int) -> bool:
        """Return whether lengths are compact and tags follow in this version."""
        return version >= cls.flexible


class Form(NamedTuple):
    """The form of a version: how to write a string and a length, and how a structure ends."""

    text: Callable[[str | None], bytes]
    length: Callable[[int], bytes]
    tags: bytes


class RawRequest:
    """A request that returns its frame in pieces, and otherwise looks like kafka-python's.

    Subclasses define the class attributes and write their bodies. ``max_version`` is the newest
    version in which this request can be written, which may depend on its contents.
    """

    API_KEY: int
    name: str
    max_version: int
    response: type[RawResponse]  #: the class of its responses
    records: int = 0  #: the number of records in it
    #: Responses of this many bytes are decoded in a thread; ``None``: as those of kafka-python.
    large: int | None = None
    __slots__ = ()

    def expect_response(self) -> bool:
        """Return whether the broker responds."""
        return True

    # A Produce request is mostly record batches, which exist already as bytes. Joining them would
    # copy a megabyte for each request, and again for each attempt. So the frame is a list: header
    # and field bytes are joined up to the next large part, and the transport writes the pieces one
    # after the other. Below ``_LARGE`` a copy is cheaper than another piece to write.
    def pieces(self, version: int, correlation_id: int, client_id: str) -> list[Buffer]:
        """Return the whole frame: small parts joined, large ones as they are.

        Large parts must not change until the request is sent.
        """
        pieces: list[Buffer] = [
            b"",
            _HEADER.pack(self.API_KEY, version, correlation_id),
            _text(client_id),
        ]
        if version >= self.response.flexible:
            pieces.append(b"\x00")
            self._write(pieces, version, _COMPACT)
        else:
            self._write(pieces, version, _PLAIN)
        sizes = list(map(len, pieces))
        pieces[0] = _INT32.pack(sum(sizes))
        return [b"".join(pieces)] if max(sizes) < _LARGE else _joined(pieces)

    def _write(self, pieces: list[Buffer], version: int, form: Form) -> None:
        """Add the body to ``pieces``."""
        raise NotImplementedError


def _joined(pieces: list[Buffer]) -> list[Buffer]:
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) < _LARGE:
            small.append(piece)
        else:
            joined += (b"".join(small), piece)
            small = []
    return [*joined, b"".join(small)]


@lru_cache(maxsize=1000)
def _text(value: str | None) -> bytes:
    """Return a string with its length in 16 bits.

    Cached: the same few names occur again and again.
    """
    if value is None:
        return b"\xff\xff"
    data = _text_bytes(value)
    return _INT16.pack(len(data)) + data


@lru_cache(maxsize=1000)
def _compact_text(value: str | None) -> bytes:
    """Return a string with its length in the compact form.

    Cached: the same few names occur again and again.
    """
    if value is None:
        return b"\x00"
    data = _text_bytes(value)
    return _compact_count(len(data)) + data


def _text_bytes(value: str) -> bytes:
    data = value.encode()
    if len(data) > _LONGEST_TEXT:
        raise ValueError(_too_long("a text", len(data)))
    return data


def _too_long(what: str, size: int) -> str:
    return f"{what} has {size} bytes, and a text in a request has at most {_LONGEST_TEXT}"


# The compact form can hold longer texts. A broker closes the connection at once when it reads one,
# which looks like an outage, so the request would be repeated until its time is up.
def _check_texts(item: Any) -> None:
    """Raise ValueError if a request, or a struct in it, has a text that no broker reads."""
    for name in _fields_with_texts(item.__class__):
        value = getattr(item, name)
        for each in value if isinstance(value, list | tuple | set | frozenset) else (value,):
            if isinstance(each, str):
                # A letter has at most four bytes.
                if len(each) > _LONGEST_TEXT // 4 and (size := len(each.encode())) > _LONGEST_TEXT:
                    raise ValueError(_too_long(f"{name!r}", size))
            elif isinstance(each, DataContainer):
                _check_texts(each)


# Only large requests are checked, such as a commit of thousands of partitions. Most of their fields
# are numbers. To look at these, too, took as long as the encoding.
@lru_cache(maxsize=1_000)
def _fields_with_texts(kind: Any) -> tuple[str, ...]:
    """Return the names of a struct's fields that hold texts, or structs."""
    fields = kind._struct.fields.items()
    return tuple(name for name, field in fields if field.type_str not in _WITHOUT_TEXTS)


@lru_cache(maxsize=1000)
def _compact_count(count: int) -> bytes:
    """Return a count or length in the compact form: one more, seven bits a byte.

    Cached: most counts are small, and occur again and again.
    """
    count += 1
    out = bytearray()
    while count >= 0x80:
        out.append(count & 0x7F | 0x80)
        count >>= 7
    out.append(count)
    return bytes(out)


_PLAIN = Form(_text, _INT32.pack, b"")
_COMPACT = Form(_compact_text, _compact_count, b"\x00")


def portions(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield ``items`` in lists of at most :data:`PORTION`, with a request for each.

    The caller lets other tasks run between two lists.
    """
    remaining = iter(items)
    while portion := list(islice(remaining, PORTION)):
        yield portion


def choose_version(
    request: ApiMessage | type[ApiMessage] | RawRequest, ranges: VersionRanges, peer: str
) -> int:
    """Return the newest version that both sides support.

    A request may restrict the choice. kafka-python's requests do so by ``min_version=`` or
    ``max_version=``, such as an OffsetCommitRequest with topic ids (``max_version=10``); trikafka's
    by their contents. Raises :exc:`UnsupportedVersionError` if there is no common version.
    """
    key = request.API_KEY
    offered = ranges.get(key)
    low = _OLDEST.get(key, 0)
    high = request.max_version
    if isinstance(request, ApiMessage):
        low = max(low, request._min_version or 0)
        high = min(
            high, _NEWEST.get(key, high) if request._max_version is None else request._max_version
        )
    elif not isinstance(request, RawRequest):  # a class
        high = min(high, _NEWEST.get(key, high))
    if offered is None:
        raise UnsupportedVersionError(
            f"the broker at {peer} does not offer {request.name}{needed(int(key), low)}"
        )
    version = min(high, offered[1])
    if version < max(low, offered[0]):
        raise UnsupportedVersionError(
            (
                f"the broker at {peer} speaks versions {offered[0]} to {offered[1]} of "
                f"{request.name}, trikafka {low} to {high}"
            )
            + (needed(int(key), low) if low > offered[1] else "")
        )
    return int(version)


def encode_request(
    request: ApiMessage | RawRequest, version: int, correlation_id: int, client_id: str
) -> EncodedRequest:
    """Encode ``request`` as one frame, length included.

    Raises :exc:`ConfigurationError` for values that do not fit into the request.
    """
    try:
        if isinstance(request, RawRequest):
            pieces = request.pieces(version, correlation_id, client_id)
            return EncodedRequest(
                pieces,
                request.name,
                version,
                request.response,
                request.expect_response(),
                request.records,
            )
        request.with_header(correlation_id=correlation_id, client_id=client_id)
        frame = request.encode(version=version, header=True, framed=True)
        if len(frame) > _LONGEST_TEXT:
            _check_texts(request)
    except (
        struct.error,
        ValueError,
        OverflowError,
        TypeError,
        AttributeError,
        LookupError,
    ) as error:
        raise ConfigurationError(
            f"{request.name} v{version} cannot carry what it was given: {error}"
        ) from error
    response_class = _response_class(request.__class__)[version]
    expects = request.expect_response()
    asked = count_asked(request)
    kept = request if names_something(request) else None
    return EncodedRequest([frame], request.name, version, response_class, expects, 0, asked, kept)


# kafka-python has a registry of response classes, which does not serve here for two reasons. It has
# the class that was made last, so another package's class for the same API would read our
# responses. And it refers to that class weakly, while each version of a message is a class of its
# own, made at its first use. When two threads use an API for the first time at once, both make that
# class, and one of the two is dropped. If that one was registered last, every later request of this
# API in this process would fail with ReferenceError. So the class is found beside that of its
# request.
@lru_cache(maxsize=512)
def _response_class(request_class: Any) -> Any:
    """Return the class of the responses to a class of requests: ``XResponse`` beside ``XRequest``.

    A plugin may define a request alone. It gets the class that the registry has.

    Raises :exc:`ConfigurationError` if there is none.
    """
    for made in request_class.__mro__:
        name = made.__name__.removesuffix("Request") + "Response"
        found = getattr(sys.modules.get(made.__module__), name, None)
        if found is not None:
            return found
    header = RequestHeader(request_api_key=request_class.API_KEY, request_api_version=None)
    found = header.get_response_class()
    if found is None:
        raise ConfigurationError(
            f"{request_class.__name__} has no class for its responses: define"
            f" {request_class.__name__.removesuffix('Request')}Response in the same module"
        )
    return found


def read_correlation_id(frame: memoryview) -> int:
    """Return the correlation id of a response.

    Raises :exc:`DamagedResponseError` if the frame is too short for one.
    """
    if len(frame) < 4:
        raise DamagedResponseError(f"a response of {len(frame)} bytes is too short to be Kafka's")
    return int(_INT32.unpack_from(frame, 0)[0])


# Quotas. Every supported broker responds at once and then reads nothing more for the throttle time
# (KIP-219), in all versions that have the field. So the field alone decides, and a request that is
# added later is throttled without an entry in any table.
#
# The time must be known in the step that reads the response, before another request is written. In
# most responses it is the first field, and in some it follows numbers of a fixed size. In the few
# others it is read from the decoded message (`late_throttle`).
@lru_cache(maxsize=512)
def _throttle_position(response_class: Any, version: int) -> int | None:
    """Return where the throttle time begins in a body; ``None`` if decoding has to show it."""
    position = 0
    for name, field in response_class.fields.items():
        if not field.for_version_q(version) or field.tagged_field_q(version):
            continue
        if name == _THROTTLE:
            return position
        if field.is_array() or field.type_str not in _FIXED:
            return None
        position += _FIXED[field.type_str]
    return None


def _position_of_throttle(outgoing: EncodedRequest) -> int | None:
    response_class = outgoing.response_class
    if not isinstance(response_class, type(ApiMessage)):
        return response_class.throttle_position  # type: ignore[no-any-return]
    # kafka-python gives a weak reference to the class, which cannot be the key of a cache.
    return _throttle_position(response_class[None], outgoing.version)


def read_throttle(outgoing: EncodedRequest, frame: memoryview) -> float:
    """Return the throttle time (seconds) of the response ``frame`` where it need not be decoded.

    Raises :exc:`DamagedResponseError` if the frame ends in its header.
    """
    position = _position_of_throttle(outgoing)
    if position is None:
        return 0.0
    body = response_body(outgoing, frame)
    milliseconds = int.from_bytes(body[position : position + 4], "big", signed=True)
    return max(0, milliseconds) / 1000


def late_throttle(outgoing: EncodedRequest, response: Any) -> float:
    """Return the throttle time (seconds) that :func:`read_throttle` could not see."""
    if _position_of_throttle(outgoing) is not None:
        return 0.0
    return max(0, getattr(response, _THROTTLE, None) or 0) / 1000


def response_body(outgoing: EncodedRequest, frame: memoryview) -> memoryview:
    """Return the bytes behind the header of the response ``frame``, not copied.

    ``frame`` is without its length.
    """
    position = 4
    response_class = outgoing.response_class
    if ApiKey.ApiVersions != response_class.API_KEY and response_class.flexible_version_q(
        outgoing.version
    ):
        if len(frame) < 5:
            raise DamagedResponseError(f"the response to {outgoing.api} ends in its header")
        position = 5 if frame[4] == 0 else _skip_tags(frame, 4)
    return frame[position:]


def decode_response(outgoing: EncodedRequest, frame: memoryview) -> ApiMessage:
    """Decode the response ``frame``.

    Raises :exc:`DamagedResponseError` if the bytes are not such a response.
    """
    try:
        body = response_body(outgoing, frame)
        message = _decode(outgoing.response_class, body, outgoing.version)
        if outgoing.request is not None:
            keep_requested(outgoing.request, message, outgoing.version)
        return message
    except ProtocolError:
        raise
    except Exception as error:
        raise DamagedResponseError(
            f"the response to {outgoing.api} v{outgoing.version} ({len(frame)} bytes) cannot be "
            f"read: {error!r}"
        ) from error


# kafka-python writes the decoder of a message and version at its first use. For that time it
# replaces a weak reference to the message's class, in an attribute of the schema, by the class
# itself. Two threads at once would disturb each other: the first puts the reference back before the
# second has read the class. The second decoder then raises TypeError, and it is kept: no later
# response of that kind could be read in this process.
@lru_cache(maxsize=1024)
def decoder_of(whole: Any, version: int) -> Any:
    """Return the function that decodes a body of this class of messages (without a version).

    kafka-python has it from then on. Threads may call this at the same time.
    """
    flexible = whole.flexible_version_q(version)
    with writing_decoder:
        return whole._struct.compiled_decode_from(
            version, compact=flexible, tagged=flexible, data_class=whole
        )


def _decode(response_class: Any, body: memoryview, version: int) -> Any:
    if not isinstance(response_class, type(ApiMessage)):
        return response_class.decode(body, version=version)
    whole = response_class[None]
    # Its own decode() reads an error in another version than the requested one.
    if ApiKey.ApiVersions == response_class.API_KEY:
        for possible in {0, version}:
            decoder_of(whole, possible)
        return response_class.decode(bytes(body), version=version)
    # The body of the class's own decode(), which does not return where it ended: a field that
    # reaches beyond the end is silently cut.
    flexible = response_class.flexible_version_q(version)
    if flexible and len(body) > _LONG_RUN and _has_endless_length(body):
        raise ValueError("a length in it does not end")
    decode = decoder_of(whole, version)
    message, end = decode(memoryview(body), 0)
    if end != len(body):
        raise ValueError(
            f"it ends at {end} of {len(body)} bytes"
            if end < len(body)
            else "it ends inside a field"
        )
    # kafka-python's decoder accepts a null where the schema has none, and code that reads the
    # message would fail. The ignore: mypy doubts that a class is hashable.
    _check_fields(message, _plan_of(type(message), version))  # type: ignore[arg-type]
    return message


@lru_cache(maxsize=1024)
def _plan_of(kind: Any, version: int) -> _Plan:
    return _plan(kind.fields, version)


def _plan(fields: Any, version: int) -> _Plan:
    known = [(name, field) for name, field in fields.items() if field.for_version_q(version)]
    return tuple(
        # A tagged field that the broker left out is None if the schema has no other default.
        (
            name,
            field.tagged_field_q(version) or field.nullable_for_version_q(version),
            _plan_inside(field, version),
        )
        for name, field in known
        if _has_inside(field) or field.is_array() or field.type_str in _MAY_COME_AS_NULL
    )


def _has_inside(field: Any) -> bool:
    return bool(field.is_struct() or field.is_struct_array())


def _plan_inside(field: Any, version: int) -> _Plan | str | None:
    if _has_inside(field):
        return _plan(field.fields, version)
    of_texts = field.is_array() and field.array_of.type_str in _MAY_COME_AS_NULL
    return _ITEMS if of_texts else None


def _check_fields(message: Any, plan: _Plan) -> None:
    """Raise :exc:`ValueError` if a field is null where the schema has no null."""
    for name, nullable, inside in plan:
        value = getattr(message, name)
        if value is None:
            if not nullable:
                raise ValueError(f"{name} is null")
        elif inside is _ITEMS:
            if None in value:
                raise ValueError(f"{name} has a null item")
        elif inside:
            for item in value if isinstance(value, list) else (value,):
                _check_fields(item, inside)


def _has_endless_length(body: memoryview) -> bool:
    """Return whether the body has a run of bytes that no number needs.

    It is searched a megabyte at a time: a search does not let other threads run.
    """
    return any(
        _ENDLESS.search(body[at : at + _LOOK + _LONG_RUN]) for at in range(0, len(body), _LOOK)
    )


def api_versions_request(
    version: int, software_version: str, cluster_id: str | None = None, node_id: int = -1
) -> ApiVersionsRequest:
    """Return the request with which every connection begins (KIP-511).

    A broker of another cluster, or another broker, refuses version 5 with REBOOTSTRAP_REQUIRED
    (KIP-1242).
    """
    return ApiVersionsRequest(
        version=version,
        client_software_name="trikafka",
        client_software_version=software_version,
        **({"cluster_id": cluster_id, "node_id": node_id} if version >= 5 else {}),
    )


def version_ranges(response: ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    """Read the version ranges of an ApiVersions response; impossible ones are left out."""
    ranges = (
        (int(api.api_key), int(api.min_version), int(api.max_version))
        for api in response.api_keys or ()
    )
    return {key: (low, high) for key, low, high in ranges if 0 <= low <= high}


def finalized_features(response: ApiVersionsResponse) -> dict[str, int]:
    """Read the cluster's features and their levels from an ApiVersions response.

    Empty if the broker does not state them.
    """
    found = getattr(response, "finalized_features", None)  # from version 3 on
    return {str(feature.name): int(feature.max_version_level) for feature in found or ()}


def _skip_tags(frame: memoryview, position: int) -> int:
    count, position = _uvarint(frame, position)
    if count > MOST_TAGS:
        raise DamagedResponseError(f"a response's header holds {count} tagged fields")
    for _ in range(count):
        _, position = _uvarint(frame, position)
        size, position = _uvarint(frame, position)
        position += size
    if position > len(frame):
        raise DamagedResponseError("a response ends inside its header")
    return position


def _uvarint(frame: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(frame) or shift > 28:
            raise DamagedResponseError("a response's header is malformed")
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
