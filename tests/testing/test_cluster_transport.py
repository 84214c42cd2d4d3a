"""Connections: negotiation, order, broken and frozen nodes, and the script."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import trio
from rawclient import RawClient, fetch_fields
from trio.testing import MockClock as Clock

from trikafka.testing import KAFKA_4, ScriptedCluster, respond


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_names_what_is_offered(autojump_clock: Clock, version: int) -> None:
    async with ScriptedCluster() as cluster:
        client = await RawClient.connect(cluster)
        answer = await client.call(
            "ApiVersions", version, client_software_name="raw", client_software_version="1"
        )
        assert answer.error_code == 0
        assert {
            item.api_key: (item.min_version, item.max_version) for item in answer.api_keys
        } == KAFKA_4


@pytest.mark.parametrize(("own", "offered"), [((0, 3), [(18, 0, 3)]), ((0, 1), [])])
async def test_newer_api_versions_gets_the_oldest_form(
    autojump_clock: Clock, own: Any, offered: Any
) -> None:
    async with ScriptedCluster(api_versions={"ApiVersions": own}) as cluster:
        client = await RawClient.connect(cluster)
        answer = await client.call(
            "ApiVersions", 4, client_software_name="raw", client_software_version="1"
        )
        assert answer.version == 0
        assert answer.error_code == 35
        assert [
            (item.api_key, item.min_version, item.max_version) for item in answer.api_keys
        ] == offered
        again = await client.call(
            "ApiVersions", own[1], client_software_name="raw", client_software_version="1"
        )
        assert again.error_code == 0
        assert [seen.client_id for seen in cluster.log] == ["raw", "raw"]
        assert cluster.log[0].request is None


async def test_changed_api_versions_concern_one_answer(autojump_clock: Clock) -> None:
    """A handler may change its response: the next connection gets one of its own."""

    async def one_less(request: Any, default: Any) -> Any:
        response = await default()
        response.api_keys[1].max_version = 0
        response.api_keys.pop(0)
        return response

    found = []
    async with ScriptedCluster() as cluster:
        cluster.on("ApiVersions", one_less, times=1)
        for _ in range(2):
            client = await RawClient.connect(cluster)
            answer = await client.call(
                "ApiVersions", 4, client_software_name="raw", client_software_version="1"
            )
            found.append({item.api_key: item.max_version for item in answer.api_keys})
    first, second = found
    assert second == {key: high for key, (_, high) in KAFKA_4.items()}
    assert len(first) == len(second) - 1
    assert first[sorted(KAFKA_4)[1]] == 0


async def test_unoffered_version_closes_the_connection(autojump_clock: Clock) -> None:
    async with ScriptedCluster(
        api_versions={"Metadata": (0, 5), "Fetch": None}, strict=False
    ) as cluster:
        client = await RawClient.connect(cluster)
        assert (await client.call("Metadata", 5, topics=None)).error_code == 0
        with pytest.raises(EOFError):
            await client.call("Metadata", 6, topics=None)
        client = await RawClient.connect(cluster)
        with pytest.raises(EOFError):
            await client.call("Fetch", 12, **fetch_fields("t", 0, 0))
    assert len(cluster.malformed) == 2


@pytest.mark.parametrize(
    "data", [b"\x00\x00\x00\x02ab", b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100]
)
async def test_bytes_without_a_request_fail_the_test(autojump_clock: Clock, data: bytes) -> None:
    """The connection is closed, too."""

    async def body() -> None:
        async with ScriptedCluster() as cluster:
            client = await RawClient.connect(cluster)
            await client.stream.send_all(data)
            assert await client.closed()

    with pytest.raises(AssertionError, match="requests that Kafka cannot read"):
        await body()


async def test_trailing_bytes_in_a_request_are_found(autojump_clock: Clock) -> None:
    async with ScriptedCluster(strict=False) as cluster:
        client = await RawClient.connect(cluster)
        frame = struct.pack(">hhih", 18, 0, 7, -1) + b"more"
        await client.stream.send_all(struct.pack(">i", len(frame)) + frame)
        assert await client.closed()
    assert "ApiVersions v0 takes 10 bytes, but the frame has 14" in cluster.malformed[0]


async def test_client_may_close_inside_a_frame(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster:
        client = await RawClient.connect(cluster)
        await client.stream.send_all(b"\x00\x00\x00")
        await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert cluster.connections() == 0


async def test_requests_are_answered_one_at_a_time(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        cluster.delay("Metadata", 2)
        async with trio.open_nursery() as nursery:

            async def metadata() -> None:
                first = await client.send(_metadata())
                second = await client.send(_metadata())
                await client.receive(first)
                assert trio.current_time() == 2
                await client.receive(second)
                assert trio.current_time() == 4

            nursery.start_soon(metadata)
        assert [(seen.time, seen.answered_at) for seen in cluster.log] == [(0, 2), (0, 4)]
        assert [
            (seen.api_name, seen.version, seen.correlation_id, seen.client_id, seen.node_id)
            for seen in cluster.log
        ] == [
            ("Metadata", 12, 1, "raw", 0),
            ("Metadata", 12, 2, "raw", 0),
        ]


def _metadata() -> Any:
    from kafka.protocol.metadata import MetadataRequest

    return MetadataRequest(version=12, topics=None)


async def test_frozen_node_answers_when_it_thaws(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2) as cluster:
        cluster.freeze(1)
        client = await RawClient.connect(cluster, 1)
        expected = await client.send(_metadata())
        with trio.move_on_after(100) as scope:
            await client.receive(expected)
        assert scope.cancelled_caught
        assert len(cluster.requests("Metadata", node=1)) == 1
        cluster.thaw(1)
        assert (await client.receive(expected)).brokers


async def test_stopped_node_refuses_until_started(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 2}) as cluster:
        client = await RawClient.connect(cluster, 1)
        other = await RawClient.connect(cluster, 0)
        cluster.stop(1)
        assert await client.closed()
        with pytest.raises(trio.BrokenResourceError):
            await client.send(_metadata())
        with pytest.raises(ConnectionRefusedError):
            await cluster.dial("broker-1", 9092)
        seen = await other.call("Metadata", 12, topics=None)
        assert [broker.node_id for broker in seen.brokers] == [0]
        assert [(part.leader_id, part.error_code) for part in seen.topics[0].partitions] == [
            (0, 0),
            (-1, 5),
        ]
        cluster.start(1)
        await RawClient.connect(cluster, 1)
        assert [what for _, _, what in cluster.dials] == [
            "connected",
            "connected",
            "refused",
            "connected",
        ]


async def test_lost_node_lets_a_dial_hang(autojump_clock: Clock) -> None:
    """An unknown host fails."""
    async with ScriptedCluster() as cluster:
        cluster.lose(0)
        with trio.move_on_after(30) as scope:
            await cluster.dial("broker-0", 9092)
        assert scope.cancelled_caught
        with pytest.raises(OSError, match="no host nowhere:1"):
            await cluster.dial("nowhere", 1)


async def test_responses_can_come_byte_by_byte(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 3}) as cluster:
        cluster.chunk = 1
        client = await RawClient.connect(cluster)
        expected = await client.send(_metadata())
        assert len(await client.stream.receive_some()) == 1
        cluster.chunk = None
        client.buffer = b"\x00"
        assert len((await client.receive(expected)).topics[0].partitions) == 3


async def test_unbuffered_connection_answers(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster:
        cluster.unbuffered = True
        client = await RawClient.connect(cluster)
        assert (await client.call("Metadata", 12, topics=None)).cluster_id == "scripted-cluster"


async def test_send_to_a_frozen_node_blocks(autojump_clock: Clock) -> None:
    """Without buffers it blocks in the middle of the frame."""
    async with ScriptedCluster() as cluster:
        cluster.unbuffered = True
        client = await RawClient.connect(cluster)
        cluster.freeze(0)
        with trio.move_on_after(5) as scope:
            await client.send(_metadata())
        assert scope.cancelled_caught
        assert cluster.log == []
        await client.stream.aclose()
        cluster.thaw(0)
        await trio.testing.wait_all_tasks_blocked()
        assert (cluster.log, cluster.connections()) == ([], 0)


async def test_rules_apply_in_order_and_number(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        first = cluster.fail("Heartbeat", 15, times=2)
        second = cluster.fail("Heartbeat", 16, where=lambda request: request.group_id == "g")
        codes = []
        for group in ("a", "b", "c", "g", "g"):
            answer = await client.call(
                "Heartbeat",
                4,
                group_id=group,
                generation_id=1,
                member_id="m",
                group_instance_id=None,
            )
            codes.append(answer.error_code)
        assert codes == [15, 15, 25, 16, 25]
        assert (first.used, second.used) == (2, 1)
        always = cluster.fail("Heartbeat", 14, times=None)
        for _ in range(5):
            answer = await client.call(
                "Heartbeat", 4, group_id="g", generation_id=1, member_id="m", group_instance_id=None
            )
            assert answer.error_code == 14
        always.remove()
        answer = await client.call(
            "Heartbeat", 4, group_id="g", generation_id=1, member_id="m", group_instance_id=None
        )
        assert answer.error_code == 25


async def test_delays_before_and_after_add_up(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        cluster.delay("Metadata", 1, times=1)
        cluster.delay("Metadata", 2, times=1, after=True)
        await client.call("Metadata", 12, topics=None)
        assert trio.current_time() == 3
        await client.call("Metadata", 12, topics=None)
        assert trio.current_time() == 3


async def test_dropped_request_and_garbage(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        cluster.drop("Metadata")
        with pytest.raises(EOFError):
            await client.call("Metadata", 12, topics=None)
        client = await RawClient.connect(cluster)
        cluster.garbage("Metadata", b"\x00\x00\x00\x04oops")
        await client.send(_metadata())
        assert await client.frame() == b"oops"


async def test_handler_may_change_the_response(autojump_clock: Clock) -> None:
    """The handler may also make a response, or give none."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)

        async def rename(request: Any, default: Any) -> Any:
            response = await default()
            response.cluster_id = "renamed"
            return response

        cluster.on("Metadata", rename, times=1)
        assert (await client.call("Metadata", 12, topics=None)).cluster_id == "renamed"

        async def invent(request: Any, default: Any) -> Any:
            return respond(request, brokers=[], cluster_id="invented", controller_id=5, topics=[])

        cluster.on("Metadata", invent, times=1)
        assert (await client.call("Metadata", 12, topics=None)).controller_id == 5

        async def silent(request: Any, default: Any) -> Any:
            return None

        cluster.on("Metadata", silent, times=1)
        expected = await client.send(_metadata())
        with trio.move_on_after(10) as scope:
            await client.receive(expected)
        assert scope.cancelled_caught


