"""Kafka's frames and messages on the broker's side, by kafka-python's message classes.

This module defines the APIs of the scripted cluster with their versions, and converts between bytes
and messages. It knows nothing about their meaning. No code of trikafka's wire layer is used, since
the scripted cluster is an independent judge of it. Only the schemas of messages that kafka-python
lacks are shared.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.api_key import ApiKey
from kafka.protocol.api_message import ApiMessage

from .._kafka_python import writing_decoder
from ..config.setting import nearest

#: A kafka-python message or a part of one. The classes are generated from JSON schemas and have no
#: static types.
Message: TypeAlias = Any

#: An API by its name in the protocol ("Fetch") or by its number. ``ApiKey`` members are numbers,
#: too.
Api: TypeAlias = str | int

Versions: TypeAlias = tuple[int, int]

#: The APIs that kafka-python lacks, or has only in older versions.
_MISSING = (
    "ApiVersions",  # version 5, KIP-1242
    "AlterShareGroupOffsets",  # KIP-932
    "ConsumerGroupDescribe",  # KIP-848
    "ConsumerGroupHeartbeat",  # KIP-848
    "DeleteGroups",  # version 3
    "DeleteShareGroupOffsets",  # KIP-932
    "DescribeShareGroupOffsets",  # KIP-932
    "GetTelemetrySubscriptions",  # KIP-714
    "PushTelemetry",  # KIP-714
    "CreateDelegationToken",  # KIP-48
    "RenewDelegationToken",
    "ExpireDelegationToken",
    "DescribeDelegationToken",
    "UnregisterBroker",  # KIP-631
    "AddRaftVoter",  # KIP-853
    "RemoveRaftVoter",
    "UnregisterController",
    "TxnOffsetCommit",  # version 6, KIP-1319
    "ShareGroupDescribe",  # KIP-932
    "StreamsGroupDescribe",  # KIP-1071
    "ShareGroupHeartbeat",  # KIP-932
    "ShareFetch",  # KIP-932
    "ShareAcknowledge",  # KIP-932
)


def _make(name: str) -> Any:
    # The header of this response has one form in all versions.
    base: Any = metadata.ApiVersionsResponse if name == "ApiVersionsResponse" else ApiMessage
    return type(base)(name, (base,), {"__module__": __name__}, load_json="trikafka._wire.schemas")


#: Messages of these APIs, from the schemas of trikafka's wire code, as the modules of kafka-python
#: have the others.
MISSING: dict[str, Any] = {
    name: _make(name) for api in _MISSING for name in (f"{api}Request", f"{api}Response")
}
_MODULES = (consumer, producer, metadata, admin, sasl)
_NAMES = [
    (module, name) for module in _MODULES for name in module.__all__ if "Bytes" not in name
]  # names with "Bytes" are not messages
_CLASSES = {name: getattr(module, name) for module, name in _NAMES} | MISSING
REQUESTS: dict[int, Any] = {
    cls.API_KEY: cls for name, cls in _CLASSES.items() if name.endswith("Request")
}
RESPONSES: dict[int, Any] = {
    cls.API_KEY: cls for name, cls in _CLASSES.items() if name.endswith("Response")
}

#: The number of each API by its name.
_NUMBERS: dict[str, int] = {str(key.name): int(key) for key in ApiKey} | {
    name.removesuffix("Request"): int(cls.API_KEY)
    for name, cls in MISSING.items()
    if name.endswith("Request")
}
_NAMES_OF = {number: name for name, number in _NUMBERS.items()}

#: The sizes of requests in their canonical form, by their frames without the correlation id.
_sizes: dict[bytes, int] = {}
_MOST_KEPT, _LARGEST_KEPT = 10_000, 1_000

#: The number of UnregisterController, for which kafka-python has no name.
UNREGISTER_CONTROLLER = 94

#: The APIs and versions of a Kafka 4 broker, as far as the scripted cluster implements them.
KAFKA_4: Mapping[int, Versions] = {
    ApiKey.Produce: (3, 13),
    ApiKey.Fetch: (4, 18),
    ApiKey.ListOffsets: (1, 11),
    ApiKey.Metadata: (0, 13),
    ApiKey.OffsetCommit: (2, 10),
    ApiKey.OffsetFetch: (1, 10),
    ApiKey.FindCoordinator: (0, 6),
    ApiKey.JoinGroup: (0, 9),
    ApiKey.Heartbeat: (0, 4),
    ApiKey.LeaveGroup: (0, 5),
    ApiKey.SyncGroup: (0, 5),
    ApiKey.DescribeGroups: (0, 6),
    ApiKey.ListGroups: (0, 5),
    ApiKey.ApiVersions: (0, 5),
    ApiKey.CreateTopics: (2, 7),
    ApiKey.DeleteTopics: (1, 6),
    ApiKey.InitProducerId: (0, 5),
    ApiKey.OffsetForLeaderEpoch: (2, 4),
    ApiKey.AddPartitionsToTxn: (0, 5),
    ApiKey.AddOffsetsToTxn: (0, 4),
    ApiKey.EndTxn: (0, 5),
    ApiKey.WriteTxnMarkers: (1, 2),
    ApiKey.TxnOffsetCommit: (0, 6),
    ApiKey.DescribeConfigs: (1, 4),
    ApiKey.IncrementalAlterConfigs: (0, 1),
    ApiKey.DeleteRecords: (0, 2),
    ApiKey.OffsetDelete: (0, 0),
    ApiKey.CreatePartitions: (0, 3),
    ApiKey.DeleteGroups: (0, 2),
    ApiKey.ShareGroupDescribe: (1, 1),
    ApiKey.StreamsGroupDescribe: (0, 0),
    ApiKey.DescribeShareGroupOffsets: (0, 1),
    ApiKey.AlterShareGroupOffsets: (0, 0),
    ApiKey.DeleteShareGroupOffsets: (0, 0),
    ApiKey.DescribeCluster: (0, 2),
    ApiKey.AlterPartitionReassignments: (0, 1),
    ApiKey.ListPartitionReassignments: (0, 0),
    ApiKey.ElectLeaders: (0, 2),
    ApiKey.DescribeLogDirs: (1, 5),
    ApiKey.AlterReplicaLogDirs: (1, 2),
    ApiKey.DescribeProducers: (0, 0),
    ApiKey.DescribeTransactions: (0, 0),
    ApiKey.ListTransactions: (0, 2),
    ApiKey.ConsumerGroupHeartbeat: (0, 1),
    ApiKey.ConsumerGroupDescribe: (0, 1),
    ApiKey.DescribeAcls: (1, 3),
    ApiKey.CreateAcls: (1, 3),
    ApiKey.DeleteAcls: (1, 3),
    ApiKey.CreateDelegationToken: (1, 3),
    ApiKey.RenewDelegationToken: (1, 2),
    ApiKey.ExpireDelegationToken: (1, 2),
    ApiKey.DescribeDelegationToken: (1, 3),
    ApiKey.DescribeClientQuotas: (0, 1),
    ApiKey.AlterClientQuotas: (0, 1),
    ApiKey.DescribeUserScramCredentials: (0, 0),
    ApiKey.AlterUserScramCredentials: (0, 0),
    ApiKey.DescribeQuorum: (0, 2),
    ApiKey.UpdateFeatures: (0, 2),
    ApiKey.UnregisterBroker: (0, 0),
    ApiKey.ListConfigResources: (0, 1),
    ApiKey.AddRaftVoter: (0, 1),
    ApiKey.RemoveRaftVoter: (0, 0),
    UNREGISTER_CONTROLLER: (0, 0),
    ApiKey.ShareGroupHeartbeat: (1, 1),
    ApiKey.ShareFetch: (1, 2),
    ApiKey.ShareAcknowledge: (1, 2),
}


def api_key(api: Api) -> int:
    """Return the number of an API.

    Raises:
        ValueError: Kafka has no API of that name or number.
    """
    key = int(api) if isinstance(api, int) else _NUMBERS.get(api)
    if key not in _NAMES_OF:
        near = nearest(str(api), _NUMBERS, 0.6)
        raise ValueError(
            f"no Kafka API is called {api!r}; "
            + (f"did you mean {near!r}?" if near else f"there are: {', '.join(sorted(_NUMBERS))}")
        )
    return key


def api_name(key: int) -> str:
    """Return the name of an API, such as ``"Fetch"``; ``"api-<number>"`` if it has none."""
    return _NAMES_OF.get(key, f"api-{key}")


class Head(NamedTuple):
    """The start of a request's header, the same in all versions."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


