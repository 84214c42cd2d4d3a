"""A response is no larger than what was asked can bring; one that is ends its connection before it takes any memory."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest
import trio
from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.consumer import HeartbeatRequest, ListOffsetsRequest, OffsetFetchRequest
from netting import connected, metadata_request
from trio.testing import MockClock as Clock

import trikafka
from trikafka import OffsetAndMetadata, TopicPartition
from trikafka._net.bounds import FACTORS, LEAST, most_bytes
from trikafka._wire import messages
from trikafka._wire.produce import ProduceMessage
from trikafka.errors import DamagedResponseError
from trikafka.testing import ScriptedCluster, encode_batch
from trikafka.testing.messages import REQUESTS, RESPONSES, build, encode_response

LARGE = 60_000_000
T0 = TopicPartition("t", 0)


def list_offsets(partitions: int) -> Any:
    parts = [{"partition_index": number, "timestamp": -1} for number in range(partitions)]
    return build(ListOffsetsRequest, 5, {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": parts}]})


def encoded(message: Any, version: int | None = None) -> messages.EncodedRequest:
    return messages.encode_request(message, message.max_version if version is None else version, 1, "client")


async def test_what_is_too_large_is_refused_by_its_length_alone() -> None:
    async with connected() as line:
        asked = line.ask(list_offsets(3))
        await line.peer.request()
        tracemalloc.start()
        try:
            await line.peer.stream.send_all(struct.pack(">i", LARGE))  # the rest would take its time
            with trio.fail_after(60), pytest.raises(DamagedResponseError, match="60,000,000 bytes in response to ListOffsets"):
                await asked.outcome()
            assert tracemalloc.get_traced_memory()[1] < LARGE / 2
        finally:
            tracemalloc.stop()
        assert line.connection.broken


async def test_the_bound_is_that_of_the_oldest_request() -> None:
    """Metadata may be large, however little was asked; what stands behind it may not."""
    async with connected() as line:
        first = line.ask(metadata_request())
        request = await line.peer.request()
        second = line.ask(list_offsets(1))
        await line.peer.request()
        topics = [{"error_code": 0, "name": "t" * 30, "is_internal": False, "partitions": []}] * 10_000
        await line.peer.answer(request, brokers=[], cluster_id="c", controller_id=0, topics=topics)
        assert len((await first.outcome()).topics) == 10_000
        await line.peer.stream.send_all(struct.pack(">i", LEAST * 2))
        with pytest.raises(DamagedResponseError, match="more than was asked for"):
            await second.outcome()


async def test_what_nothing_was_asked_for_is_refused_by_its_length_too() -> None:
    async with connected() as line:
        await line.peer.stream.send_all(struct.pack(">i", LARGE))
        with trio.fail_after(60):
            while not line.connection.broken:
                await trio.lowlevel.checkpoint()
        assert "60,000,000 bytes and was not asked for anything" in str(line.connection.failure)


@pytest.mark.parametrize("partitions", [1, 20_000])
async def test_what_was_asked_for_comes(partitions: int) -> None:
    async with connected() as line:
        asked = line.ask(list_offsets(partitions))
        request = await line.peer.request()
        item = {"error_code": 0, "timestamp": -1, "offset": 2**60, "leader_epoch": 9}
        parts = [{"partition_index": number, **item} for number in range(partitions)]
        frame = line.peer.frame(request, throttle_time_ms=0, topics=[{"name": "t", "partitions": parts}])
        await line.peer.stream.send_all(frame)
        with trio.fail_after(30):
            assert len((await asked.outcome()).topics[0].partitions) == partitions
        assert (len(frame) > LEAST) is (partitions > 1)


def test_each_byte_of_a_request_brings_some() -> None:
    assert most_bytes(encoded(build(HeartbeatRequest, 4, {"group_id": "g", "generation_id": 1, "member_id": "m" * 500}))) == LEAST
    one, many = (encoded(list_offsets(count)) for count in (1, 10_000))
    assert most_bytes(many) == LEAST + 16 * len(many.frame) > most_bytes(one) + 10_000 * 26  # type: ignore[operator]
    for unbounded in (metadata_request(), build(OffsetFetchRequest, 5, {"group_id": "g", "topics": None})):
        assert most_bytes(encoded(unbounded, 5)) is None


def test_every_record_that_is_refused_may_have_its_reason() -> None:
    """Of a small batch that holds many records: a topic that is compacted refuses each that has no key (KIP-467)."""
    batch = encode_batch([b"x"] * 30_000, timestamp=0)
    halves = (batch[:61], batch[61:])
    outgoing = encoded(ProduceMessage({"t": [(0, halves), (1, halves)]}, records=60_000, acks=-1, timeout_ms=1))
    assert outgoing.records == 60_000
    why = "Compacted topic cannot accept message without key in topic partition flights-of-a-long-name-0."
    errors = [{"batch_index": number, "batch_index_error_message": why} for number in range(30_000)]
    part = {"error_code": 87, "base_offset": -1, "log_append_time_ms": -1, "log_start_offset": -1, "record_errors": errors}
    parts = [{"index": number, **part, "error_message": why} for number in (0, 1)]
    key = ProduceMessage.API_KEY
    response = build(RESPONSES[key], 12, {"responses": [{"name": "t", "partition_responses": parts}], "throttle_time_ms": 0})
    size = len(encode_response(response, 12, 1))
    assert LEAST < size < most_bytes(outgoing)  # type: ignore[operator]


def test_a_topic_that_was_made_may_bring_its_configuration() -> None:
    shape = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    topics = [{"name": f"t-{number}", **shape} for number in range(1_000)]
    outgoing = encoded(build(CreateTopicsRequest, 7, {"topics": topics, "timeout_ms": 1, "validate_only": False}), 7)
    assert most_bytes(outgoing) > 1_000 * 6_000  # type: ignore[operator]  # some 35 settings of each


def test_the_names_are_those_of_requests() -> None:
    assert set(FACTORS) <= {cls.__name__.removesuffix("Request") for cls in REQUESTS.values()}


@pytest.mark.parametrize("call", ["commit", "send", "heartbeat"])
async def test_a_call_whose_response_was_too_large_is_made_again(autojump_clock: Clock, call: str) -> None:
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
                more = {"group_id": "g", "auto_offset_reset": "earliest", "group_protocol": "classic"}
                async with trikafka.open_consumer("t", **more, **settings) as consumer:
                    await consumer.receive()
                    api = "OffsetCommit" if call == "commit" else "Heartbeat"
                    rule = cluster.damage(api, change=huge)
                    if call == "commit":
                        await consumer.commit({T0: OffsetAndMetadata(1)})
                    else:
                        await cluster.seen("Heartbeat", 3)
                    assert await consumer.committed([T0]) == {T0: OffsetAndMetadata(1) if call == "commit" else None}
    assert rule.used == 1
