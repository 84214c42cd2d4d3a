"""ShareFetch and ShareAcknowledge as bytes, beside kafka-python's classes made from the schemas."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from trikafka._wire.messages import decode_response, encode_request
from trikafka._wire.share import (
    AckBatch,
    AcquiredRange,
    FetchLimits,
    ShareAcknowledgeMessage,
    ShareAcknowledgeResponse,
    ShareFetchMessage,
    ShareFetchResponse,
)
from trikafka.errors import DamagedResponseError
from trikafka.testing.messages import RESPONSES, build, decode_request, encode_response, read_head

TOPIC, OTHER = uuid.UUID(int=7), uuid.UUID(int=9)
LIMITS = FetchLimits(500, 1, 1 << 20, 100, 100)


def received(message: Any, version: int) -> Any:
    frame = encode_request(message, version, 5, "me").frame[4:]
    return decode_request(read_head(frame), frame)


def responded(api: int, version: int, **values: Any) -> memoryview:
    frame = encode_response(build(RESPONSES[api], version, values), version, 5)
    return memoryview(frame)[5 + 4 :]


@pytest.mark.parametrize("version", [1, 2])
def test_share_fetch_is_read_as_it_was_meant(version: int) -> None:
    message = ShareFetchMessage(
        "g",
        "m",
        3,
        {
            (TOPIC, 0): [AckBatch(5, 9, b"\x01"), AckBatch(12, 13, b"\x02\x03")],
            (TOPIC, 1): [],
            (OTHER, 4): [],
        },
        LIMITS,
        by_record=True,
        forgotten=[(OTHER, 2), (OTHER, 3)],
    )
    found = received(message, version)
    assert (found.group_id, found.member_id, found.share_session_epoch) == ("g", "m", 3)
    assert (found.max_wait_ms, found.min_bytes, found.max_bytes) == (500, 1, 1 << 20)
    assert (found.max_records, found.batch_size) == (100, 100)
    if version == 2:
        assert (found.share_acquire_mode, found.is_renew_ack) == (1, False)
    first = found.topics[0]
    assert first.topic_id == TOPIC
    assert [part.partition_index for part in first.partitions] == [0, 1]
    batches = first.partitions[0].acknowledgement_batches
    assert [(b.first_offset, b.last_offset, b.acknowledge_types) for b in batches] == [
        (5, 9, [1]),
        (12, 13, [2, 3]),
    ]
    assert [(t.topic_id, t.partitions) for t in found.forgotten_topics_data] == [(OTHER, [2, 3])]


@pytest.mark.parametrize("version", [1, 2])
def test_acknowledge_is_read_as_it_was_meant(version: int) -> None:
    acks = {(TOPIC, 0): [AckBatch(5, 9, b"\x04")]}
    found = received(ShareAcknowledgeMessage("g", "m", -1, acks, renews=True), version)
    assert (found.group_id, found.member_id, found.share_session_epoch) == ("g", "m", -1)
    assert version == 1 or found.is_renew_ack
    assert found.topics[0].partitions[0].acknowledgement_batches[0].acknowledge_types == [4]


PART = {
    "partition_index": 3,
    "error_code": 6,
    "error_message": "gone",
    "acknowledge_error_code": 121,
    "acknowledge_error_message": None,
    "current_leader": {"leader_id": 2, "leader_epoch": 9},
    "records": b"12345",
    "acquired_records": [{"first_offset": 4, "last_offset": 8, "delivery_count": 2}],
}
FETCHED = {
    "throttle_time_ms": 1,
    "error_code": 0,
    "error_message": None,
    "acquisition_lock_timeout_ms": 30_000,
    "responses": [{"topic_id": TOPIC, "partitions": [PART]}],
    "node_endpoints": [{"node_id": 2, "host": "h", "port": 9, "rack": None}],
}


def test_a_share_fetch_response_is_read() -> None:
    response = ShareFetchResponse.decode(responded(78, 2, **FETCHED), 2)
    assert response.lock_ms == 30_000
    (part,) = response.partitions
    assert part.key == (TOPIC, 3)
    assert (part.error_code, part.error_message, part.acknowledge_error) == (6, "gone", 121)
    assert part.current_leader == (2, 9)
    assert bytes(part.records) == b"12345"
    assert part.acquired == [AcquiredRange(4, 8, 2)]
    assert response.node_endpoints[0].host == "h"


@pytest.mark.parametrize("version", [1, 2])
def test_an_acknowledge_response_is_read(version: int) -> None:
    part = {
        "partition_index": 3,
        "error_code": 121,
        "error_message": "late",
        "current_leader": {"leader_id": -1, "leader_epoch": -1},
    }
    body = responded(
        79,
        version,
        acquisition_lock_timeout_ms=15_000,
        error_code=0,
        responses=[{"topic_id": TOPIC, "partitions": [part]}],
        node_endpoints=[],
    )
    response = ShareAcknowledgeResponse.decode(body, version)
    assert response.lock_ms == (15_000 if version == 2 else 0)
    (found,) = response.partitions
    assert (found.key, found.error_code, found.error_message) == ((TOPIC, 3), 121, "late")
    assert found.current_leader is None


def test_every_cut_of_a_response_is_an_error() -> None:
    body = responded(78, 2, **FETCHED)
    for end in range(len(body)):
        with pytest.raises(DamagedResponseError):
            ShareFetchResponse.decode(body[:end], 2)


def test_the_connection_decodes_both() -> None:
    message = ShareFetchMessage("g", "m", 0, {}, LIMITS)
    outgoing = encode_request(message, 2, 5, "me")
    frame = encode_response(build(RESPONSES[78], 2, FETCHED), 2, 5)
    response: Any = decode_response(outgoing, memoryview(frame)[4:])
    assert response.partitions[0].partition == 3
