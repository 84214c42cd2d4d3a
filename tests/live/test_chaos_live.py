"""A short soak: all four calls and transactions write while brokers are killed, frozen and cut off.

``make chaos`` is the long one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from trikafka_broker import Cluster

from benchmarks.chaos.run import PROPERTIES, Options, run

if TYPE_CHECKING:
    from trikafka_broker.pytest_plugin import MakeKafkaCluster


async def test_no_record_is_lost_doubled_or_reordered(
    make_kafka_cluster: MakeKafkaCluster,
) -> None:
    cluster = Cluster(
        await trio.to_thread.run_sync(lambda: make_kafka_cluster(brokers=3, properties=PROPERTIES))
    )
    with trio.fail_after(1_800):
        figures = await run(Options(seed=7, seconds=12, records=30_000, troubles=3), cluster)
    assert figures.verdict.named == []
    assert figures.acked > 15_000
    assert figures.verdict.records >= figures.acked
    assert figures.transactions["committed"] > 0
    assert figures.transactions["aborted"] > 0
    assert figures.transacted > 0
    assert {"kill", "freeze", "leader moved"} <= set(figures.faults)
