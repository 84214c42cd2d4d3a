"""Helpers of the tests of share groups: a scripted cluster with a topic, and its consumers."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from trikafka import open_share_consumer
from trikafka._api.share.scopes import block_scopes
from trikafka.testing import ScriptedCluster
from trikafka.testing.share import RecordState, SharedRecord

GROUP = "workers"


@asynccontextmanager
async def cluster_of(
    partitions: int = 1, *, records: int = 0, nodes: int = 1, **settings: Any
) -> AsyncIterator[ScriptedCluster]:
    """Open a cluster with the topic ``t``, each partition with the values ``b"0"``, ``b"1"`` ...

    Share groups begin at the earliest record.
    """
    async with ScriptedCluster(nodes=nodes, topics={"t": partitions}, **settings) as cluster:
        cluster.shares.times.auto_offset_reset = "earliest"
        for number in range(partitions):
            if records:
                cluster.append("t", number, [b"%d" % offset for offset in range(records)])
        yield cluster


def queue_of(cluster: ScriptedCluster, *topics: str, **settings: Any) -> Any:
    """Return the opening of a share consumer in the group ``workers``, by default of ``t``."""
    return open_share_consumer(
        *(topics or ("t",)),
        bootstrap_servers=cluster.bootstrap_servers,
        dial=cluster.dial,
        **({"group_id": GROUP} | settings),
    )


def take_complete_ways(queue: Any) -> None:
    """Have blocks take their complete ways, with a new cancel scope each."""
    core = queue._parts.core
    core.current_task = None
    core.scopes = block_scopes(core.enter_scope, None)


def shared(cluster: ScriptedCluster, partition: int = 0) -> dict[int, SharedRecord]:
    """Return the records of a partition as the group's broker knows them."""
    group = cluster.shares.by_id[GROUP]
    return group.partitions[cluster.topic_id("t"), partition].records


def states(cluster: ScriptedCluster, partition: int = 0) -> list[str]:
    """Return the states of the records of a partition."""
    return [record.state.value for _, record in sorted(shared(cluster, partition).items())]


def count(cluster: ScriptedCluster, state: RecordState, partition: int = 0) -> int:
    """Return the number of records in a state."""
    return sum(record.state is state for record in shared(cluster, partition).values())


async def until(true: Callable[[], bool], step: float = 0.001) -> None:
    """Wait in virtual time until ``true()`` holds."""
    began = trio.current_time()
    while not true():  # noqa: ASYNC110
        await trio.sleep(step if trio.current_time() < began + 1 else max(step, 0.02))


def quiet() -> None:
    """Do not log what a test provokes."""
    logging.getLogger("trikafka").setLevel(logging.CRITICAL)
