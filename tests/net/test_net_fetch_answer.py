"""The hand-written reader of Fetch answers, held to kafka-python's encoder in every version, and to any bytes."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse

from trikafka._wire.fetch import FetchAnswer, end_of_batches, read_fetch_answer
from trikafka.errors import ProtocolError
from trikafka.testing import encode_batch
from trikafka.testing.messages import build

VERSIONS = range(4, 13)
int64s = st.integers(-(2**63), 2**63 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)

aborted = st.none() | st.lists(st.fixed_dictionaries({"producer_id": int64s, "first_offset": int64s}), max_size=3)
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
    }
)
topics = st.lists(
    st.fixed_dictionaries(
        {"topic": st.text(st.characters(codec="utf-8"), max_size=20), "partitions": st.lists(partitions, max_size=3)}
    ),
    max_size=3,
)
answers = st.fixed_dictionaries(
    {"throttle_time_ms": int32s, "error_code": st.integers(-1, 133), "session_id": int32s, "responses": topics}
)


def encoded(version: int, values: dict[str, Any]) -> bytes:
    return bytes(build(FetchResponse, version, values).encode(version=version))


@pytest.mark.parametrize("version", VERSIONS)
@given(values=answers)
@settings(max_examples=60)
def test_what_kafka_python_writes_is_read(version: int, values: dict[str, Any]) -> None:
    check(read_fetch_answer(memoryview(encoded(version, values)), version), version, values)


def check(answer: FetchAnswer, version: int, values: dict[str, Any]) -> None:
    head = (values["error_code"], values["session_id"]) if version >= 7 else (0, 0)
    assert (answer.throttle_ms, answer.error_code, answer.session_id) == (values["throttle_time_ms"], *head)
    expected = [(topic["topic"], part) for topic in values["responses"] for part in topic["partitions"]]
    assert len(answer.partitions) == len(expected)
    for found, (topic, part) in zip(answer.partitions, expected, strict=True):
        assert (found.topic, found.partition, found.error_code) == (topic, part["partition_index"], part["error_code"])
        assert (found.high_watermark, found.last_stable_offset) == (part["high_watermark"], part["last_stable_offset"])
        assert found.log_start_offset == (part["log_start_offset"] if version >= 5 else -1)
        assert found.preferred_replica == (part["preferred_read_replica"] if version >= 11 else -1)
        gone = part["aborted_transactions"]
        assert found.aborted == (None if gone is None else [(each["producer_id"], each["first_offset"]) for each in gone])
        assert bytes(found.records) == part["records"]


SAMPLE: dict[str, Any] = {
    "throttle_time_ms": 1,
    "error_code": 0,
    "session_id": 9,
    "responses": [
        {
            "topic": "tö",
            "partitions": [
                {
                    "partition_index": number,
                    "error_code": 0,
                    "high_watermark": 100,
                    "last_stable_offset": 90,
                    "log_start_offset": 5,
                    "aborted_transactions": [{"producer_id": 1, "first_offset": 2}] if number else None,
                    "preferred_read_replica": 3,
                    "records": encode_batch([b"a", b"b"], timestamp=1) if number else b"",
                }
                for number in range(2)
            ],
        }
    ],
}


@pytest.mark.parametrize("version", VERSIONS)
def test_cut_at_every_byte_it_is_a_protocol_error(version: int) -> None:
    data = encoded(version, SAMPLE)
    check(read_fetch_answer(memoryview(data), version), version, SAMPLE)
    for end in range(len(data)):
        with pytest.raises(ProtocolError):
            read_fetch_answer(memoryview(data)[:end], version)
    with pytest.raises(ProtocolError, match="1 bytes after its end"):
        read_fetch_answer(memoryview(data + b"\x00"), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_records_are_a_slice_of_the_frame(version: int) -> None:
    data = bytearray(encoded(version, SAMPLE))
    part = read_fetch_answer(memoryview(data), version).partitions[1]
    assert part.records.obj is data


def uvarint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def test_tagged_fields_everywhere_are_stepped_over() -> None:
    tags = uvarint(2) + uvarint(0) + uvarint(3) + b"abc" + uvarint(1000) + uvarint(200) + bytes(200)
    part = struct.pack(">ihqqq", 4, 0, 10, 10, 0) + uvarint(2) + struct.pack(">qq", 7, 8) + tags + struct.pack(">i", -1)
    part += uvarint(4) + b"rec" + tags
    body = struct.pack(">ihi", 0, 0, 0) + uvarint(2) + uvarint(2) + b"t" + uvarint(2) + part + tags + tags
    (found,) = read_fetch_answer(memoryview(body), 12).partitions
    assert (found.topic, found.partition, found.aborted, bytes(found.records)) == ("t", 4, [(7, 8)], b"rec")


def test_null_arrays_and_records() -> None:
    body = struct.pack(">ii", 0, -1)
    assert read_fetch_answer(memoryview(body), 4).partitions == []
    part = struct.pack(">ihqqii", 4, 0, 10, 10, -1, -1)
    body = struct.pack(">iih", 0, 1, 1) + b"t" + struct.pack(">i", 1) + part
    (found,) = read_fetch_answer(memoryview(body), 4).partitions
    assert (found.aborted, bytes(found.records)) == (None, b"")


@pytest.mark.parametrize("topic", [struct.pack(">h", -1), struct.pack(">h", 2) + b"\xff\xfe", struct.pack(">h", 32767) + b"t"])
def test_a_topic_that_is_no_text(topic: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_fetch_answer(memoryview(struct.pack(">ii", 0, 1) + topic + struct.pack(">i", 0)), 4)


@given(st.sampled_from(list(VERSIONS)), st.binary(max_size=300))
@settings(max_examples=500)
def test_any_bytes_are_an_answer_or_a_protocol_error(version: int, data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        read_fetch_answer(memoryview(data), version)


@given(st.sampled_from(list(VERSIONS)), st.data())
@settings(max_examples=500)
def test_a_flipped_byte_is_an_answer_or_a_protocol_error(version: int, data: Any) -> None:
    body = bytearray(encoded(version, SAMPLE))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        read_fetch_answer(memoryview(body), version)


# -- where the batches end ------------------------------------------------------------------------------------------------


def batch(base: int, count: int) -> bytes:
    data = bytearray(encode_batch([b"v"] * count, timestamp=1))
    data[:8] = struct.pack(">q", base)
    return bytes(data)


def test_the_end_is_after_the_last_whole_batch() -> None:
    data = batch(10, 3) + batch(13, 2)
    assert end_of_batches(memoryview(data), 11) == 15
    assert end_of_batches(memoryview(data + batch(15, 1)[:-1]), 11) == 15
    assert end_of_batches(memoryview(data[:-1]), 11) == 13
    assert end_of_batches(memoryview(b""), 11) == 11
    assert end_of_batches(memoryview(batch(10, 3)[:-1]), 11) == 11


def test_the_old_formats_do_not_tell() -> None:
    data = bytearray(batch(10, 3))
    data[16] = 1
    assert end_of_batches(memoryview(data), 10) is None


@pytest.mark.parametrize("base", [2**63 - 1, 2**63 - 2, -(2**63)])
def test_offsets_beyond_all_are_no_progress(base: int) -> None:
    data = batch(base, 3)
    assert end_of_batches(memoryview(data), 10) == 10


@given(st.binary(max_size=300), st.integers(0, 2**63 - 1))
def test_the_end_never_goes_back_and_fits_the_protocol(data: bytes, start: int) -> None:
    end = end_of_batches(memoryview(data), start)
    assert end is None or start <= end < 2**63
