"""What a request names bounds the response, too; what asks for everything is bounded in memory, and read beside the loop."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import pytest
import trio
from kafka.protocol.admin import DescribeConfigsRequest, DescribeGroupsRequest, DescribeProducersRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest, SyncGroupRequest
from kafka.protocol.metadata import MetadataRequest
from netting import connected
from test_net_large import Steps, metadata_of
from trio.testing import MockClock as Clock

import trikafka
from trikafka._net.bounds import ASSIGNED, FACTORS, NAMED, most_bytes
from trikafka._wire import messages
from trikafka._wire.fetch import read_fetch_response
from trikafka.errors import DamagedResponseError
from trikafka.testing import ScriptedCluster, encode_batch
from trikafka.testing.messages import build

SOURCES = Path(trikafka.__file__).parent
#: Of these a response brings as much as there is. Why, and what bounds them instead, the module's docstring says.
ALL_THERE_IS = {"Fetch", "ListGroups", "ListTransactions", "JoinGroup"}


def metadata(topics: list[str] | None) -> Any:
    named = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    return MetadataRequest(topics=named, allow_auto_topic_creation=False, max_version=5)


def committed(partitions: int | None) -> Any:
    topics = None if partitions is None else [{"name": "t", "partition_indexes": list(range(partitions))}]
    return build(OffsetFetchRequest, 5, {"group_id": "g", "topics": topics})


def bound(message: Any, version: int = 5) -> int | None:
    return most_bytes(messages.encode_request(message, version, 1, "client"))


def test_every_request_that_is_made_has_its_place_in_the_table() -> None:
    """One of the three tables, or the list of those that bring all there is."""
    text = "".join(file.read_text() for room in ("_net", "_wire", "_managers", "_api") for file in (SOURCES / room).glob("*.py"))
    made = set(re.findall(r"\b([A-Z]\w+)Request\(", text)) - {"InFlight", "Encoded", "Raw", "Session", "Topic"}
    made |= {"Fetch", "Produce", "ApiVersions"}
    places = [set(FACTORS), set(NAMED), set(ASSIGNED), ALL_THERE_IS]
    assert [name for name in made if sum(name in place for place in places) != 1] == []
    assert len(made) > 25


def test_each_name_brings_its_part() -> None:
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
    groups = build(DescribeGroupsRequest, 5, {"groups": ["a", "b"], "include_authorized_operations": False})
    resources = [{"resource_type": 2, "resource_name": "t", "configuration_keys": None}]
    configs = build(DescribeConfigsRequest, 4, {"resources": resources, "include_synonyms": False, "include_documentation": False})
    sync = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None, "protocol_type": None}
    synced = build(SyncGroupRequest, 5, {**sync, "protocol_name": None, "assignments": []})
    assert [round((bound(one, v) or 0) / 2**20) for one, v in ((groups, 5), (configs, 4), (synced, 5))] == [128, 4, 16]


def test_a_partition_may_remember_a_producer_for_each_tenth_of_a_second_of_its_day() -> None:
    """Who looks for what hangs there needs the list most when there are so many; of 450,000 it was refused before."""
    topics = [{"name": "t", "partition_indexes": [0]}]
    assert (bound(build(DescribeProducersRequest, 0, {"topics": topics}), 0) or 0) > 864_000 * 37


async def test_metadata_of_one_topic_is_not_larger_than_a_topic_can_be() -> None:
    """Seen before: up to receive_message_max_bytes, a hundred megabytes, was read and taken apart."""
    async with connected() as line:
        asked = line.ask(metadata(["t"]))
        request = await line.peer.request()
        await line.peer.stream.send_all(metadata_of(20_000, request.header.correlation_id))
        with trio.fail_after(60):
            assert len((await asked.outcome()).topics[0].partitions) == 20_000
        asked = line.ask(metadata(["t"]))
        await line.peer.request()
        await line.peer.stream.send_all(struct.pack(">i", 60_000_000))
        with trio.fail_after(60), pytest.raises(DamagedResponseError, match="60,000,000 bytes in response to Metadata"):
            await asked.outcome()
        assert line.connection.broken


async def test_what_has_no_bound_is_read_beside_the_loop() -> None:
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
            with trio.fail_after(60):
                response = await asked.outcome()
        finally:
            trio.lowlevel.remove_instrument(steps)
        assert len(response.groups) == count
        assert steps.longest < 0.5  # reading it takes about a second; what other threads of this machine do is chance


# Fetch: what was asked for, and the first batch whole.


def fetched(*records: bytes) -> memoryview:
    """A response in version 4 with a partition of each."""
    head = struct.pack(">ii", 0, 1) + struct.pack(">h1si", 1, b"t", len(records))
    parts = b"".join(
        struct.pack(">ihqqii", number, 0, 9, 9, -1, len(each)) + each for number, each in enumerate(records)
    )
    return memoryview(head + parts)


SMALL = encode_batch([b"x" * 900], timestamp=0)
BIG = encode_batch([b"x" * 50_000], timestamp=0)
ASKED = 10_000


@pytest.mark.parametrize(
    ("records", "is_too_much"),
    [
        ((SMALL * 10,), False),
        ((SMALL * 20,), False),  # brokers that count another way
        ((SMALL * 30,), True),
        ((SMALL * 15, SMALL * 15), True),
        ((BIG,), False),  # KIP-74
        ((b"", BIG, SMALL * 10), False),
        ((BIG, BIG), True),
        ((BIG + SMALL * 30,), True),
        ((b"", b"abc"), False),
    ],
)
def test_a_fetch_brings_what_was_asked_for(records: tuple[bytes, ...], is_too_much: bool) -> None:
    body = fetched(*records)
    assert len(read_fetch_response(body, 4).partitions) == len(records)
    if not is_too_much:
        assert len(read_fetch_response(body, 4, most=ASKED).partitions) == len(records)
        return
    with pytest.raises(DamagedResponseError, match="and was asked for 10,000: more than was asked for"):
        read_fetch_response(body, 4, most=ASKED)


async def test_a_consumer_goes_on_after_too_much(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
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
        settings: Any = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial, "auto_offset_reset": "earliest"}
        async with trikafka.open_consumer(**settings, max_partition_fetch_bytes=20_000, fetch_max_bytes=20_000) as consumer:
            consumer.assign([trikafka.TopicPartition("t", 0)])
            with trio.fail_after(30):
                assert (await anext(aiter(consumer))).value == b"a"
        assert times > 1
        told = [record for record in caplog.records if record.name == "trikafka.fetch"]
        [line] = [record.getMessage() for record in told if record.levelname == "WARNING"]  # an INFO may tell that it goes on
        assert "cannot fetch from broker 0, trying again: the response to Fetch brings" in line
