"""Messages of our own schemas: their bytes, damaged bytes, and a real broker's answers."""

from __future__ import annotations

import contextlib
import gc
import socket
import struct
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.api_header import RequestHeader, ResponseClassRegistry
from kafka.protocol.consumer import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetForLeaderEpochRequest,
)
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import ProduceRequest

from trikafka._wire import extra_messages, messages
from trikafka._wire.extra_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from trikafka._wire.fetch import NEW_SESSION, FetchMessage, FetchResponse, read_fetch_response
from trikafka.errors import DamagedResponseError, ErrorCode, UnsupportedVersionError
from trikafka.testing import encode_batch
from trikafka.testing.messages import build

ID = uuid.UUID(int=0x0102030405060708090A0B0C0D0E0F10)
INT32 = struct.Struct(">i")
PARTITIONS = [{"topic_id": ID, "partitions": [0, 5]}]
PARTITIONS_BYTES = b"\x02" + ID.bytes + b"\x03" + bytes(4) + INT32.pack(5) + b"\x00"
NAMED = {"topic_partitions": [{"topic_id": ID, "topic_name": "t", "partitions": [0, 5]}]}
NAMED_BYTES = b"\x02" + ID.bytes + b"\x02t\x03" + bytes(4) + INT32.pack(5) + b"\x00\x00"

#: class, version, fields, bytes.
BODIES: list[tuple[Any, int, dict[str, Any], bytes]] = [
    (
        ConsumerGroupHeartbeatRequest,
        0,
        {
            "group_id": "g",
            "member_id": "",
            "member_epoch": 0,
            "rebalance_timeout_ms": 9,
            "subscribed_topic_names": ["t"],
            "topic_partitions": [],
        },
        b"\x02g\x01" + bytes(4) + b"\x00\x00" + INT32.pack(9) + b"\x02\x02t\x00\x01\x00",
    ),
    (
        ConsumerGroupHeartbeatRequest,
        1,
        {
            "group_id": "g",
            "member_id": "m",
            "member_epoch": -2,
            "instance_id": "i",
            "rack_id": "r",
            "subscribed_topic_regex": "a.*",
            "server_assignor": "uniform",
            "topic_partitions": PARTITIONS,
        },
        b"\x02g\x02m\xff\xff\xff\xfe\x02i\x02r\xff\xff\xff\xff\x00\x04a.*\x08uniform"
        + PARTITIONS_BYTES
        + b"\x00",
    ),
    (
        ConsumerGroupHeartbeatResponse,
        1,
        {
            "throttle_time_ms": 3,
            "error_code": 110,
            "error_message": "no",
            "member_id": None,
            "member_epoch": 4,
            "heartbeat_interval_ms": 5,
            "assignment": None,
        },
        INT32.pack(3) + b"\x00\x6e\x03no\x00" + INT32.pack(4) + INT32.pack(5) + b"\xff\x00",
    ),
    (
        ConsumerGroupHeartbeatResponse,
        0,
        {
            "throttle_time_ms": 0,
            "error_code": 0,
            "error_message": None,
            "member_id": "m",
            "member_epoch": 4,
            "heartbeat_interval_ms": 5,
            "assignment": {"topic_partitions": PARTITIONS},
        },
        bytes(6)
        + b"\x00\x02m"
        + INT32.pack(4)
        + INT32.pack(5)
        + b"\x01"
        + PARTITIONS_BYTES
        + b"\x00\x00",
    ),
    (
        ConsumerGroupDescribeRequest,
        0,
        {"group_ids": ["g", "h"], "include_authorized_operations": True},
        b"\x03\x02g\x02h\x01\x00",
    ),
    (
        ConsumerGroupDescribeResponse,
        1,
        {
            "throttle_time_ms": 0,
            "groups": [
                {
                    "error_code": 0,
                    "error_message": None,
                    "group_id": "g",
                    "group_state": "Stable",
                    "group_epoch": 3,
                    "assignment_epoch": 2,
                    "assignor_name": "uniform",
                    "authorized_operations": 7,
                    "members": [
                        {
                            "member_id": "m",
                            "instance_id": None,
                            "rack_id": "r",
                            "member_epoch": 2,
                            "client_id": "c",
                            "client_host": "h",
                            "subscribed_topic_names": ["t"],
                            "subscribed_topic_regex": None,
                            "assignment": NAMED,
                            "target_assignment": {"topic_partitions": []},
                            "member_type": 1,
                        }
                    ],
                }
            ],
        },
        bytes(4)
        + b"\x02\x00\x00\x00\x02g\x07Stable"
        + INT32.pack(3)
        + INT32.pack(2)
        + b"\x08uniform"
        + b"\x02\x02m\x00\x02r"
        + INT32.pack(2)
        + b"\x02c\x02h\x02\x02t\x00"
        + NAMED_BYTES
        + b"\x01\x00"
        + b"\x01\x00"
        + INT32.pack(7)
        + b"\x00\x00",
    ),
    (GetTelemetrySubscriptionsRequest, 0, {"client_instance_id": None}, bytes(17)),
    (
        GetTelemetrySubscriptionsResponse,
        0,
        {
            "throttle_time_ms": 0,
            "error_code": 0,
            "client_instance_id": ID,
            "subscription_id": 8,
            "accepted_compression_types": [4, 1],
            "push_interval_ms": 9,
            "telemetry_max_bytes": 10,
            "delta_temporality": True,
            "requested_metrics": [""],
        },
        bytes(6)
        + ID.bytes
        + INT32.pack(8)
        + b"\x03\x04\x01"
        + INT32.pack(9)
        + INT32.pack(10)
        + b"\x01\x02\x01\x00",
    ),
    (
        PushTelemetryRequest,
        0,
        {
            "client_instance_id": ID,
            "subscription_id": 8,
            "terminating": True,
            "compression_type": 0,
            "metrics": b"\x01\x02",
        },
        ID.bytes + INT32.pack(8) + b"\x01\x00\x03\x01\x02\x00",
    ),
    (
        PushTelemetryResponse,
        0,
        {"throttle_time_ms": 1, "error_code": 117},
        INT32.pack(1) + b"\x00\x75\x00",
    ),
]
BODY_NAMES = [f"{cls.__name__}-v{version}" for cls, version, _, _ in BODIES]
RESPONSES = [case for case in BODIES if case[0].type == "response"]
RESPONSE_NAMES = [f"{cls.__name__}-v{version}" for cls, version, _, _ in RESPONSES]


