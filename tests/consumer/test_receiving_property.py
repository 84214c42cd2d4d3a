"""Any sequence of receives, pauses, seeks and iterations: each record of a partition once and in
order.
"""

from __future__ import annotations

import trio
import trio.testing
from consuming import T0, T1, T2, cluster_of, consumer_of
from hypothesis import given, settings
from hypothesis import strategies as st

from trikafka import TopicPartition

PARTITIONS = (T0, T1, T2)
Step = tuple[str, int, int]
WAYS = [
    "one",
    "batch",
    "nowait",
    "batch_nowait",
    "pause",
    "resume",
    "seek",
    "until",
    "append",
    "cancel",
    "sleep",
]
steps = st.lists(
    st.tuples(
        st.sampled_from(WAYS),
        st.integers(0, 2),
        st.integers(0, 12),
    ),
    max_size=40,
)


async def follow(plan: list[Step], most: int | None, buffer: int) -> None:
    async with cluster_of(3, records=4) as cluster:
        for number in range(3):
            cluster.append("t", number, [b"x" * 50] * 5)
        settings = {
            "max_poll_records": most,
            "fetch_buffer_bytes": buffer,
            "max_partition_fetch_bytes": 200,
        }
        async with consumer_of(cluster, **settings) as consumer:
            consumer.assign(PARTITIONS)
            expected = dict.fromkeys(PARTITIONS, 0)

            def check(partition: int, offsets: list[int]) -> None:
                tp = TopicPartition("t", partition)
                assert offsets == list(range(expected[tp], expected[tp] + len(offsets)))
                assert tp not in consumer.paused()
                expected[tp] += len(offsets)

            for what, number, count in plan:
                tp = PARTITIONS[number]
                match what:
                    case "one":
                        with trio.move_on_after(2):
                            for _ in range(count):
                                record = await consumer.receive()
                                check(record.partition, [record.offset])
                    case "batch":
                        batch = await consumer.receive_batch(timeout=count / 4)
                        if batch:
                            check(batch.partition, list(batch.offsets))
                    case "nowait":
                        try:
                            record = consumer.receive_nowait()
                            check(record.partition, [record.offset])
                        except trio.WouldBlock:
                            pass
                    case "batch_nowait":
                        try:
                            batch = consumer.receive_batch_nowait()
                            check(batch.partition, list(batch.offsets))
                        except trio.WouldBlock:
                            pass
                    case "pause":
                        consumer.pause([tp])
                    case "resume":
                        consumer.resume([tp])
                    case "seek":
                        expected[tp] = min(count, cluster.partition("t", number).end)
                        consumer.seek(tp, expected[tp])
                    case "until":
                        end = {tp: min(count, cluster.partition("t", number).end)}
                        with trio.move_on_after(2):
                            async for batch in consumer.batches(end):
                                check(batch.partition, list(batch.offsets))
                                assert batch.next_offset <= end[tp]
                    case "append":
                        cluster.append("t", number, [b"y"] * (count + 1))
                    case "cancel":
                        with trio.move_on_after(0):
                            await consumer.receive()
                    case "sleep":
                        await trio.sleep(count / 4)
            consumer.resume(PARTITIONS)
            while batch := await consumer.receive_batch(timeout=3):
                check(batch.partition, list(batch.offsets))
            assert expected == {tp: cluster.partition("t", tp.partition).end for tp in PARTITIONS}


@given(steps, st.sampled_from([None, 1, 3]), st.sampled_from([100, 400, 100_000]))
@settings(max_examples=30, deadline=None)
def test_any_calls_read_each_record_in_order(
    plan: list[Step], most: int | None, buffer: int
) -> None:
    trio.run(follow, plan, most, buffer, clock=trio.testing.MockClock(autojump_threshold=0))
