"""Cancelled at every await, and two things in every step: nothing is lost, doubled or left behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from sharing import GROUP, cluster_of, queue_of, quiet, shared, states, until
from trio.testing import MockClock as Clock

from trikafka.errors import AcknowledgementError, LockLostError, TrikafkaError
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable
from trikafka.testing.share import RecordState
from trikafka.testing.steps import moments, two_at_once


async def left_behind(cluster: ScriptedCluster) -> None:
    """Check that no session, member or connection is left, and that nothing stays locked."""
    await until(lambda: not cluster.connections())
    assert not cluster.shares.sessions
    if GROUP in cluster.shares.by_id:
        assert not cluster.shares.by_id[GROUP].members
        for partition in cluster.shares.by_id[GROUP].partitions.values():
            assert not any(
                each.state is RecordState.ACQUIRED for each in partition.records.values()
            )


@asynccontextmanager
async def a_cluster() -> AsyncIterator[ScriptedCluster]:
    async with cluster_of(2, records=3) as cluster:
        cluster.shares.times.delivery_limit = 100
        yield cluster


async def test_a_whole_life_may_be_cancelled_anywhere(autojump_clock: Clock) -> None:
    async def life(cluster: ScriptedCluster) -> None:
        async with queue_of(cluster) as queue:
            async for delivery in queue:
                async with delivery:
                    await trio.sleep(0.01)
                if delivery.record.offset == 2:
                    await delivery.acknowledged()
                    break
            async with await queue.receive_batch() as batch:
                await trio.lowlevel.checkpoint()
                assert batch.records
            await queue.flush()

    with trio.fail_after(10_000):
        count = await assert_all_awaits_cancellable(life, left_behind, setup=a_cluster)
    assert count > 10


@pytest.mark.parametrize("call", ["receive", "receive_batch", "acknowledged", "flush", "block"])
async def test_a_cancelled_call_loses_nothing(autojump_clock: Clock, call: str) -> None:
    """The same consumer goes on after it, and each record is accepted once."""

    @asynccontextmanager
    async def open_queue() -> AsyncIterator[Any]:
        async with cluster_of(records=6) as cluster, queue_of(cluster) as queue:
            yield cluster, queue

    async def act(given: Any) -> None:
        _, queue = given
        if call == "receive":
            (await queue.receive()).accept()
        elif call == "receive_batch":
            (await queue.receive_batch()).accept()
        else:
            delivery = await queue.receive()
            if call == "block":
                async with delivery:
                    await trio.sleep(0.01)
                return
            delivery.accept()
            await (delivery.acknowledged() if call == "acknowledged" else queue.flush())

    async def rest(given: Any) -> None:
        cluster, queue = given
        with trio.fail_after(60):
            while GROUP not in cluster.shares.by_id or (states(cluster).count("acknowledged") < 6):
                with trio.move_on_after(1):
                    (await queue.receive()).accept()
                await queue.flush()
        counts = [record.count for record in shared(cluster).values()]
        assert counts == [1] * 6 or (call == "block" and counts[1:] == [1] * 5 and counts[0] <= 2)

    with trio.fail_after(10_000):
        assert await assert_all_awaits_cancellable(act, rest, setup=open_queue)


class Scene:
    """A consumer with one open block, one buffered record and one decided acknowledgement."""

    def __init__(self, cluster: ScriptedCluster, queue: Any, held: list[Any]) -> None:
        self.cluster = cluster
        self.queue = queue
        self.held = held
        self.block = trio.CancelScope()
        self.outcome: BaseException | None = None
        self.done = trio.Event()

    async def work(self) -> None:
        try:
            with self.block:
                async with self.held[0]:
                    await trio.sleep(3)
        except TrikafkaError as error:
            self.outcome = error
        finally:
            self.done.set()

    def events(self) -> dict[str, Callable[[], object]]:
        def quietly(call: Callable[[], object]) -> Callable[[], object]:
            def act() -> None:
                with suppress(TrikafkaError):
                    call()

            return act

        return {
            "accept": quietly(self.held[1].accept),
            "release": quietly(self.held[2].release),
            "cancel": self.block.cancel,
            "disconnect": lambda: self.cluster.disconnect(0),
            "forget": self.cluster.shares.forget_sessions,
            "refuse": lambda: self.cluster.fail("ShareAcknowledge", 121, topic="t"),
            "move": lambda: self.cluster.move_leader("t", 0, 1),
            "back": lambda: self.cluster.move_leader("t", 0, 0),
            "fence": lambda: self.cluster.shares.fence(GROUP),
            "append": lambda: self.cluster.append("t", 0, [b"more"]),
        }


@asynccontextmanager
async def a_scene() -> AsyncIterator[Scene]:
    async with cluster_of(records=8, nodes=2) as cluster:
        cluster.shares.times.delivery_limit = 1000
        cluster.shares.times.lock = 4  # renewed meanwhile
        async with queue_of(cluster, max_in_flight=10, reconnect_backoff_ms=1) as queue:
            scene = Scene(cluster, queue, [await queue.receive() for _ in range(3)])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(scene.work)
                yield scene


async def test_two_events_at_any_step(autojump_clock: Clock) -> None:
    quiet()
    names = (
        "accept",
        "release",
        "cancel",
        "disconnect",
        "forget",
        "refuse",
        "move",
        "back",
        "fence",
        "append",
    )
    for moment in moments(names, steps=60, total=90, leave_out=lambda one, two: one == two):
        async with a_scene() as scene:
            events = scene.events()
            await two_at_once(events[moment.first], events[moment.second], moment)
            with trio.fail_after(60):
                await scene.done.wait()
            # Afterwards everything is processed, whatever happened.
            for delivery in scene.held:
                with suppress(TrikafkaError):
                    delivery.accept()
            end = scene.cluster.partition("t", 0).end
            with trio.fail_after(200):
                while not _all_done(scene, end):
                    try:
                        with trio.move_on_after(1):
                            (await scene.queue.receive()).accept()
                        await scene.queue.flush()
                    except (AcknowledgementError, LockLostError):
                        pass
            held = scene.queue.statistics()
            assert (held.buffered, held.delivered) == (0, 0), moment


def _all_done(scene: Scene, end: int) -> bool:
    found = shared(scene.cluster)
    return all(
        offset in found and found[offset].state is RecordState.ACKNOWLEDGED for offset in range(end)
    )