class MalformedRequest(Exception):
    """The bytes are not a request of the API and version that their header names."""


def read_head(frame: bytes) -> Head:
    """Return the start of a request's header.

    Raises:
        MalformedRequest: The frame is too short.
    """
    if len(frame) < 10:
        raise MalformedRequest(f"a request header needs at least 10 bytes, not {len(frame)}")
    key, version, correlation_id, length = struct.unpack_from(">hhih", frame)
    name = frame[10 : 10 + max(length, 0)]
    if len(name) != max(length, 0):
        raise MalformedRequest(f"a client id of {length} bytes in a frame of {len(frame)}")
    return Head(
        key, version, correlation_id, name.decode(errors="replace") if length >= 0 else None
    )


# At the first message of a kind kafka-python writes its decoder, which two threads at once would
# spoil (``decoder_of`` in ``_wire/messages.py``).
def decoded(kind: Any, data: bytes, **how: Any) -> Message:
    """Return a message of this class by the class's own ``decode``, in one thread at a time."""
    with writing_decoder:
        message: Message = kind.decode(data, **how)
    return message


def decode_request(head: Head, frame: bytes) -> Message:
    """Return the decoded request.

    Raises:
        MalformedRequest: The frame is not exactly one request.
    """
    what = f"{api_name(head.api_key)} v{head.version}"
    try:
        request = decoded(REQUESTS[head.api_key], frame, version=head.version, header=True)
        size = _canonical_size(request, frame)
    except Exception as error:
        raise MalformedRequest(f"{what} cannot be decoded: {error!r}") from error
    if size != len(frame):
        raise MalformedRequest(f"{what} takes {size} bytes, but the frame has {len(frame)}")
    return request


