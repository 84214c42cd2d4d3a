"""Leader hints (KIP-951) that form a circle: a hint spares a batch its backoff once."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from producing import ready, values
from trio.testing import MockClock as Clock

from trikafka import DeliveryTimeoutError
from trikafka.error_codes import ErrorCode
from trikafka.testing import respond


def hints_in_a_circle(brokers: int) -> Any:
    """Return a handler that always names the next broker, each time in a higher epoch."""
    count = 0

    async def handle(request: Any, default: Any) -> Any:
        nonlocal count
        count += 1
        assert count < 300, "asked without a pause"  # which would never end, for no time passes
        hint = {"leader_id": count % brokers, "leader_epoch": 100 + count}
        part = {
            "index": 0,
            "error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER,
            "base_offset": -1,
            "current_leader": hint,
        }
        return respond(
            request, responses=[{"name": "t", "partition_responses": [part]}], node_endpoints=[]
        )

    return handle


@pytest.mark.parametrize("brokers", [2, 3])
@pytest.mark.parametrize("idempotent", [True, False])
async def test_circular_hints_are_followed_with_backoff(
    autojump_clock: Clock, brokers: int, idempotent: bool
) -> None:
    async with ready(
        nodes=brokers,
        delivery_timeout_ms=10_000,
        request_timeout_ms=5_000,
        enable_idempotence=idempotent,
    ) as (
        cluster,
        producer,
    ):
        produced, asked = len(cluster.requests("Produce")), len(cluster.requests("Metadata"))
        cluster.on("Produce", hints_in_a_circle(brokers))
        with trio.fail_after(30), pytest.raises(DeliveryTimeoutError):
            await producer.send("t", b"x")
        assert 5 < len(cluster.requests("Produce")) - produced < 50
        assert len(cluster.requests("Metadata")) > asked, (
            "who leads is asked for once the hints have led nowhere"
        )


async def test_delivery_makes_the_next_hint_count(autojump_clock: Clock) -> None:
    async with ready(nodes=2) as (cluster, producer):

        async def move_on(request: Any, default: Any) -> Any:
            cluster.move_leader("t", 0, 1 - (cluster.partition("t", 0).leader or 0))
            return await default()

        begun = trio.current_time()
        cluster.on("Produce", move_on, times=3)
        with trio.fail_after(30):
            await producer.send("t", b"x")
        assert trio.current_time() > begun, "the second hint in a row spares it no wait"
        begun = trio.current_time()
        cluster.on("Produce", move_on, times=1)
        await producer.send("t", b"y")
        assert trio.current_time() == begun
        assert values(cluster) == [b"x", b"y"]
