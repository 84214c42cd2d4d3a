"""What one task does while another waits: who comes later wins, in whatever order Trio goes on."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from consuming import T0, cluster_of, consumer_of
from trio.testing import MockClock as Clock


def committed(cluster: Any, partition: int = 0) -> int | None:
    found = cluster.committed("g", ("t", partition))
    return None if found is None else found.offset


@pytest.mark.parametrize("turn", range(8))  # Trio chooses at random which of the two goes on first
async def test_two_commits_whose_successor_fails_end_in_order(autojump_clock: Clock, turn: int) -> None:
    """Both had left their partition to the last; the older one overwrote the other's."""
    async with cluster_of(records=20) as cluster, consumer_of(cluster, group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign([T0])
        held = trio.Event()

        async def hold(request: Any, default: Any) -> Any:
            await held.wait()
            return await default()

        cluster.on("FindCoordinator", hold)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for offset in (5, 7):
                    nursery.start_soon(consumer.commit, {T0: offset})
                    await trio.sleep(0.1)
                with trio.move_on_after(1) as scope:
                    await consumer.commit({T0: 9})
                assert scope.cancelled_caught
                held.set()
        assert committed(cluster) == 7
