"""Blocks that outlast their time, while two things happen in one step: at every step, many moments.

The moments are the one at which the blocks are cut off, which is that of the locks' renewal, and
the one at which the records of a block that does not end are released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

import pytest
import trio
from sharing import GROUP, cluster_of, queue_of, quiet
from trio.testing import MockClock as Clock

from trikafka.errors import LockLostError, TrikafkaError
from trikafka.testing import ScriptedCluster
from trikafka.testing.share import RecordState, SharedPartition, SharedRecord
from trikafka.testing.steps import Moment, moments, two_at_once

#: The limit of a block (s), after which a lock is renewed as well; how long a cancelled block may
#: take until its records are released (5 s otherwise); how long a handler takes that cannot be
#: cancelled; and when the consumer is closed after the events. The first two are short, because a
#: consumer that holds records fetches all the time, and each virtual second costs real time.
LIMIT, LEAVING, STUBBORN, AFTERWARDS = 0.5, 1.0, 1.9, 0.5
EVENTS = (
    *("accept", "release", "cancel block", "disconnect", "forget", "refuse", "move", "fence"),
    *("close", "cancel"),
)


class Witness:
    """What brokers did with each delivery of a record, and what the program said of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        #: By offset and delivery count.
        self.freed: dict[tuple[int, int], float] = {}
        self.accepted: set[tuple[int, int]] = set()
        self.wrong: list[str] = []
        free, acknowledge = SharedPartition._free, SharedPartition.acknowledge

        def freed(partition: SharedPartition, record: SharedRecord) -> None:
            (offset,) = [at for at, each in partition.records.items() if each is record]
            at = min(trio.current_time(), record.lock_ends)
            self.freed.setdefault((offset, record.count), at)
            free(partition, record)

        def acknowledged(
            partition: SharedPartition, member: str, kinds: Mapping[int, int], now: float
        ) -> None:
            for offset, kind in kinds.items():
                record = partition.records[offset]
                if record.state is not RecordState.ACQUIRED or record.member != member:
                    self.wrong.append(f"{kind} for offset {offset}, which is {record}")
                elif kind == 1 and (offset, record.count) not in self.accepted:
                    self.wrong.append(f"delivery {record.count} of {offset} was not accepted")
            acknowledge(partition, member, kinds, now)

        monkeypatch.setattr(SharedPartition, "_free", freed)
        monkeypatch.setattr(SharedPartition, "acknowledge", acknowledged)


class Scene:
    """A consumer with four open blocks; two of their handlers cannot be cancelled."""

    def __init__(self, cluster: ScriptedCluster, witness: Witness) -> None:
        self.cluster = cluster
        self.witness = witness
        self.held: list[Any] = []
        self.life = trio.CancelScope()
        self.blocks = [trio.CancelScope() for _ in range(4)]
        self.over = trio.Event()
        self.cancelled_at = math.inf

    async def work(self, number: int) -> None:
        delivery, ended_at = self.held[number], math.inf
        with suppress(LockLostError, trio.ClosedResourceError), self.blocks[number]:
            async with delivery:
                try:
                    with trio.CancelScope(shield=number >= 2):
                        await trio.sleep(STUBBORN)
                finally:
                    ended_at = trio.current_time()
        place = (delivery.record.offset, delivery.delivery_count)
        freed = self.witness.freed.get(place, math.inf)
        if number < 2 and ended_at > freed + 0.1:
            self.witness.wrong.append(f"{place} was worked on until {ended_at}, freed at {freed}")

    def accept(self, number: int) -> None:
        delivery = self.held[number]
        with suppress(TrikafkaError):
            delivery.accept()
            self.witness.accepted.add((delivery.record.offset, delivery.delivery_count))

    def release(self, number: int) -> None:
        delivery = self.held[number]
        with suppress(TrikafkaError):
            delivery.release()
            self.witness.accepted.discard((delivery.record.offset, delivery.delivery_count))

    def cancel(self) -> None:
        self.cancelled_at = min(self.cancelled_at, trio.current_time())
        self.life.cancel()

    def refuse(self) -> None:
        self.cluster.fail("ShareAcknowledge", 121, where=lambda each: each.is_renew_ack, topic="t")

    def events(self) -> dict[str, Callable[[], object]]:
        return {
            "accept": lambda: [self.accept(0), self.accept(2)],
            "release": lambda: [self.release(0), self.release(2)],
            "cancel block": lambda: [self.blocks[0].cancel(), self.blocks[2].cancel()],
            "disconnect": lambda: self.cluster.disconnect(0),
            "forget": self.cluster.shares.forget_sessions,
            "refuse": self.refuse,
            "move": lambda: self.cluster.move_leader("t", 0, 1),
            "fence": lambda: self.cluster.shares.fence(GROUP),
            "close": self.over.set,
            "cancel": self.cancel,
        }


async def play(monkeypatch: pytest.MonkeyPatch, moment: Moment, after: float) -> None:
    """Play a scene in which the two events come so many seconds after the blocks were opened."""
    with monkeypatch.context() as patches:
        witness = Witness(patches)
        async with cluster_of(records=8, nodes=2) as cluster:
            cluster.shares.times.delivery_limit = 1000
            cluster.shares.times.lock = 2 * LIMIT
            scene = Scene(cluster, witness)
            settings = {"max_in_flight": 10, "max_processing_ms": LIMIT * 1000}
            async with trio.open_nursery() as others:
                with scene.life:
                    async with queue_of(cluster, reconnect_backoff_ms=1, **settings) as queue:
                        holdings = queue._parts.core.holdings
                        scene.held += [await queue.receive() for _ in range(4)]
                        for number in range(4):
                            others.start_soon(scene.work, number)
                        await trio.sleep(after)
                        events = scene.events()
                        others.start_soon(
                            two_at_once, events[moment.first], events[moment.second], moment
                        )
                        with trio.move_on_after(AFTERWARDS):
                            await scene.over.wait()
                assert trio.current_time() <= scene.cancelled_at + 1.001, moment
            assert (holdings.held, holdings.blocks, holdings.overdue) == (0, {}, 0), moment
            partition = cluster.shares.by_id[GROUP].partitions[cluster.topic_id("t"), 0]
            # A broker that has forgotten a session, or that leads the partition no more, leaves the
            # records until their locks end.
            later = {moment.first, moment.second} & {"forget", "move"}
            partition.expire(trio.current_time() + (2 * LIMIT if later else 0))
            left = [each for each in partition.records.values() if each.member]
            assert not [each for each in left if each.state is RecordState.ACQUIRED], moment
        assert witness.wrong == [], moment


@pytest.mark.parametrize(("half", "after"), [(0, LIMIT), (1, LIMIT + LEAVING)])
async def test_two_events_at_a_blocks_limit(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, half: int, after: float
) -> None:
    """Each ordered pair of events meets at one of the two moments."""
    quiet()
    monkeypatch.setattr("trikafka._api.share.core._LEAVING", LEAVING)
    every = moments(EVENTS, steps=50, total=90, leave_out=lambda one, two: one == two)
    for moment in islice(every, half, None, 2):
        await play(monkeypatch, moment, after)
