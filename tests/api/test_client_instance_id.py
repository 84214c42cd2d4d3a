"""``client_instance_id`` (KIP-714) of each client, with and without brokers that take metrics."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import trikafka
from trikafka import KafkaTimeoutError, TelemetryNotSupportedError
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable
from trikafka.testing._leftovers import assert_nothing_left

CLIENTS = {
    "consumer": trikafka.open_consumer,
    "producer": trikafka.open_producer,
    "admin": trikafka.open_admin,
}


@pytest.mark.parametrize("kind", CLIENTS)
async def test_instance_id_is_requested_once(autojump_clock: MockClock, kind: str) -> None:
    async with ScriptedCluster() as cluster:
        cluster.offer("GetTelemetrySubscriptions", (0, 0))
        opening: Any = CLIENTS[kind]
        async with opening(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as client:
            first = await client.client_instance_id()
            assert isinstance(first, uuid.UUID)
            assert first.int
            assert await client.client_instance_id(timeout=0) == first
        assert len(cluster.requests("GetTelemetrySubscriptions")) == 1


@pytest.mark.parametrize("kind", CLIENTS)
async def test_broker_without_telemetry_fails_at_once(autojump_clock: MockClock, kind: str) -> None:
    async with ScriptedCluster() as cluster:
        opening: Any = CLIENTS[kind]
        async with opening(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as client:
            start = trio.current_time()
            with pytest.raises(TelemetryNotSupportedError, match="accept no metrics"):
                await client.client_instance_id()
            assert trio.current_time() == start


async def test_instance_id_has_its_own_limit(autojump_clock: MockClock) -> None:
    async with ScriptedCluster() as cluster:
        cluster.offer("GetTelemetrySubscriptions", (0, 0))
        cluster.silence("GetTelemetrySubscriptions")
        async with trikafka.open_consumer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as consumer:
            start = trio.current_time()
            with pytest.raises(
                KafkaTimeoutError, match="client_instance_id did not finish within 2 s"
            ):
                await consumer.client_instance_id(timeout=2)
            assert trio.current_time() == start + 2
        async with trikafka.open_consumer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as consumer:
            with pytest.raises(ValueError, match="timeout"):
                await consumer.client_instance_id(timeout=-1)


@pytest.mark.parametrize("kind", ["consumer", "producer"])
async def test_cancelled_request_is_repeated(autojump_clock: MockClock, kind: str) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[tuple[ScriptedCluster, Any]]:
        async with ScriptedCluster() as cluster:
            cluster.offer("GetTelemetrySubscriptions", (0, 0))
            opening: Any = CLIENTS[kind]
            async with opening(
                bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
            ) as client:
                yield cluster, client

    async def scenario(given: tuple[ScriptedCluster, Any]) -> None:
        await given[1].client_instance_id()

    async def check(given: tuple[ScriptedCluster, Any]) -> None:
        assert (await given[1].client_instance_id()).int
        await assert_nothing_left(*given)

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 1


async def test_concurrent_calls_get_one_instance_id(autojump_clock: MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.offer("GetTelemetrySubscriptions", (0, 0))
        found: list[uuid.UUID] = []
        async with trikafka.open_consumer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as consumer:

            async def ask() -> None:
                found.append(await consumer.client_instance_id())

            with trio.fail_after(30):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ask)
                    nursery.start_soon(ask)
                await ask()
        assert len(found) == 3
        assert len(set(found)) == 1
