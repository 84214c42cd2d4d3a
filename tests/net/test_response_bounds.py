"""Bounds of responses.

A response larger than its request can bring ends the connection before it takes memory.
"""

from __future__ import annotations

import re
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import trio
from kafka.protocol.admin import (
    CreateTopicsRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeProducersRequest,
    ListGroupsRequest,
)
from kafka.protocol.consumer import (
    HeartbeatRequest,
    ListOffsetsRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import MetadataRequest
from netting import connected, metadata_request
from test_large_responses import Steps, metadata_of
from trio.testing import MockClock as Clock

import trikafka
from trikafka import OffsetAndMetadata, TopicPartition
from trikafka._net.bounds import ASSIGNED, FACTORS, LEAST, NAMED, most_bytes
from trikafka._wire import messages
from trikafka._wire.fetch import read_fetch_response
from trikafka._wire.produce import ProduceMessage
from trikafka.errors import DamagedResponseError
from trikafka.testing import ScriptedCluster, encode_batch
from trikafka.testing.messages import REQUESTS, RESPONSES, build, encode_response

LARGE = 60_000_000
T0 = TopicPartition("t", 0)


def list_offsets(partitions: int) -> Any:
    parts = [{"partition_index": number, "timestamp": -1} for number in range(partitions)]
    return build(
        ListOffsetsRequest,
        5,
        {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": parts}]},
    )


def encoded(message: Any, version: int | None = None) -> messages.EncodedRequest:
    return messages.encode_request(
        message, message.max_version if version is None else version, 1, "client"
    )


async def test_too_large_response_is_refused_by_length() -> None:
    async with connected() as line:
        asked = line.ask(list_offsets(3))
        await line.peer.request()
        tracemalloc.start()
        try:
            # The length alone: to send all those bytes would take long.
            await line.peer.stream.send_all(struct.pack(">i", LARGE))
            with (
                trio.fail_after(240),
                pytest.raises(
                    DamagedResponseError, match="60,000,000 bytes in response to ListOffsets"
                ),
            ):
                await asked.outcome()
            assert tracemalloc.get_traced_memory()[1] < LARGE / 2
        finally:
            tracemalloc.stop()
        assert line.connection.broken


async def test_bound_is_that_of_the_oldest_request() -> None:
    """Metadata may be large, however little was asked. A response behind it may not."""
    async with connected() as line:
        first = line.ask(metadata_request())
        request = await line.peer.request()
        second = line.ask(list_offsets(1))
        await line.peer.request()
        topics = [
            {"error_code": 0, "name": "t" * 30, "is_internal": False, "partitions": []}
        ] * 10_000
        await line.peer.answer(request, brokers=[], cluster_id="c", controller_id=0, topics=topics)
        assert len((await first.outcome()).topics) == 10_000
        await line.peer.stream.send_all(struct.pack(">i", LEAST * 2))
        with pytest.raises(DamagedResponseError, match="more than was asked for"):
            await second.outcome()


async def test_unrequested_large_frame_is_refused() -> None:
    async with connected() as line:
        await line.peer.stream.send_all(struct.pack(">i", LARGE))
        with trio.fail_after(240):
            while not line.connection.broken:
                await trio.lowlevel.checkpoint()
        assert "60,000,000 bytes, although no request was waiting" in str(line.connection.failure)


@pytest.mark.parametrize("partitions", [1, 20_000])
async def test_requested_large_response_is_read(partitions: int) -> None:
    async with connected() as line:
        asked = line.ask(list_offsets(partitions))
        request = await line.peer.request()
        item = {"error_code": 0, "timestamp": -1, "offset": 2**60, "leader_epoch": 9}
        parts = [{"partition_index": number, **item} for number in range(partitions)]
        frame = line.peer.frame(
            request, throttle_time_ms=0, topics=[{"name": "t", "partitions": parts}]
        )
        await line.peer.stream.send_all(frame)
        with trio.fail_after(240):
            assert len((await asked.outcome()).topics[0].partitions) == partitions
        assert (len(frame) > LEAST) is (partitions > 1)


def test_each_byte_of_a_request_adds_to_the_bound() -> None:
    assert (
        most_bytes(
            encoded(
                build(
                    HeartbeatRequest,
                    4,
                    {"group_id": "g", "generation_id": 1, "member_id": "m" * 500},
                )
            )
        )
        == LEAST
    )
    one, many = (encoded(list_offsets(count)) for count in (1, 10_000))
    assert most_bytes(many) == LEAST + 16 * len(many.frame) > most_bytes(one) + 10_000 * 26  # type: ignore[operator]
    for unbounded in (
        metadata_request(),
        build(OffsetFetchRequest, 5, {"group_id": "g", "topics": None}),
    ):
        assert most_bytes(encoded(unbounded, 5)) is None


def test_every_refused_record_may_have_a_reason() -> None:
    """A small batch may hold many records.

    A compacted topic refuses each that has no key (KIP-467).
    """
    batch = encode_batch([b"x"] * 30_000, timestamp=0)
    halves = (batch[:61], batch[61:])
    outgoing = encoded(
        ProduceMessage({"t": [(0, halves), (1, halves)]}, records=60_000, acks=-1, timeout_ms=1)
    )
    assert outgoing.records == 60_000
    why = (
        "Compacted topic cannot accept message without key in topic partition "
        "flights-of-a-long-name-0."
    )
    errors = [{"batch_index": number, "batch_index_error_message": why} for number in range(30_000)]
    part = {
        "error_code": 87,
        "base_offset": -1,
        "log_append_time_ms": -1,
        "log_start_offset": -1,
        "record_errors": errors,
    }
    parts = [{"index": number, **part, "error_message": why} for number in (0, 1)]
    key = ProduceMessage.API_KEY
    response = build(
        RESPONSES[key],
        12,
        {"responses": [{"name": "t", "partition_responses": parts}], "throttle_time_ms": 0},
    )
    size = len(encode_response(response, 12, 1))
    assert LEAST < size < most_bytes(outgoing)  # type: ignore[operator]


def test_created_topic_may_bring_its_configs() -> None:
    shape = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    topics = [{"name": f"t-{number}", **shape} for number in range(1_000)]
    outgoing = encoded(
        build(CreateTopicsRequest, 7, {"topics": topics, "timeout_ms": 1, "validate_only": False}),
        7,
    )
    assert most_bytes(outgoing) > 1_000 * 6_000  # type: ignore[operator]  # some 35 settings of each


def test_factors_are_named_after_requests() -> None:
    assert set(FACTORS) <= {cls.__name__.removesuffix("Request") for cls in REQUESTS.values()}


@pytest.mark.parametrize("call", ["commit", "send", "heartbeat"])
async def test_call_with_too_large_response_is_retried(autojump_clock: Clock, call: str) -> None:
    def huge(frame: bytes) -> bytes:
        return struct.pack(">i", LARGE) + frame[4:]

    async with ScriptedCluster(topics={"t": 1}, strict=False) as cluster:
        cluster.append("t", 0, [b"a"])
        settings: Any = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        with trio.fail_after(60):
            if call == "send":
                async with trikafka.open_producer(**settings) as producer:
                    rule = cluster.damage("Produce", change=huge)
                    await producer.send("t", b"x", partition=0)
            else:
                more = {
                    "group_id": "g",
                    "auto_offset_reset": "earliest",
                    "group_protocol": "classic",
                }
                async with trikafka.open_consumer("t", **more, **settings) as consumer:
                    await consumer.receive()
                    api = "OffsetCommit" if call == "commit" else "Heartbeat"
                    rule = cluster.damage(api, change=huge)
                    if call == "commit":
                        await consumer.commit({T0: OffsetAndMetadata(1)})
                    else:
                        await cluster.seen("Heartbeat", 3)
                    assert await consumer.committed([T0]) == {
                        T0: OffsetAndMetadata(1) if call == "commit" else None
                    }
    assert rule.used == 1


SOURCES = Path(trikafka.__file__).parent
#: The responses to these bring everything there is. The docstring of the module says why, and what
#: bounds them instead.
ALL_THERE_IS = {
    "DeleteAcls",
    "DescribeAcls",
    "DescribeClientQuotas",
    "DescribeDelegationToken",
    "DescribeLogDirs",
    "DescribeShareGroupOffsets",
    "ElectLeaders",
    "Fetch",
    "JoinGroup",
    "ListConfigResources",
    "ListGroups",
    "ListPartitionReassignments",
    "ListTransactions",
    "ShareFetch",
}


def metadata(topics: list[str] | None) -> Any:
    named = (
        None
        if topics is None
        else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    )
    return MetadataRequest(topics=named, allow_auto_topic_creation=False, max_version=5)


def committed(partitions: int | None) -> Any:
    topics = (
        None
        if partitions is None
        else [{"name": "t", "partition_indexes": list(range(partitions))}]
    )
    return build(OffsetFetchRequest, 5, {"group_id": "g", "topics": topics})


def bound(message: Any, version: int = 5) -> int | None:
    return most_bytes(messages.encode_request(message, version, 1, "client"))


def test_every_request_has_a_place_in_the_table() -> None:
    """One of the three tables, or the list of requests for everything."""
    text = "".join(
        file.read_text()
        for room in ("_net", "_wire", "_managers", "_api")
        for file in (SOURCES / room).rglob("*.py")
    )
    made = set(re.findall(r"\b([A-Z]\w+)Request\(", text)) - {
        "InFlight",
        "Encoded",
        "Raw",
        "Session",
        "Topic",
    }
    made |= {"Fetch", "Produce", "ApiVersions"}
    places = [set(FACTORS), set(NAMED), set(ASSIGNED), ALL_THERE_IS]
    assert [name for name in made if sum(name in place for place in places) != 1] == []
    assert len(made) > 25


def test_each_name_in_a_request_adds_to_the_bound() -> None:
    none, one, many = (bound(metadata(["t"] * count)) for count in (0, 1, 30))
    assert none is not None
    assert one is not None
    assert many is not None
    assert none < 5_000_000 < one < 20_000_000 < 300_000_000 < many
    assert bound(metadata(None)) is None
    few, all_there_are = bound(committed(10)), bound(committed(None))
    assert few is not None
    assert 10 * 4_096 < few < 500_000
    assert all_there_are is None
    groups = build(
        DescribeGroupsRequest, 5, {"groups": ["a", "b"], "include_authorized_operations": False}
    )
    resources = [{"resource_type": 2, "resource_name": "t", "configuration_keys": None}]
    configs = build(
        DescribeConfigsRequest,
        4,
        {"resources": resources, "include_synonyms": False, "include_documentation": False},
    )
    sync = {
        "group_id": "g",
        "generation_id": 1,
        "member_id": "m",
        "group_instance_id": None,
        "protocol_type": None,
    }
    synced = build(SyncGroupRequest, 5, {**sync, "protocol_name": None, "assignments": []})
    assert [
        round((bound(one, v) or 0) / 2**20) for one, v in ((groups, 5), (configs, 4), (synced, 5))
    ] == [128, 4, 16]


def test_describe_producers_has_a_large_bound() -> None:
    """A partition may remember a producer for each tenth of a second of a day.

    A search for hanging transactions needs the whole list.
    """
    topics = [{"name": "t", "partition_indexes": [0]}]
    assert (bound(build(DescribeProducersRequest, 0, {"topics": topics}), 0) or 0) > 864_000 * 37


async def test_metadata_of_one_topic_is_bounded() -> None:
    """The bound is what a topic can have, not ``receive_message_max_bytes``."""
    async with connected() as line:
        asked = line.ask(metadata(["t"]))
        request = await line.peer.request()
        await line.peer.stream.send_all(metadata_of(20_000, request.header.correlation_id))
        with trio.fail_after(240):
            assert len((await asked.outcome()).topics[0].partitions) == 20_000
        asked = line.ask(metadata(["t"]))
        await line.peer.request()
        await line.peer.stream.send_all(struct.pack(">i", 60_000_000))
        with (
            trio.fail_after(240),
            pytest.raises(DamagedResponseError, match="60,000,000 bytes in response to Metadata"),
        ):
            await asked.outcome()
        assert line.connection.broken


async def test_unbounded_response_is_read_in_a_thread() -> None:
    async with connected() as line:
        asked = line.ask(ListGroupsRequest(max_version=2))
        request = await line.peer.request()
        one = struct.pack(">h14sh8s", 14, b"group-of-a-day", 8, b"consumer")
        count = 150_000
        body = struct.pack(">iihi", request.header.correlation_id, 0, 0, count) + one * count
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        try:
            await line.peer.stream.send_all(struct.pack(">i", len(body)) + body)
            with trio.fail_after(240):
                response = await asked.outcome()
        finally:
            trio.lowlevel.remove_instrument(steps)
        assert len(response.groups) == count
        # Decoding takes about a second. How long the other threads of this machine take is chance.
        assert steps.longest < 0.5


# Fetch: the requested bytes, and the first batch whole.


def fetched(*records: bytes) -> memoryview:
    """Return a response in version 4 with a partition for each of the records."""
    head = struct.pack(">ii", 0, 1) + struct.pack(">h1si", 1, b"t", len(records))
    parts = b"".join(
        struct.pack(">ihqqii", number, 0, 9, 9, -1, len(each)) + each
        for number, each in enumerate(records)
    )
    return memoryview(head + parts)


SMALL = encode_batch([b"x" * 900], timestamp=0)
BIG = encode_batch([b"x" * 50_000], timestamp=0)
ASKED = 10_000


@pytest.mark.parametrize(
    ("records", "is_too_much"),
    [
        ((SMALL * 10,), False),
        ((SMALL * 20,), False),  # brokers that count differently
        ((SMALL * 30,), True),
        ((SMALL * 15, SMALL * 15), True),
        ((BIG,), False),  # KIP-74
        ((b"", BIG, SMALL * 10), False),
        ((BIG, BIG), True),
        ((BIG + SMALL * 30,), True),
        ((b"", b"abc"), False),
    ],
)
def test_fetch_is_bounded_by_what_was_asked(records: tuple[bytes, ...], is_too_much: bool) -> None:
    body = fetched(*records)
    assert len(read_fetch_response(body, 4).partitions) == len(records)
    if not is_too_much:
        assert len(read_fetch_response(body, 4, most=ASKED).partitions) == len(records)
        return
    with pytest.raises(
        DamagedResponseError, match="and was asked for 10,000: more than was asked for"
    ):
        read_fetch_response(body, 4, most=ASKED)


async def test_consumer_goes_on_after_too_much(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.append("t", 0, [b"a"])
        times = 0

        async def flood(request: Any, default: Any) -> Any:
            nonlocal times
            times += 1
            response = await default()
            if times == 1:
                [topic] = response.responses
                topic.partitions[0].records = SMALL * 300
            return response

        cluster.on("Fetch", flood)
        settings: Any = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "auto_offset_reset": "earliest",
        }
        async with trikafka.open_consumer(
            **settings, max_partition_fetch_bytes=20_000, fetch_max_bytes=20_000
        ) as consumer:
            consumer.assign([trikafka.TopicPartition("t", 0)])
            with trio.fail_after(30):
                assert (await anext(aiter(consumer))).value == b"a"
        assert times > 1
        logged = [record for record in caplog.records if record.name == "trikafka.fetch"]
        # An INFO may report that it goes on.
        [line] = [record.getMessage() for record in logged if record.levelname == "WARNING"]
        assert "cannot fetch from broker 0, trying again: the response to Fetch brings" in line