def plain(value: Any) -> Any:
    """Return a decoded message as dicts and lists."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    fields = getattr(type(value), "_struct", None)
    return (
        value if fields is None else {name: plain(getattr(value, name)) for name in fields.fields}
    )


def decode(cls: Any, version: int, body: bytes) -> Any:
    outgoing = messages.EncodedRequest([b""], cls.name, version, cls, True)
    return messages.decode_response(outgoing, memoryview(bytes(4) + b"\x00" + body))


@pytest.mark.parametrize(("cls", "version", "fields", "body"), BODIES, ids=BODY_NAMES)
def test_messages_have_the_protocols_bytes(
    cls: Any, version: int, fields: dict[str, Any], body: bytes
) -> None:
    assert bytes(build(cls, version, fields).encode(version=version)) == body
    found = plain(cls.decode(body, version=version))
    assert {name: found[name] for name in fields} == fields


@pytest.mark.parametrize(("cls", "version", "fields", "body"), RESPONSES, ids=RESPONSE_NAMES)
def test_cut_or_too_long_response_is_damaged(
    cls: Any, version: int, fields: dict[str, Any], body: bytes
) -> None:
    assert plain(decode(cls, version, body))["throttle_time_ms"] == fields["throttle_time_ms"]
    for cut in [*(body[:end] for end in range(len(body))), body + b"\x00", body + body]:
        with pytest.raises(DamagedResponseError):
            decode(cls, version, cut)


@given(st.sampled_from(RESPONSES), st.data())
@settings(max_examples=500)
def test_flipped_bytes_are_a_response_or_damage(
    case: tuple[Any, int, dict[str, Any], bytes], data: Any
) -> None:
    cls, version, _, whole = case
    body = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DamagedResponseError):
        decode(cls, version, bytes(body))


def test_missing_api_error_names_the_broker() -> None:
    with pytest.raises(
        UnsupportedVersionError,
        match="the broker at b:1 does not offer ConsumerGroupHeartbeatRequest",
    ):
        messages.choose_version(ConsumerGroupHeartbeatRequest, {}, "b:1")


def test_schemas_have_classes_and_responses() -> None:
    for name in (
        "ConsumerGroupHeartbeat",
        "ConsumerGroupDescribe",
        "GetTelemetrySubscriptions",
        "PushTelemetry",
    ):
        request, response = (
            getattr(extra_messages, name + kind) for kind in ("Request", "Response")
        )
        assert request.API_KEY == response.API_KEY
        outgoing = messages.encode_request(request(), request.max_version, 1, "me")
        # kafka-python keeps one class an API. If trikafka.testing is loaded, it is that module's
        # class of the same schema.
        assert outgoing.response_class[None].__name__ == response.__name__


# -- a real broker
# ---------------------------------------------------------------------------------------------------------


class Wire:
    """A connection to a broker, with one request at a time in a chosen version."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.stream = self.socket.makefile("rb")
        self.ranges: dict[int, tuple[int, int]] = {18: (0, 4)}
        self.ranges = messages.version_ranges(self.ask(messages.api_versions_request(4, "1")))

    def ask(self, request: Any) -> Any:
        return messages.decode_response(*self.exchange(request))

    def exchange(self, request: Any) -> tuple[messages.EncodedRequest, memoryview]:
        outgoing = messages.encode_request(
            request, messages.choose_version(request, self.ranges, "real"), 7, "wire-test"
        )
        self.socket.sendall(outgoing.frame)
        (size,) = INT32.unpack(self.stream.read(4))
        frame = memoryview(self.stream.read(size))
        assert messages.read_correlation_id(frame) == 7
        return outgoing, frame

    def fetch(
        self, request: FetchMessage, names: dict[uuid.UUID, str]
    ) -> tuple[int, FetchResponse]:
        outgoing, frame = self.exchange(request)
        return outgoing.version, read_fetch_response(
            messages.response_body(outgoing, frame), outgoing.version, names
        )

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


