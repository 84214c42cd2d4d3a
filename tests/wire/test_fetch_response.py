"""The reader of Fetch responses, compared with kafka-python's encoder and tried with any bytes."""

from __future__ import annotations

import contextlib
import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse as KafkaPythons

from trikafka._wire.fetch import EpochEndOffset, FetchResponse, end_of_batches, read_fetch_response
from trikafka._wire.reading import LeaderIdAndEpoch, NodeEndpoint
from trikafka.errors import DamagedResponseError
from trikafka.testing import encode_batch
from trikafka.testing.messages import build

VERSIONS = range(4, 18)
int64s = st.integers(-(2**63), 2**63 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)

known = st.integers(0, 2**31 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=200)

aborted = st.none() | st.lists(
    st.fixed_dictionaries({"producer_id": int64s, "first_offset": int64s}), max_size=3
)
partitions = st.fixed_dictionaries(
    {
        "partition_index": int32s,
        "error_code": st.integers(-1, 133),
        "high_watermark": int64s,
        "last_stable_offset": int64s,
        "log_start_offset": int64s,
        "aborted_transactions": aborted,
        "preferred_read_replica": int32s,
        "records": st.binary(max_size=200),
        "diverging_epoch": st.none()
        | st.fixed_dictionaries({"epoch": known, "end_offset": int64s}),
        "current_leader": st.none()
        | st.fixed_dictionaries({"leader_id": known, "leader_epoch": known}),
    }
)
topics = st.lists(
    st.fixed_dictionaries(
        {"topic": texts, "topic_id": st.uuids(), "partitions": st.lists(partitions, max_size=3)}
    ),
    max_size=3,
)
endpoints = st.lists(
    st.fixed_dictionaries(
        {"node_id": int32s, "host": texts, "port": int32s, "rack": st.none() | texts}
    ),
    max_size=3,
)
responses = st.fixed_dictionaries(
    {
        "throttle_time_ms": int32s,
        "error_code": st.integers(-1, 133),
        "session_id": int32s,
        "responses": topics,
        "node_endpoints": endpoints,
    }
)


def encoded(version: int, values: dict[str, Any]) -> bytes:
    return bytes(build(KafkaPythons, version, values).encode(version=version))


@pytest.mark.parametrize("version", VERSIONS)
@given(values=responses)
@settings(max_examples=60)
def test_kafka_pythons_response_is_read(version: int, values: dict[str, Any]) -> None:
    check(read_fetch_response(memoryview(encoded(version, values)), version), version, values)


def check(response: FetchResponse, version: int, values: dict[str, Any]) -> None:
    head = (values["error_code"], values["session_id"]) if version >= 7 else (0, 0)
    assert (response.throttle_ms, response.error_code, response.session_id) == (
        values["throttle_time_ms"],
        *head,
    )
    ends = (
        [NodeEndpoint(**each) for each in values.get("node_endpoints") or ()]
        if version >= 16
        else []
    )
    assert list(response.node_endpoints) == ends
    expected = [(topic, part) for topic in values["responses"] for part in topic["partitions"]]
    assert len(response.partitions) == len(expected)
    for found, (topic, part) in zip(response.partitions, expected, strict=True):
        assert (found.partition, found.error_code) == (part["partition_index"], part["error_code"])
        assert (found.topic, found.topic_id) == (
            ("", topic["topic_id"]) if version >= 13 else (topic["topic"], None)
        )
        diverging, leader = (
            part.get(name) if version >= 12 else None
            for name in ("diverging_epoch", "current_leader")
        )
        assert found.diverging == (None if diverging is None else EpochEndOffset(**diverging))
        assert found.current_leader == (None if leader is None else LeaderIdAndEpoch(**leader))
        assert (found.high_watermark, found.last_stable_offset) == (
            part["high_watermark"],
            part["last_stable_offset"],
        )
        assert found.log_start_offset == (part["log_start_offset"] if version >= 5 else -1)
        assert found.preferred_replica == (part["preferred_read_replica"] if version >= 11 else -1)
        gone = part["aborted_transactions"]
        assert found.aborted == (
            None if gone is None else [(each["producer_id"], each["first_offset"]) for each in gone]
        )
        assert bytes(found.records) == part["records"]


