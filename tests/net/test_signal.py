"""Many tasks that wait for one thing: all wake in order, and cancelled ones are not kept."""

from __future__ import annotations

import gc

import trio
import trio.testing

from trikafka._net.signal import Signal


async def test_all_wake_in_their_order(autojump_clock: trio.testing.MockClock) -> None:
    signal, woken = Signal(), []

    async def wait(number: int) -> None:
        await trio.sleep(number)
        await signal.wait()
        woken.append((number, trio.current_time()))

    async with trio.open_nursery() as nursery:
        for number in (2, 0, 1):
            nursery.start_soon(wait, number)
        await trio.sleep(3)
        assert woken == []
        start = trio.current_time()
        signal.notify()
        await trio.testing.wait_all_tasks_blocked()
    # All in the same step of Trio's loop, which may run the tasks of a step in another order.
    assert sorted(woken) == [(0, start), (1, start), (2, start)]


async def test_cancelled_waiter_is_not_woken_later(autojump_clock: trio.testing.MockClock) -> None:
    signal = Signal()
    with trio.move_on_after(1) as scope:
        await signal.wait()
    assert scope.cancelled_caught
    with trio.move_on_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(signal.wait)
            await trio.testing.wait_all_tasks_blocked()
            signal.notify()
    began = trio.current_time()
    signal.notify()
    await trio.sleep(3)
    assert trio.current_time() == began + 3


async def test_waiter_may_wait_again_after_cancelling(
    autojump_clock: trio.testing.MockClock,
) -> None:
    signal, woken = Signal(), 0

    async def wait() -> None:
        nonlocal woken
        with trio.move_on_after(1):
            await signal.wait()
        await signal.wait()
        woken += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(2)
        signal.notify()
    assert woken == 1


async def test_cancelled_signal_are_not_kept(autojump_clock: trio.testing.MockClock) -> None:
    signal = Signal()

    async def give_up() -> None:
        with trio.move_on_after(1):
            await signal.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(signal.wait)
        for _ in range(20):
            async with trio.open_nursery() as others:
                for _ in range(50):
                    others.start_soon(give_up)
        gc.collect()
        kept = sum(
            isinstance(each, trio.lowlevel.Task) and each.name.endswith("give_up")
            for each in gc.get_objects()
        )
        signal.notify()
    assert kept <= 150


async def test_task_that_waits_again_is_kept_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Some tasks poll with time limits, and nothing comes."""
    signal = Signal()

    async def poll(limit: float) -> None:
        for _ in range(1_000):
            with trio.move_on_after(limit):
                await signal.wait()

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(poll, 1 + number / 10)
    assert len(signal._tasks) <= 150
