"""Seed 004 under random troubles in virtual time: timed-out tasks are retried, nothing is lost."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from tasking import Values, cluster_of, committed, consumer_of, producer_of, running, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka import Record, RetryPolicy
from trikafka.errors import OutOfOrderSequenceError
from trikafka.testing import ScriptedCluster

PARTITIONS, RECORDS, TROUBLES = 3, 150, 15


async def make_trouble(cluster: ScriptedCluster, rng: random.Random) -> None:
    async def away() -> None:
        cluster.freeze(0) if rng.random() < 0.5 else cluster.stop(0)
        await trio.sleep(rng.uniform(0, 8))
        cluster.thaw(0)
        cluster.start(0)

    async def leaderless() -> None:
        partition = rng.randrange(PARTITIONS)
        cluster.move_leader("out", partition, None)
        await trio.sleep(rng.uniform(0, 15))
        cluster.move_leader("out", partition, 0)

    async def silent() -> None:
        cluster.silence(rng.choice(("Produce", "OffsetCommit", "Fetch")), times=rng.choice((1, 3)))

    async def refused() -> None:
        cluster.fail("OffsetCommit", 16, times=rng.choice((1, 5)))
        cluster.fail("Produce", 6, times=rng.choice((1, 5)))

    for _ in range(TROUBLES):
        await trio.sleep(rng.expovariate(1))
        await rng.choice((away, leaderless, leaderless, silent, refused))()


@pytest.mark.parametrize("seed", range(3))
async def test_all_records_are_handled_in_order(seed: int, autojump_clock: Clock) -> None:
    rng = random.Random(seed)
    done: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}

    async with cluster_of(PARTITIONS, records=RECORDS, topics={"out": PARTITIONS}) as cluster:
        limits: dict[str, Any] = {"request_timeout_ms": 1_000, "default_api_timeout_ms": 2_000}
        async with (
            producer_of(
                cluster, request_timeout_ms=1_000, delivery_timeout_ms=2_000, max_block_ms=2_000
            ) as producer,
            consumer_of(
                cluster, auto_commit_interval_ms=1_000, session_timeout_ms=20_000, **limits
            ) as consumer,
        ):

            async def handle(record: Record) -> None:
                await producer.send("out", record.value, partition=record.partition)
                done[record.partition].append(record.offset)
                await trio.sleep(0.2)

            async with trio.open_nursery() as nursery:
                # The unknown outcome of an idempotent record behind an expired one is no
                # time-out, but passes as well.
                retry = RetryPolicy(OutOfOrderSequenceError, attempts=10)
                nursery.start_soon(lambda: trikafka.run_tasks(consumer, handle, retry=retry))
                await make_trouble(cluster, rng)
                await until(
                    lambda: all(
                        committed(cluster, number) == RECORDS for number in range(PARTITIONS)
                    ),
                    1,
                )
                nursery.cancel_scope.cancel()
        for number, offsets in done.items():
            first = list(dict.fromkeys(offsets))
            assert first == list(range(RECORDS)), f"partition {number}: lost, or out of order"
            written = [int(record.value or b"") for record in cluster.records("out", number)]
            assert set(written) == set(range(RECORDS))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_deleted_topic_ends_no_other_task(autojump_clock: Clock, protocol: str) -> None:
    """Its commits are refused, and a later topic of the same name is read from its beginning."""
    handler = Values(1)
    async with (
        cluster_of(1, records=10, topics={"u": 1}) as cluster,
        consumer_of(
            cluster, "t", "u", group_protocol=protocol, metadata_max_age_ms=20_000
        ) as consumer,
        running(consumer, handler),
    ):
        await until(lambda: len(handler.done) == 3)
        cluster.delete_topic("t")
        await trio.sleep(60)
        cluster.create_topic("t", 1)
        cluster.append("t", 0, [b"new"])
        cluster.append("u", 0, [b"other"])
        await until(lambda: {b"new", b"other"} <= {record.value for record in handler.done})
        await until(lambda: committed(cluster) == 1)
        found = cluster.committed("g", ("u", 0))
        assert found is not None
        assert found.offset == 1