SAMPLE: dict[str, Any] = {
    "throttle_time_ms": 1,
    "error_code": 0,
    "session_id": 9,
    "responses": [
        {
            "topic": "tö",
            "topic_id": UUID(int=7),
            "partitions": [
                {
                    "partition_index": number,
                    "error_code": 0,
                    "high_watermark": 100,
                    "last_stable_offset": 90,
                    "log_start_offset": 5,
                    "aborted_transactions": [{"producer_id": 1, "first_offset": 2}]
                    if number
                    else None,
                    "preferred_read_replica": 3,
                    "records": encode_batch([b"a", b"b"], timestamp=1) if number else b"",
                    "diverging_epoch": {"epoch": 3, "end_offset": 17} if number else None,
                    "current_leader": None if number else {"leader_id": 2, "leader_epoch": 9},
                }
                for number in range(2)
            ],
        }
    ],
    "node_endpoints": [{"node_id": 2, "host": "b2", "port": 9092, "rack": None}],
}


@pytest.mark.parametrize("version", VERSIONS)
def test_response_cut_at_every_byte_is_refused(version: int) -> None:
    data = encoded(version, SAMPLE)
    check(read_fetch_response(memoryview(data), version), version, SAMPLE)
    for end in range(len(data)):
        with pytest.raises(DamagedResponseError):
            read_fetch_response(memoryview(data)[:end], version)
    with pytest.raises(DamagedResponseError, match="1 bytes after its end"):
        read_fetch_response(memoryview(data + b"\x00"), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_a_slice_of_the_frame(version: int) -> None:
    data = bytearray(encoded(version, SAMPLE))
    part = read_fetch_response(memoryview(data), version).partitions[1]
    assert part.records.obj is data


# The response about one partition with a few records, which is read in one step.


def lone(records: bytes, **changes: Any) -> dict[str, Any]:
    part = {
        "partition_index": 4,
        "error_code": 0,
        "high_watermark": 100,
        "last_stable_offset": 90,
        "log_start_offset": 5,
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records": records,
        **changes,
    }
    topic = {"topic": "t", "topic_id": UUID(int=7), "partitions": [part]}
    head = {"throttle_time_ms": 1, "error_code": 0, "session_id": 9}
    return {**head, "responses": [topic], "node_endpoints": []}


@pytest.mark.parametrize("aborted", [None, []])
@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 16_382, 16_383])
def test_lone_partition_is_read_at_any_size(size: int, aborted: Any) -> None:
    values = lone(bytes(size), aborted_transactions=aborted)
    data = encoded(17, values)
    for most in (None, size):  # with a limit that is just enough, field by field
        check(read_fetch_response(memoryview(data), 17, most=most), 17, values)


def test_lone_partition_cut_at_every_byte_is_refused() -> None:
    data = encoded(17, lone(bytes(200)))
    for end in range(len(data)):
        with pytest.raises(DamagedResponseError):
            read_fetch_response(memoryview(data)[:end], 17)
    with pytest.raises(DamagedResponseError, match="1 bytes after its end"):
        read_fetch_response(memoryview(data + b"\x00"), 17)


@given(st.sampled_from([0, 1, 200]), st.data())
def test_flipped_bytes_are_read_as_field_by_field(size: int, data: Any) -> None:
    body = bytearray(encoded(17, lone(bytes(size))))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    outcomes: list[Any] = []
    for most in (None, size):  # with a limit that is just enough, field by field
        try:
            found = read_fetch_response(memoryview(body), 17, most=most)
        except DamagedResponseError as error:
            outcomes.append(str(error))
        else:
            outcomes.append((found, [bytes(part.records) for part in found.partitions]))
    assert outcomes[0] == outcomes[1]


def uvarint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def test_tagged_fields_are_skipped_everywhere() -> None:
    tags = uvarint(2) + uvarint(9) + uvarint(3) + b"abc" + uvarint(1000) + uvarint(200) + bytes(200)
    part = (
        struct.pack(">ihqqq", 4, 0, 10, 10, 0)
        + uvarint(2)
        + struct.pack(">qq", 7, 8)
        + tags
        + struct.pack(">i", -1)
    )
    part += uvarint(4) + b"rec" + tags
    body = (
        struct.pack(">ihi", 0, 0, 0)
        + uvarint(2)
        + uvarint(2)
        + b"t"
        + uvarint(2)
        + part
        + tags
        + tags
    )
    (found,) = read_fetch_response(memoryview(body), 12).partitions
    assert (found.topic, found.partition, found.aborted, bytes(found.records)) == (
        "t",
        4,
        [(7, 8)],
        b"rec",
    )


