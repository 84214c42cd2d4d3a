"""A connection that ends in any way is a lost response.

Records in flight are sent again, or their error says ``maybe_written``.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import pytest
import trio
from accumulating import Bench
from producing import numbers, ready, values
from trio.testing import MockClock as Clock

import trikafka
from trikafka.error_codes import ErrorCode
from trikafka.errors import (
    ArrowDeliveryError,
    AuthorizationError,
    HandshakeError,
    KafkaConnectionError,
    TrikafkaError,
    from_code,
)
from trikafka.testing import ScriptedCluster, cut, strange_id

Default = Callable[[], Awaitable[Any]]
Change = Callable[[bytes], bytes]


def with_length(size: int) -> Change:
    """Return a change that puts another length before the frame."""
    return lambda frame: struct.pack(">i", size) + frame[4:]


#: Changes of the response's frame.
CHANGES: dict[str, Change] = {
    "a length of -1": with_length(-1),
    "a length of 3": with_length(3),
    "a length of 200,000,000": with_length(200_000_000),
    "a length over what was asked for": with_length(2_000_000),
    "an alert of TLS": lambda frame: b"\x15\x03\x03\x00\x02\x02\x50",
    "a strange correlation id": strange_id,
    "a body that ends early": cut,
    "half of it": lambda frame: frame[: len(frame) // 2],
}


def lose(cluster: ScriptedCluster, way: str) -> None:
    """Have the broker carry out the next Produce request, and lose its response in this way."""
    if way in CHANGES:
        cluster.damage("Produce", change=CHANGES[way])
    elif way == "no partition in it":
        cluster.leave_out("Produce", "t", 0)
    elif way == "a closed connection":
        cluster.drop("Produce", after=True)
    else:
        cluster.silence("Produce", times=1, after=True)


WAYS = [*CHANGES, "no partition in it", "a closed connection", "silence"]


@pytest.mark.parametrize("behind", [0, 1, 7])
@pytest.mark.parametrize("way", WAYS)
async def test_idempotent_record_is_sent_again(
    way: str, behind: int, autojump_clock: Clock
) -> None:
    async with ready(request_timeout_ms=5_000) as (cluster, producer):
        lose(cluster, way)
        with trio.fail_after(60):
            acks = []
            for value in numbers(1 + behind):
                acks.append(await producer.enqueue("t", value, partition=0))
                await trio.sleep(0.01)
            for ack in acks:
                await ack.wait()
        assert values(cluster) == numbers(1 + behind)
        assert {batch.info.producer_epoch for batch in cluster.partition("t", 0).batches} == {0}


@pytest.mark.parametrize("way", WAYS)
async def test_error_without_retries_is_maybe_written(way: str, autojump_clock: Clock) -> None:
    async with ready(request_timeout_ms=5_000, retries=0, enable_idempotence=False) as (
        cluster,
        producer,
    ):
        lose(cluster, way)
        with trio.fail_after(60), pytest.raises(TrikafkaError) as caught:
            await producer.send("t", b"x", partition=0)
        assert caught.value.maybe_written
        assert caught.value.retriable
        assert values(cluster) == [b"x"]


@pytest.mark.parametrize("lost", [False, True])
async def test_refusal_after_a_loss_is_maybe_written(lost: bool, autojump_clock: Clock) -> None:
    """The refusal of the second attempt says nothing of the first."""
    async with ready() as (cluster, producer):
        if lost:
            lose(cluster, "a length of -1")
        cluster.fail("Produce", ErrorCode.TOPIC_AUTHORIZATION_FAILED, times=1)
        with trio.fail_after(60), pytest.raises(AuthorizationError) as caught:
            await producer.send("t", b"x", partition=0)
        assert caught.value.maybe_written is lost
        assert values(cluster) == ([b"x"] if lost else [])


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_RECORD])
async def test_unclear_code_is_maybe_written(code: ErrorCode, autojump_clock: Clock) -> None:
    async with ready() as (cluster, producer):
        cluster.fail("Produce", code, times=1, after=True)
        with pytest.raises(TrikafkaError) as caught:
            await producer.send("t", b"x", partition=0)
        assert caught.value.maybe_written is (code == ErrorCode.UNKNOWN_SERVER_ERROR)


async def test_lost_table_is_maybe_written(autojump_clock: Clock) -> None:
    import pyarrow as pa

    for lost in (False, True):
        async with ready(retries=0, enable_idempotence=False) as (cluster, producer):
            if lost:
                lose(cluster, "a length of -1")
            else:
                cluster.fail("Produce", ErrorCode.TOPIC_AUTHORIZATION_FAILED, times=1)
            with pytest.raises(ArrowDeliveryError) as caught:
                await producer.send_arrow("t", pa.table({"value": [b"x", b"y"]}), partition=0)
            assert caught.value.maybe_written is lost
            assert caught.value.error.maybe_written is lost  # type: ignore[attr-defined]


@pytest.mark.parametrize("way", [way for way in CHANGES if way != "an alert of TLS"])
async def test_damaged_handshake_is_retried(way: str, autojump_clock: Clock) -> None:
    """Records that wait for the connection do not fail."""
    async with ready(request_timeout_ms=5_000) as (cluster, producer):
        cluster.disconnect()
        cluster.damage("ApiVersions", times=3, change=CHANGES[way])
        with trio.fail_after(60):
            await producer.send("t", b"x", partition=0)
        assert values(cluster) == [b"x"]


async def test_unreadable_versions_are_asked_again(autojump_clock: Clock) -> None:
    async def none(request: Any, default: Default) -> Any:
        response = await default()
        response.error_code = 77
        return response

    async with ready() as (cluster, producer):
        cluster.disconnect()
        cluster.on("ApiVersions", none, times=1)
        with trio.fail_after(60):
            await producer.send("t", b"x", partition=0)
        assert values(cluster) == [b"x"]


def test_maybe_written_is_set_for_each_batch() -> None:
    bench = Bench(0, 0)
    lost, waiting = bench.put(partition=0)[0], bench.put(partition=1)[0]
    bench.accumulator.close_open()
    assert bench.drain(limit=1) == [lost]
    bench.accumulator.completion.refused(lost, KafkaConnectionError("lost"), bench.now)
    bench.now += 1
    assert set(bench.drain()) == {lost, waiting}
    error = HandshakeError("the password has changed")
    for batch in (lost, waiting):
        bench.accumulator.completion.refused(batch, error, bench.now, unsent=True)
    assert [batch.error.maybe_written for batch in (lost, waiting)] == [True, False]  # type: ignore[union-attr]
    assert not error.maybe_written


def test_unsent_request_is_not_written() -> None:
    """No byte of a request still queued on the connection has left."""
    bench = Bench(0, delivery_timeout=5.0)
    (batch,) = bench.fill(1)
    assert bench.drain() == [batch]
    bench.accumulator.completion.refused(
        batch, KafkaConnectionError("lost"), bench.now, unsent=True
    )
    bench.now = 5.0
    bench.accumulator.completion.expire(bench.now)
    assert isinstance(batch.error, trikafka.DeliveryTimeoutError)
    assert not batch.error.maybe_written


def test_refusal_is_not_maybe_written() -> None:
    assert not from_code(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t").maybe_written


#: The requests of a transaction with offsets in it, of both versions.
IN_TRANSACTIONS = [
    "FindCoordinator",
    "InitProducerId",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "Produce",
    "TxnOffsetCommit",
    "EndTxn",
]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("api", IN_TRANSACTIONS)
@pytest.mark.parametrize("way", ["a length of -1", "a length of 200,000,000"])
async def test_transaction_survives_damaged_responses(
    way: str, api: str, version: int, autojump_clock: Clock
) -> None:
    place = trikafka.TopicPartition("in", 0)
    async with ScriptedCluster(topics={"t": 1, "in": 1}, transaction_version=version) as cluster:
        settings: Any = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "request_timeout_ms": 5_000,
        }
        rule = cluster.damage(api, change=CHANGES[way])
        with trio.fail_after(60):
            async with trikafka.open_producer(**settings, transactional_id="x") as producer:
                for number in range(2):
                    async with producer.transaction() as transaction:
                        await producer.send("t", b"%d" % number, partition=0)
                        await transaction.send_offsets(
                            {place: number + 1}, trikafka.GroupMetadata("g")
                        )
        assert rule.spent or (api in ("AddPartitionsToTxn", "AddOffsetsToTxn") and version == 2)
        assert [record.value for record in cluster.records("t", 0)] == [b"0", b"1"]
        committed = cluster.committed("g", place)
        assert committed is not None
        assert committed.offset == 2


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("way", ["a length of -1", "a length of 200,000,000"])
async def test_group_survives_damaged_responses(
    way: str, protocol: Any, autojump_clock: Clock
) -> None:
    classic = ["JoinGroup", "SyncGroup", "Heartbeat"]
    apis = [
        "FindCoordinator",
        "OffsetFetch",
        "ListOffsets",
        "Fetch",
        "OffsetCommit",
        "Metadata",
        "ApiVersions",
    ]
    for api in [*apis, *(classic if protocol == "classic" else ["ConsumerGroupHeartbeat"])]:
        async with ScriptedCluster(topics={"t": 1}) as cluster:
            cluster.append("t", 0, [b"a", b"b"])
            settings: Any = {
                "bootstrap_servers": cluster.bootstrap_servers,
                "dial": cluster.dial,
                "request_timeout_ms": 5_000,
            }
            settings |= {
                "group_id": "g",
                "group_protocol": protocol,
                "auto_offset_reset": "earliest",
            }
            with trio.fail_after(120):
                async with trikafka.open_consumer("t", **settings) as consumer:
                    rule = cluster.damage(api, change=CHANGES[way])
                    assert [record.value for record in await consumer.receive_batch()] == [
                        b"a",
                        b"b",
                    ]
                    await trio.sleep(10)  # heartbeats
                    await consumer.commit()
                    while not rule.spent:
                        await trio.sleep(1)
                        await consumer.receive_batch(timeout=0.1)
                        cluster.disconnect()
            committed = cluster.committed("g", trikafka.TopicPartition("t", 0))
            assert committed is not None, api
            assert committed.offset == 2, api


@pytest.mark.parametrize("way", ["a length of -1", "a length of 200,000,000"])
async def test_admin_calls_survive_damaged_responses(way: str, autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings: Any = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "request_timeout_ms": 5_000,
        }
        async with trikafka.open_admin(**settings) as admin:
            changing = ("CreatePartitions", "CreateTopics", "DeleteTopics")
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "Metadata": admin.list_topics,
                "DescribeConfigs": lambda: admin.topic_configs(["t"]),
                "CreatePartitions": lambda: admin.create_partitions({"t": 2}),
                "ListGroups": admin.list_groups,
                "CreateTopics": lambda: admin.create_topics({"new": trikafka.NewTopic(1)}),
                "DeleteTopics": lambda: admin.delete_topics(["t"]),
            }
            for api, call in calls.items():
                rule = cluster.damage(api, change=CHANGES[way])
                # The second attempt finds that the first was carried out: the topic exists, or
                # is gone.
                found = (
                    pytest.raises(trikafka.BrokerResponseError)
                    if api in changing
                    else nullcontext()
                )
                with trio.fail_after(60), found:
                    await call()
                assert rule.spent
            assert "new" in await admin.list_topics()
            assert "t" not in await admin.list_topics()


async def test_unknown_code_leaves_a_doubt(autojump_clock: Clock) -> None:
    """A newer broker may answer with any code, also after it has appended the batch."""
    async with ready() as (cluster, producer):
        cluster.fail("Produce", 999, after=True)
        with pytest.raises(TrikafkaError) as caught:
            await producer.send("t", b"second")
        assert caught.value.maybe_written
        assert values(cluster) == [b"second"]