# A test that plays a scene again for each of its moments sends the same requests again and again.
# To encode a request takes as long as to decode it, so the sizes of small ones are kept. The
# correlation id, which differs in each frame, always has the same size.
def _canonical_size(request: Message, frame: bytes) -> int:
    """Return the size of the request's canonical frame."""
    if len(frame) > _LARGEST_KEPT:
        return len(request.encode(header=True))
    known = frame[:4] + frame[8:]
    size = _sizes.get(known)
    if size is None:
        if len(_sizes) >= _MOST_KEPT:
            _sizes.clear()
        size = _sizes[known] = len(request.encode(header=True))
    return size


def encode_response(response: Message, version: int, correlation_id: int) -> bytes:
    """Return the response as one frame, its length included.

    ``version`` applies if the message has no version of its own.
    """
    if response.API_VERSION is None:
        response.API_VERSION = version
    response.with_header(correlation_id)
    return bytes(response.encode(header=True, framed=True))


def build(cls: Any, version: int, values: Mapping[str, Any]) -> Message:
    """Return a message made from plain dicts and lists.

    Fields that ``version`` lacks are left out. Unknown fields raise :exc:`ValueError`. An error
    message that is not given is null.
    """
    fields = _fields(cls, version)
    if "error_message" in fields:
        values = {"error_message": None, **values}
    built: dict[str, Any] = {}
    for name, value in values.items():
        try:
            field = fields[name]
        except KeyError:
            raise ValueError(
                f"{cls.__name__} has no field {name!r}; it has {', '.join(fields)}"
            ) from None
        if field is None:
            continue
        part = field.part
        if part is not None:
            if not field.is_array:
                if isinstance(value, Mapping):
                    value = build(part, version, value)
            elif value is not None:
                value = [
                    build(part, version, item) if isinstance(item, Mapping) else item
                    for item in value
                ]
        built[name] = value
    return cls(version=version, **built)


class _Field(NamedTuple):
    """A field of a message. ``part`` is the class of its value or items, if they have fields."""

    part: Any
    is_array: bool


# A response of a scripted cluster has hundreds of parts: ApiVersions alone has one for each API,
# and each connection begins with it. Schemas do not change, so each is read once.
@functools.cache
def _fields(cls: Any, version: int) -> Mapping[str, _Field | None]:
    """Return the fields of a message's class by name; None for those that ``version`` lacks."""
    found: dict[str, _Field | None] = {}
    for name, field in cls.fields.items():
        is_array = field.is_struct_array()
        part = field.data_class if is_array or field.is_struct() else None
        found[name] = _Field(part, is_array) if field.for_version_q(version) else None
    return found


def respond(request: Message, **values: Any) -> Message:
    """Return the response to ``request``, in its version, made from plain values.

    Handlers of :meth:`ScriptedCluster.on` use it as well.
    """
    return build(RESPONSES[request.API_KEY], request.API_VERSION, values)