def test_null_arrays_and_records_are_read() -> None:
    body = struct.pack(">ii", 0, -1)
    assert read_fetch_response(memoryview(body), 4).partitions == []
    part = struct.pack(">ihqqii", 4, 0, 10, 10, -1, -1)
    body = struct.pack(">iih", 0, 1, 1) + b"t" + struct.pack(">i", 1) + part
    (found,) = read_fetch_response(memoryview(body), 4).partitions
    assert (found.aborted, bytes(found.records)) == (None, b"")


@pytest.mark.parametrize(
    "topic",
    [struct.pack(">h", -1), struct.pack(">h", 2) + b"\xff\xfe", struct.pack(">h", 32767) + b"t"],
)
def test_topic_that_is_no_text_is_refused(topic: bytes) -> None:
    with pytest.raises(DamagedResponseError):
        read_fetch_response(memoryview(struct.pack(">ii", 0, 1) + topic + struct.pack(">i", 0)), 4)


@given(st.sampled_from(list(VERSIONS)), st.binary(max_size=300))
@settings(max_examples=500)
def test_any_bytes_are_read_or_refused(version: int, data: bytes) -> None:
    with contextlib.suppress(DamagedResponseError):
        read_fetch_response(memoryview(data), version)


@given(st.sampled_from(list(VERSIONS)), st.data())
@settings(max_examples=500)
def test_flipped_bytes_are_read_or_refused(version: int, data: Any) -> None:
    body = bytearray(encoded(version, SAMPLE))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DamagedResponseError):
        read_fetch_response(memoryview(body), version)


def test_ids_are_resolved_to_names() -> None:
    """From version 13 on, the names come from the ids of the request."""
    data = encoded(13, SAMPLE)
    assert {
        part.topic
        for part in read_fetch_response(memoryview(data), 13, {UUID(int=7): "mine"}).partitions
    } == {"mine"}
    assert {
        part.topic
        for part in read_fetch_response(memoryview(data), 13, {UUID(int=8): "other"}).partitions
    } == {""}


def partition_with(tags: bytes, version: int = 16) -> bytes:
    """Return a response with one partition, which has ``tags``."""
    part = (
        struct.pack(">ihqqq", 4, 6, 10, 10, 0)
        + uvarint(0)
        + struct.pack(">i", -1)
        + uvarint(1)
        + tags
    )
    topic = b"\x02t" if version < 13 else UUID(int=7).bytes
    return struct.pack(">ihi", 0, 0, 0) + uvarint(2) + topic + uvarint(2) + part + b"\x00"


def tag(number: int, value: bytes) -> bytes:
    return uvarint(number) + uvarint(len(value)) + value


LEADER = struct.pack(">ii", 3, 5)


@pytest.mark.parametrize(
    "tags",
    [
        uvarint(1) + tag(1, LEADER[:-1]),  # its struct is cut
        uvarint(1) + tag(1, LEADER),  # without the end of its own tags
        uvarint(1) + tag(1, LEADER + b"\x00\x00"),  # longer than its struct
        uvarint(1) + uvarint(1) + uvarint(8) + LEADER + b"\x00",  # its length is one too small
        uvarint(1) + tag(0, struct.pack(">i", 5)),
        uvarint(2) + tag(1, LEADER + b"\x00"),  # the count is one too high
        uvarint(2**32 - 1),
        uvarint(10_001) + tag(7, b"") * 10_001,
    ],
)
def test_a_damaged_tag_is_refused(tags: bytes) -> None:
    with pytest.raises(DamagedResponseError):
        read_fetch_response(memoryview(partition_with(tags) + b"\x00"), 16)


def test_tags_are_read_in_any_order() -> None:
    tags = (
        uvarint(4)
        + tag(9, b"new")
        + tag(1, LEADER + b"\x00")
        + tag(2, bytes(13))
        + tag(0, struct.pack(">iq", 2, 40) + b"\x00")
    )
    (found,) = read_fetch_response(memoryview(partition_with(tags, 12) + b"\x00"), 12).partitions
    assert (found.current_leader, found.diverging) == (
        LeaderIdAndEpoch(3, 5),
        EpochEndOffset(2, 40),
    )


