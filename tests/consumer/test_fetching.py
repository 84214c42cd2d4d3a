"""Fetch requests: no hot loop, sessions, preferred replicas, leader hints, topic ids."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from consuming import T0, T1, cluster_of, consumer_of, until, values
from trio.testing import MockClock as Clock

from trikafka import TopicPartition
from trikafka.error_codes import ErrorCode
from trikafka.errors import (
    CorruptRecordError,
    NoOffsetForPartitionError,
    OffsetMovedToTieredStorageError,
    OffsetOutOfRangeError,
)
from trikafka.testing import ScriptedCluster, cut, respond


async def receives_nothing(consumer: Any, seconds: float) -> None:
    with trio.move_on_after(seconds):
        while True:
            assert not await consumer.receive_batch()


# --- no loop runs hot -----------------------------------------------------------------------------


async def test_cut_batches_are_an_error(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=3) as cluster, consumer_of(cluster) as consumer:

        async def cut_records(request: Any, default: Any) -> Any:
            response = await default()
            for topic in response.responses:
                for part in topic.partitions:
                    part.records = part.records[:40] if part.records else part.records
            return response

        cluster.on("Fetch", cut_records)
        consumer.assign([T0, T1])
        met = set()
        with trio.fail_after(5):
            while len(met) < 2:
                with pytest.raises(CorruptRecordError, match="no complete record batch") as raised:
                    await consumer.receive()
                met.add(raised.value.partition)
        await trio.sleep(3)
        assert len(cluster.requests("Fetch")) < 20


async def test_batches_before_the_offset_are_an_error(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=3) as cluster, consumer_of(cluster) as consumer:

        async def stale(request: Any, default: Any) -> Any:
            for topic in request.topics:
                for part in topic.partitions:
                    part.fetch_offset = 0
            return await default()

        consumer.assign([T0, T1])
        # So that the seek is before the first fetch.
        cluster.fail("Fetch", ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)
        for tp in (T0, T1):
            consumer.seek(tp, 3)
        cluster.on("Fetch", stale, where=lambda request: bool(request.topics))
        with trio.fail_after(5), pytest.raises(CorruptRecordError):
            await consumer.receive()
        await trio.sleep(3)
        assert len(cluster.requests("Fetch")) < 30


async def test_early_empty_responses_are_no_hot_loop(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(2, records=3) as cluster, consumer_of(cluster) as consumer:

        async def nothing(request: Any, default: Any) -> Any:
            response = await default()
            for topic in response.responses:
                for part in topic.partitions:
                    part.records = b""
            return response

        rule = cluster.on("Fetch", nothing)
        consumer.assign([T0, T1])
        await receives_nothing(consumer, 10)
        assert 5 < len(cluster.requests("Fetch")) < 25
        rule.remove()
        with trio.fail_after(2):
            assert await values(consumer, 1) == [b"0"]


async def test_omitted_partition_delays_no_other(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(2, records=3) as cluster, consumer_of(cluster) as consumer:
        for node in cluster._state.nodes:
            node.sessions.limit = 0
        cluster.leave_out("Fetch", "t", 0, times=None)
        consumer.assign([T0, T1])
        with trio.fail_after(2):
            assert [record.partition for record in await consumer.receive_batch()] == [1, 1, 1]
        await receives_nothing(consumer, 10)
        assert len(cluster.requests("Fetch")) < 60


async def test_endless_out_of_range_is_asked_rarely(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(records=3) as cluster, consumer_of(cluster) as consumer:
        rule = cluster.fail("Fetch", ErrorCode.OFFSET_OUT_OF_RANGE, None)
        consumer.assign([T0])
        await receives_nothing(consumer, 20)
        assert 10 < len(cluster.requests("Fetch")) < 60
        assert len(cluster.requests("ListOffsets")) < 40
        rule.remove()
        with trio.fail_after(3):
            assert await values(consumer, 1) == [b"0"]


async def test_unknown_replica_is_no_hot_loop(autojump_clock: Clock) -> None:
    async with cluster_of(records=3) as cluster, consumer_of(cluster, client_rack="a") as consumer:

        async def elsewhere(request: Any, default: Any) -> Any:
            response = await default()
            for topic in response.responses:
                for part in topic.partitions:
                    part.preferred_read_replica = 77
                    part.records = b""
            return response

        rule = cluster.on("Fetch", elsewhere)
        consumer.assign([T0])
        await receives_nothing(consumer, 10)
        assert len(cluster.requests("Fetch")) < 30
        assert len(cluster.requests("Metadata")) > 3
        rule.remove()
        with trio.fail_after(2):
            assert await values(consumer, 3) == [b"0", b"1", b"2"]


async def test_refused_sessions_are_no_hot_loop(autojump_clock: Clock) -> None:
    async with cluster_of(records=3) as cluster, consumer_of(cluster) as consumer:
        rule = cluster.fail("Fetch", ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None)
        consumer.assign([T0])
        await receives_nothing(consumer, 10)
        assert len(cluster.requests("Fetch")) < 25
        rule.remove()
        with trio.fail_after(2):
            assert await values(consumer, 1) == [b"0"]


# --- sessions (KIP-227) ---------------------------------------------------------------------------


async def test_fetch_names_only_partitions_with_data(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 500}) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([TopicPartition("t", number) for number in range(500)])
        await receives_nothing(consumer, 2)
        before, count = cluster.transferred("Fetch"), len(cluster.requests("Fetch"))
        for number in range(20):
            cluster.append("t", 7, [b"%d" % number])
            with trio.fail_after(1):
                assert await values(consumer, 1) == [b"%d" % number]
        after = cluster.transferred("Fetch")
        fetches = len(cluster.requests("Fetch")) - count
        assert 20 <= fetches <= 24
        assert (after[0] - before[0]) / fetches < 150, "bytes of a request"
        assert (after[1] - before[1]) / fetches < 250, "bytes of a response"


async def test_sessions_count_epochs_and_forget(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(3, records=1) as cluster, consumer_of(cluster) as consumer:
        tps = [TopicPartition("t", number) for number in range(3)]
        consumer.assign(tps)
        assert sorted(await values(consumer, 3)) == [b"0"] * 3
        await receives_nothing(consumer, 2)
        seen = [each.request for each in cluster.requests("Fetch")]
        assert [request.session_epoch for request in seen] == list(range(len(seen)))
        assert len({request.session_id for request in seen[1:]}) == 1
        assert len(seen[0].topics[0].partitions) == 3
        consumer.pause([tps[1]])
        await receives_nothing(consumer, 1)
        last = [each.request for each in cluster.requests("Fetch")][len(seen) :]
        assert [
            list(topic.partitions) for request in last for topic in request.forgotten_topics_data
        ] == [[1]]
        cluster.append("t", 1, [b"later"])
        consumer.resume([tps[1]])
        with trio.fail_after(1):
            assert await values(consumer, 1) == [b"later"]


@pytest.mark.parametrize(
    "code", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH]
)
async def test_refused_session_is_replaced_at_once(autojump_clock: Clock, code: int) -> None:
    async with cluster_of(2, records=2) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0, T1])
        assert len(await values(consumer, 4)) == 4
        cluster.fail("Fetch", code, 1)
        await receives_nothing(consumer, 1)
        began = trio.current_time()
        cluster.append("t", 1, [b"after"])
        assert await values(consumer, 1) == [b"after"]
        assert trio.current_time() - began < 0.6
        assert [each.request.session_epoch for each in cluster.requests("Fetch")].count(0) == 2


async def test_session_ends_with_its_connection(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=2) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0, T1])
        assert len(await values(consumer, 4)) == 4
        cluster.disconnect()
        cluster.append("t", 0, [b"x"])
        with trio.fail_after(3):
            assert await values(consumer, 1) == [b"x"]
        full = [
            each.request for each in cluster.requests("Fetch") if each.request.session_epoch == 0
        ]
        assert len(full) == 2
        assert len(full[1].topics[0].partitions) == 2


@pytest.mark.parametrize("versions", [(4, 6), (4, 11), (4, 12), (4, 13), (4, 18)])
async def test_all_broker_versions_are_read(
    autojump_clock: Clock, versions: tuple[int, int]
) -> None:
    async with cluster_of(2, records=4) as cluster:
        cluster.offer("Fetch", versions)
        async with consumer_of(cluster) as consumer:
            consumer.assign([T0, T1])
            assert sorted(await values(consumer, 8)) == sorted([b"0", b"1", b"2", b"3"] * 2)
            cluster.append("t", 1, [b"x"])
            assert await values(consumer, 1) == [b"x"]
            assert {each.version for each in cluster.requests("Fetch")} == {min(versions[1], 17)}


async def test_full_fetches_without_a_session(autojump_clock: Clock) -> None:
    async with (
        cluster_of(2, records=2, fetch_sessions=0) as cluster,
        consumer_of(cluster) as consumer,
    ):
        consumer.assign([T0, T1])
        assert len(await values(consumer, 4)) == 4
        cluster.append("t", 0, [b"x"])
        assert await values(consumer, 1) == [b"x"]
        assert {each.request.session_epoch for each in cluster.requests("Fetch")} == {0}


async def test_partitions_take_turns_in_small_fetches(autojump_clock: Clock) -> None:
    for sessions in (0, 10):
        async with ScriptedCluster(topics={"t": 4}, fetch_sessions=sessions) as cluster:
            for number in range(4):
                for _ in range(5):
                    cluster.append("t", number, [bytes(1000)])
            async with consumer_of(cluster, fetch_max_bytes=1) as consumer:
                consumer.assign([TopicPartition("t", number) for number in range(4)])
                first = [(await consumer.receive()).partition for _ in range(8)]
                assert {first.count(number) for number in range(4)} == {2}


# --- preferred replicas (KIP-392) -----------------------------------------------------------------

RACKS = {"nodes": 3, "racks": ("a", "b", "c")}


async def test_replica_in_the_rack_is_read(autojump_clock: Clock) -> None:
    async with (
        cluster_of(3, records=10, **RACKS) as cluster,
        consumer_of(cluster, client_rack="b") as consumer,
    ):
        consumer.assign([TopicPartition("t", number) for number in range(3)])
        with trio.fail_after(5):
            assert len(await values(consumer, 30)) == 30
        asked = len(cluster.requests("Fetch"))
        assert asked < 20
        await receives_nothing(consumer, 5)
        later = cluster.requests("Fetch")[asked:]
        assert {each.node_id for each in later if each.time > trio.current_time() - 4} == {1}


async def test_failed_replica_falls_back_to_the_leader(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=3, **RACKS) as cluster,
        consumer_of(cluster, client_rack="b") as consumer,
    ):
        consumer.assign([T0])
        assert len(await values(consumer, 3)) == 3
        await receives_nothing(consumer, 1)
        cluster.stop(1, noticed=False)  # the leader still names it
        cluster.append("t", 0, [b"x"])
        with trio.fail_after(3):
            assert await values(consumer, 1) == [b"x"]


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
async def test_error_of_a_replica_is_no_reset(autojump_clock: Clock, code: int) -> None:
    async with (
        cluster_of(records=3, **RACKS) as cluster,
        consumer_of(cluster, client_rack="b") as consumer,
    ):
        consumer.assign([T0])
        assert len(await values(consumer, 3)) == 3
        await receives_nothing(consumer, 1)
        cluster.fail("Fetch", code, 3, node=1)
        cluster.append("t", 0, [b"x"])
        with trio.fail_after(5):
            assert await values(consumer, 1) == [b"x"]
        assert len(cluster.requests("ListOffsets")) == 1


async def test_leader_is_asked_after_metadata_max_age(autojump_clock: Clock) -> None:
    settings = {"client_rack": "b", "metadata_max_age_ms": 5000}
    async with (
        cluster_of(records=3, **RACKS) as cluster,
        consumer_of(cluster, **settings) as consumer,
    ):
        consumer.assign([T0])
        assert len(await values(consumer, 3)) == 3
        await receives_nothing(consumer, 11)
        assert [round(each.time) for each in cluster.requests("Fetch", node=0)] == [0, 5, 10]


# --- leaders (KIP-951) ----------------------------------------------------------------------------


async def test_leader_hint_spares_a_metadata_request(autojump_clock: Clock) -> None:
    async with cluster_of(nodes=3, records=2) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        assert len(await values(consumer, 2)) == 2
        looked_up = len(cluster.requests("Metadata"))
        began = trio.current_time()
        cluster.move_leader("t", 0, 2)
        cluster.append("t", 0, [b"x"])
        assert await values(consumer, 1) == [b"x"]
        assert trio.current_time() - began < 0.05
        assert len(cluster.requests("Metadata")) == looked_up


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        9_999,  # of a newer broker
    ],
)
async def test_passing_errors_are_retried_with_backoff(autojump_clock: Clock, code: int) -> None:
    async with cluster_of(records=2) as cluster, consumer_of(cluster) as consumer:
        cluster.fail("Fetch", code, 4)
        consumer.assign([T0])
        began = trio.current_time()
        assert len(await values(consumer, 2)) == 2
        assert 0.6 < trio.current_time() - began < 3
        assert len(cluster.requests("Fetch")) <= 6


#: A broker's own fault: without a reason, or with the code of a newer broker.
UNEXPLAINED = pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SERVER_ERROR, 9_999])


@UNEXPLAINED
async def test_fault_of_a_whole_response_passes(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    """A broker reports by such a response that the request as a whole made it fail."""

    async def failing(request: Any, default: Any) -> Any:
        response = await default()
        response.error_code = code
        return response

    async with cluster_of(2, records=2) as cluster, consumer_of(cluster) as consumer:
        cluster.on("Fetch", failing, 4)
        consumer.assign([T0, T1])
        began = trio.current_time()
        assert len(await values(consumer, 4)) == 4
        assert 0.6 < trio.current_time() - began < 5
        assert len(cluster.requests("Fetch")) <= 8
    assert caplog.text.count("cannot fetch from broker 0, trying again") == 1


@UNEXPLAINED
@pytest.mark.parametrize("api", ["OffsetFetch", "ListOffsets", "OffsetForLeaderEpoch"])
async def test_fault_in_a_look_up_ends_no_receive(
    autojump_clock: Clock, api: str, code: int
) -> None:
    async with (
        cluster_of(nodes=2, records=2) as cluster,
        consumer_of(cluster, group_id="g") as consumer,
    ):
        rule = cluster.fail(api, code, 3)
        consumer.assign([T0])
        with trio.fail_after(10):
            assert len(await values(consumer, 2)) == 2
            cluster.move_leader("t", 0, 1)
            cluster.append("t", 0, [b"more"])
            assert await values(consumer, 1) == [b"more"]
        assert rule.spent


async def test_fetching_resumes_after_an_outage(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "trikafka.fetch")
    async with cluster_of(3, nodes=3, records=2) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([TopicPartition("t", number) for number in range(3)])
        assert len(await values(consumer, 6)) == 6
        for node in range(3):
            cluster.stop(node, noticed=False)
        await receives_nothing(consumer, 30)
        for node in range(3):
            cluster.start(node)
        for number in range(3):
            cluster.append("t", number, [b"x"])
        with trio.fail_after(5):
            assert await values(consumer, 3) == [b"x"] * 3
    assert not [record for record in caplog.records if record.name == "trikafka.fetch"], (
        "the connections have said it"
    )


async def test_unreadable_responses_are_logged_once(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trikafka.fetch")
    async with cluster_of(records=2) as cluster, consumer_of(cluster) as consumer:
        cluster.damage("Fetch", 5, change=cut)
        consumer.assign([T0])
        assert len(await values(consumer, 2)) == 2
        await receives_nothing(consumer, 1)
    said = [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "trikafka.fetch"
    ]
    assert [level for level, _ in said] == ["WARNING", "INFO"]
    assert said[0][1].startswith("cannot fetch from broker 0, trying again: ")
    assert said[1][1] == "fetching from broker 0 again"


# --- topics with ids (KIP-516), tiered storage (KIP-405) ------------------------------------------


async def test_recreated_topic_drops_old_positions(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(records=5) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        assert len(await values(consumer, 5)) == 5
        cluster.delete_topic("t")
        cluster.create_topic("t", 1)
        cluster.append("t", 0, [b"new %d" % number for number in range(9)])
        with trio.fail_after(10):
            assert await values(consumer, 2) == [b"new 0", b"new 1"]


async def test_recreated_topic_is_an_error_without_reset(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(records=5) as cluster,
        consumer_of(cluster, auto_offset_reset="none") as consumer,
    ):
        consumer.assign([T0])
        consumer.seek(T0, 0)
        assert len(await values(consumer, 5)) == 5
        cluster.delete_topic("t")
        cluster.create_topic("t", 1)
        cluster.append("t", 0, [b"new %d" % number for number in range(9)])
        for _ in range(2):
            with trio.fail_after(10), pytest.raises(NoOffsetForPartitionError, match="t-0"):
                await consumer.receive()
        consumer.seek(T0, 3)
        assert await values(consumer, 1) == [b"new 3"]


async def test_unreadable_tiered_records_are_an_error(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, consumer_of(cluster) as consumer:
        for number in range(6):
            cluster.append("t", 0, [b"%d" % number])
        cluster.tier("t", 0, 4, readable=False)
        consumer.assign([T0])
        for _ in range(2):
            with trio.fail_after(2), pytest.raises(OffsetMovedToTieredStorageError, match="t-0"):
                await consumer.receive()
        consumer.seek(T0, 4)
        assert await values(consumer, 2) == [b"4", b"5"]


# --- room -----------------------------------------------------------------------------------------


async def test_paused_records_give_way_in_the_buffer(autojump_clock: Clock) -> None:
    async with cluster_of(3) as cluster:
        for number in range(3):
            for _ in range(100):
                cluster.append("t", number, [bytes(1000)] * 10)
        settings = {"fetch_buffer_bytes": 200_000, "max_partition_fetch_bytes": 20_000}
        tps = [TopicPartition("t", number) for number in range(3)]
        async with consumer_of(cluster, **settings) as consumer:
            consumer.assign(tps)
            await until(lambda: consumer.statistics().buffered_bytes > 100_000)
            consumer.pause(tps[:2])
            most, got = 0, 0
            with trio.fail_after(60):
                while got < 1000:
                    batch = await consumer.receive_batch()
                    assert batch.partition == 2
                    got += len(batch)
                    most = max(most, consumer.statistics().buffered_bytes)
            assert most < 220_000
            consumer.resume(tps[:2])
            offsets: dict[int, list[int]] = {0: [], 1: []}
            with trio.fail_after(60):
                while sum(map(len, offsets.values())) < 2000:
                    batch = await consumer.receive_batch()
                    offsets[batch.partition] += batch.offsets
            assert offsets == {0: list(range(1000)), 1: list(range(1000))}


async def test_out_of_range_without_reset_is_no_storm(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(records=3) as cluster,
        consumer_of(cluster, auto_offset_reset="none") as consumer,
    ):
        consumer.assign([T0])
        consumer.seek(T0, 99)
        for _ in range(3):
            with trio.fail_after(5), pytest.raises(OffsetOutOfRangeError, match="t-0"):
                await consumer.receive()
        await trio.sleep(10)
        assert len(cluster.requests("Fetch")) <= 4


async def test_empty_long_polls_are_repeated_at_once(
    autojump_clock: Clock,
) -> None:
    async with cluster_of() as cluster, consumer_of(cluster, fetch_max_wait_ms=500) as consumer:
        consumer.assign([T0])
        await receives_nothing(consumer, 10.2)
        assert len(cluster.requests("Fetch")) == 21


async def test_unrequested_partition_is_ignored(autojump_clock: Clock) -> None:
    """The response contains a partition that was not requested."""
    async with cluster_of(2, records=3) as cluster, consumer_of(cluster) as consumer:

        async def more(request: Any, default: Any) -> Any:
            response = await default()
            for topic in response.responses:
                topic.partitions += [
                    type(topic.partitions[0])(partition_index=1, error_code=0, records=b"x" * 100)
                ]
            return response

        cluster.on("Fetch", more, 1)
        consumer.assign([T0])
        assert await values(consumer, 3) == [b"0", b"1", b"2"]
        assert not await consumer.receive_batch(timeout=3)


async def test_empty_response_is_no_hot_loop(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=3) as cluster, consumer_of(cluster) as consumer:

        async def silent(request: Any, _: Any) -> Any:
            return respond(request, throttle_time_ms=0, error_code=0, session_id=0, responses=[])

        rule = cluster.on("Fetch", silent)
        consumer.assign([T0, T1])
        await receives_nothing(consumer, 10)
        assert len(cluster.requests("Fetch")) < 40
        rule.remove()
        with trio.fail_after(2):
            assert len(await values(consumer, 6)) == 6


async def test_seek_during_a_fetch_drops_its_response(autojump_clock: Clock) -> None:
    """The plan changes while the fetch is in flight, whose response still is for the old offset."""

    def later(request: Any) -> bool:
        return any(part.fetch_offset > 0 for topic in request.topics for part in topic.partitions)

    async with (
        cluster_of(2) as cluster,
        consumer_of(cluster, max_partition_fetch_bytes=150) as consumer,
    ):
        for number in range(9):
            cluster.append("t", 0, [b"%d" % number + bytes(100)])
        cluster.delay("Fetch", 0.2, 1, after=True, where=later)
        consumer.assign([T0, T1])
        assert (await consumer.receive()).offset == 0
        await cluster.seen("Fetch", 2)
        consumer.seek(T0, 0)
        consumer.resume([T1])  # which has the plan looked at
        with trio.fail_after(10):
            assert [(await consumer.receive()).offset for _ in range(9)] == list(range(9))
