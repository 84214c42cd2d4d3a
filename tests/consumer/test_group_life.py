"""Random lives of several members of one group, in virtual time, with random troubles.

Each record is processed at least once, whatever is cancelled at which checkpoint. No commit is
ahead of what the members have processed. One assignment delivers its records in order, without a
gap.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from consuming import cluster_of, consumer_of
from trio.testing import MockClock as Clock

from trikafka import TopicPartition, TrikafkaError
from trikafka.errors import IllegalStateError
from trikafka.errors.groups import unwrapped
from trikafka.testing import ScriptedCluster

PARTITIONS, NODES = 3, 2
TPS = [TopicPartition("t", number) for number in range(PARTITIONS)]
#: What a call may raise here; anything else is a bug.
Passing = (TrikafkaError, IllegalStateError, trio.BusyResourceError)
Offsets = defaultdict[TopicPartition, set[int]]


class CancelAt(trio.abc.Instrument):
    """An instrument that cancels a scope at a suspension of a task."""

    def __init__(self, task: trio.lowlevel.Task, step: int, scope: trio.CancelScope) -> None:
        self._task, self._left, self._scope = task, step, scope

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            if not self._left:
                self._scope.cancel()
            self._left -= 1


class GroupLife:
    """One cluster, the members of one group, and what they have received and processed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.received: Offsets = defaultdict(set)
        self.processed: Offsets = defaultdict(set)
        self.wrong: list[str] = []
        self.cancels = self.dice.choice((0, 0.3))
        self.settings: dict[str, Any] = {
            "group_id": "g",
            "group_protocol": self.dice.choice(("classic", "consumer")),
            "auto_commit_interval_ms": self.dice.choice((50, 700)),
            "max_poll_records": self.dice.choice((None, 2)),
            "request_timeout_ms": 3_000,
            "default_api_timeout_ms": 8_000,
            "close_timeout_ms": 5_000,
            "metadata_max_age_ms": 5_000,
        }
        if self.settings["group_protocol"] == "classic":
            strategy = self.dice.choice(("range", "cooperative-sticky"))
            self.settings |= {
                "session_timeout_ms": 6_000,
                "partition_assignment_strategy": [strategy],
            }

    async def check_commit(self, request: Any, default: Any) -> Any:
        for topic in request.topics:
            for part in topic.partitions:
                tp = TopicPartition("t", part.partition_index)
                ahead = set(range(part.committed_offset)) - self.processed[tp]
                if ahead:
                    self.wrong.append(f"committed {tp}, not processed: {sorted(ahead)[:5]}")
        return await default()

    async def troubles(self, cluster: ScriptedCluster) -> None:
        dice = self.dice
        kinds: list[Callable[[], object]] = [
            *[lambda: cluster.append("t", dice.randrange(PARTITIONS), [b"x"] * 3)] * 3,
            cluster.disconnect,
            lambda: cluster.move_leader("t", dice.randrange(PARTITIONS), dice.randrange(NODES)),
            lambda: cluster.move_coordinator(dice.randrange(NODES)),
            cluster.forget_fetch_sessions,
            lambda: cluster.drop("OffsetCommit", after=dice.random() < 0.5),
            lambda: cluster.fail("Fetch", 6, 2),
            lambda: cluster.delay("OffsetCommit", 2, 1),
        ]
        while True:
            await trio.sleep(dice.expovariate(1.5))
            dice.choice(kinds)()

    async def member(self, cluster: ScriptedCluster) -> None:
        for _ in range(self.dice.choice((1, 2))):
            await trio.sleep(self.dice.choice((0, 1, 4)))
            way = self.dice.choice(("end", "end", "aclose", "cancel"))
            with trio.CancelScope() as outer:
                async with consumer_of(cluster, "t", **self.settings) as consumer:
                    one = Member(self, consumer)
                    for _ in range(self.dice.choice((3, 20))):
                        async with self.perhaps_cancelled():
                            await self.dice.choice(one.steps)()
                    if way == "cancel":
                        outer.cancel()
                        await trio.sleep(1)
                    one.came_back()
                    if way == "aclose":
                        await consumer.aclose()

    @asynccontextmanager
    async def perhaps_cancelled(self) -> AsyncIterator[None]:
        scope = trio.CancelScope()
        step = self.dice.choice((0, 0, 1, 2, 3, 5, 9))
        instrument = CancelAt(trio.lowlevel.current_task(), step, scope)
        cancels = self.dice.random() < self.cancels
        if cancels:
            trio.lowlevel.add_instrument(instrument)
        try:
            with trio.fail_after(1_000), scope:
                yield
        except Passing:
            pass
        except BaseExceptionGroup as group:
            if not isinstance(unwrapped(group), Passing):
                raise
        finally:
            if cancels:
                trio.lowlevel.remove_instrument(instrument)


