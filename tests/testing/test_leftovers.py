"""The helper that finds what a client still holds: a task, a socket, a request, a slot, bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock as Clock

import trikafka
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable
from trikafka.testing._leftovers import assert_nothing_left

T0 = trikafka.TopicPartition("t", 0)


@asynccontextmanager
async def reading() -> AsyncIterator[tuple[ScriptedCluster, Any]]:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_consumer(**given) as consumer:
            consumer.assign([T0])
            await consumer.end_offsets([T0])
            yield cluster, consumer


def a_task(cluster: ScriptedCluster, consumer: Any) -> None:
    consumer._parts.start_soon(trio.sleep_forever)


def a_slot(cluster: ScriptedCluster, consumer: Any) -> None:
    consumer._parts.brokers.connections()[0]._room.acquire_on_behalf_of_nowait(object())


async def _dial(cluster: ScriptedCluster) -> None:
    await cluster.dial("broker-0", 9092)


def a_socket(cluster: ScriptedCluster, consumer: Any) -> None:
    consumer._parts.start_soon(_dial, cluster)


def bytes_in_the_buffer(cluster: ScriptedCluster, consumer: Any) -> None:
    cluster.append("t", 0, [b"x"])


def a_request(cluster: ScriptedCluster, consumer: Any) -> None:
    cluster.silence("Metadata")
    consumer._parts.metadata.request_update()


@pytest.mark.parametrize(
    ("leave", "text"),
    [
        (a_task, "task trio.sleep_forever"),
        (a_slot, "1 slots taken by 0 requests"),
        (a_socket, "sockets"),
        (bytes_in_the_buffer, "bytes buffered"),
        (a_request, "Metadata in flight"),
    ],
)
async def test_each_leftover_is_found(
    autojump_clock: Clock, leave: Callable[..., None], text: str
) -> None:
    async with reading() as (cluster, consumer):
        await assert_nothing_left(cluster, consumer)
        leave(cluster, consumer)
        await trio.sleep(1)
        with pytest.raises(AssertionError, match=text):
            await assert_nothing_left(cluster, consumer)


async def test_task_that_outlives_its_run_is_found(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:

        async def scenario() -> None:
            await trio.sleep(1)
            nursery.start_soon(trio.sleep_forever)

        with pytest.raises(AssertionError, match="1 tasks are left"):
            await assert_all_awaits_cancellable(scenario)
        nursery.cancel_scope.cancel()
