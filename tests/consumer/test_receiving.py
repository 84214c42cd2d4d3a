"""Records from the consumer: singly, in batches, paused, limited, after seeks.

None is lost or doubled.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import trio
import trio.testing
from consuming import T0, T1, cluster_of, consumer_of, until, values
from trio.testing import MockClock as Clock

from trikafka import TopicPartition
from trikafka._api.consumer.reader import BatchDecoder
from trikafka.errors import (
    AuthorizationError,
    ConfigurationError,
    CorruptRecordError,
    IllegalStateError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from trikafka.testing import ScriptedCluster, control_batch, encode_batch, respond


async def test_positions_follow_records_in_order(autojump_clock: Clock) -> None:
    async with cluster_of(records=5) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        assert await consumer.position(T0) == 0
        assert await values(consumer, 3) == [b"0", b"1", b"2"]
        assert await consumer.position(T0) == 3
        batch = await consumer.receive_batch()
        assert [record.value for record in batch] == [b"3", b"4"]
        assert await consumer.position(T0) == 5
        assert not await consumer.receive_batch(timeout=1)


async def test_early_receive_waits_for_a_record(autojump_clock: Clock) -> None:
    async with (
        cluster_of() as cluster,
        consumer_of(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):
        consumer.assign([T0])

        async def write() -> None:
            await trio.sleep(100)
            cluster.append("t", 0, [b"late"])

        nursery.start_soon(write)
        assert (await consumer.receive()).value == b"late"
        assert trio.current_time() == 100


async def test_receive_batch_ends_at_its_timeout(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        await consumer.position(T0)
        start = trio.current_time()
        batch = await consumer.receive_batch(timeout=1.5)
        assert (len(batch), batch.topic) == (0, "")
        assert trio.current_time() == start + 1.5
        await consumer.receive_batch(timeout=0)
        assert trio.current_time() == start + 1.5


async def test_receive_nowait_raises_would_block(autojump_clock: Clock) -> None:
    async with cluster_of(records=4) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        with pytest.raises(trio.WouldBlock):
            consumer.receive_nowait()
        await trio.sleep(1)
        assert consumer.receive_nowait().value == b"0"
        assert consumer.receive_nowait().value == b"1"
        assert [record.value for record in consumer.receive_batch_nowait()] == [b"2", b"3"]
        with pytest.raises(trio.WouldBlock):
            consumer.receive_nowait()
        with pytest.raises(trio.WouldBlock):
            consumer.receive_batch_nowait()


async def test_max_poll_records_bounds_batches(autojump_clock: Clock) -> None:
    async with (
        cluster_of(2, records=7) as cluster,
        consumer_of(cluster, max_poll_records=3) as consumer,
    ):
        consumer.assign([T0, T1])
        got: dict[TopicPartition, list[int]] = {T0: [], T1: []}
        sizes = []
        while sum(map(len, got.values())) < 14:
            batch = await consumer.receive_batch()
            sizes.append(len(batch))
            got[TopicPartition(batch.topic, batch.partition)] += list(batch.offsets)
            position = await consumer.position(TopicPartition(batch.topic, batch.partition))
            assert position == batch.next_offset == batch.offsets[-1] + 1
        assert got == {T0: list(range(7)), T1: list(range(7))}
        assert max(sizes) == 3


async def test_receive_and_receive_batch_may_alternate(autojump_clock: Clock) -> None:
    async with (
        cluster_of(2, records=6) as cluster,
        consumer_of(cluster, max_poll_records=2) as consumer,
    ):
        consumer.assign([T0, T1])
        got: dict[int, list[int]] = {0: [], 1: []}
        turn = 0
        while sum(map(len, got.values())) < 12:
            turn += 1
            if turn % 2:
                record = await consumer.receive()
                got[record.partition].append(record.offset)
            else:
                batch = await consumer.receive_batch()
                got[batch.partition] += list(batch.offsets)
        assert got == {0: list(range(6)), 1: list(range(6))}


async def test_pause_keeps_the_rest_of_a_batch(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=4) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0, T1])
        first = await consumer.receive()
        held, other = (T0, T1) if first.partition == 0 else (T1, T0)
        consumer.pause([held])
        assert consumer.paused() == {held}
        rest = [await consumer.receive() for _ in range(4)]
        assert [(record.partition, record.offset) for record in rest] == [
            (other.partition, offset) for offset in range(4)
        ]
        assert not await consumer.receive_batch(timeout=5)
        fetches = len(cluster.requests("Fetch"))
        consumer.resume([held])
        again = [await consumer.receive() for _ in range(3)]
        assert [(record.partition, record.offset) for record in again] == [
            (held.partition, offset) for offset in (1, 2, 3)
        ]
        assert len(cluster.requests("Fetch")) == fetches  # what had been fetched was kept
        assert not await consumer.receive_batch(timeout=5)


async def test_paused_partition_is_not_fetched(
    autojump_clock: Clock,
) -> None:
    async with cluster_of() as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        await consumer.position(T0)
        consumer.pause([T0])
        await trio.sleep(2)
        before = len(cluster.requests("Fetch"))
        cluster.append("t", 0, [b"x"])
        await trio.sleep(10)
        assert len(cluster.requests("Fetch")) <= before
        consumer.resume([T0])
        with trio.fail_after(1):
            assert (await consumer.receive()).value == b"x"


async def test_seek_works_inside_a_batch(autojump_clock: Clock) -> None:
    async with cluster_of(records=10) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        assert await values(consumer, 2) == [b"0", b"1"]
        consumer.seek(T0, 8)
        assert await values(consumer, 2) == [b"8", b"9"]
        consumer.seek(T0, 1)
        assert [record.value for record in (await consumer.receive_batch())[:2]] == [b"1", b"2"]
        consumer.seek_to_beginning()
        assert await values(consumer, 1) == [b"0"]
        consumer.seek_to_end([T0])
        assert not await consumer.receive_batch(timeout=5)
        cluster.append("t", 0, [b"new"])
        assert await values(consumer, 1) == [b"new"]


async def test_seek_wins_over_a_fetch_in_flight(autojump_clock: Clock) -> None:
    async with cluster_of(records=10) as cluster, consumer_of(cluster) as consumer:
        cluster.delay("Fetch", 3, 1, after=True)
        consumer.assign([T0])
        await cluster.seen("Fetch")
        consumer.seek(T0, 7)
        assert await values(consumer, 1) == [b"7"]


async def test_seek_wins_over_a_reset_in_flight(autojump_clock: Clock) -> None:
    async with cluster_of(records=10) as cluster, consumer_of(cluster) as consumer:
        cluster.delay("ListOffsets", 3, 1, after=True)
        consumer.assign([T0])
        await cluster.seen("ListOffsets")
        consumer.seek(T0, 7)
        assert await consumer.position(T0) == 7
        await trio.sleep(10)
        assert await values(consumer, 1) == [b"7"]


async def test_seek_wins_over_an_offset_fetch(autojump_clock: Clock) -> None:
    async with cluster_of(records=10) as cluster:
        async with consumer_of(cluster, group_id="g") as consumer:
            consumer.assign([T0])
            await consumer.commit({T0: 4})
        async with consumer_of(cluster, group_id="g") as consumer:
            cluster.delay("OffsetFetch", 3, 1)
            consumer.assign([T0])
            await cluster.seen("OffsetFetch")
            consumer.seek(T0, 7)
            assert await values(consumer, 1) == [b"7"]
            await trio.sleep(10)
            assert await values(consumer, 1) == [b"8"]


async def test_later_reset_wins_over_an_earlier_one(autojump_clock: Clock) -> None:
    async with cluster_of(records=10) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        await consumer.position(T0)
        cluster.delay("ListOffsets", 3, 1, after=True)
        consumer.seek_to_beginning()
        await cluster.seen("ListOffsets", 2)
        consumer.seek_to_end()
        assert await consumer.position(T0) == 10


async def test_reset_policy_gives_the_first_position(autojump_clock: Clock) -> None:
    async with cluster_of(records=10) as cluster:
        cluster.delete_records("t", 0, 4)
        for reset, position in (("earliest", 4), ("latest", 10)):
            async with consumer_of(cluster, auto_offset_reset=reset) as consumer:
                consumer.assign([T0])
                assert await consumer.position(T0) == position
        async with consumer_of(cluster, auto_offset_reset="none") as consumer:
            consumer.assign([T0])
            for _ in range(2):
                with pytest.raises(NoOffsetForPartitionError, match="t-0"):
                    await consumer.receive()
            consumer.seek(T0, 9)
            assert await values(consumer, 1) == [b"9"]


async def test_reset_does_not_need_the_coordinator(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=3) as cluster, consumer_of(cluster, group_id="g") as consumer:
        cluster.fail("FindCoordinator", 15, None)
        consumer.assign([T0, T1])
        consumer.seek_to_end([T0])
        with trio.fail_after(2):
            assert await consumer.position(T0) == 3


async def test_out_of_range_resets_by_the_policy(autojump_clock: Clock) -> None:
    async with cluster_of(records=10) as cluster:
        cluster.delete_records("t", 0, 4)
        async with consumer_of(cluster) as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 1)
            assert await values(consumer, 1) == [b"4"]
        async with consumer_of(cluster, auto_offset_reset="latest") as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 1)
            assert not await consumer.receive_batch(timeout=5)
            assert await consumer.position(T0) == 10
        async with consumer_of(cluster, auto_offset_reset="none") as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 1)
            for _ in range(2):
                with pytest.raises(OffsetOutOfRangeError, match="t-0"):
                    await consumer.receive()
            consumer.seek(T0, 5)
            assert await values(consumer, 1) == [b"5"]


async def test_buffered_records_come_before_a_reset(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(records=3) as cluster,
        consumer_of(cluster, auto_offset_reset="latest") as consumer,
    ):
        consumer.assign([T0])
        consumer.seek(T0, 0)
        await trio.sleep(1)  # 0 to 2 are fetched
        cluster.append("t", 0, [b"3", b"4", b"5"])
        cluster.fail("Fetch", 1, 3)
        await trio.sleep(3)
        assert await values(consumer, 3) == [b"0", b"1", b"2"]


async def test_fetch_follows_the_leader(autojump_clock: Clock) -> None:
    async with cluster_of(nodes=2, records=3) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        assert await values(consumer, 3) == [b"0", b"1", b"2"]
        for leader in (1, 0, 1):
            cluster.move_leader("t", 0, leader)
            cluster.append("t", 0, [b"at %d" % leader])
            with trio.fail_after(3):
                assert await values(consumer, 1) == [b"at %d" % leader]


async def test_leaderless_partition_is_read_later(autojump_clock: Clock) -> None:
    async with cluster_of(nodes=2, records=1) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        assert await values(consumer, 1) == [b"0"]
        cluster.move_leader("t", 0, None)
        await trio.sleep(30)
        cluster.move_leader("t", 0, 1)
        cluster.append("t", 0, [b"1"])
        with trio.fail_after(3):
            assert await values(consumer, 1) == [b"1"]


@pytest.mark.parametrize("code", [3, 5, 6, 7, 9, 56, 74, 75, 78])
async def test_transient_fetch_error_is_retried(autojump_clock: Clock, code: int) -> None:
    async with cluster_of(2, records=2) as cluster, consumer_of(cluster) as consumer:
        cluster.fail("Fetch", code, 2, topic="t", partition=0)
        consumer.assign([T0, T1])
        got = [await consumer.receive() for _ in range(4)]
        assert [record.offset for record in got if record.partition == 0] == [0, 1]
        assert trio.current_time() < 2


async def test_failing_partition_raises_beside_others(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(2, records=2) as cluster, consumer_of(cluster) as consumer:
        cluster.fail("Fetch", 29, None, topic="t", partition=0)
        consumer.assign([T0, T1])
        got, errors = 0, 0
        while got < 2 or errors < 3:
            try:
                assert (await consumer.receive()).partition == 1
                got += 1
            except AuthorizationError:
                errors += 1


async def test_broken_or_silent_connection_is_replaced(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=2) as cluster,
        consumer_of(cluster, request_timeout_ms=2000) as consumer,
    ):
        consumer.assign([T0])
        assert await values(consumer, 2) == [b"0", b"1"]
        cluster.disconnect()
        cluster.append("t", 0, [b"2"])
        assert await values(consumer, 1) == [b"2"]
        cluster.garbage("Fetch", b"HTTP/1.1 400 Bad Request\r\n\r\n")
        cluster.append("t", 0, [b"3"])
        with trio.fail_after(60):
            while True:
                try:
                    assert await values(consumer, 1) == [b"3"]
                    break
                except Exception:
                    pass
        cluster.freeze(0)
        cluster.append("t", 0, [b"4"])
        await trio.sleep(20)
        cluster.thaw(0)
        assert await values(consumer, 1) == [b"4"]


def break_batch(values: list[bytes]) -> bytes:
    data = bytearray(encode_batch(values, timestamp=0))
    data[-1] ^= 0xFF
    return bytes(data)


async def test_corrupt_record_raises_until_a_seek(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(records=2) as cluster, consumer_of(cluster) as consumer:
        cluster.append_batch("t", 0, break_batch([b"bad", b"bad"]), count=2)
        cluster.append("t", 0, [b"4"])
        consumer.assign([T0])
        assert await values(consumer, 2) == [b"0", b"1"]  # what stands before it in the same answer
        for _ in range(3):
            with pytest.raises(CorruptRecordError) as caught:
                await consumer.receive()
            assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, 2)
        assert await consumer.position(T0) == 2
        consumer.seek(T0, 4)
        assert await values(consumer, 1) == [b"4"]


async def test_batches_end_at_the_given_offsets(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=10) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0, T1])
        assert [list(batch.offsets) async for batch in consumer.batches({T0: 4})] == [[0, 1, 2, 3]]
        assert await consumer.position(T0) == 4
        assert [batch async for batch in consumer.batches({T0: 4})] == []
        assert [batch async for batch in consumer.batches({T0: 0, T1: 0})] == []
        assert [batch async for batch in consumer.batches({})] == []
        again = [list(batch.offsets) async for batch in consumer.batches({T0: 6, T1: 2})]
        assert sorted(again) == [[0, 1], [4, 5]]
        # The rest follows afterwards, and no record of it is missing or doubled.
        rest = [await consumer.receive() for _ in range(12)]
        assert sorted((record.partition, record.offset) for record in rest) == [
            *((0, offset) for offset in range(6, 10)),
            *((1, offset) for offset in range(2, 10)),
        ]
        assert not await consumer.receive_batch(timeout=5)


async def test_batches_may_end_inside_a_begun_batch(autojump_clock: Clock) -> None:
    async with cluster_of(records=10) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        assert await values(consumer, 2) == [b"0", b"1"]
        assert [list(batch.offsets) async for batch in consumer.batches({T0: 5})] == [[2, 3, 4]]
        assert await values(consumer, 5) == [b"5", b"6", b"7", b"8", b"9"]


async def test_batches_end_behind_control_records(autojump_clock: Clock) -> None:
    async with (
        cluster_of() as cluster,
        consumer_of(cluster, isolation_level="read_committed") as consumer,
    ):
        data = encode_batch([b"a", b"b"], timestamp=0, producer=(7, 0, 0), transactional=True)
        cluster.append_batch("t", 0, data)
        cluster.append_batch("t", 0, control_batch(7, 0, commit=True, timestamp=0))
        data = encode_batch([b"c"], timestamp=0, producer=(7, 0, 2), transactional=True)
        cluster.append_batch("t", 0, data)
        cluster.append_batch("t", 0, control_batch(7, 0, commit=False, timestamp=0))
        consumer.assign([T0])
        ends = await consumer.end_offsets([T0])
        assert ends == {T0: 5}
        with trio.fail_after(5):
            got = [record.value async for batch in consumer.batches(ends) for record in batch]
        assert got == [b"a", b"b"]
        assert await consumer.position(T0) == 5


async def test_anext_with_a_default_waits(autojump_clock: Clock) -> None:
    """With a default, Python calls ``__await__`` again each time that it resumes the wait."""
    async with (
        cluster_of() as cluster,
        consumer_of(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):
        consumer.assign([T0])

        async def write() -> None:
            await trio.sleep(5)
            cluster.append("t", 0, [b"late"])

        nursery.start_soon(write)
        iteration = aiter(consumer)
        record = await anext(iteration, None)
        assert record is not None
        assert record.value == b"late"
        with trio.move_on_after(1) as scope:
            await anext(iteration, None)
        assert scope.cancelled_caught


async def test_bounded_iteration_ends_before_more(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=4) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0, T1])
        consumer.pause([T0, T1])
        await consumer.position(T1)
        iteration = consumer.batches({T0: 4})
        consumer.resume([T0, T1])
        assert len(await anext(iteration)) == 4
        await trio.sleep(5)
        cluster.append("t", 0, [b"past"])
        with pytest.raises(StopAsyncIteration):
            await anext(iteration)
        assert len([await consumer.receive() for _ in range(5)]) == 5


async def test_second_receiving_task_is_refused(autojump_clock: Clock) -> None:
    async with (
        cluster_of() as cluster,
        consumer_of(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):
        consumer.assign([T0])
        nursery.start_soon(consumer.receive)
        await trio.sleep(1)
        for receive in (consumer.receive, consumer.receive_batch, consumer.batches().__anext__):
            with pytest.raises(trio.BusyResourceError):
                await receive()
        for receive_nowait in (consumer.receive_nowait, consumer.receive_batch_nowait):
            with pytest.raises(trio.BusyResourceError):
                receive_nowait()
        nursery.cancel_scope.cancel()


async def test_unassigned_records_are_not_delivered(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=3) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0, T1])
        await consumer.receive()
        await trio.sleep(5)
        consumer.assign([T1])
        position = await consumer.position(T1)
        got = [await consumer.receive() for _ in range(3 - position)]
        assert {record.partition for record in got} == {1}
        assert not await consumer.receive_batch(timeout=2)
        assert consumer.statistics().buffered_bytes == 0


async def test_late_partition_is_read(
    autojump_clock: Clock,
) -> None:
    async with ScriptedCluster() as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        await trio.sleep(30)
        cluster.create_topic("t", 1)
        cluster.append("t", 0, [b"first"])
        with trio.fail_after(5):
            assert await values(consumer, 1) == [b"first"]


async def test_missing_partition_is_raised_by_receive(
    autojump_clock: Clock,
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, consumer_of(cluster) as consumer:
        for missing, least, most in (
            (TopicPartition("nosuch", 0), 3, 6),
            (TopicPartition("t", 7), 0, 0.1),
        ):
            consumer.assign([missing])
            began = trio.current_time()
            with pytest.raises(UnknownTopicOrPartitionError, match=missing.topic):
                await consumer.receive()
            # Fresh metadata are enough for a topic that was known.
            assert least <= trio.current_time() - began < most
            began = trio.current_time()
            with pytest.raises(UnknownTopicOrPartitionError):
                await consumer.position(missing)
            assert trio.current_time() - began < 10


async def test_buffer_is_bounded(autojump_clock: Clock) -> None:
    async with cluster_of(2) as cluster:
        for number in range(2):
            for _ in range(50):
                cluster.append("t", number, [b"x" * 1000] * 10)
        settings = {"fetch_buffer_bytes": 100_000, "max_partition_fetch_bytes": 20_000}
        async with consumer_of(cluster, **settings) as consumer:
            consumer.assign([T0, T1])
            seen, count = 0, 0
            while count < 1000:
                await trio.sleep(0.1)
                seen = max(seen, consumer.statistics().buffered_bytes)
                count += len(await consumer.receive_batch())
            assert 40_000 < seen <= 110_000  # one batch comes whole, where it begins before the end


async def test_receive_misuse_is_refused(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, consumer_of(cluster) as consumer:
        with pytest.raises(IllegalStateError, match="subscribe"):
            await consumer.receive()
        for call in (
            lambda: consumer.seek(T0, 0),
            lambda: consumer.pause([T0]),
            lambda: consumer.seek_to_end([T0]),
        ):
            with pytest.raises(IllegalStateError, match="t-0 is not assigned"):
                call()
        consumer.assign([T0])
        for wrong in (-1, 1.5, True, "3", 2**63):
            with pytest.raises(ValueError, match="whole number"):
                consumer.seek(T0, wrong)
        with pytest.raises(IllegalStateError, match="not assigned"):
            consumer.batches({T1: 3})


@pytest.mark.parametrize("call", ["receive", "receive_batch", "iterate"])
async def test_failing_receive_loop_lets_others_run(call: str) -> None:
    """The loop can be cancelled."""
    async with cluster_of(records=1) as cluster, consumer_of(cluster) as consumer:

        async def stubborn() -> None:
            while True:
                with contextlib.suppress(IllegalStateError):
                    if call == "receive":
                        await consumer.receive()
                    elif call == "receive_batch":
                        await consumer.receive_batch(timeout=1)
                    else:
                        async for _ in consumer:
                            pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stubborn)
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("size", [4_000, 20_000, 30_000, 40_000])
async def test_pause_makes_room_for_others(autojump_clock: Clock, size: int) -> None:
    async with cluster_of(2) as cluster:
        for _ in range(20):
            cluster.append("t", 0, [bytes(size)])
        settings = {"fetch_buffer_bytes": 200_000, "max_partition_fetch_bytes": 20_000}
        async with consumer_of(cluster, **settings) as consumer:
            consumer.assign([T0, T1])
            for _ in range(2):
                assert (await consumer.receive_batch()).partition == 0
                await trio.sleep(5)
            consumer.pause([T0])
            cluster.append("t", 1, [b"x"])
            with trio.fail_after(1):
                assert (await consumer.receive()).value == b"x"


async def test_moved_leader_is_read_during_a_long_poll(autojump_clock: Clock) -> None:
    async with (
        cluster_of(nodes=2) as cluster,
        consumer_of(cluster, fetch_max_wait_ms=3000) as consumer,
    ):
        old = cluster.partition("t", 0).leader

        async def nothing_after_its_wait(request: Any, _: Any) -> Any:  # it has not heard yet
            await trio.sleep(2.5)
            return respond(request, throttle_time_ms=0, error_code=0, session_id=0, responses=[])

        consumer.assign([T0])
        await consumer.receive_batch(timeout=4.0)
        cluster.on("Fetch", nothing_after_its_wait, node=old)
        await trio.sleep(5)
        cluster.move_leader("t", 0, 1 - old)
        await consumer._parts.metadata.refresh(["t"])
        cluster.append("t", 0, [b"x"])
        with trio.fail_after(3):
            assert (await consumer.receive()).value == b"x"


async def test_corrupt_record_raises_after_a_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is decoded in the thread, so the fetcher is at rest when it is found."""
    async with cluster_of() as cluster:
        for number in range(12):
            cluster.append("t", 0, [b"%d" % number + bytes(20_000)])
        damaged = bytearray(cluster.partition("t", 0).batches[3].data)
        damaged[-5] ^= 0xFF
        object.__setattr__(cluster.partition("t", 0).batches[3], "data", bytes(damaged))
        async with consumer_of(
            cluster, fetch_buffer_bytes=200_000, max_partition_fetch_bytes=20_000
        ) as consumer:
            receiver = consumer._receiver
            monkeypatch.setattr(BatchDecoder, "_is_quick", lambda self, records: False)
            consumer.assign([T0])
            with trio.fail_after(240):
                await until(lambda: consumer._parts.manager("fetch")._resting > 0)
                # Metadata that arrive at the start would wake it.
                await trio.testing.wait_all_tasks_blocked(2)
                assert len(await receiver.gather(None, None, 10**6, 10**9)) == 3
                with pytest.raises(CorruptRecordError):
                    await receiver.gather(None, None, 10**6, 10**9)


