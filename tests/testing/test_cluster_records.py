"""Produce, Fetch and the look-ups of offsets."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from rawclient import RawClient, fetch_fields, produce_fields
from trio.testing import MockClock as Clock

from trikafka.testing import ScriptedCluster, control_batch, encode_batch


def batch(*values: bytes, **keywords: Any) -> bytes:
    return encode_batch(values, timestamp=1000, **keywords)


def one(answer: Any) -> Any:
    """Return the one partition of a Produce, Fetch or ListOffsets response."""
    topic = (answer.responses if hasattr(answer, "responses") else answer.topics)[0]
    return (
        topic.partition_responses if hasattr(topic, "partition_responses") else topic.partitions
    )[0]


def values(cluster: ScriptedCluster, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in cluster.records("t", partition)]


@pytest.mark.parametrize("version", range(3, 14))
async def test_produce_in_every_version(autojump_clock: Clock, version: int) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        for base in (0, 2):
            answer = one(
                await client.call(
                    "Produce",
                    version,
                    **produce_fields("t", 0, batch(b"a", b"b"), topic_id=cluster.topic_id("t")),
                )
            )
            assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (
                0,
                base,
                -1,
            )
        assert [
            (record.offset, record.value, record.timestamp) for record in cluster.records("t", 0)
        ] == [
            (0, b"a", 1000),
            (1, b"b", 1000),
            (2, b"a", 1000),
            (3, b"b", 1000),
        ]


@pytest.mark.parametrize("version", range(4, 19))
async def test_fetch_in_every_version(autojump_clock: Clock, version: int) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        cluster.append("t", 0, [b"a", b"b"])
        cluster.append("t", 0, [b"c"])
        whole = cluster.partition("t", 0).batches
        for offset, data in ((0, [0, 1]), (1, [0, 1]), (2, [1]), (3, [])):
            answer = one(
                await client.call(
                    "Fetch", version, **fetch_fields("t", 0, offset, topic_id=cluster.topic_id("t"))
                )
            )
            assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (
                0,
                3,
                3,
            )
            assert bytes(answer.records) == b"".join(whole[index].data for index in data)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_appended_records_are_read_decoded(autojump_clock: Clock, compression: str) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        await trio.sleep(2)
        records = [
            b"v",
            (b"k", None),
            (None, b"w" * 500, 7),
            (b"", b"", None, [("h", b"1"), ("h", None)]),  # a list as in send()
        ]
        assert cluster.append("t", 0, records, compression=compression) == 0
        found = cluster.records("t", 0)
        assert [(r.key, r.value, r.headers) for r in found] == [
            (None, b"v", ()),
            (b"k", None, ()),
            (None, b"w" * 500, ()),
            (b"", b"", (("h", b"1"), ("h", None))),
        ]
        assert [r.timestamp for r in found] == [
            1_700_000_002_000,
            1_700_000_002_000,
            7,
            1_700_000_002_000,
        ]


async def test_batch_with_a_wrong_crc_is_refused(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        spoiled = bytearray(batch(b"abc"))
        spoiled[-2] ^= 1
        cases = [
            (bytes(spoiled), 2),
            (batch(b"a")[:-1], 87),
            (b"short", 87),
            (batch(b"a") + batch(b"b"), 87),
            (b"", 87),
        ]
        for data, code in cases:
            assert (
                one(await client.call("Produce", 12, **produce_fields("t", 0, data))).error_code
                == code
            )
        assert values(cluster) == []


async def test_idempotent_sequences_are_checked(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        first = await client.call(
            "InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1
        )
        second = await client.call(
            "InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1
        )
        assert (first.producer_id, first.producer_epoch, second.producer_id) == (1000, 0, 1001)

        async def send(sequence: int, count: int = 2, epoch: int = 0) -> tuple[int, int]:
            data = batch(*[b"x"] * count, producer=(1000, epoch, sequence))
            answer = one(await client.call("Produce", 12, **produce_fields("t", 0, data)))
            return answer.error_code, answer.base_offset

        assert await send(0) == (0, 0)
        assert await send(2) == (0, 2)
        assert await send(2) == (0, 2)  # a repeated batch gets the same response
        assert await send(0) == (0, 0)
        assert await send(6) == (45, -1)  # a gap
        for sequence in (4, 6, 8, 10, 12):
            assert await send(sequence) == (0, sequence)
        # The batch is forgotten by now; Kafka 4 no longer says DUPLICATE_SEQUENCE_NUMBER.
        assert await send(0) == (
            45,
            -1,
        )
        assert await send(4, epoch=1) == (45, -1)
        assert await send(0, epoch=1) == (0, 14)
        assert await send(14) == (47, -1)
        assert len(values(cluster)) == 16


async def test_acks_0_has_no_response(autojump_clock: Clock) -> None:
    """An error closes the connection."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        from kafka.protocol.producer import ProduceRequest

        from trikafka.testing.messages import build

        await client.send(build(ProduceRequest, 12, produce_fields("t", 0, batch(b"a"), acks=0)))
        # With acks=0 there is no answer: the next one is that of the next request.
        assert (await client.call("Metadata", 12, topics=None)).topics
        assert values(cluster) == [b"a"]
        await client.send(build(ProduceRequest, 12, produce_fields("none", 0, batch(b"a"), acks=0)))
        assert await client.closed()


