"""Ends of transactions that others overtake."""

from __future__ import annotations

import pytest
import trio
from transacting import open_at_the_broker, producer_of
from trio.testing import MockClock as Clock

from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster


@pytest.mark.parametrize("version", [1, 2])
async def test_what_was_not_committed_is_aborted_by_who_closes_meanwhile(version: int, autojump_clock: Clock) -> None:
    """Else it would be open until transaction_timeout_ms has passed, and readers of committed records wait for as long."""
    async with ScriptedCluster(nodes=1, topics={"t": 2}, transaction_version=version) as cluster:
        cluster.move_coordinator(0)
        with trio.fail_after(30):
            async with producer_of(cluster) as producer:
                async with producer.transaction() as txn:
                    await producer.send("t", b"x")
                    cluster.delay("EndTxn", 1, times=1)
                    cluster.fail("EndTxn", ErrorCode.TRANSACTION_ABORTABLE)
                    with trio.move_on_after(0.5) as scope:
                        await txn.commit()
                    assert scope.cancelled_caught
        assert not open_at_the_broker(cluster)
