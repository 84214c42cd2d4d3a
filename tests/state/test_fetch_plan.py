"""The plan of fetches: from which broker a partition is fetched, and when not.

Pure: a table of partitions, a snapshot, and a clock that is an argument.
"""

from __future__ import annotations

import math
from uuid import UUID

from trikafka import TopicPartition
from trikafka._state.consumer.assignment import Assignment, ChangeCallbacks, PartitionState
from trikafka._state.consumer.fetch_buffer import CompletedFetch, FetchBuffer
from trikafka._state.consumer.fetch_plan import FetchPlan
from trikafka.interfaces import ClusterSnapshot, TopicInfo
from trikafka.types import Node, PartitionInfo

A, B, C = TPS = [TopicPartition("t", number) for number in range(3)]
NODES = {number: Node(number, f"broker-{number}", 9092) for number in range(3)}


def snapshot_of(*leaders: int | None, epoch: int = 0, topic_id: int = 7) -> ClusterSnapshot:
    parts = {
        n: PartitionInfo("t", n, leader, epoch, (0, 1, 2), (0, 1, 2))
        for n, leader in enumerate(leaders)
    }
    return ClusterSnapshot(
        1, None, None, NODES, {"t": TopicInfo("t", 0, str(UUID(int=topic_id)), False, parts)}
    )


class World:
    def __init__(self, *leaders: int | None, limit: int = 1000) -> None:
        self.buffer = FetchBuffer(limit)
        self.table = Assignment(
            ChangeCallbacks(overtaken=lambda partition: self.buffer.drop(partition))
        )
        self.plan = FetchPlan(self.table, self.buffer)
        self.snapshot = snapshot_of(*leaders)
        self.table.assign(TPS[: len(leaders)])
        for partition in self.table:
            partition.seek(0)

    def update(self, now: float = 0.0) -> set[int]:
        return self.plan.update(self.snapshot, now)

    def wanted(self) -> dict[int, set[TopicPartition]]:
        return {
            node: set(session.wanted)
            for node, session in self.plan.sessions.items()
            if session.wanted
        }


def test_partition_is_fetched_from_its_leader() -> None:
    world = World(0, 1, 1)
    assert world.update() == {0, 1}
    assert world.wanted() == {0: {A}, 1: {B, C}}
    assert world.update() == set(), "nothing has changed"
    world.snapshot = snapshot_of(2, 1, None)
    assert world.update() == {2}
    assert world.wanted() == {1: {B}, 2: {A}}
    assert list(world.plan.leaderless) == [world.table.get(C)]
    world.table.revoked([A])
    world.update()
    assert world.wanted() == {1: {B}}


def test_paused_or_delayed_is_not_fetched() -> None:
    world = World(0, 0)
    world.table.get(A).pause()
    world.plan.back_off(world.table.get(B), 5.0)
    world.update(1.0)
    assert (world.wanted(), world.plan.next_timer) == ({}, 5.0)
    world.table.get(A).resume()
    world.update(1.0)
    assert world.wanted() == {0: {A}}
    world.update(5.0)
    assert (world.wanted(), world.plan.next_timer) == ({0: {A, B}}, math.inf)
    assert world.plan.failures(world.table.get(B)) == 1
    world.plan.progressed(world.table.get(B))
    assert world.plan.failures(world.table.get(B)) == 0


def test_seek_ends_the_delay_and_its_reset() -> None:
    world = World(0, 0)
    a, b = world.table
    for partition in (a, b):
        world.plan.back_off(partition, 5.0, reset=True)
    world.update()
    a.seek(3)
    world.update()
    assert world.wanted() == {0: {A}}
    world.update(5.0)
    assert world.plan.pop_actions().resets == [b]
    assert world.plan.pop_actions().resets == []


def test_preferred_replica_is_used_for_a_while() -> None:
    """The replica is asked until its time is up or it fails."""
    world = World(0, 0)
    a, b = world.table
    world.update()
    for partition in (a, b):
        world.plan.prefer(partition, 2, until=10.0)
    assert world.update(1.0) == {2}
    assert world.wanted() == {2: {A, B}}
    assert world.plan.reads_from_follower(a, 2)
    assert not world.plan.reads_from_follower(a, 0)
    assert world.plan.next_timer == 10.0
    world.update(10.0)
    assert world.wanted() == {0: {A, B}}
    world.plan.prefer(a, 1, until=30.0)
    world.update(11.0)
    world.plan.unreachable(1, until=20.0)
    world.update(11.0)
    assert world.wanted() == {0: {A, B}}
    assert [world.plan.trusts_replicas(now) for now in (11.0, 20.0)] == [False, True]
    world.plan.unreachable(0, until=99.0)
    assert world.plan.trusts_replicas(20.0), "it was asked as a leader"


def test_broker_with_enough_buffered_waits() -> None:
    world = World(0, 0, limit=200)
    a = world.table.get(A)
    world.update()
    world.buffer.put(CompletedFetch(a, a.ticket, memoryview(bytes(60)), None, 5), 0)
    a.fetched(5)
    world.buffer.put(CompletedFetch(a, a.ticket, memoryview(bytes(60)), None, 9), 0)
    a.fetched(9)
    world.update()
    assert (world.wanted(), world.plan.is_short_of_room(0)) == ({0: {B}}, True)
    world.buffer.pop(a)
    world.update()
    assert (world.wanted(), world.plan.is_short_of_room(0)) == ({0: {A, B}}, False)
    assert world.plan.sessions[0].wanted[A].ticket.offset == 9


def test_paused_partitions_buffer_is_dropped() -> None:
    """Without room, the buffer of a paused partition is dropped and fetched again later."""
    world = World(0, 0, limit=160)
    a, b = world.table
    world.update()
    world.buffer.put(CompletedFetch(a, a.ticket, memoryview(bytes(70)), None, 5), 0)
    a.fetched(5)
    a.pause()
    world.update()
    assert world.plan.room(0, 1000, 10) == 10
    assert world.buffer.buffered == 70, "there is room for both"
    world.buffer.put(CompletedFetch(b, b.ticket, memoryview(bytes(60)), None, 5), 0)
    assert world.plan.room(0, 1000, 10) == 10
    assert (world.buffer.buffered, a.fetch_offset) == (60, 0)


def test_new_leader_epoch_is_validated_once() -> None:
    """Only a position with a known epoch is validated."""
    world = World(0, 0)
    a, b = world.table
    a.seek(5, 0)
    world.update()
    world.snapshot = snapshot_of(1, 1, epoch=3)
    world.update()
    assert (a.state, b.state) == (PartitionState.VALIDATING, PartitionState.FETCHING)
    assert (list(world.table.unvalidated), world.wanted()) == ([a], {1: {B}})
    a.validated()
    world.update()
    assert (a.state, world.wanted()) == (PartitionState.FETCHING, {1: {A, B}})
    assert world.plan.sessions[1].wanted[A].leader_epoch == 3


def test_recreated_topic_is_reported_once() -> None:
    world = World(0)
    (a,) = world.table
    world.update()
    world.snapshot = snapshot_of(0, topic_id=8)
    world.update()
    assert (world.plan.pop_actions().recreated, world.wanted()) == ([a], {})
    a.seek(0)
    world.update()
    assert (world.plan.pop_actions().recreated, world.wanted()) == ([], {0: {A}})