async def test_exception_in_a_handler_is_unchanged(autojump_clock: Clock) -> None:
    async def broken(request: Any, default: Any) -> Any:
        raise AssertionError("not what I expected")

    async def body() -> None:
        async with ScriptedCluster() as cluster:
            client = await RawClient.connect(cluster)
            cluster.on("Metadata", broken)
            await client.call("Metadata", 12, topics=None)
            await trio.sleep_forever()

    with pytest.raises(AssertionError, match="not what I expected"):
        await body()


async def test_exception_of_the_body_is_unchanged(autojump_clock: Clock) -> None:
    async def body() -> None:
        async with ScriptedCluster() as cluster:
            await RawClient.connect(cluster)
            raise KeyError

    with pytest.raises(KeyError):
        await body()


async def test_seen_waits_for_a_request(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster:
        client = await RawClient.connect(cluster)

        async def ask() -> None:
            for _ in range(3):
                await trio.sleep(1)
                await client.call("Metadata", 12, topics=None)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            seen = await cluster.seen("Metadata", 2)
            assert (seen.time, trio.current_time()) == (2, 2)


def test_unknown_api_name_is_an_error_at_once() -> None:
    with pytest.raises(ValueError, match="no Kafka API is called 'Fetsch'"):
        ScriptedCluster().fail("Fetsch", 1)