@pytest.mark.parametrize("by_stream", [False, True])
async def test_gathering_a_table_lets_others_run(autojump_clock: Clock, by_stream: bool) -> None:
    """Virtual time stands still meanwhile, so turns are counted by bytes."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with cluster_of() as cluster:
        for _ in range(4):
            cluster.append("t", 0, [bytes(700_000)])
        async with consumer_of(
            cluster, max_partition_fetch_bytes=2**20, fetch_max_bytes=2**20
        ) as consumer:
            consumer.assign([T0])
            await until(lambda: consumer._parts.core.buffer.buffered > 2_600_000)
            taken = 0
            async with trio.open_nursery() as nursery:
                nursery.start_soon(others)
                while turns < 2:
                    await trio.lowlevel.checkpoint()
                turns = 0
                if by_stream:
                    async for stream in consumer.partitions():
                        taken = len(await stream.batches().gather(10**6, 10**9))
                        break
                else:
                    taken = len(await consumer._receiver.gather(None, None, 10**6, 10**9))
                nursery.cancel_scope.cancel()
            assert taken == 4
            assert turns >= 3


@pytest.mark.parametrize("wrong", [5, T0, [T0]])
async def test_until_must_be_a_mapping(wrong: Any) -> None:
    async with cluster_of() as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0])
        for make in (consumer.batches, consumer.arrow_batches):
            with pytest.raises(TypeError, match="until must be a mapping of partitions to offsets"):
                make(wrong)


async def test_wrong_listener_changes_nothing() -> None:
    async with cluster_of() as cluster, consumer_of(cluster, group_id="g") as consumer:
        with pytest.raises(
            ConfigurationError,
            match="has no on_partitions_assigned, on_partitions_lost, on_partitions_revoked",
        ):
            consumer.subscribe(["t"], listener=print)  # type: ignore[arg-type]
        assert not consumer.subscription()
