"""Faults of brokers, leaders, sessions and followers in any order: each record arrives once and in
order.
"""

from __future__ import annotations

from typing import Any

import trio
import trio.testing
from consuming import consumer_of
from hypothesis import given, settings
from hypothesis import strategies as st

from trikafka import TopicPartition
from trikafka.testing import ScriptedCluster

PARTITIONS = [TopicPartition("t", number) for number in range(4)]
NODES = 3
Step = tuple[str, int, int]
WHAT = [
    "append",
    "append",
    "sleep",
    "move leader",
    "no leader",
    "disconnect",
    "forget sessions",
    "stop",
    "lose",
    "start",
    "start",
    "fail",
    "pause",
    "resume",
    "leave out",
    "lag",
    "grow",
]
steps = st.lists(
    st.tuples(st.sampled_from(WHAT), st.integers(0, 3), st.integers(0, 11)), max_size=25
)
CODES = (3, 5, 6, 7, 9, 56, 70, 71, 74, 75, 78, 106)


def happen(cluster: ScriptedCluster, consumer: Any, what: str, number: int, count: int) -> None:
    node = count % NODES
    match what:
        case "append":
            cluster.append("t", number, [b"x" * 20 * count] * (count + 1))
        case "move leader":
            cluster.move_leader("t", number, node)
        case "no leader":
            cluster.move_leader("t", number, None)
        case "disconnect":
            cluster.disconnect(node)
        case "forget sessions":
            cluster.forget_fetch_sessions(node)
        case "stop":
            cluster.stop(node, noticed=count > 5)
        case "lose":
            cluster.lose(node)
        case "start":
            cluster.start(node)
        case "fail":
            code = CODES[count]
            cluster.fail(
                "Fetch",
                code,
                1 + number,
                topic=None if code in (70, 71, 106) else "t",
                partition=number,
            )
        case "pause":
            consumer.pause([PARTITIONS[number]])
        case "resume":
            consumer.resume([PARTITIONS[number]])
        case "leave out":
            cluster.leave_out("Fetch", "t", number, 1)
        case "lag":
            cluster.lag("t", number, node, None if count > 8 else count)
        case "grow":
            there = len(cluster._topic("t").partitions)
            cluster.add_partitions("t", max(there, len(PARTITIONS) + number))


async def follow(plan: list[Step], rack: str, sessions: int, versions: tuple[int, int]) -> None:
    racks = ("a", "b", "c") if rack else ()
    async with ScriptedCluster(
        nodes=NODES, racks=racks, topics={"t": 4}, fetch_sessions=sessions
    ) as cluster:
        cluster.offer("Fetch", versions)
        given = {
            "client_rack": rack,
            "fetch_buffer_bytes": 3_000,
            "max_partition_fetch_bytes": 500,
            "metadata_max_age_ms": 20_000,
        }
        async with (
            consumer_of(cluster, request_timeout_ms=2_000, **given) as consumer,
            trio.open_nursery() as nursery,
        ):
            consumer.assign(PARTITIONS)
            seen: dict[int, list[int]] = {tp.partition: [] for tp in PARTITIONS}

            async def read() -> None:
                async for batch in consumer.batches():
                    seen[batch.partition] += batch.offsets

            nursery.start_soon(read)
            for what, number, count in plan:
                if what == "sleep":
                    await trio.sleep(count / 3)
                else:
                    happen(cluster, consumer, what, number, count)
                    await trio.sleep(0.01 * count)
            for node in range(NODES):
                cluster.start(node)
            for tp in PARTITIONS:
                cluster.move_leader("t", tp.partition, tp.partition % NODES)
                cluster.append("t", tp.partition, [b"last"])
            consumer.resume(PARTITIONS)
            with trio.move_on_after(120):
                while any(  # noqa: ASYNC110
                    len(seen[tp.partition]) < cluster.partition("t", tp.partition).end
                    for tp in PARTITIONS
                ):
                    await trio.sleep(0.1)
            assert seen == {
                tp.partition: list(range(cluster.partition("t", tp.partition).end))
                for tp in PARTITIONS
            }
            fetches = len(cluster.requests("Fetch"))
            await trio.sleep(10)
            assert len(cluster.requests("Fetch")) - fetches <= 75, (
                "at rest nothing but the long poll of each broker"
            )
            nursery.cancel_scope.cancel()


@given(
    steps,
    st.sampled_from(["", "b"]),
    st.sampled_from([1000, 1, 0]),
    st.sampled_from([(4, 18), (4, 12), (4, 6)]),
)
@settings(max_examples=40, deadline=None)
def test_each_record_comes_once_despite_faults(
    plan: list[Step], rack: str, sessions: int, versions: tuple[int, int]
) -> None:
    trio.run(
        follow, plan, rack, sessions, versions, clock=trio.testing.MockClock(autojump_threshold=0)
    )


async def test_small_buffer_with_large_batches_is_calm(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Two fetches fit at a time, so the brokers take turns without more requests than unbounded."""
    await follow([("append", 0, 8)], "", 1000, (4, 18))
