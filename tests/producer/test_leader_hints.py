"""Leader hints (KIP-951): a former leader names the new one, and records go there without a
metadata request.
"""

from __future__ import annotations

import pytest
import trio
from producing import ready, values
from trio.testing import MockClock as Clock


@pytest.mark.parametrize("idempotent", [True, False])
async def test_hinted_leader_gets_the_record_at_once(
    idempotent: bool, autojump_clock: Clock
) -> None:
    async with ready(nodes=2, partitions=2, enable_idempotence=idempotent) as (cluster, producer):
        asked, begun = len(cluster.requests("Metadata")), trio.current_time()
        for number in range(20):
            cluster.move_leader("t", 0, number % 2)
            cluster.move_leader("t", 1, (number + 1) % 2)
            acks = [producer.send_nowait("t", b"%d" % number, partition=part) for part in (0, 1)]
            for ack in acks:
                await ack.wait()
        assert trio.current_time() == begun, "no backoff: the new leader has refused nothing"
        assert len(cluster.requests("Metadata")) == asked
        assert values(cluster, 0) == values(cluster, 1) == [b"%d" % number for number in range(20)]
        assert producer.statistics().batches_retried >= 38


async def test_old_version_needs_a_metadata_request(autojump_clock: Clock) -> None:
    async with ready(nodes=2) as (cluster, producer):
        cluster.offer("Produce", (3, 9))
        cluster.disconnect(0)
        cluster.disconnect(1)
        await producer.send("t", b"x")
        asked = len(cluster.requests("Metadata"))
        cluster.move_leader("t", 0, 1 - (cluster.partition("t", 0).leader or 0))
        await producer.send("t", b"y")
        assert len(cluster.requests("Metadata")) > asked
        assert values(cluster) == [b"x", b"y"]


async def test_order_holds_over_moves_of_the_leader(autojump_clock: Clock) -> None:
    async with ready(nodes=2, batch_size=0) as (cluster, producer):
        cluster.delay("Produce", 0.05)
        acks = []
        for number in range(60):
            acks.append(await producer.enqueue("t", b"%d" % number))
            if number % 20 == 10:
                await trio.sleep(0.02)
                cluster.move_leader("t", 0, 1 - (cluster.partition("t", 0).leader or 0))
        for ack in acks:
            await ack.wait()
        assert values(cluster) == [b"%d" % number for number in range(60)]


async def test_outdated_hint_costs_no_backoff(autojump_clock: Clock) -> None:
    """Metadata has named the new leader already, and that one has refused nothing."""
    async with ready(nodes=2) as (cluster, producer):
        old = cluster.partition("t", 0).leader or 0
        cluster.delay("Produce", 1, node=old)
        ack = producer.send_nowait("t", b"x")
        await trio.sleep(0.1)
        cluster.move_leader("t", 0, 1 - old)
        await producer._metadata.refresh(["t"])
        begun = trio.current_time()
        await ack.wait()
        assert trio.current_time() - begun == pytest.approx(0.9)
        assert values(cluster) == [b"x"]