async def test_refusals_of_produce(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 2}) as cluster:
        cluster.create_topic("small", 1, {"max.message.bytes": "100"})
        client = await RawClient.connect(cluster)
        for topic, partition, code in (("none", 0, 3), ("t", 7, 3), ("t", 1, 6), ("small", 0, 10)):
            answer = await client.call(
                "Produce", 12, **produce_fields(topic, partition, batch(b"a" * 100))
            )
            assert (one(answer).error_code, one(answer).base_offset) == (code, -1)
        moved = await client.call("Produce", 12, **produce_fields("t", 1, batch(b"a")))
        assert one(moved).current_leader.leader_id == 1
        assert [(node.node_id, node.host) for node in moved.node_endpoints] == [(1, "broker-1")]
        answer = await client.call("Produce", 12, **produce_fields("t", 0, batch(b"a"), acks=3))
        assert one(answer).error_code == 21


async def test_scripted_errors_may_precede_the_write(autojump_clock: Clock) -> None:
    """An error may also follow the write, and be for one partition."""
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        client = await RawClient.connect(cluster)
        cluster.fail("Produce", 6)
        cluster.fail("Produce", 20, after=True)
        for code, stored in ((6, []), (20, [b"a"])):
            assert (
                one(
                    await client.call("Produce", 12, **produce_fields("t", 0, batch(b"a")))
                ).error_code
                == code
            )
            assert values(cluster) == stored
        cluster.drop("Produce", after=True)
        with pytest.raises(EOFError):
            await client.call("Produce", 12, **produce_fields("t", 0, batch(b"b")))
        assert values(cluster) == [b"a", b"b"]
        client = await RawClient.connect(cluster)
        cluster.fail("Produce", 7, topic="t", partition=1)
        both = produce_fields("t", 0, batch(b"c"))
        both["topic_data"][0]["partition_data"].append({"index": 1, "records": batch(b"d")})
        answer = await client.call("Produce", 12, **both)
        assert [part.error_code for part in answer.responses[0].partition_responses] == [0, 7]


