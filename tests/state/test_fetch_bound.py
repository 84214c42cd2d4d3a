"""The bound of the fetch buffer: no reader waits for ever behind it.

The plan and the buffer, with simulated brokers.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trikafka import TopicPartition
from trikafka._state.consumer.assignment import AssignedPartition, Assignment, ChangeCallbacks
from trikafka._state.consumer.fetch_buffer import CompletedFetch, FetchBuffer
from trikafka._state.consumer.fetch_plan import FetchPlan
from trikafka.interfaces import ClusterSnapshot, TopicInfo
from trikafka.types import Node, PartitionInfo


def batch_of(size: int) -> memoryview:
    """Return bytes whose header gives their length."""
    data = bytearray(max(size, 12))
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    return memoryview(data)


class Brokers:
    """Brokers that each answer one fetch at a time with at least one whole batch.

    Partitions take turns (KIP-74, KIP-227).
    """

    def __init__(
        self, partitions: int, nodes: int, limit: int, sizes: list[int], *, by_stream: bool
    ) -> None:
        self.buffer = FetchBuffer(limit)
        self.table = Assignment(
            ChangeCallbacks(overtaken=lambda partition: self.buffer.drop(partition))
        )
        self.plan = FetchPlan(self.table, self.buffer)
        self.buffer.read_by_stream(by_stream)
        parts = {
            number: PartitionInfo("t", number, number % nodes, 0, (), ())
            for number in range(partitions)
        }
        brokers = {number: Node(number, f"broker-{number}", 9092) for number in range(nodes)}
        self.snapshot = ClusterSnapshot(
            1, None, None, brokers, {"t": TopicInfo("t", 0, None, False, parts)}
        )
        self.table.assign(TopicPartition("t", number) for number in range(partitions))
        for partition in self.table:
            partition.seek(0)
        self.sizes = sizes
        self.under_way: dict[int, int] = {}  # broker -> room
        self.orders: dict[int, list[TopicPartition]] = {number: [] for number in range(nodes)}

    def size(self, partition: AssignedPartition, offset: int) -> int:
        return self.sizes[(partition.tp.partition * 7 + offset) % len(self.sizes)]

    def begin(self, node: int) -> None:
        self.plan.update(self.snapshot, 0.0)
        session = self.plan.sessions.get(node)
        if node in self.under_way or session is None or not session.wanted:
            return
        if room := self.plan.room(node, 1 << 20, 1 << 20):
            session.next_request()
            kept = [tp for tp in self.orders[node] if tp in session.asked]
            self.orders[node] = kept + [tp for tp in session.asked if tp not in kept]
            self.buffer.fetch_begun(node, room)
            self.under_way[node] = room

    def end(self, node: int) -> None:
        if node not in self.under_way:
            return
        room, session = self.under_way.pop(node), self.plan.sessions[node]
        self.buffer.fetch_ended(node)
        order = self.orders[node]
        brought = 0
        for tp in list(order):
            wanted = session.asked[tp]
            partition, number, offset = wanted.ticket
            size = self.size(partition, offset)
            if brought and brought + size > room:
                continue
            brought += size
            order.remove(tp)
            order.append(tp)  # as in a session of the broker's
            if partition.awaits_fetch(number, offset):
                partition.fetched(offset + 1)
                self.buffer.put(
                    CompletedFetch(partition, number, batch_of(size), None, offset + 1), node
                )

    def read(self, partition: AssignedPartition) -> bool:
        fetch = self.buffer.pop(partition)
        if fetch is None:
            return False
        assert fetch.end is not None
        partition.passed_over(fetch.end)
        return True


@settings(max_examples=150)
@given(
    partitions=st.integers(1, 40),
    nodes=st.integers(1, 5),
    limit=st.sampled_from([1_000, 10_000, 100_000]),
    sizes=st.lists(st.sampled_from([20, 200, 900, 2_000]), min_size=1, max_size=5),
    by_stream=st.booleans(),
    seed=st.integers(0, 1_000),
)
def test_buffer_is_bounded_and_reads_progress(
    partitions: int, nodes: int, limit: int, sizes: list[int], by_stream: bool, seed: int
) -> None:
    """Some streams are read, others never.

    The buffer stays within its bound, and every stream that is read progresses.
    """
    chosen = random.Random(seed)
    brokers = Brokers(partitions, nodes, limit, sizes, by_stream=by_stream)
    buffer, table = brokers.buffer, list(brokers.table)
    # The first response of each broker shows how large batches are; these fetches begin together.
    most = max(
        limit * 1.25,
        nodes * max(sizes) + limit / 16 * nodes if limit < 16 * nodes * max(sizes) else 0,
    )
    read = [partition for partition in table if chosen.random() < 0.5] or table[:1]
    got = dict.fromkeys(read, 0)
    for _ in range(4_000):
        for node in chosen.sample(range(nodes), nodes):
            (brokers.end if chosen.random() < 0.5 else brokers.begin)(node)
            assert buffer.buffered <= most
        if by_stream:
            for partition in read:
                if brokers.read(partition):
                    got[partition] += 1
                    buffer.stop_waiting(partition)
                elif not buffer.has(partition):
                    buffer.ask(partition, waits=True)
        elif (next_one := buffer.next_partition()) is not None:
            buffer.begin()
            brokers.read(next_one)
            got[next_one] = got.get(next_one, 0) + 1
        if min(got.values()) >= 3:
            break
    assert min(got.values()) >= 3, "one of them waits for ever"


@pytest.mark.parametrize("polled", [False, True])
def test_full_buffer_fetches_only_what_is_wanted(polled: bool) -> None:
    brokers = Brokers(20, 1, 1_000, [200], by_stream=True)
    for _ in range(20):
        brokers.begin(0)
        brokers.end(0)
    full = [partition for partition in brokers.table if brokers.buffer.has(partition)]
    assert brokers.buffer.crowded
    assert brokers.buffer.buffered == 200 * len(full) <= 1_000
    brokers.begin(0)
    assert brokers.under_way == {}
    late = next(partition for partition in brokers.table if partition not in full)
    brokers.buffer.ask(late, waits=not polled)
    brokers.begin(0)
    assert set(brokers.plan.sessions[0].wanted) == {late.tp}
    brokers.end(0)
    assert brokers.buffer.has(late)
    assert brokers.buffer.buffered <= 1_250
    assert brokers.read(late)


def test_batch_beyond_the_bound_passes() -> None:
    """The waiting reader gets it, although a reader at another broker also waits."""
    brokers = Brokers(4, 2, 1_000, [5_000], by_stream=True)
    read = list(brokers.table)[:2]
    for partition in read:
        brokers.buffer.ask(partition, waits=True)
    for _ in range(10):
        brokers.begin(0)
        brokers.begin(1)
        brokers.end(0)
        brokers.end(1)
        for partition in read:
            if brokers.buffer.has(partition):
                brokers.read(partition)
                brokers.buffer.ask(partition, waits=True)
    assert all((partition.position or 0) > 0 for partition in read)
