"""Helpers of the tests of transactions.

They open a transactional producer on a scripted cluster of either version, and read its records.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import trio

import trikafka
from trikafka import Producer, TopicPartition
from trikafka.testing import ScriptedCluster

Given = tuple[ScriptedCluster, Producer]


def producer_of(cluster: ScriptedCluster, **settings: Any) -> AbstractAsyncContextManager[Producer]:
    given = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "dial": cluster.dial,
        "linger_ms": 0,
        "transactional_id": "x",
    }
    return trikafka.open_producer(**(given | settings))


@asynccontextmanager
async def transacting(
    version: int = 2, *, nodes: int = 1, partitions: int = 2, **settings: Any
) -> AsyncIterator[Given]:
    """Open a cluster with topic ``t``, and a transactional producer for this version.

    The coordinator is node 0.
    """
    async with ScriptedCluster(
        nodes=nodes, topics={"t": partitions}, transaction_version=version
    ) as cluster:
        cluster.move_coordinator(0)
        async with producer_of(cluster, **settings) as producer:
            await producer.partitions_for("t")
            yield cluster, producer


async def committed(cluster: ScriptedCluster, partitions: int = 2) -> list[bytes | None]:
    """Return what a reader of committed records sees of ``t``, in the order of the partitions."""
    tps = [TopicPartition("t", number) for number in range(partitions)]
    found: dict[int, list[bytes | None]] = {tp.partition: [] for tp in tps}
    settings: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "dial": cluster.dial,
    }
    async with trikafka.open_consumer(
        **settings, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign(tps)
        ends = await consumer.end_offsets(tps)  # the last stable offsets
        while any([await consumer.position(tp) < end for tp, end in ends.items()]):
            for record in await consumer.receive_batch(timeout=0.2):
                found[record.partition].append(record.value)
    return [value for number in sorted(found) for value in found[number]]


def open_at_the_broker(cluster: ScriptedCluster, name: str = "x") -> bool:
    """Return whether the coordinator has an open transaction."""
    return cluster.transactions.by_id[name].state.value == "Ongoing"


async def until_closed(cluster: ScriptedCluster, name: str = "x") -> None:
    """Wait until the transaction has ended."""
    with trio.fail_after(30):
        while cluster.transactions.by_id[name].state.value not in (  # noqa: ASYNC110
            "Empty",
            "CompleteCommit",
            "CompleteAbort",
        ):
            await trio.sleep(0.01)
