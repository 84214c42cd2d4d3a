"""Cancellation at every await: accepted records are written, others are not, and no resource is
left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio
from producing import fill, opened, ready, values
from trio.testing import MockClock as Clock

from trikafka._api.producer.ack import Ack
from trikafka._api.producer.producer import Producer
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable
from trikafka.testing._leftovers import assert_nothing_left

Given = tuple[ScriptedCluster, Producer]


async def usable(given: Given) -> None:
    """Check that the producer works, its room is free, and no slot, socket or task is left."""
    cluster, producer = given
    await producer.send("t", b"after")
    assert values(cluster)[-1] == b"after"
    statistics = producer.statistics()
    assert (statistics.buffer_used, statistics.tasks_waiting, statistics.batches_waiting) == (
        0,
        0,
        0,
    )
    await assert_nothing_left(cluster, producer)


async def test_send_may_be_cancelled_anywhere(autojump_clock: Clock) -> None:
    finished: list[bytes] = []

    async def scenario(given: Given) -> None:
        await given[1].send("t", b"sent")
        finished.append(b"sent")

    async def check(given: Given) -> None:
        await usable(given)
        assert values(given[0]) in ([b"after"], [b"sent", b"after"])

    assert await assert_all_awaits_cancellable(scenario, check, setup=ready) == 1, (
        "the wait for the outcome"
    )
    assert finished == [b"sent"]


async def test_cancelled_scope_accepts_no_record(autojump_clock: Clock) -> None:
    async with ready() as given:
        for call in (given[1].send, given[1].enqueue):
            with trio.CancelScope() as scope:
                scope.cancel()
                await call("t", b"never")
            assert scope.cancelled_caught
        await usable(given)
        assert values(given[0]) == [b"after"]


async def test_first_send_may_be_cancelled_anywhere(autojump_clock: Clock) -> None:
    async def scenario(given: Given) -> None:
        await given[1].send("new", b"x")

    async def check(given: Given) -> None:
        await usable(given)
        assert [record.value for record in given[0].records("new", 0)] in ([], [b"x"])
        await given[1].send("new", b"y")

    assert await assert_all_awaits_cancellable(scenario, check, setup=_with_topic) >= 3


@asynccontextmanager
async def _with_topic() -> AsyncIterator[Given]:
    async with ready() as given:
        given[0].create_topic("new")
        yield given


async def test_cancelled_enqueue_takes_no_room(
    autojump_clock: Clock,
) -> None:
    def setup() -> AbstractAsyncContextManager[Given]:
        return ready(buffer_memory=1_000)

    accepted: list[int] = []

    async def scenario(given: Given) -> None:
        cluster, producer = given
        cluster.freeze(0)
        accepted.append(fill(producer))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_thaw_later, cluster)
            await producer.enqueue("t", b"y" * 300)
            accepted[-1] += 1
            nursery.cancel_scope.cancel()

    async def check(given: Given) -> None:
        cluster, producer = given
        cluster.thaw(0)
        await producer.flush()
        await usable(given)
        assert len(values(cluster)) == accepted[-1] + 1

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 2


async def _thaw_later(cluster: ScriptedCluster) -> None:
    await trio.sleep(1)
    cluster.thaw(0)


async def test_cancelled_waiter_frees_the_next(autojump_clock: Clock) -> None:
    async with ready(buffer_memory=1_000) as (cluster, producer):
        cluster.freeze(0)
        assert fill(producer) > 0
        async with trio.open_nursery() as nursery:
            first = trio.CancelScope()

            async def in_scope() -> None:
                with first:
                    await producer.enqueue("t", b"first" * 60)

            nursery.start_soon(in_scope)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(producer.enqueue, "t", b"second" * 50)
            await trio.testing.wait_all_tasks_blocked()
            assert producer.statistics().tasks_waiting == 2
            first.cancel()
            cluster.thaw(0)
        await producer.flush()
        assert values(cluster)[-1] == b"second" * 50
        assert b"first" * 60 not in values(cluster)


async def test_cancelled_ack_keeps_its_record(autojump_clock: Clock) -> None:
    async def scenario(given: Given) -> None:
        ack = given[1].send_nowait("t", b"x")
        await ack.wait()
        await ack.wait()

    async def check(given: Given) -> None:
        await given[1].flush()
        await usable(given)
        assert values(given[0]) == [b"x", b"after"], "the record was on its way"

    assert await assert_all_awaits_cancellable(scenario, check, setup=ready) == 1, (
        "the second time there is nothing to wait for"
    )


async def test_cancelled_waiter_leaves_other_waiters(autojump_clock: Clock) -> None:
    async with ready(linger_ms=1_000) as (_, producer):
        ack = producer.send_nowait("t", b"x")
        results = []

        async def wait() -> None:
            results.append(await ack.wait())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            with trio.move_on_after(0.1):
                await ack.wait()
        assert [result.offset for result in results] == [1]


async def test_flush_may_be_cancelled_anywhere(autojump_clock: Clock) -> None:
    def setup() -> AbstractAsyncContextManager[Given]:
        return ready(linger_ms=1_000)

    async def scenario(given: Given) -> None:
        given[1].send_nowait("t", b"x")
        await given[1].flush()

    async def check(given: Given) -> None:
        await given[1].flush()
        await usable(given)
        assert values(given[0]) == [b"x", b"after"]

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 1


async def test_partitions_for_may_be_cancelled(autojump_clock: Clock) -> None:
    async def scenario(given: Given) -> None:
        await given[1].partitions_for("other")

    assert await assert_all_awaits_cancellable(scenario, usable, setup=ready) >= 1


async def test_aclose_may_be_cancelled_anywhere(autojump_clock: Clock) -> None:
    acks: list[Ack] = []

    def setup() -> AbstractAsyncContextManager[Given]:
        return ready(linger_ms=1_000)

    async def scenario(given: Given) -> None:
        acks.append(given[1].send_nowait("t", b"x"))
        await given[1].aclose()

    async def check(given: Given) -> None:
        await given[1].aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert acks[-1].done
        assert given[1].statistics().buffer_used == 0
        assert given[0].connections() == 0

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 1


async def test_exit_may_be_cancelled_anywhere(autojump_clock: Clock) -> None:
    """Cancelled in the body or at the exit, the block ends and the sockets are closed."""

    async def scenario(cluster: ScriptedCluster) -> None:
        with trio.CancelScope(shield=True) as opening:
            async with opened(cluster, linger_ms=1_000) as producer:
                opening.shield = False
                await producer.send("t", b"x")
                producer.send_nowait("t", b"y")

    async def check(cluster: ScriptedCluster) -> None:
        await trio.testing.wait_all_tasks_blocked()
        assert cluster.connections() == 0

    def setup() -> ScriptedCluster:
        return ScriptedCluster(topics={"t": 1})

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 5


async def test_opening_may_be_cancelled_anywhere(autojump_clock: Clock) -> None:
    async def scenario(cluster: ScriptedCluster) -> None:
        async with opened(cluster):
            pass

    async def check(cluster: ScriptedCluster) -> None:
        await trio.testing.wait_all_tasks_blocked()
        assert cluster.connections() == 0

    def setup() -> ScriptedCluster:
        return ScriptedCluster(topics={"t": 1})

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 2
