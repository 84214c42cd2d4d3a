"""Frames and messages: a thin, strict wrapper around kafka-python's protocol classes. No I/O.

Owns which version of a request is spoken and how a frame becomes a message. Bytes that do not decode raise
:exc:`~trikafka.errors.DamagedResponseError`, whatever they are. Only ``_net`` encodes requests and decodes responses.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kafka.protocol.api_key import ApiKey
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from ..errors import ConfigurationError, DamagedResponseError, ProtocolError, UnsupportedVersionError
from ._format import Buffer
from .asking import count_asked
from .nulls import check_nulls
from .releases import needed
from .writing import RawRequest

__all__ = [
    "ApiMessage",
    "ApiVersionsRequest",
    "EncodedRequest",
    "VersionRanges",
    "api_versions_request",
    "choose_version",
    "decode_response",
    "encode_request",
    "finalized_features",
    "read_correlation_id",
    "response_body",
    "version_ranges",
]

#: API keys as numbers -> (lowest, highest) version that a broker speaks.
VersionRanges = Mapping[int, tuple[int, int]]

#: The newest version that trikafka speaks, where that is older than kafka-python's: from the next one on these requests
#: name topics by id, which needs metadata of every topic that a response may name.
_NEWEST = {ApiKey.Produce: 12, ApiKey.Fetch: 12, ApiKey.OffsetCommit: 9, ApiKey.OffsetFetch: 9}
#: The oldest versions that trikafka speaks: record batches in format 2 begin with these.
_OLDEST = {ApiKey.Produce: 3, ApiKey.Fetch: 4, ApiKey.ListOffsets: 1, ApiKey.OffsetFetch: 1, ApiKey.OffsetCommit: 2}

_INT32 = struct.Struct(">i")
#: kafka-python reads a compact length to its end, wherever that is, which takes minutes for some hundred kilobytes of 0xff.
_LONG_RUN = 16_384
_LOOK = 1 << 20
_ENDLESS = re.compile(rb"[\x80-\xff]{%d}" % _LONG_RUN)


class EncodedRequest(NamedTuple):
    """An encoded request, length included, in one piece or several, and what is needed to read its response."""

    pieces: Sequence[Buffer]
    api: str
    version: int
    response_class: Any
    expects_response: bool
    records: int = 0  #: that it carries
    asked: int | None = None  #: how many things it asks for by name; ``None``: for all there are, or that does not matter

    def __repr__(self) -> str:  # not its bytes, which may be a password
        return f"<{self.api} v{self.version}>"

    @property
    def frame(self) -> bytes:
        """The request in one piece."""
        return b"".join(self.pieces)


def choose_version(request: ApiMessage | type[ApiMessage] | RawRequest, ranges: VersionRanges, peer: str) -> int:
    """Return the newest version that both sides speak. Raises :exc:`UnsupportedVersionError` when there is none.

    A request may say more itself: of kafka-python's, one made with ``min_version=`` or ``max_version=``, such as an
    OffsetCommitRequest that has the topics' ids (``max_version=10``); of ours, by what it carries.
    """
    key = request.API_KEY
    offered = ranges.get(key)
    low, high = _OLDEST.get(key, 0), request.max_version
    if isinstance(request, ApiMessage):
        low = max(low, request._min_version or 0)
        high = min(high, _NEWEST.get(key, high) if request._max_version is None else request._max_version)
    elif not isinstance(request, RawRequest):  # a class
        high = min(high, _NEWEST.get(key, high))
    if offered is None:
        raise UnsupportedVersionError(f"the broker at {peer} does not offer {request.name}{needed(int(key), low)}")
    version = min(high, offered[1])
    if version < max(low, offered[0]):
        raise UnsupportedVersionError(
            f"the broker at {peer} speaks versions {offered[0]} to {offered[1]} of {request.name}, trikafka {low} to {high}"
            + (needed(int(key), low) if low > offered[1] else "")
        )
    return int(version)


def encode_request(request: ApiMessage | RawRequest, version: int, correlation_id: int, client_id: str) -> EncodedRequest:
    """Encode ``request`` as one frame, length included. Raises :exc:`ConfigurationError` for values that do not fit into it."""
    try:
        if isinstance(request, RawRequest):
            pieces = request.pieces(version, correlation_id, client_id)
            return EncodedRequest(pieces, request.name, version, request.response, request.expect_response(), request.records)
        request.with_header(correlation_id=correlation_id, client_id=client_id)
        frame = request.encode(version=version, header=True, framed=True)
    except (struct.error, ValueError, OverflowError, TypeError, AttributeError, LookupError) as error:
        raise ConfigurationError(f"{request.name} v{version} cannot carry what it was given: {error}") from error
    response_class = request.header.get_response_class()
    return EncodedRequest([frame], request.name, version, response_class, request.expect_response(), 0, count_asked(request))


def read_correlation_id(frame: memoryview) -> int:
    """Return the correlation id of a response. Raises :exc:`DamagedResponseError` if the frame is too short for one."""
    if len(frame) < 4:
        raise DamagedResponseError(f"a response of {len(frame)} bytes is too short to be Kafka's")
    return int(_INT32.unpack_from(frame, 0)[0])


def response_body(outgoing: EncodedRequest, frame: memoryview) -> memoryview:
    """Return what follows the header of the response ``frame`` (without its length), without copying it."""
    position = 4
    response_class = outgoing.response_class
    if ApiKey.ApiVersions != response_class.API_KEY and response_class.flexible_version_q(outgoing.version):
        if len(frame) < 5:
            raise DamagedResponseError(f"the response to {outgoing.api} ends in its header")
        position = 5 if frame[4] == 0 else _skip_tags(frame, 4)
    return frame[position:]


def decode_response(outgoing: EncodedRequest, frame: memoryview) -> ApiMessage:
    """Decode the response ``frame``. Raises :exc:`DamagedResponseError` when the bytes are not such a response."""
    try:
        body = response_body(outgoing, frame)
        return _decode(outgoing.response_class, body, outgoing.version)
    except ProtocolError:
        raise
    except Exception as error:
        raise DamagedResponseError(
            f"the response to {outgoing.api} v{outgoing.version} ({len(frame)} bytes) cannot be read: {error!r}"
        ) from error


def _decode(response_class: Any, body: memoryview, version: int) -> Any:
    if not isinstance(response_class, type(ApiMessage)):
        return response_class.decode(body, version=version)
    if ApiKey.ApiVersions == response_class.API_KEY:  # with an error it is in version 0, whatever was asked
        return response_class.decode(bytes(body), version=version)
    # What its decode does, which does not tell where it ended: it cuts a field that reaches beyond the end without a word.
    flexible, whole = response_class.flexible_version_q(version), response_class[None]
    if flexible and len(body) > _LONG_RUN and _has_endless_length(body):
        raise ValueError("a length in it does not end")
    decode = whole._struct.compiled_decode_from(version, compact=flexible, tagged=flexible, data_class=whole)
    message, end = decode(memoryview(body), 0)
    if end != len(body):
        raise ValueError(f"it ends at {end} of {len(body)} bytes" if end < len(body) else "it ends inside a field")
    check_nulls(message, version)
    return message


def _has_endless_length(body: memoryview) -> bool:
    """Looks at a megabyte at a time: a search does not let other threads run."""
    return any(_ENDLESS.search(body[at : at + _LOOK + _LONG_RUN]) for at in range(0, len(body), _LOOK))


def api_versions_request(version: int, software_version: str) -> ApiVersionsRequest:
    """The request that every connection begins with (KIP-511)."""
    return ApiVersionsRequest(version=version, client_software_name="trikafka", client_software_version=software_version)


def version_ranges(response: ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    """Read the version ranges out of an ApiVersions response; what cannot be one is left out."""
    ranges = ((int(api.api_key), int(api.min_version), int(api.max_version)) for api in response.api_keys or ())
    return {key: (low, high) for key, low, high in ranges if 0 <= low <= high}


def finalized_features(response: ApiVersionsResponse) -> dict[str, int]:
    """Read the cluster's features and their levels out of an ApiVersions response; empty where the broker does not tell."""
    found = getattr(response, "finalized_features", None)  # from version 3 on
    return {str(feature.name): int(feature.max_version_level) for feature in found or ()}


def _skip_tags(frame: memoryview, position: int) -> int:
    count, position = _uvarint(frame, position)
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