@pytest.fixture
def wire(kafka_broker: Any) -> Any:
    wire = Wire(kafka_broker.bootstrap_servers)
    yield wire
    wire.close()


def until(ask: Callable[[], Any], good: Callable[[Any], bool]) -> Any:
    """Repeat the request until the answer is good, for 60 s at most, while the broker gets ready."""
    end = time.monotonic() + 60
    while not good(found := ask()):
        assert time.monotonic() < end, f"never: the last was {plain(found)}"
    return found


def make_topic(wire: Wire, partitions: int = 2) -> tuple[str, uuid.UUID]:
    name = f"wire-{uuid.uuid4().hex[:8]}"
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    assert [
        each.error_code
        for each in wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000)).topics
    ] == [0]
    asked = MetadataRequest.MetadataRequestTopic(name=name)
    ready = until(
        lambda: wire.ask(MetadataRequest(topics=[asked])).topics[0],
        lambda found: (
            not found.error_code and all(not each.error_code for each in found.partitions)
        ),
    )
    return name, ready.topic_id


def produce(wire: Wire, topic: str, partition: int, *values: bytes) -> None:
    part = ProduceRequest.TopicProduceData.PartitionProduceData(
        index=partition, records=encode_batch(list(values), timestamp=1)
    )
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=[data])
    until(
        lambda: wire.ask(request).responses[0].partition_responses[0].error_code,
        lambda code: code == 0,
    )


