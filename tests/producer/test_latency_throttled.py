"""Broker latency excludes the waits for a quota, which are counted beside it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from producing import ready
from trio.testing import MockClock as Clock

from trikafka import BrokerLatency


def figures(latency: BrokerLatency) -> Any:
    return pytest.approx(
        (latency.last, latency.mean, latency.longest, latency.requests, latency.throttled)
    )


async def test_throttle_before_a_request_is_not_latency(autojump_clock: Clock) -> None:
    """Before, the wait counted as the broker's."""

    async def throttle(request: Any, default: Any) -> Any:
        response = await default()
        response.throttle_time_ms = 1_500
        return response

    async with ready() as (cluster, producer):
        cluster.delay("Produce", 0.1, times=None)
        rule = cluster.on("Produce", throttle, times=1)
        began = trio.current_time()
        await producer.send("t", b"1")
        await producer.send("t", b"2")  # goes out at 1.6 s
        rule.remove()
        assert trio.current_time() - began == pytest.approx(1.7)
        assert figures(producer.statistics().latency[0]) == (0.1, 0.2 / 3, 0.1, 3, 1.5)


async def test_throttle_in_flight_is_not_latency(autojump_clock: Clock) -> None:
    """A throttling broker reads nothing more from the connection, so requests in flight wait."""
    muted_until = 0.0

    async def mute(request: Any, default: Any) -> Any:
        nonlocal muted_until
        await trio.sleep_until(muted_until)
        response = await default()
        await trio.sleep(0.1)
        if not muted_until:
            response.throttle_time_ms = 1_000
            muted_until = trio.current_time() + 1
        return response

    async with ready() as (cluster, producer):
        cluster.on("Produce", mute, times=None)
        first = await producer.enqueue("t", b"1")
        await trio.sleep(0.05)
        second = await producer.enqueue("t", b"2")
        await first.wait()
        await second.wait()
        assert trio.current_time() == pytest.approx(1.2)
        # The second one was sent at 0.05 s, throttled from 0.1 to 1.1 s, and answered at 1.2 s.
        assert figures(producer.statistics().latency[0]) == (0.15, 0.25 / 3, 0.15, 3, 1.0)


async def test_latency_has_no_throttle_without_quota(autojump_clock: Clock) -> None:
    async with ready() as (cluster, producer):
        cluster.delay("Produce", 0.2, times=None)
        await producer.send("t", b"1")
        assert figures(producer.statistics().latency[0]) == (0.2, 0.1, 0.2, 2, 0.0)
