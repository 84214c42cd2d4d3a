"""Helpers of the consumer's tests: a scripted cluster with a topic, and a recording listener."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from trikafka import TopicPartition
from trikafka._api.consumer.consumer import Consumer
from trikafka._api.consumer.opening import open_consumer
from trikafka.interfaces import RebalanceListener
from trikafka.testing import ScriptedCluster

T0, T1, T2, T3 = (TopicPartition("t", number) for number in range(4))


@asynccontextmanager
async def cluster_of(
    partitions: int = 1, *, records: int = 0, nodes: int = 1, **settings: Any
) -> AsyncIterator[ScriptedCluster]:
    """Open a cluster with the topic ``t``, each partition with the values ``b"0"``, ``b"1"`` ..."""
    async with ScriptedCluster(nodes=nodes, topics={"t": partitions}, **settings) as cluster:
        for number in range(partitions):
            if records:
                cluster.append("t", number, [b"%d" % offset for offset in range(records)])
        yield cluster


def consumer_of(cluster: ScriptedCluster, *topics: str, **settings: Any) -> Any:
    """Return the opening of a consumer of the cluster.

    Unless the settings differ, it reads from the beginning and uses the classic group protocol.
    """
    given = {"auto_offset_reset": "earliest", "group_protocol": "classic"} | settings
    return open_consumer(
        *topics, bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial, **given
    )


def member_of(cluster: ScriptedCluster, *topics: str, **settings: Any) -> Any:
    """Return the opening of a member, by default of the group ``g`` with the topic ``t``."""
    return consumer_of(cluster, *(topics or ("t",)), **({"group_id": "g"} | settings))


async def values(consumer: Consumer, count: int) -> list[bytes | None]:
    """Return the values of the next records."""
    return [(await consumer.receive()).value for _ in range(count)]


async def until(condition: Callable[[], bool], step: float = 0.001) -> None:
    """Wait in virtual time until ``condition()`` is true.

    After one second the steps become longer, since each costs real time.
    """
    began = trio.current_time()
    while not condition():  # noqa: ASYNC110
        await trio.sleep(step if trio.current_time() < began + 1 else max(step, 0.02))


class RecordingListener(RebalanceListener):
    """A listener that adds (name, event, partitions) to a shared list, and then awaits ``then``."""

    def __init__(
        self, log: list[Any], name: str = "", then: Callable[[str], Awaitable[None]] | None = None
    ) -> None:
        self.log = log
        self.name = name
        self.then = then

    async def _record(self, what: str, partitions: Sequence[TopicPartition]) -> None:
        self.log.append(
            (self.name, what, sorted(partitions)) if self.name else (what, sorted(partitions))
        )
        if self.then is not None:
            await self.then(what)

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        await self._record("assigned", partitions)

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await self._record("revoked", partitions)

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        await self._record("lost", partitions)
