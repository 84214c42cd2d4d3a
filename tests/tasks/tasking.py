"""Helpers of the tests of tasks: consumers without auto commit, handlers, committed offsets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

import trikafka
from trikafka import Consumer, KafkaTimeoutError, Record
from trikafka.testing import ScriptedCluster

Handler = Callable[[Record], Awaitable[object]]


def consumer_of(cluster: ScriptedCluster, *topics: str, **settings: Any) -> Any:
    given: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "dial": cluster.dial,
        "group_id": "g",
    }
    given |= {
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "group_protocol": "classic",
    }
    return trikafka.open_consumer(*(topics or ("t",)), **(given | settings))


def producer_of(cluster: ScriptedCluster, **settings: Any) -> Any:
    given: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "dial": cluster.dial,
        "linger_ms": 0,
    }
    return trikafka.open_producer(**(given | settings))


@asynccontextmanager
async def cluster_of(
    partitions: int = 1, *, records: int = 0, topics: dict[str, int] | None = None
) -> AsyncIterator[ScriptedCluster]:
    """Open a cluster with the topic ``t``, each partition with the values ``b"0"``, ``b"1"`` ..."""
    async with ScriptedCluster(topics={"t": partitions} | (topics or {})) as cluster:
        for number in range(partitions if records else 0):
            cluster.append("t", number, [b"%d" % offset for offset in range(records)])
        yield cluster


def committed(cluster: ScriptedCluster, partition: int = 0) -> int | None:
    found = cluster.committed("g", ("t", partition))
    return None if found is None else found.offset


async def until(true: Callable[[], bool], step: float = 0.01, limit: float = 600) -> None:
    """Wait in virtual time until ``true()`` holds."""
    with trio.fail_after(limit):
        while not true():  # noqa: ASYNC110
            await trio.sleep(step)


@asynccontextmanager
async def running(consumer: Consumer, handler: Any, **options: Any) -> AsyncIterator[None]:
    """Run the tasks beside the body, and cancel them at its end."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: trikafka.run_tasks(consumer, handler, **options))
        yield
        nursery.cancel_scope.cancel()


class Stuck:
    """A handler that times out for the records of ``partitions``.

    Such a call takes ``seconds``. After ``times`` of them the handler succeeds.
    """

    def __init__(self, *partitions: int, seconds: float = 0.1, times: int = 10**9) -> None:
        self.partitions = partitions
        self.seconds = seconds
        self.times = times
        self.calls: list[tuple[float, int, int]] = []
        self.done: list[tuple[int, int]] = []
        self.errors: list[KafkaTimeoutError] = []

    async def __call__(self, record: Record) -> None:
        self.calls.append((trio.current_time(), record.partition, record.offset))
        if record.partition in self.partitions and self.times > 0:
            self.times -= 1
            await trio.sleep(self.seconds)
            self.errors.append(KafkaTimeoutError("send", self.seconds))
            raise self.errors[-1]
        await trio.sleep(0.01)
        self.done.append((record.partition, record.offset))

    def of(self, partition: int) -> list[int]:
        return [offset for number, offset in self.done if number == partition]


class Values:
    """A handler that records the values, each after ``seconds``; some records fail."""

    def __init__(
        self, seconds: float = 0.0, fail: Callable[[Record], Exception | None] = lambda record: None
    ) -> None:
        self.seconds = seconds
        self.fail = fail
        self.seen: list[Record] = []
        self.done: list[Record] = []

    async def __call__(self, record: Record) -> None:
        self.seen.append(record)
        await trio.sleep(self.seconds)
        if (error := self.fail(record)) is not None:
            raise error
        self.done.append(record)
