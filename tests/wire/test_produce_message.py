"""The Produce request and its response, whose bytes equal kafka-python's."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceRequest
from kafka.protocol.producer import ProduceResponse as KafkaPythons

from trikafka._wire import messages, produce
from trikafka._wire.produce import ProduceMessage, ProduceResponse
from trikafka.errors import ProtocolError

VERSIONS = range(3, 13)
names = st.text(max_size=200).filter(lambda name: len(name.encode()) < 2**15)
batches = st.lists(st.binary(max_size=300), max_size=3)
topics = st.dictionaries(
    names, st.lists(st.tuples(st.integers(0, 2**31 - 1), batches), max_size=3), max_size=3
)


@given(topics, st.sampled_from(VERSIONS), st.sampled_from([-1, 0, 1]), st.none() | names, names)
def test_request_bytes_equal_kafka_pythons(
    given_topics: Any, version: int, acks: int, transactional_id: str | None, client_id: str
) -> None:
    message: Any = ProduceMessage(
        given_topics, records=7, acks=acks, timeout_ms=12_345, transactional_id=transactional_id
    )
    data = ProduceRequest.TopicProduceData
    other = ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=12_345,
        topic_data=[
            data(
                name=name,
                partition_data=[
                    data.PartitionProduceData(index=index, records=b"".join(pieces))
                    for index, pieces in parts
                ],
            )
            for name, parts in given_topics.items()
        ],
    )
    ours, theirs = (
        messages.encode_request(each, version, 77, client_id) for each in (message, other)
    )
    assert ours.frame == theirs.frame
    assert (ours.api, ours.version, ours.expects_response) == (
        theirs.api,
        theirs.version,
        theirs.expects_response,
    )
    assert ours.records == 7


def test_large_batch_equals_kafka_pythons() -> None:
    message: Any = ProduceMessage(
        {"t": [(0, (b"head", b"x" * 3_000_000))]}, records=1, acks=1, timeout_ms=1
    )
    data = ProduceRequest.TopicProduceData
    parts = [data.PartitionProduceData(index=0, records=b"head" + b"x" * 3_000_000)]
    other = ProduceRequest(
        transactional_id=None,
        acks=1,
        timeout_ms=1,
        topic_data=[data(name="t", partition_data=parts)],
    )
    for version in VERSIONS:
        assert (
            messages.encode_request(message, version, 1, "c").frame
            == messages.encode_request(other, version, 1, "c").frame
        )


numbers = st.integers(-1, 2**40)
errors = st.lists(st.tuples(st.integers(0, 9), st.none() | names), max_size=2)
outcomes = st.tuples(
    st.integers(0, 99), st.integers(-1, 90), numbers, numbers, errors, st.none() | names
)
answers = st.lists(st.tuples(names, st.lists(outcomes, max_size=3)), max_size=3)


def encoded(answer: Any, version: int) -> bytes:
    topic_class = KafkaPythons.TopicProduceResponse
    part_class = topic_class.PartitionProduceResponse
    response = KafkaPythons(
        responses=[
            topic_class(
                name=name,
                partition_responses=[
                    part_class(
                        index=index,
                        error_code=code,
                        base_offset=base,
                        log_append_time_ms=time,
                        log_start_offset=5,
                        record_errors=[
                            part_class.BatchIndexAndErrorMessage(
                                batch_index=at, batch_index_error_message=text
                            )
                            for at, text in texts
                        ],
                        error_message=message,
                    )
                    for index, code, base, time, texts, message in parts
                ],
            )
            for name, parts in answer
        ],
        throttle_time_ms=3,
    )
    return bytes(response.encode(version=version, header=False, framed=False))


@given(answers, st.sampled_from(VERSIONS))
def test_responses_are_read(answer: Any, version: int) -> None:
    found = ProduceResponse.decode(encoded(answer, version), version=version)
    assert [
        (p.topic, p.partition, p.error_code, p.base_offset, p.append_time, p.message)
        for p in found.partitions
    ] == [
        (
            name,
            index,
            code,
            None if base < 0 else base,
            None if time < 0 else time,
            None if version < 8 else message or next((text for _, text in texts if text), None),
        )
        for name, parts in answer
        for index, code, base, time, texts, message in parts
    ]


def outcome_of(body: Any, version: int) -> Any:
    """Return the fields of the response, or the type of its error."""
    try:
        found = ProduceResponse.decode(body, version=version)
    except Exception as error:
        return type(error)
    parts = [[getattr(part, name) for name in part.__slots__] for part in found.partitions]
    return parts, found.throttle_ms, found.node_endpoints


@given(st.data(), names, st.sampled_from([9, 10, 11, 12]), st.binary(min_size=1, max_size=3))
def test_plain_response_reads_as_any_other(
    data: Any, name: str, version: int, noise: bytes
) -> None:
    """The one-step reader of the common response agrees with the full reader.

    It also does on bytes that are nearly such a response.
    """
    base, time = data.draw(numbers), data.draw(numbers)
    plain = bytearray(
        encoded([(name, [(data.draw(st.integers(0, 99)), 0, base, time, [], None)])], version)
    )
    at = data.draw(st.integers(0, len(plain)))
    changed = [
        plain,
        plain[:at],
        plain[:at] + noise + plain[at:],
        plain[:at] + noise + plain[at + len(noise) :],
        plain + noise,
    ]
    for body in changed:
        quickly = outcome_of(memoryview(body), version)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(produce, "_read_plain", lambda body: None)
            assert outcome_of(memoryview(body), version) == quickly
    if len(name.encode()) < 0x7F:
        assert produce._read_plain(memoryview(plain)) is not None


@given(st.binary(max_size=200), st.sampled_from(VERSIONS))
def test_any_bytes_are_read_or_refused(data: bytes, version: int) -> None:
    outgoing = messages.EncodedRequest(b"", "Produce", version, ProduceResponse, True)
    with contextlib.suppress(ProtocolError):
        messages.decode_response(outgoing, bytearray(b"\0" * 4 + data))


@pytest.mark.parametrize("version", VERSIONS)
def test_response_cut_anywhere_is_refused(version: int) -> None:
    whole = encoded(
        [("topic", [(0, 87, -1, -1, [(0, "bad")], "worse"), (1, 0, 7, 8, [], None)])], version
    )
    outgoing = messages.EncodedRequest(b"", "Produce", version, ProduceResponse, True)
    header = b"\0" * (5 if version >= 9 else 4)
    messages.decode_response(outgoing, bytearray(header + whole))
    for end in range(len(whole)):
        with pytest.raises(ProtocolError):
            messages.decode_response(outgoing, bytearray(header + whole[:end]))
    with pytest.raises(ProtocolError):
        messages.decode_response(outgoing, bytearray(header + whole + b"\0"))
