"""Helpers of the tests of the whole producer, on a scripted cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import trio

from trikafka._api.producer.opening import open_producer
from trikafka._api.producer.producer import Producer
from trikafka.testing import ScriptedCluster


def opened(cluster: ScriptedCluster, **settings: Any) -> AbstractAsyncContextManager[Producer]:
    """Return the opening of a producer that does not linger unless the settings say so."""
    return open_producer(
        **(
            {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial, "linger_ms": 0}
            | settings
        )
    )


@asynccontextmanager
async def ready(
    nodes: int = 1, partitions: int = 1, **settings: Any
) -> AsyncIterator[tuple[ScriptedCluster, Producer]]:
    """Open a cluster with topic ``t``, and a producer that has sent ``b"first"`` to each partition."""
    async with (
        ScriptedCluster(nodes=nodes, topics={"t": partitions}) as cluster,
        opened(cluster, **settings) as producer,
    ):
        for partition in range(partitions):
            await producer.send("t", b"first", partition=partition)
        yield cluster, producer


def values(cluster: ScriptedCluster, partition: int = 0) -> list[bytes | None]:
    """Return what was written to a partition of ``t`` after the first record of :func:`ready`."""
    found = [record.value for record in cluster.records("t", partition)]
    return found[1:] if found[:1] == [b"first"] else found


def fill(producer: Producer) -> int:
    """Send records of 300 bytes to ``t`` until there is no room; return their number."""
    for count in range(1_000):
        try:
            producer.send_nowait("t", b"x" * 300)
        except trio.WouldBlock:
            return count
    raise AssertionError("there is no end to the room")


async def keyless_are_delivered(
    cluster: ScriptedCluster, producer: Producer, node: int, waiting: int
) -> bool:
    """Return whether records without a key are delivered while one broker takes none.

    ``waiting`` records for that broker were accepted three seconds before.
    """
    theirs = next(number for number in range(4) if cluster.partition("t", number).leader == node)
    for _ in range(waiting):
        await producer.enqueue("t", b"x", partition=theirs)
    await trio.sleep(3)
    acks = [await producer.enqueue("t", b"x") for _ in range(40)]
    await trio.sleep(1)
    return all(ack.done for ack in acks)


def numbers(count: int) -> list[bytes]:
    return [b"%03d" % number for number in range(count)]