class Member:
    """What one member does, and the records in its hands."""

    def __init__(self, life: GroupLife, consumer: Any) -> None:
        self.life = life
        self.consumer = consumer
        self.in_hand: Offsets = defaultdict(set)
        #: The last offset of each assignment.
        self.last: dict[tuple[TopicPartition, int], int] = {}
        #: The assignments whose next records may have been received before, as a stream ended.
        self.again: set[tuple[TopicPartition, int]] = set()
        self.steps = [self.batch, self.records, self.streams, self.pause, self.sleep]
        self.steps += [*[self.batch, self.records] * 2, self.rebalance, self.unsubscribe]

    def came_back(self) -> None:
        """Process what is in hand: the member asks for more."""
        for tp in list(self.in_hand):
            self.done(tp)

    def done(self, tp: TopicPartition) -> None:
        self.life.processed[tp] |= self.in_hand.pop(tp, set())

    def got(self, tp: TopicPartition, offsets: Sequence[int]) -> None:
        assigned = tp, self.consumer.assignment_epoch(tp)
        assert assigned[1] is not None
        assert list(offsets) == list(range(offsets[0], offsets[0] + len(offsets)))
        if assigned in self.last:
            following = self.last[assigned] + 1
            assert offsets[0] == following or (assigned in self.again and offsets[0] < following)
        self.last[assigned] = offsets[-1]
        self.again.discard(assigned)
        self.life.received[tp].update(offsets)
        self.in_hand[tp].update(offsets)

    async def batch(self) -> None:
        self.came_back()
        batch = await self.consumer.receive_batch(timeout=self.life.dice.choice((0, 0.1, 3)))
        if batch:
            self.got(TopicPartition("t", batch.partition), batch.offsets)

    async def records(self) -> None:
        self.came_back()
        left = self.life.dice.choice((1, 5))
        with trio.move_on_after(3):
            async for record in self.consumer:
                self.got(TopicPartition("t", record.partition), [record.offset])
                left -= 1
                if not left:
                    return
                self.came_back()

    async def streams(self) -> None:
        async def handle(stream: Any) -> None:
            tp, left = stream.partition, self.life.dice.choice((1, 4))
            async for record in stream:
                self.got(tp, [record.offset])
                left -= 1
                if not left:
                    break
                await trio.sleep(self.life.dice.choice((0, 0, 0.5)))
                self.done(tp)
            # A handler that ends without asking again has not processed its last record.
            self.in_hand.pop(tp, None)
            self.again.update(self.last)

        self.came_back()
        try:
            with trio.move_on_after(self.life.dice.choice((1, 5))):
                async with trio.open_nursery() as nursery:
                    async for stream in self.consumer.partitions():
                        nursery.start_soon(handle, stream)
        finally:
            self.in_hand.clear()
            self.again.update(self.last)

    async def pause(self) -> None:
        for tp in self.consumer.assignment():
            change = self.consumer.pause if self.life.dice.random() < 0.4 else self.consumer.resume
            change([tp])

    async def sleep(self) -> None:
        await trio.sleep(self.life.dice.choice((0.2, 2, 9)))

    async def rebalance(self) -> None:
        self.consumer.enforce_rebalance()

    async def unsubscribe(self) -> None:
        self.came_back()
        try:
            await self.consumer.unsubscribe(timeout=5)
        finally:
            if not self.consumer.subscription():
                self.consumer.subscribe(["t"])


@pytest.mark.parametrize("seed", range(8))
async def test_members_process_each_record(seed: int, autojump_clock: Clock) -> None:
    life = GroupLife(seed)
    times = {"consumer_session_timeout": 6, "consumer_heartbeat_interval": 0.5}
    async with cluster_of(PARTITIONS, records=4, nodes=NODES, **times) as cluster:
        cluster.on("OffsetCommit", life.check_commit)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.troubles, cluster)
            async with trio.open_nursery() as members:
                for _ in range(life.dice.choice((1, 2, 3))):
                    members.start_soon(life.member, cluster)
            nursery.cancel_scope.cancel()
        life.cancels = 0
        async with consumer_of(cluster, "t", **life.settings) as consumer:
            last = Member(life, consumer)
            ends = await consumer.end_offsets(TPS)
            with trio.fail_after(60):
                while consumer.assignment() != set(TPS) or any(
                    [await consumer.position(tp) < end for tp, end in ends.items()]
                ):
                    await last.batch()
            last.came_back()
        assert life.received == {tp: set(range(end)) for tp, end in ends.items()}
    assert not life.wrong
