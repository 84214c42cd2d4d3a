"""Random faults (seed 000), in virtual time: no call of a consumer takes longer than it may.

A step of a call without time left still has GRACE, so that a quick response is used. So a call of
three steps (find the coordinator, ask it, look a topic up) may take three times GRACE longer.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock as Clock

import trikafka
from trikafka import Consumer, KafkaTimeoutError, TopicPartition, TrikafkaError
from trikafka._net.deadlines import GRACE
from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster

NODES, PARTITIONS, TROUBLES = 3, 4, 20
T = [TopicPartition("t", number) for number in range(PARTITIONS)]
APIS = (
    "Metadata",
    "FindCoordinator",
    "ListOffsets",
    "OffsetFetch",
    "OffsetCommit",
    "Fetch",
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
)
PASSING = {
    "Metadata": ErrorCode.LEADER_NOT_AVAILABLE,
    "FindCoordinator": ErrorCode.COORDINATOR_NOT_AVAILABLE,
    "ListOffsets": ErrorCode.NOT_LEADER_OR_FOLLOWER,
    "OffsetFetch": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    "OffsetCommit": ErrorCode.NOT_COORDINATOR,
    "Fetch": ErrorCode.NOT_LEADER_OR_FOLLOWER,
    "JoinGroup": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    "SyncGroup": ErrorCode.NOT_COORDINATOR,
    "Heartbeat": ErrorCode.NOT_COORDINATOR,
}
CALLS: dict[str, Callable[[Consumer, float], Awaitable[Any]]] = {
    "commit": lambda c, t: c.commit(timeout=t),
    "committed": lambda c, t: c.committed(T, timeout=t),
    "beginning_offsets": lambda c, t: c.beginning_offsets(T, timeout=t),
    "end_offsets": lambda c, t: c.end_offsets(T, timeout=t),
    "offsets_for_times": lambda c, t: c.offsets_for_times(dict.fromkeys(T, 0), timeout=t),
    "partitions_for": lambda c, t: c.partitions_for("u", timeout=t),
    "topic_ids": lambda c, t: c.topic_ids(["t", "u"], timeout=t),
    "list_topics": lambda c, t: c.list_topics(timeout=t),
    "position": lambda c, t: c.position(random.choice([*c.assignment()] or T), timeout=t),
}


class Troubles:
    """Random faults, one after the other."""

    def __init__(self, cluster: ScriptedCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng

    async def run(self) -> None:
        kinds = [
            self._freeze,
            self._stop,
            self._refuse,
            self._slow,
            self._silent,
            self._drop,
            self._move,
            self._cut,
        ]
        for _ in range(TROUBLES):
            await trio.sleep(self._rng.expovariate(2))
            await self._rng.choice(kinds)()

    async def _freeze(self) -> None:
        node = self._rng.randrange(NODES)
        self._cluster.freeze(node)
        await trio.sleep(self._rng.uniform(0, 4))
        self._cluster.thaw(node)

    async def _stop(self) -> None:
        node = self._rng.randrange(NODES)
        (self._cluster.stop if self._rng.random() < 0.5 else self._cluster.lose)(node)
        await trio.sleep(self._rng.uniform(0, 4))
        self._cluster.start(node)

    async def _refuse(self) -> None:
        api = self._rng.choice(APIS)
        self._cluster.fail(api, PASSING[api], times=self._rng.choice((1, 2, 10)))

    async def _slow(self) -> None:
        self._cluster.delay(
            self._rng.choice(APIS), self._rng.uniform(0, 1), times=self._rng.choice((1, 5))
        )

    async def _silent(self) -> None:
        self._cluster.silence(self._rng.choice(APIS), times=self._rng.choice((1, 2)))

    async def _drop(self) -> None:
        self._cluster.drop(
            self._rng.choice(APIS), times=self._rng.choice((1, 3)), after=self._rng.random() < 0.5
        )

    async def _move(self) -> None:
        self._cluster.move_leader("t", self._rng.randrange(PARTITIONS), self._rng.randrange(NODES))
        self._cluster.move_coordinator(self._rng.randrange(NODES))

    async def _cut(self) -> None:
        self._cluster.disconnect()


async def timed(name: str, limit: float, call: Callable[[], Awaitable[Any]]) -> None:
    start, reported = trio.current_time(), limit
    try:
        await call()
    except KafkaTimeoutError as error:
        reported = error.limit
    except (TrikafkaError, trikafka.errors.IllegalStateError):
        pass  # out of its group, say
    took = trio.current_time() - start
    assert reported == limit, name
    assert took <= limit + 3 * GRACE + 1e-6, f"{name} with {limit:.3f} s took {took:.3f} s"


async def asking(consumer: Consumer, rng: random.Random) -> None:
    while True:
        name = rng.choice([*CALLS])
        limit = rng.choice((0.0, rng.uniform(0, 0.1), rng.uniform(0, 3)))
        await timed(name, limit, lambda: CALLS[name](consumer, limit))  # noqa: B023
        await trio.sleep(rng.expovariate(5))


async def receiving(consumer: Consumer, rng: random.Random) -> None:
    while True:
        limit = rng.choice((0.0, rng.uniform(0, 0.1), rng.uniform(0, 3)))
        await timed("receive_batch", limit, lambda: consumer.receive_batch(timeout=limit))  # noqa: B023
        await trio.sleep(rng.expovariate(5))


@pytest.mark.parametrize("kind", ["assigned", "classic", "consumer"])
@pytest.mark.parametrize("seed", range(2))
async def test_no_call_takes_longer_than_it_may(
    kind: str, seed: int, autojump_clock: Clock
) -> None:
    rng = random.Random(f"{kind} {seed}")
    async with ScriptedCluster(nodes=NODES, topics={"t": PARTITIONS, "u": 1}) as cluster:
        settings: Any = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "auto_offset_reset": "earliest",
        }
        settings |= {
            "group_id": "g",
            "request_timeout_ms": 2_000,
            "session_timeout_ms": 6_000,
            "auto_commit_interval_ms": 500,
        }
        if kind != "consumer":
            settings["group_protocol"] = "classic"
        else:
            del settings["session_timeout_ms"]
            settings["group_protocol"] = "consumer"
        async with trikafka.open_consumer(**settings) as consumer:
            if kind == "assigned":
                consumer.assign(T)
            else:
                consumer.subscribe(["t"])
            for number in range(PARTITIONS):
                cluster.append("t", number, [b"x"] * 100)
            with trio.fail_after(600):
                async with trio.open_nursery() as nursery:
                    for _ in range(3):
                        nursery.start_soon(asking, consumer, rng)
                    nursery.start_soon(receiving, consumer, rng)
                    await Troubles(cluster, rng).run()
                    nursery.cancel_scope.cancel()
            limit = rng.uniform(0, 2)
            cluster.freeze(rng.randrange(NODES))
            await timed("unsubscribe", limit, lambda: consumer.unsubscribe(timeout=limit))
            limit = rng.uniform(0, 2)
            await timed("aclose", limit, lambda: consumer.aclose(timeout=limit))