async def test_log_append_time_is_in_the_batch(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster:
        cluster.create_topic("t", 1, {"message.timestamp.type": "LogAppendTime"})
        client = await RawClient.connect(cluster)
        await trio.sleep(5)
        answer = one(await client.call("Produce", 12, **produce_fields("t", 0, batch(b"a", b"b"))))
        assert answer.log_append_time_ms == 1_700_000_005_000
        assert [(r.timestamp, r.timestamp_type) for r in cluster.records("t", 0)] == [
            (1_700_000_005_000, 1)
        ] * 2


async def test_fetch_waits_for_its_bytes_or_time(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        assert (
            bytes(
                one(
                    await client.call("Fetch", 12, **fetch_fields("t", 0, 0, max_wait_ms=500))
                ).records
            )
            == b""
        )
        assert trio.current_time() == 0.5
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                for _ in range(2):
                    await trio.sleep(1)
                    cluster.append("t", 0, [b"x"])

            nursery.start_soon(write)
            answer = await client.call(
                "Fetch", 12, **fetch_fields("t", 0, 0, max_wait_ms=60_000, min_bytes=100)
            )
            assert trio.current_time() == 2.5
            assert bytes(one(answer).records) == b"".join(
                stored.data for stored in cluster.partition("t", 0).batches
            )


async def test_moved_leader_wakes_a_fetch(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        async with trio.open_nursery() as nursery:

            async def move() -> None:
                await trio.sleep(1)
                cluster.move_leader("t", 0, 1)

            nursery.start_soon(move)
            answer = await client.call(
                "Fetch",
                16,
                **fetch_fields("t", 0, 0, max_wait_ms=60_000, topic_id=cluster.topic_id("t")),
            )
            assert trio.current_time() == 1
        assert (one(answer).error_code, one(answer).current_leader.leader_id) == (6, 1)
        assert answer.node_endpoints[0].host == "broker-1"


async def test_refusals_of_fetch_come_at_once(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 2}) as cluster:
        client = await RawClient.connect(cluster)
        cluster.append("t", 0, [b"a"] * 4)
        cluster.append("t", 0, [b"b"])
        cluster.delete_records("t", 0, 4)
        cases = [
            ("none", 0, 0, -1, 3),
            ("t", 1, 0, -1, 6),
            ("t", 0, 3, -1, 1),
            ("t", 0, 6, -1, 1),
            ("t", 0, 4, 1, 75),
            ("t", 0, 4, 0, 0),
        ]
        for topic, partition, offset, epoch, code in cases:
            fields = fetch_fields(
                topic, partition, offset, current_leader_epoch=epoch, max_wait_ms=9000
            )
            assert one(await client.call("Fetch", 12, **fields)).error_code == code
        cluster.move_leader("t", 0, 0)
        assert (
            one(
                await client.call("Fetch", 12, **fetch_fields("t", 0, 4, current_leader_epoch=0))
            ).error_code
            == 74
        )
        cluster.fail("Fetch", 29, topic="t")
        assert one(await client.call("Fetch", 12, **fetch_fields("t", 0, 4))).error_code == 29
        assert (
            await client.call("Fetch", 12, **fetch_fields("t", 0, 4, session_id=5, session_epoch=1))
        ).error_code == 70
        assert one(await client.call("Fetch", 13, **fetch_fields("t", 0, 4))).error_code == 100
        assert trio.current_time() == 0


async def test_fetch_is_cut_at_its_limit(autojump_clock: Clock) -> None:
    """The first batch is whole."""
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        client = await RawClient.connect(cluster)
        for partition in (0, 1):
            cluster.append("t", partition, [b"a" * 100])
            cluster.append("t", partition, [b"b" * 100])
        first = cluster.partition("t", 0).batches[0].data
        small = one(
            await client.call("Fetch", 12, **fetch_fields("t", 0, 0, partition_max_bytes=10))
        )
        assert bytes(small.records) == first
        more = one(
            await client.call(
                "Fetch", 12, **fetch_fields("t", 0, 0, partition_max_bytes=len(first) + 7)
            )
        )
        assert len(more.records) == len(first) + 7
        fields = fetch_fields("t", 0, 0, max_bytes=10)
        fields["topics"][0]["partitions"].append(
            {"partition": 1, "fetch_offset": 0, "partition_max_bytes": 1000}
        )
        parts = (await client.call("Fetch", 12, **fields)).responses[0].partitions
        assert [len(part.records) for part in parts] == [len(first), 0]


async def test_batches_gaps_and_transactions_are_kept(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        cluster.append_batch("t", 0, batch(b"a"), count=10)
        assert cluster.append("t", 0, [b"b"]) == 10
        for offset in (3, 9):
            fetched = one(await client.call("Fetch", 12, **fetch_fields("t", 0, offset)))
            assert len(fetched.records) == sum(
                len(stored.data) for stored in cluster.partition("t", 0).batches
            )
        cluster.append_batch("t", 0, batch(b"open", b"tx", producer=(5, 0, 0), transactional=True))
        seen = one(await client.call("Fetch", 12, **fetch_fields("t", 0, 10, isolation_level=1)))
        assert (seen.high_watermark, seen.last_stable_offset, seen.aborted_transactions) == (
            13,
            11,
            [],
        )
        assert len(seen.records) == len(batch(b"b"))
        cluster.append_batch("t", 0, control_batch(5, 0, commit=False, timestamp=5))
        seen = one(await client.call("Fetch", 12, **fetch_fields("t", 0, 10, isolation_level=1)))
        assert (seen.high_watermark, seen.last_stable_offset) == (14, 14)
        assert [(item.producer_id, item.first_offset) for item in seen.aborted_transactions] == [
            (5, 11)
        ]
        assert (
            one(await client.call("Fetch", 12, **fetch_fields("t", 0, 10))).aborted_transactions
            is None
        )


@pytest.mark.parametrize("version", range(1, 12))
async def test_list_offsets_in_every_version(autojump_clock: Clock, version: int) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 2}) as cluster:
        client = await RawClient.connect(cluster)
        cluster.append("t", 0, [(None, b"a", 100), (None, b"b", 300), (None, b"c", 200)])
        cluster.append("t", 0, [(None, b"d", 400)])

        async def ask(timestamp: int, partition: int = 0, topic: str = "t") -> tuple[int, int, int]:
            item = {
                "name": topic,
                "partitions": [{"partition_index": partition, "timestamp": timestamp}],
            }
            found = one(
                await client.call(
                    "ListOffsets", version, replica_id=-1, isolation_level=0, topics=[item]
                )
            )
            return found.error_code, found.offset, found.timestamp

        assert await ask(-1) == (0, 4, -1)
        assert await ask(-2) == (0, 0, -1)
        assert await ask(-3) == ((0, 3, 400) if version >= 7 else (35, -1, -1))
        assert await ask(0) == (0, 0, 100)
        assert await ask(101) == (0, 1, 300)
        assert await ask(400) == (0, 3, 400)
        assert await ask(401) == (0, -1, -1)
        assert await ask(-1, partition=1) == (6, -1, -1)
        assert await ask(-1, topic="none") == (3, -1, -1)
        cluster.delete_records("t", 0, 2)
        assert await ask(-2) == (0, 2, -1)
        assert await ask(0) == (0, 2, 200)


async def test_end_of_a_leader_epoch_is_found(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        cluster.append("t", 0, [b"a", b"b"])
        cluster.move_leader("t", 0, 0)
        cluster.append("t", 0, [b"c"])
        for epoch, expected in ((0, (0, 2)), (1, (1, 3)), (2, (-1, -1))):
            part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
            answer = await client.call(
                "OffsetForLeaderEpoch",
                4,
                replica_id=-1,
                topics=[{"topic": "t", "partitions": [part]}],
            )
            found = answer.topics[0].partitions[0]
            assert (found.leader_epoch, found.end_offset) == expected


async def test_transactional_id_keeps_its_producer_id(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2) as cluster:
        client = await RawClient.connect(cluster)
        found = []
        for _ in range(2):
            answer = await client.call(
                "InitProducerId", 4, transactional_id="x", transaction_timeout_ms=1
            )
            found.append((answer.error_code, answer.producer_id, answer.producer_epoch))
        assert found == [(0, 1000, 0), (0, 1000, 1)]
        cluster.move_coordinator(1)
        assert (
            await client.call("InitProducerId", 4, transactional_id="x", transaction_timeout_ms=1)
        ).error_code == 16
