"""Ten thousand partitions: no step of the loop is long or quadratic."""

from __future__ import annotations

import time
from collections.abc import Callable

from consuming import consumer_of
from trio.testing import MockClock as Clock

from trikafka import Node, PartitionInfo, TopicPartition
from trikafka.interfaces import ClusterSnapshot, TopicInfo
from trikafka.testing import ScriptedCluster

COUNT = 10_000
PLACES = [TopicPartition("t", number) for number in range(COUNT)]


def seconds(call: Callable[[], object]) -> float:
    """Return the processor time of this thread for a call."""
    began = time.thread_time()
    call()
    return time.thread_time() - began


async def test_reassignment_with_many_due_is_quick(autojump_clock: Clock) -> None:
    """It took 3 s when each due partition was sought in the list of wanted ones."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        async with consumer_of(cluster, group_id="g") as consumer:
            consumer.assign(PLACES)
            for place in PLACES:
                consumer.seek(place, 1)
            for partition in consumer._assignment:
                partition.processed_upto(1)
            auto_commit = consumer._parts.group.auto_commit
            assert auto_commit is not None
            assert len(auto_commit.due()) == COUNT
            assert seconds(lambda: consumer.assign(PLACES[::-2])) < 1.5
            assert len(auto_commit.due()) == COUNT, "what was taken away is due, too"
            consumer.assign([])


def test_many_leader_hints_are_quick() -> None:
    """It took 0.7 s when each hint copied the partitions of its topic."""
    nodes = {number: Node(number, "h", 9092) for number in range(2)}
    parts = {tp.partition: PartitionInfo("t", tp.partition, 0, 1, (0, 1), (0, 1)) for tp in PLACES}
    before = ClusterSnapshot(nodes=nodes, topics={"t": TopicInfo("t", 0, None, False, parts)})
    hints = dict.fromkeys(PLACES, (1, 2))
    assert min(seconds(lambda: before.with_leaders(hints, {})) for _ in range(3)) < 0.3
    after = before.with_leaders(hints, {})
    assert {info.leader for info in after.topics["t"].partitions.values()} == {1}
    assert {info.leader for info in before.topics["t"].partitions.values()} == {0}
    assert after.with_leaders(hints, {}) is after
