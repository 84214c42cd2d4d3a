"""A quota of the broker: what its response asks for is kept by the client, for all that the connection carries (KIP-219)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from netting import NODE, Asked, Parts, connected, metadata_request, open_parts
from trio.testing import MockClock as Clock

from trikafka._net.throttles import MOST_THROTTLE
from trikafka.testing import ScriptedCluster


def throttle(cluster: ScriptedCluster, milliseconds: int, times: int | None = 1) -> None:
    async def slow_down(request: Any, default: Any) -> Any:
        response = await default()
        response.throttle_time_ms = milliseconds
        return response

    cluster.on("Metadata", slow_down, times=times)


async def ask(parts: Parts, **options: Any) -> Any:
    return await parts.brokers.request(NODE, metadata_request(), **options)


async def test_the_next_request_waits_until_then_and_the_one_after_it_does_not(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        throttle(cluster, 1500)
        for _ in range(3):
            await ask(parts)
        assert [seen.time for seen in cluster.requests("Metadata")] == [0, 1.5, 1.5]


async def test_other_connections_to_the_broker_go_on(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        throttle(cluster, 1500)
        await ask(parts)
        await ask(parts, purpose="coordinator")
        assert trio.current_time() == 0


async def test_what_waits_is_sent_in_order_and_what_was_left_is_not_sent(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts, trio.open_nursery() as nursery:
        throttle(cluster, 1500)
        await ask(parts)
        asked = [Asked(nursery, lambda: ask(parts)) for _ in range(5)]
        await trio.sleep(1)
        asked[2].scope.cancel()
        for each in asked:
            await each.done.wait()
        assert asked[2].cancelled
        assert [seen.time for seen in cluster.requests("Metadata")] == [0, 1.5, 1.5, 1.5, 1.5]
        ids = [seen.correlation_id for seen in cluster.requests("Metadata")]
        assert ids == sorted(ids)


async def test_the_time_of_a_request_begins_when_it_may_be_sent(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False, request_timeout_ms=1000) as parts:
        throttle(cluster, 5000)
        await ask(parts)
        await ask(parts)
        assert trio.current_time() == 5
        assert len(cluster.dials) == 1


@pytest.mark.parametrize(("version", "waits"), [(2, 0), (5, 0), (6, 1.5), (13, 1.5)])
async def test_older_brokers_have_waited_themselves(autojump_clock: Clock, version: int, waits: float) -> None:
    async with ScriptedCluster(api_versions={"Metadata": (0, version)}) as cluster, open_parts(cluster, bootstrap=False) as parts:
        throttle(cluster, 1500)
        await ask(parts)
        await ask(parts)
        assert trio.current_time() == waits


async def test_an_absurd_time_is_the_brokers_and_less_than_none_is_none(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        throttle(cluster, -5)
        await ask(parts)
        await ask(parts)
        assert trio.current_time() == 0


async def test_the_connection_can_be_told_too(autojump_clock: Clock) -> None:
    async with connected() as line:
        line.connection.throttle(2, "Metadata")
        line.connection.throttle(1, "Metadata")
        asked = line.ask()
        await line.peer.answer(await line.peer.request(), brokers=[], topics=[])
        await asked.outcome()
        assert trio.current_time() == 2


async def test_a_time_that_no_quota_can_ask_is_bounded_and_told(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged response: without the bound the client would be silent for 24 days."""
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        throttle(cluster, 2**31 - 1)
        await ask(parts)
        await ask(parts, response_timeout=1)
        assert trio.current_time() == MOST_THROTTLE
    text = "broker-0:9092 asks for 2147484 s without requests, as no quota does: it has 60 s"
    assert [record.getMessage() for record in caplog.records if record.name == "trikafka.brokers"] == [text]
