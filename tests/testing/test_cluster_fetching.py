"""Fetch sessions, followers in racks, truncated logs and remote storage."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from conversations import batch
from fetch_conversations import wanting
from rawclient import RawClient
from trio.testing import MockClock as Clock

from trikafka.testing import ScriptedCluster, control_batch


async def fetch(client: RawClient, version: int, *topics: dict[str, Any], **fields: Any) -> Any:
    values = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 50_000_000,
        "session_id": 0,
        "session_epoch": -1,
        "isolation_level": 0,
    }
    values |= {"forgotten_topics_data": [], "rack_id": "", "topics": list(topics)}
    return await client.call("Fetch", version, **(values | fields))


def parts_of(answer: Any) -> list[Any]:
    return [part for item in answer.responses for part in item.partitions]


def one(answer: Any) -> Any:
    (part,) = parts_of(answer)
    return part


@pytest.mark.parametrize("version", range(7, 19))
async def test_session_costs_bytes_for_one_partition(autojump_clock: Clock, version: int) -> None:
    """There are 500 partitions, and one of them has records."""
    async with ScriptedCluster(topics={"t": 500}) as cluster:
        client = await RawClient.connect(cluster)
        named = {"topic": "t", "topic_id": cluster.topic_id("t")}
        everything = wanting("t", dict.fromkeys(range(500), 0)) | named
        opened = await fetch(client, version, everything, session_epoch=0)
        assert (opened.session_id > 0, len(parts_of(opened))) == (True, 500)
        first = cluster.requests("Fetch")[-1]
        cluster.append("t", 7, [b"x"])
        answer = await fetch(client, version, session_id=opened.session_id, session_epoch=1)
        assert [part.partition_index for part in parts_of(answer)] == [7]
        second = cluster.requests("Fetch")[-1]
        assert (first.request_bytes > 10_000, second.request_bytes < 100) == (True, True)
        assert (first.response_bytes > 10_000, second.response_bytes < 250) == (True, True)
        assert cluster.transferred("Fetch") == (
            first.request_bytes + second.request_bytes,
            first.response_bytes + second.response_bytes,
        )
        quiet = {"session_id": opened.session_id, "max_wait_ms": 500}
        moved = wanting("t", {7: 1}) | named
        assert parts_of(await fetch(client, version, moved, session_epoch=2, **quiet)) == []
        assert trio.current_time() == 0.5


async def test_partition_with_records_moves_to_the_end(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 3}) as cluster:
        client = await RawClient.connect(cluster)
        for partition in range(3):
            cluster.append("t", partition, [b"x" * 100])
        session = (
            await fetch(client, 12, wanting("t", {0: 0, 1: 0, 2: 0}), session_epoch=0, max_bytes=10)
        ).session_id
        served = []
        for epoch in range(1, 4):
            answer = await fetch(client, 12, session_id=session, session_epoch=epoch, max_bytes=10)
            served += [part.partition_index for part in parts_of(answer) if part.records]
        assert served == [1, 2, 0]


async def test_session_ends_with_its_node_or_on_demand(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        session = (await fetch(client, 12, wanting("t", {0: 0}), session_epoch=0)).session_id
        other = await RawClient.connect(cluster, 1)
        assert (await fetch(other, 12, session_id=session, session_epoch=1)).error_code == 70
        cluster.forget_fetch_sessions(0)
        assert (await fetch(client, 12, session_id=session, session_epoch=1)).error_code == 70
        session = (await fetch(client, 12, wanting("t", {0: 0}), session_epoch=0)).session_id
        assert (await fetch(client, 12, session_id=session, session_epoch=2)).error_code == 71
        assert (await fetch(client, 12, session_id=session, session_epoch=1)).error_code == 0
        cluster.stop(0)
        cluster.start(0)
        client = await RawClient.connect(cluster)
        assert (await fetch(client, 12, session_id=session, session_epoch=2)).error_code == 70


async def test_full_cache_gives_no_session(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}, fetch_sessions=1) as cluster:
        client = await RawClient.connect(cluster)
        found = [await fetch(client, 12, wanting("t", {0: 0}), session_epoch=0) for _ in range(2)]
        assert [(answer.error_code, answer.session_id) for answer in found] == [(0, 1), (0, 0)]
        await fetch(client, 12, session_id=1, session_epoch=-1)
        assert (await fetch(client, 12, wanting("t", {0: 0}), session_epoch=0)).session_id == 2


async def test_consumer_is_sent_to_its_racks_follower(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=3, racks=["a", "b", "c"], topics={"t": 1}) as cluster:
        leader, follower = await RawClient.connect(cluster, 0), await RawClient.connect(cluster, 1)
        cluster.append("t", 0, [b"a", b"b"])
        cluster.append("t", 0, [b"c"])
        answer = one(await fetch(leader, 11, wanting("t", {0: 0}), rack_id="b", max_wait_ms=9000))
        assert (
            answer.error_code,
            answer.preferred_read_replica,
            answer.records,
            answer.high_watermark,
        ) == (0, 1, b"", 3)
        assert trio.current_time() == 0
        for rack in ("a", "z", ""):
            answer = one(await fetch(leader, 11, wanting("t", {0: 0}), rack_id=rack))
            assert (answer.preferred_read_replica, len(answer.records) > 0) == (-1, True)
        cluster.lag("t", 0, 1, 2)
        answer = one(await fetch(follower, 11, wanting("t", {0: 0}), rack_id="b"))
        assert (answer.error_code, answer.preferred_read_replica, answer.high_watermark) == (
            0,
            -1,
            2,
        )
        assert bytes(answer.records) == cluster.partition("t", 0).batches[0].data
        assert one(await fetch(follower, 11, wanting("t", {0: 3}), rack_id="b")).error_code == 1
        # Fetch 10 is too old for a redirection.
        assert one(await fetch(follower, 10, wanting("t", {0: 0}))).error_code == 6
        # The replica in the rack lags behind.
        assert (
            one(await fetch(leader, 11, wanting("t", {0: 3}), rack_id="b")).preferred_read_replica
            == -1
        )
        cluster.lag("t", 0, 1, None)
        assert (
            one(await fetch(leader, 11, wanting("t", {0: 3}), rack_id="b")).preferred_read_replica
            == 1
        )
        cluster.stop(1)
        assert (
            one(await fetch(leader, 11, wanting("t", {0: 0}), rack_id="b")).preferred_read_replica
            == -1
        )


async def test_follower_fetch_waits_for_the_record(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, racks=["a", "b"], topics={"t": 1}) as cluster:
        follower = await RawClient.connect(cluster, 1)
        cluster.lag("t", 0, 1, 0)
        cluster.append("t", 0, [b"a"])
        async with trio.open_nursery() as nursery:

            async def catch_up() -> None:
                await trio.sleep(2)
                cluster.lag("t", 0, 1, None)

            nursery.start_soon(catch_up)
            answer = one(
                await fetch(follower, 12, wanting("t", {0: 0}), rack_id="b", max_wait_ms=9000)
            )
        assert (trio.current_time(), answer.high_watermark, len(answer.records) > 0) == (2, 1, True)


async def test_follower_without_racks_names_the_leader(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster:
        answer = await fetch(
            await RawClient.connect(cluster, 1),
            16,
            wanting("t", {0: 0}) | {"topic_id": cluster.topic_id("t")},
        )
        assert (one(answer).error_code, one(answer).current_leader.leader_id) == (6, 0)
        assert [(node.node_id, node.host, node.port) for node in answer.node_endpoints] == [
            (0, "broker-0", 9092)
        ]


@pytest.mark.parametrize("version", [12, 15, 16, 18])
async def test_unclean_election_truncates_the_log(autojump_clock: Clock, version: int) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster, 1)
        for value in (b"a", b"b", b"c"):
            cluster.append("t", 0, [value])
        cluster.elect_uncleanly("t", 0, 1, 1)
        cluster.append("t", 0, [b"d", b"e", b"f"])

        async def ask(offset: int, epoch: int, last: int) -> Any:
            fields = {"current_leader_epoch": epoch, "last_fetched_epoch": last}
            topic = wanting("t", {0: offset}, **fields) | {"topic_id": cluster.topic_id("t")}
            return await fetch(client, version, topic, max_wait_ms=9000)

        answer = one(await ask(3, 1, 0))
        assert (
            answer.error_code,
            answer.diverging_epoch.epoch,
            answer.diverging_epoch.end_offset,
        ) == (0, 0, 1)
        assert (answer.records, answer.high_watermark) == (b"", 4)
        assert [record.value for record in cluster.records("t", 0)] == [b"a", b"d", b"e", b"f"]
        assert one(await ask(1, 1, 0)).diverging_epoch is None
        assert one(await ask(3, 1, 1)).diverging_epoch is None
        fenced = await ask(3, 0, 0)
        leads = one(fenced).current_leader
        assert one(fenced).error_code == 74
        assert (leads and (leads.leader_id, leads.leader_epoch)) == (
            (1, 1) if version >= 16 else None
        )
        assert [node.node_id for node in fenced.node_endpoints] == ([1] if version >= 16 else [])
        assert one(await ask(3, 2, 0)).error_code == 75
        part = {"partition": 0, "current_leader_epoch": 1, "leader_epoch": 0}
        found = await client.call(
            "OffsetForLeaderEpoch", 4, replica_id=-1, topics=[{"topic": "t", "partitions": [part]}]
        )
        ends = found.topics[0].partitions[0]
        assert (ends.error_code, ends.leader_epoch, ends.end_offset) == (0, 0, 1)
        assert trio.current_time() == 0


async def test_epochs_fence_list_offsets_before_leaders(autojump_clock: Clock) -> None:
    """The epoch is checked before the leader."""
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        cluster.append("t", 0, [b"a"])
        cluster.move_leader("t", 0, 1)
        found = []
        for epoch in (-1, 0, 1, 2):
            item = {
                "name": "t",
                "partitions": [
                    {"partition_index": 0, "timestamp": -1, "current_leader_epoch": epoch}
                ],
            }
            answer = await client.call(
                "ListOffsets", 7, replica_id=-1, isolation_level=0, topics=[item]
            )
            found.append(answer.topics[0].partitions[0].error_code)
        assert found == [6, 74, 6, 75]


async def test_remote_storage_is_simulated(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        for value in (b"a", b"b", b"c", b"d"):
            cluster.append("t", 0, [value])
        cluster.tier("t", 0, 2)
        named = {}
        for timestamp in (-2, -4, -5, -1):
            item = {"name": "t", "partitions": [{"partition_index": 0, "timestamp": timestamp}]}
            answer = await client.call(
                "ListOffsets", 9, replica_id=-1, isolation_level=0, topics=[item]
            )
            named[timestamp] = answer.topics[0].partitions[0].offset
        assert named == {-2: 0, -4: 2, -5: 1, -1: 4}
        topic = wanting("t", {0: 1}) | {"topic_id": cluster.topic_id("t")}
        assert one(await fetch(client, 14, topic)).error_code == 0
        cluster.tier("t", 0, 2, readable=False)
        assert one(await fetch(client, 14, topic)).error_code == 109


async def test_read_committed_ends_at_open_transactions(autojump_clock: Clock) -> None:
    """The response names the aborted transactions of its records."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        client = await RawClient.connect(cluster)
        for producer in (5, 6):
            cluster.append_batch("t", 0, batch(b"x", producer=(producer, 0, 0), transactional=True))
            cluster.append_batch("t", 0, control_batch(producer, 0, commit=False, timestamp=1))
        cluster.append("t", 0, [b"plain"])
        cluster.append_batch("t", 0, batch(b"open", producer=(7, 0, 0), transactional=True))
        cluster.append("t", 0, [b"behind"])

        async def ask(offset: int, **fields: Any) -> Any:
            return one(
                await fetch(client, 12, wanting("t", {0: offset}, **fields), isolation_level=1)
            )

        def aborted(answer: Any) -> list[tuple[int, int]]:
            return [
                (entry.producer_id, entry.first_offset) for entry in answer.aborted_transactions
            ]

        whole = await ask(0)
        assert (whole.high_watermark, whole.last_stable_offset, aborted(whole)) == (
            7,
            5,
            [(5, 0), (6, 2)],
        )
        sizes = [len(stored.data) for stored in cluster.partition("t", 0).batches]
        assert len(whole.records) == sum(sizes[:5])
        assert aborted(await ask(0, partition_max_bytes=1)) == [(5, 0)]
        assert aborted(await ask(2)) == [(6, 2)]
        at_the_end = await ask(5)
        assert (at_the_end.error_code, at_the_end.records, aborted(at_the_end)) == (0, b"", [])
        plain = one(await fetch(client, 12, wanting("t", {0: 0})))
        assert (plain.last_stable_offset, plain.aborted_transactions, len(plain.records)) == (
            5,
            None,
            sum(sizes),
        )
        for isolation, latest in ((0, 7), (1, 5)):
            item = {"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}
            answer = await client.call(
                "ListOffsets", 7, replica_id=-1, isolation_level=isolation, topics=[item]
            )
            assert answer.topics[0].partitions[0].offset == latest