def test_unknown_leader_and_epoch_are_none() -> None:
    tags = (
        uvarint(2)
        + tag(0, struct.pack(">iq", -1, -1) + b"\x00")
        + tag(1, struct.pack(">ii", -1, -1) + b"\x00")
    )
    (found,) = read_fetch_response(memoryview(partition_with(tags, 12) + b"\x00"), 12).partitions
    assert (found.current_leader, found.diverging) == (None, None)


@pytest.mark.parametrize("claimed", [2**20, 2**28, 2**31 - 1, 2**32 - 1])
@pytest.mark.parametrize("where", ["topics", "partitions", "aborted", "records", "endpoints"])
def test_claim_of_millions_is_refused_early(claimed: int, where: str) -> None:
    """A count that the bytes cannot hold is refused before anything loops over it."""
    filler, count = bytes(4096), uvarint(claimed)
    head = struct.pack(">ihi", 0, 0, 0)
    fields = struct.pack(">ihqqq", 4, 0, 10, 10, 0)
    body = {
        "topics": head + count,
        "partitions": head + uvarint(2) + bytes(16) + count,
        "aborted": head + uvarint(2) + bytes(16) + uvarint(2) + fields + count,
        "records": head
        + uvarint(2)
        + bytes(16)
        + uvarint(2)
        + fields
        + uvarint(0)
        + bytes(4)
        + count,
        "endpoints": head
        + uvarint(1)
        + uvarint(1)
        + uvarint(0)
        + uvarint(4096 + len(count))
        + count,
    }[where] + filler
    with pytest.raises(DamagedResponseError, match=r"array longer than itself|ends inside a field"):
        read_fetch_response(memoryview(body), 16)


@pytest.mark.parametrize("count", [101, 2**20, 2**31 - 1])
def test_impossible_partition_count_is_refused(count: int) -> None:
    whole = struct.pack(">ihqqi", 0, 0, 0, 0, -1) + struct.pack(">i", -1)
    # The body has room for 100 entries of the least size.
    body = struct.pack(">iih", 0, 1, 1) + b"t" + struct.pack(">i", count) + whole * 70
    with pytest.raises(DamagedResponseError, match="array longer than itself"):
        read_fetch_response(memoryview(body), 4)


@pytest.mark.parametrize("length", [-2, -(2**31)])
def test_negative_length_beyond_null_is_refused(length: int) -> None:
    part = struct.pack(">ihqqi", 4, 0, 10, 10, -1)
    bodies = [
        struct.pack(">ii", 0, length),
        struct.pack(">iih", 0, 1, 1) + b"t" + struct.pack(">i", length),
        struct.pack(">iih", 0, 1, 1)
        + b"t"
        + struct.pack(">i", 1)
        + part
        + struct.pack(">i", length),
    ]
    for body in bodies:
        with pytest.raises(DamagedResponseError, match="negative length"):
            read_fetch_response(memoryview(body), 4)


# -- where the batches end
# ------------------------------------------------------------------------------------------------


def batch(base: int, count: int) -> bytes:
    data = bytearray(encode_batch([b"v"] * count, timestamp=1))
    data[:8] = struct.pack(">q", base)
    return bytes(data)


def test_end_is_after_the_last_whole_batch() -> None:
    data = batch(10, 3) + batch(13, 2)
    assert end_of_batches(memoryview(data), 11) == 15
    assert end_of_batches(memoryview(data + batch(15, 1)[:-1]), 11) == 15
    assert end_of_batches(memoryview(data[:-1]), 11) == 13
    assert end_of_batches(memoryview(b""), 11) == 11
    assert end_of_batches(memoryview(batch(10, 3)[:-1]), 11) == 11


def test_old_formats_have_no_known_end() -> None:
    data = bytearray(batch(10, 3))
    data[16] = 1
    assert end_of_batches(memoryview(data), 10) is None


@pytest.mark.parametrize("base", [2**63 - 1, 2**63 - 2, -(2**63)])
def test_impossible_offsets_are_no_progress(base: int) -> None:
    data = batch(base, 3)
    assert end_of_batches(memoryview(data), 10) == 10


@given(st.binary(max_size=300), st.integers(0, 2**63 - 1))
def test_end_is_never_before_the_start(data: bytes, start: int) -> None:
    end = end_of_batches(memoryview(data), start)
    assert end is None or start <= end < 2**63
