"""Order without duplicates through every fault, and the requests made meanwhile."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from producing import numbers, opened, ready, values
from trio.testing import MockClock as Clock

from trikafka._api.producer.ack import Ack
from trikafka._api.producer.producer import Producer
from trikafka.errors import (
    AuthorizationError,
    ClientFailedError,
    ConfigurationError,
    MessageTooLargeError,
    ProducerFencedError,
    RecordTooLargeError,
    TrikafkaError,
    UnsupportedVersionError,
)
from trikafka.testing import ScriptedCluster
from trikafka.types import RecordMetadata

COUNT = 60


async def write(producer: Producer, count: int = COUNT, *, pause: float = 0.004) -> list[Ack]:
    """Enqueue records, each in a batch of its own, so that several requests are in flight."""
    acks = []
    for value in numbers(count):
        acks.append(await producer.enqueue("t", value, partition=0))
        await trio.sleep(pause)
    return acks


async def offsets(acks: list[Ack]) -> list[int | None]:
    return [(await ack.wait()).offset for ack in acks]


async def disturb(cluster: ScriptedCluster, trouble: str) -> None:
    match trouble:
        case "not leader":
            cluster.move_leader("t", 0, 1)
        case "no leader for a while":
            cluster.move_leader("t", 0, None)
            await trio.sleep(0.5)
            cluster.move_leader("t", 0, 1)
        case "connection lost before the broker got it":
            cluster.drop("Produce", times=2)
        case "connection lost before the answer":
            cluster.drop("Produce", times=2, after=True)
        case "all connections lost":
            cluster.disconnect()
        case "broker away":
            cluster.stop(0)
            await trio.sleep(1)
            cluster.start(0)
        case "broker away and another leads":
            cluster.stop(0)
            cluster.move_leader("t", 0, 1)
        case "too few replicas":
            cluster.fail("Produce", 19, times=3)
        case "too few replicas after the append":
            cluster.fail("Produce", 20, times=3, after=True)
        case "unknown producer id":
            cluster.fail("Produce", 59)
        case "out of order":
            cluster.fail("Produce", 45)
        case "slow":
            cluster.delay("Produce", 0.3, times=3)
        case "frozen":
            cluster.freeze(0)
            await trio.sleep(8)
            cluster.thaw(0)


TROUBLES = [
    "not leader",
    "no leader for a while",
    "connection lost before the broker got it",
    "connection lost before the answer",
    "all connections lost",
    "broker away",
    "broker away and another leads",
    "too few replicas",
    "too few replicas after the append",
    "unknown producer id",
    "out of order",
    "slow",
    "frozen",
]


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_order_holds_without_duplicates(trouble: str, autojump_clock: Clock) -> None:
    async with ready(nodes=2, request_timeout_ms=5_000) as (cluster, producer):
        cluster.delay("Produce", 0.01, after=True)
        acks: list[Ack] = []

        async def work() -> None:
            acks.extend(await write(producer))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            await trio.sleep(0.1)
            await disturb(cluster, trouble)
        assert await offsets(acks) == list(range(1, COUNT + 1))
        assert values(cluster) == numbers(COUNT)
        statistics = producer.statistics()
        assert (
            statistics.buffer_used,
            statistics.records_delivered,
            statistics.records_failed,
        ) == (0, COUNT + 1, 0)


async def test_requests_in_flight_reach_their_limit(
    autojump_clock: Clock,
) -> None:
    async with ready(max_in_flight_requests_per_connection=3) as (cluster, producer):
        cluster.delay("Produce", 1)
        most = 0
        acks = []
        for value in numbers(20):
            acks.append(await producer.enqueue("t", value))
            await trio.sleep(0.01)
            most = max(most, producer.statistics().requests_in_flight)
        assert most == 3
        await offsets(acks)
        assert values(cluster) == numbers(20)


async def test_partitions_of_one_leader_share_a_request(autojump_clock: Clock) -> None:
    async with ready(nodes=2, partitions=4) as (cluster, producer):
        before = len(cluster.requests("Produce"))
        for value in numbers(40):
            producer.send_nowait("t", value, partition=int(value) % 4)
        await producer.flush()
        assert len(cluster.requests("Produce")) - before == 2
        assert sorted(
            value for number in range(4) for value in values(cluster, number) if value
        ) == numbers(40)


async def test_lost_first_batch_is_written_once(
    autojump_clock: Clock,
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as producer:
        cluster.drop("Produce", after=True)
        acks = await write(producer, 5)
        assert await offsets(acks) == list(range(5))
        assert values(cluster) == numbers(5)


async def test_duplicate_response_has_no_offset(autojump_clock: Clock) -> None:
    async with ready() as (cluster, producer):
        cluster.fail("Produce", 46, after=True)
        assert await producer.send("t", b"x", timestamp=123) == RecordMetadata("t", 0, None, 123)


async def test_log_append_time_is_returned(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, opened(cluster) as producer:
        cluster.create_topic("t", 1, {"message.timestamp.type": "LogAppendTime"})
        metadata = await producer.send("t", b"x", timestamp=123)
        assert metadata.timestamp == cluster.now_ms()


async def test_expired_batch_is_followed_by_new_epoch(
    autojump_clock: Clock,
) -> None:
    async with ready(delivery_timeout_ms=3_000, request_timeout_ms=3_000) as (cluster, producer):
        rule = cluster.drop("Produce", times=None, after=True)
        with pytest.raises(TrikafkaError):
            await producer.send("t", b"unknown")
        rule.remove()
        acks = await write(producer, 5)
        await offsets(acks)
        assert values(cluster) == [b"unknown", *numbers(5)]
        epochs = [batch.info.producer_epoch for batch in cluster.partition("t", 0).batches]
        assert (epochs[:2], set(epochs[2:])) == ([0, 0], {1})


@pytest.mark.parametrize("code", [47, 90])
async def test_fenced_producer_continues_with_a_new_id(code: int, autojump_clock: Clock) -> None:
    async with ready() as (cluster, producer):
        cluster.fail("Produce", code)
        with pytest.raises(ProducerFencedError):
            await producer.send("t", b"fenced")
        await producer.send("t", b"x")
        assert values(cluster) == [b"x"]
        assert len(cluster.requests("InitProducerId")) == 2


# --- producer ids ---------------------------------------------------------------------------------


async def test_one_producer_id_serves_all_partitions(
    autojump_clock: Clock,
) -> None:
    """Failed and lost requests for the id are repeated until it is there."""
    async with ScriptedCluster(nodes=2, topics={"t": 4}) as cluster, opened(cluster) as producer:
        cluster.fail("InitProducerId", 14, times=2)
        cluster.drop("InitProducerId", times=1)
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(
                    lambda number=number: producer.send("t", b"x", partition=number % 4)
                )
        ids = {
            batch.info.producer_id
            for number in range(4)
            for batch in cluster.partition("t", number).batches
        }
        assert len(ids) == 1
        assert len(cluster.requests("InitProducerId")) == 4


async def test_missing_right_to_an_id_fails_records(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as producer:
        cluster.fail("InitProducerId", 31)
        with pytest.raises(AuthorizationError):
            await producer.send("t", b"x")
        await producer.send("t", b"y")
        assert values(cluster) == [b"y"]


async def test_broker_without_ids_is_explained(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}, api_versions={"InitProducerId": None}) as cluster:
        async with opened(cluster) as producer:
            with pytest.raises(UnsupportedVersionError, match="enable_idempotence=False"):
                await producer.send("t", b"x")
        async with opened(cluster, enable_idempotence=False, acks="all") as producer:
            assert (await producer.send("t", b"x")).offset == 0


# --- acks and sizes -------------------------------------------------------------------------------


@pytest.mark.parametrize(("acks", "offset"), [(0, None), (1, 0), ("all", 0)])
async def test_acks_work_without_idempotence(
    acks: int | str, offset: int | None, autojump_clock: Clock
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        async with opened(cluster, acks=acks, enable_idempotence=False) as producer:
            assert (await producer.send("t", b"x", timestamp=5)) == RecordMetadata(
                "t", 0, offset, 5
            )
            await trio.testing.wait_all_tasks_blocked()
        assert values(cluster) == [b"x"]
        assert cluster.requests("InitProducerId") == []


async def test_batch_too_large_for_the_topic_is_split(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, opened(cluster, linger_ms=5) as producer:
        cluster.create_topic("t", 1, {"max.message.bytes": "500"})
        acks = [await producer.enqueue("t", value + b"x" * 97) for value in numbers(30)]
        waiting = [await ack.wait() for ack in acks]
        assert [metadata.offset for metadata in waiting] == list(range(30))
        assert [value[:3] for value in values(cluster) if value] == numbers(30)
        assert producer.statistics().buffer_used == 0
        with pytest.raises(MessageTooLargeError):
            await producer.send("t", b"x" * 600)
        await producer.send("t", b"x")


async def test_flush_waits_for_split_batches(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, opened(cluster, linger_ms=60_000) as producer:
        cluster.create_topic("t", 1, {"max.message.bytes": "500"})
        acks = [await producer.enqueue("t", value + b"x" * 97) for value in numbers(30)]
        await producer.flush()
        assert all(ack.done for ack in acks)


async def test_unsendable_record_is_never_queued(autojump_clock: Clock) -> None:
    async with ready(max_request_size=5_000, buffer_memory=10_000) as (cluster, producer):
        bad: list[tuple[type[Exception], str, dict[str, Any]]] = [
            (RecordTooLargeError, "max_request_size", {"value": b"x" * 5_000}),
            (TypeError, "encode it first", {"value": "text"}),
            (TypeError, "encode it first", {"value": b"", "key": "text"}),
            (ConfigurationError, "timestamp", {"value": b"", "timestamp": "now"}),
            (ConfigurationError, "partition", {"value": b"", "partition": -1}),
        ]
        for error, text, fields in bad:
            for call in (producer.send, producer.enqueue):
                with pytest.raises(error, match=text):
                    await call("t", **fields)
            with pytest.raises(error, match=text):
                producer.send_nowait("t", **fields)
        with pytest.raises(ConfigurationError, match="topic"):
            await producer.send("", b"x")
        assert producer.statistics().buffer_used == 0
        assert values(cluster) == []


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"compression_type": "lzip"}, TrikafkaError, "lzip"),
        ({"partitioner": "magic"}, ConfigurationError, "magic"),
        (
            {"transactional_id": "t", "enable_idempotence": False},
            ConfigurationError,
            "enable_idempotence",
        ),
        ({"linger": 5}, ConfigurationError, "linger_ms"),
        ({"delivery_timeout_ms": 1_000}, ConfigurationError, "KIP-91"),
        ({"acks": 1, "enable_idempotence": True}, ConfigurationError, "enable_idempotence"),
    ],
)
async def test_wrong_settings_are_raised_before_dials(
    settings: dict[str, Any], error: type[Exception], text: str, autojump_clock: Clock
) -> None:
    async with ScriptedCluster() as cluster:
        with pytest.raises(error, match=text):
            async with opened(cluster, **settings):
                pass
        assert cluster.dials == []


# --- errors that come out -------------------------------------------------------------------------


async def test_refused_record_does_not_stop_others(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ready() as (cluster, producer):
        cluster.fail("Produce", 29, times=2)
        with pytest.raises(AuthorizationError, match="TOPIC_AUTHORIZATION_FAILED"):
            await producer.send("t", b"no")
        assert caplog.records == []
        ack = await producer.enqueue("t", b"no")
        await producer.flush()
        with pytest.raises(AuthorizationError):
            await ack.wait()
        await producer.send("t", b"yes")
        assert values(cluster) == [b"yes"]
        assert producer.statistics().records_failed == 2


async def test_unobserved_failure_is_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ready() as (cluster, producer):
        cluster.fail("Produce", 29)
        producer.send_nowait("t", b"no")
        await trio.testing.wait_all_tasks_blocked()
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "1 record for t-0 was not delivered" in record.getMessage()


async def test_garbage_response_is_a_lost_connection(
    autojump_clock: Clock,
) -> None:
    async with ready() as (cluster, producer):
        before = len(values(cluster))
        cluster.garbage("Produce", b"\x00\x00\x00\x05hello")
        await producer.send("t", b"x")
        await producer.send("t", b"y")
        assert values(cluster)[before:] == [b"x", b"y"]


async def test_background_bug_fails_block_and_acks(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        start = trio.current_time()
        with pytest.raises(ClientFailedError) as caught:  # noqa: PT012
            async with opened(cluster) as producer:
                await producer.send("t", b"x")
                monkeypatch.setattr("trikafka._managers.producer.produce_senders.from_code", None)
                cluster.fail("Produce", 29)
                ack = await producer.enqueue("t", b"y")
                await trio.sleep_forever()
        assert isinstance(caught.value.__cause__, TypeError)
        assert trio.current_time() == start
        with pytest.raises(ClientFailedError):
            await ack.wait()
        assert producer.statistics().buffer_used == 0
