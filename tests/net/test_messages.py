"""Versions, headers, and bytes that are no message."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.protocol.admin import ListTransactionsRequest
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import FetchRequest, OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest, MetadataResponse
from kafka.protocol.producer import ProduceRequest

from trikafka._wire import messages
from trikafka._wire.extra_messages import ConsumerGroupHeartbeatRequest
from trikafka.errors import (
    ConfigurationError,
    DamagedResponseError,
    ProtocolError,
    UnsupportedVersionError,
)
from trikafka.testing.messages import KAFKA_4, REQUESTS, RESPONSES, encode_response


@pytest.mark.parametrize(
    ("request_class", "offered", "version"),
    [
        (MetadataRequest, (0, 13), 13),
        (MetadataRequest, (0, 99), 13),
        (MetadataRequest, (0, 5), 5),
        (MetadataRequest, (13, 13), 13),
        (FetchRequest, (4, 18), 12),
        (FetchRequest, (0, 4), 4),
        (ProduceRequest, (0, 13), 12),
        (ProduceRequest, (3, 3), 3),
        (OffsetCommitRequest, (2, 10), 9),
        (OffsetFetchRequest, (1, 10), 9),
    ],
)
def test_newest_common_version_is_chosen(
    request_class: Any, offered: tuple[int, int], version: int
) -> None:
    assert (
        messages.choose_version(request_class, {request_class.API_KEY: offered}, "b:1") == version
    )


@pytest.mark.parametrize("request_class", [OffsetCommitRequest, OffsetFetchRequest])
def test_request_may_require_topic_ids(request_class: Any) -> None:
    """A request with topic ids may ask for a version with ids."""
    ranges = {int(request_class.API_KEY): (2, 10)}
    assert messages.choose_version(request_class(), ranges, "b:1") == 9
    assert messages.choose_version(request_class(max_version=10), ranges, "b:1") == 10
    assert (
        messages.choose_version(
            request_class(max_version=10), {request_class.API_KEY: (2, 9)}, "b:1"
        )
        == 9
    )
    assert messages.choose_version(request_class(max_version=99), ranges, "b:1") == 10
    with pytest.raises(UnsupportedVersionError, match=r"versions 2 to 9 of .*, trikafka 10 to 10"):
        messages.choose_version(
            request_class(min_version=10, max_version=10), {request_class.API_KEY: (2, 9)}, "b:1"
        )


@pytest.mark.parametrize(
    ("request_class", "offered", "says"),
    [
        (
            FetchRequest,
            (0, 3),
            "the broker at b:1 speaks versions 0 to 3 of FetchRequest, trikafka 4 to 12",
        ),
        (FetchRequest, (13, 18), "speaks versions 13 to 18 of FetchRequest, trikafka 4 to 12"),
        (
            MetadataRequest,
            (14, 20),
            "speaks versions 14 to 20 of MetadataRequest, trikafka 0 to 13",
        ),
        (FetchRequest, None, "the broker at b:1 does not offer FetchRequest"),
    ],
)
def test_both_sides_are_named_without_a_version(
    request_class: Any, offered: Any, says: str
) -> None:
    ranges = {} if offered is None else {request_class.API_KEY: offered}
    with pytest.raises(UnsupportedVersionError, match=says):
        messages.choose_version(request_class, ranges, "b:1")


def test_needed_release_of_an_old_broker_is_named() -> None:
    ranges = {int(ListTransactionsRequest.API_KEY): (0, 0)}
    assert messages.choose_version(ListTransactionsRequest(), ranges, "b:1") == 0
    for version, release in ((1, "3.8"), (2, "4.1")):
        with pytest.raises(
            UnsupportedVersionError,
            match=rf"speaks versions 0 to 0 of .*; it needs Kafka {release} or newer",
        ):
            messages.choose_version(ListTransactionsRequest(min_version=version), ranges, "b:1")
    with pytest.raises(
        UnsupportedVersionError,
        match=r"does not offer ConsumerGroupHeartbeatRequest; it needs Kafka 4\.0",
    ):
        messages.choose_version(ConsumerGroupHeartbeatRequest, {}, "b:1")
    ranges = {int(ListTransactionsRequest.API_KEY): (7, 9)}
    # The error does not say that the broker is too old.
    with pytest.raises(UnsupportedVersionError, match=r"trikafka 1 to \d$"):
        messages.choose_version(ListTransactionsRequest(min_version=1), ranges, "b:1")


def test_unrepresentable_values_are_refused() -> None:
    part = OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    for values in (
        {"committed_offset": 2**63},
        {"partition_index": 2**31},
        {"committed_offset": "x"},
    ):
        fields: dict[str, Any] = {
            "partition_index": 0,
            "committed_offset": 0,
            "committed_metadata": "",
        } | values
        request = OffsetCommitRequest(
            group_id="g", topics=[topic(name="t", partitions=[part(**fields)])]
        )
        with pytest.raises(
            ConfigurationError, match="OffsetCommitRequest v8 cannot carry what it was given"
        ):
            messages.encode_request(request, 8, 1, "me")


@pytest.mark.parametrize("version", [7, 8])
def test_overlong_text_is_refused(version: int) -> None:
    """In the compact form, from version 8 on, it was sent, and the broker hung up."""
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    part = topic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_metadata=""
    )

    def encoded(name: str) -> object:
        request = OffsetCommitRequest(group_id="g", topics=[topic(name=name, partitions=[part])])
        return messages.encode_request(request, version, 1, "me")

    encoded("x" * 32_767)
    with pytest.raises(ConfigurationError, match="cannot carry what it was given"):
        encoded("x" * 32_768)


@pytest.mark.parametrize("version", range(14))
def test_metadata_roundtrips_in_every_version(version: int) -> None:
    outgoing = messages.encode_request(
        MetadataRequest(topics=[], allow_auto_topic_creation=True), version, 7, "me"
    )
    size, key, sent_version, correlation_id = struct.unpack_from(">ihhi", outgoing.frame)
    assert (size, key, sent_version, correlation_id) == (
        len(outgoing.frame) - 4,
        ApiKey.Metadata,
        version,
        7,
    )
    assert outgoing.expects_response
    answer = messages.decode_response(
        outgoing, _answer(MetadataResponse(version=version, controller_id=5), version, 7)
    )
    assert answer.controller_id == (5 if version else -1)


def _answer(response: Any, version: int, correlation_id: int) -> bytearray:
    return bytearray(encode_response(response, version, correlation_id)[4:])


def test_header_of_a_response_may_have_tags() -> None:
    outgoing = messages.encode_request(MetadataRequest(topics=[]), 12, 7, "me")
    plain = _answer(MetadataResponse(version=12, controller_id=5), 12, 7)
    assert plain[4] == 0
    for tags in (
        b"\x01\x05\x00",
        b"\x01\x00\x03abc",
        b"\x02\x00\x01a\x81\x01\x80\x01" + bytes(128),
    ):
        frame = bytearray(plain[:4] + tags + plain[5:])
        assert messages.decode_response(outgoing, frame).controller_id == 5
    for cut in (
        b"",
        b"\x01",
        b"\x01\x00",
        b"\x01\x00\x05abc",
        b"\xff\xff\xff\xff\xff\x01",
        b"\x80",
    ):
        with pytest.raises(ProtocolError):
            messages.decode_response(outgoing, bytearray(plain[:4] + cut))
    many = b"\x91\x4e" + b"\x05\x00" * 10_001
    with pytest.raises(ProtocolError, match="holds 10001 tagged fields"):
        messages.decode_response(outgoing, bytearray(plain[:4] + many + plain[5:]))


def test_api_versions_header_never_has_tags() -> None:
    outgoing = messages.encode_request(messages.api_versions_request(4, "1"), 4, 7, "me")
    item = ApiVersionsResponse.ApiVersion(version=4, api_key=3, min_version=0, max_version=13)
    frame = _answer(ApiVersionsResponse(version=4, error_code=0, api_keys=[item]), 4, 7)
    assert messages.version_ranges(messages.decode_response(outgoing, frame)) == {3: (0, 13)}


def test_refusal_of_an_old_broker_is_understood() -> None:
    outgoing = messages.encode_request(messages.api_versions_request(4, "1"), 4, 7, "me")
    frame = bytearray(struct.pack(">ihihhh", 7, 35, 1, 18, 0, 2))
    answer = messages.decode_response(outgoing, frame)
    assert (answer.error_code, messages.version_ranges(answer)) == (35, {18: (0, 2)})


@pytest.mark.parametrize("size", range(4))
def test_frame_without_correlation_id_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match="too short"):
        messages.read_correlation_id(bytes(size))


def test_damaged_response_may_be_retried() -> None:
    """The response ends late, early, or inside a text."""
    outgoing = messages.encode_request(MetadataRequest(topics=[]), 8, 7, "me")
    broker = MetadataResponse.MetadataResponseBroker(
        version=8, node_id=1, host="h" * 20, port=9, rack="r" * 20
    )
    whole = _answer(
        MetadataResponse(version=8, brokers=[broker], cluster_id="c" * 20, topics=[]), 8, 7
    )
    assert messages.decode_response(outgoing, whole).brokers[0].rack == "r" * 20
    for frame in [*(whole[:end] for end in range(4, len(whole))), whole + b"\x00", whole + whole]:
        with pytest.raises(
            DamagedResponseError, match=r"the response to MetadataRequest v8 .* cannot be read"
        ) as caught:
            messages.decode_response(outgoing, frame)
        assert (
            caught.value.retriable,
            caught.value.refresh_metadata,
            caught.value.refresh_coordinator,
        ) == (True, True, True)


@pytest.mark.parametrize("filler", [b"\x80", b"\xff"])
def test_endless_length_is_refused_before_reading(filler: bytes) -> None:
    outgoing = messages.encode_request(MetadataRequest(topics=[]), 12, 7, "me")
    # Without a bound on the length this would take an hour.
    with pytest.raises(DamagedResponseError, match="a length in it does not end"):
        messages.decode_response(
            outgoing, memoryview(bytes(4) + b"\x00" + bytes(4) + filler * 10_000_000)
        )


CASES = [
    (key, version)
    for key, versions in KAFKA_4.items()
    for version in range(versions[0], versions[1] + 1)
]


def _outgoing(key: int, version: int) -> messages.EncodedRequest:
    return messages.EncodedRequest(b"", REQUESTS[key].name, version, RESPONSES[key], True)


@settings(max_examples=1000)
@given(st.sampled_from(CASES), st.binary(max_size=120))
@example((ApiKey.Metadata, 12), b"\xff" * 100)
@example((ApiKey.Metadata, 1), b"\x7f\xff\xff\xff" * 20)
@example((ApiKey.DescribeGroups, 5), b"\x00" * 5 + b"\xff\xff\xff\xff\x0f" * 20)
def test_any_bytes_are_read_or_a_protocol_error(case: tuple[int, int], data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        messages.decode_response(_outgoing(*case), bytearray(b"\x00\x00\x00\x07" + data))


@pytest.mark.parametrize(("key", "version"), CASES, ids=lambda value: str(int(value)))
def test_absurd_lengths_are_refused_at_once(key: int, version: int) -> None:
    for filler in (
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff\x07",
        b"\x80",
        b"\x00\x00\x00\x01\x7f\xff",
    ):
        for start in range(0, 12):
            data = bytearray(b"\x00\x00\x00\x07") + bytes(start) + filler * 12
            with contextlib.suppress(ProtocolError):
                messages.decode_response(_outgoing(key, version), data)