def test_real_broker_heartbeats_and_describes(wire: Wire) -> None:
    """A member joins a group of a real broker, is described, fenced with a wrong epoch, and leaves."""
    topic, topic_id = make_topic(wire)
    group, member = f"group-{topic}", str(uuid.uuid4())
    until(
        lambda: (
            wire.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]))
            .coordinators[0]
            .error_code
        ),
        lambda c: c == 0,
    )
    common: dict[str, Any] = {"group_id": group, "member_id": member}
    wants = {
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": [topic],
        "server_assignor": "uniform",
        "topic_partitions": [],
    }
    joined = until(
        lambda: wire.ask(ConsumerGroupHeartbeatRequest(**common, member_epoch=0, **wants)),
        lambda found: found.error_code == 0,
    )
    assert (joined.member_id, joined.member_epoch > 0, joined.heartbeat_interval_ms > 0) == (
        member,
        True,
        True,
    )
    mine = until(
        lambda: wire.ask(ConsumerGroupHeartbeatRequest(**common, member_epoch=0, **wants)),
        lambda found: found.assignment is not None and found.assignment.topic_partitions,
    )
    assert [
        (part.topic_id, sorted(part.partitions)) for part in mine.assignment.topic_partitions
    ] == [(topic_id, [0, 1])]
    own = [ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=[0, 1])]
    steady = wire.ask(
        ConsumerGroupHeartbeatRequest(
            **common, member_epoch=mine.member_epoch, topic_partitions=own
        )
    )
    assert (steady.error_code, steady.member_epoch) == (0, mine.member_epoch)

    described = wire.ask(
        ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=False)
    ).groups[0]
    assert (described.error_code, described.group_id, described.assignor_name) == (
        0,
        group,
        "uniform",
    )
    assert [
        (each.member_id, each.member_epoch, each.subscribed_topic_names)
        for each in described.members
    ] == [(member, mine.member_epoch, [topic])]
    for assigned in (described.members[0].assignment, described.members[0].target_assignment):
        assert [
            (each.topic_name, each.topic_id, sorted(each.partitions))
            for each in assigned.topic_partitions
        ] == [(topic, topic_id, [0, 1])]
    fenced = wire.ask(ConsumerGroupHeartbeatRequest(**common, member_epoch=mine.member_epoch + 9))
    assert fenced.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.STALE_MEMBER_EPOCH)
    bad = wire.ask(
        ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=str(uuid.uuid4()),
            member_epoch=0,
            rebalance_timeout_ms=1000,
            subscribed_topic_regex="(",
            topic_partitions=[],
        )
    )
    assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    left = wire.ask(ConsumerGroupHeartbeatRequest(**common, member_epoch=-1))
    assert (left.error_code, left.member_epoch) == (0, -1)


def test_real_broker_gives_the_end_of_an_epoch(wire: Wire) -> None:
    topic, _ = make_topic(wire, 1)
    produce(wire, topic, 0, b"a", b"b", b"c")
    make = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    asked = make(
        topic=topic,
        partitions=[
            make.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
        ],
    )
    (found,) = wire.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=[asked])).topics
    assert [(part.error_code, part.leader_epoch, part.end_offset) for part in found.partitions] == [
        (0, 0, 3)
    ]


def test_real_broker_without_telemetry_is_refused(wire: Wire) -> None:
    """A broker without a receiver of client metrics does not offer the telemetry APIs."""
    with pytest.raises(
        UnsupportedVersionError, match="does not offer GetTelemetrySubscriptionsRequest"
    ):
        wire.ask(GetTelemetrySubscriptionsRequest(client_instance_id=None))


