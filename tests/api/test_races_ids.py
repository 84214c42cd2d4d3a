"""What a client is given once it has once, also where several tasks ask for it at the same time."""

from __future__ import annotations

from uuid import UUID

import trio
from trio.testing import MockClock as Clock

import trikafka
from trikafka.testing import ScriptedCluster


async def test_a_client_has_one_instance_id_whoever_asks(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.offer("GetTelemetrySubscriptions", (0, 0))
        found: list[UUID] = []
        async with trikafka.open_consumer(bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial) as consumer:

            async def ask() -> None:
                found.append(await consumer.client_instance_id())

            with trio.fail_after(30):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ask)
                    nursery.start_soon(ask)
                await ask()
        assert len(found) == 3
        assert len(set(found)) == 1