@pytest.mark.parametrize("version", range(4, 18))
def test_real_broker_answers_every_fetch_version(wire: Wire, version: int) -> None:
    topic, topic_id = make_topic(wire, 1)
    produce(wire, topic, 0, b"a", b"b", b"c")
    wire.ranges = {**wire.ranges, 1: (version, version)}
    request = FetchMessage(
        {topic: [(0, -1, 0, -1)]},
        max_wait_ms=10_000,
        min_bytes=1,
        max_bytes=10**6,
        partition_bytes=10**6,
        topic_ids={topic: topic_id},
    )
    spoken, found = wire.fetch(request, {topic_id: topic})
    assert (spoken, found.error_code, found.throttle_ms, found.session_id) == (version, 0, 0, 0)
    (part,) = found.partitions
    assert (part.topic, part.partition, part.error_code, part.high_watermark) == (topic, 0, 0, 3)
    assert part.topic_id == (topic_id if version >= 13 else None)
    assert bytes(part.records).count(b"b") >= 1


@pytest.mark.parametrize("by_id", [False, True])
def test_real_session_returns_only_changes(wire: Wire, by_id: bool) -> None:
    """A fetch session with a real broker (KIP-227) returns only what changed."""
    topic, topic_id = make_topic(wire, 3)
    common: dict[str, Any] = {
        "min_bytes": 0,
        "max_bytes": 10**6,
        "partition_bytes": 10**6,
        "max_wait_ms": 0,
    }
    common["topic_ids"] = {topic: topic_id} if by_id else None
    names = {topic_id: topic}
    whole = FetchMessage(
        {topic: [(number, -1, 0) for number in range(3)]}, session=NEW_SESSION, **common
    )
    version, first = wire.fetch(whole, names)
    assert (version >= 13, first.error_code, first.session_id > 0, len(first.partitions)) == (
        by_id,
        0,
        True,
        3,
    )
    produce(wire, topic, 1, b"new")
    _, second = wire.fetch(FetchMessage({}, session=(first.session_id, 1), **common), names)
    # The other partitions may report once that they are ready.
    (news,) = [part for part in second.partitions if part.records]
    assert (news.topic, news.partition, news.high_watermark, b"new" in bytes(news.records)) == (
        topic,
        1,
        1,
        True,
    )
    assert {part.topic for part in second.partitions} == {topic}
    gone = FetchMessage(
        {topic: [(0, -1, 0)]}, session=(first.session_id, 2), forgotten={topic: [1]}, **common
    )
    _, third = wire.fetch(gone, names)
    assert (third.error_code, [part.partition for part in third.partitions if part.records]) == (
        0,
        [],
    )
    _, late = wire.fetch(FetchMessage({}, session=(first.session_id, 2), **common), names)
    assert late.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    _, unknown = wire.fetch(FetchMessage({}, session=(first.session_id ^ 1, 1), **common), names)
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_real_broker_reports_a_diverging_epoch(wire: Wire) -> None:
    """A fetch beyond the log's end is answered with the epoch and offset where the logs diverge."""
    topic, topic_id = make_topic(wire, 1)
    produce(wire, topic, 0, b"a", b"b", b"c")
    # A record at offset 4 that was read in epoch 0 is not in this log, which ends at 3.
    request = FetchMessage(
        {topic: [(0, -1, 5, 0)]},
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=10**6,
        partition_bytes=10**6,
        topic_ids={topic: topic_id},
    )
    _, found = wire.fetch(request, {topic_id: topic})
    (part,) = found.partitions
    assert (part.error_code, part.diverging) == (0, (0, 3))
    assert not part.records


def test_dropped_class_of_a_version_does_no_harm() -> None:
    """Two threads made the class of one version at once, and the one registered last was dropped."""
    header = RequestHeader(request_api_key=OffsetCommitRequest.API_KEY, request_api_version=9)
    made = type("OffsetCommitResponse_v9", tuple(OffsetCommitResponse.mro()), {}, init=False)
    del made
    gc.collect()
    with pytest.raises(ReferenceError):
        header.get_response_class()
    try:
        request = OffsetCommitRequest(group_id="g", topics=[])
        sent = messages.encode_request(request, 9, 1, "me")
    finally:
        ResponseClassRegistry.register_response_class(OffsetCommitResponse)
    assert issubclass(sent.response_class, OffsetCommitResponse)
    assert sent.response_class._class_version == 9
