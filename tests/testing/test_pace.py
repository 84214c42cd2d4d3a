"""The pace of the latency cases: no tick too early and none lost, in threads and in tasks."""

from __future__ import annotations

import time

import trio

from benchmarks.pace import Pace

RATE = 2_000
#: Ticks after which another task must have had a turn.
MOST = 300


def test_ticks_are_punctual_and_never_lost() -> None:
    """A late taker finds all of them."""
    began = time.perf_counter()
    with Pace(RATE) as pace:
        for number in range(1, 101):
            pace.wait()
            assert time.perf_counter() - began >= number / RATE
        stop = time.perf_counter() + 0.01
        while time.perf_counter() < stop:
            pass
        missed = 0
        while pace.take():
            missed += 1
        assert missed >= 19
        assert pace.latest >= 19 / RATE - 0.001


def test_tasks_take_ticks_and_leave_turns() -> None:
    """Other tasks have their turns until there is a tick."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async def take(rate: int, count: int) -> float:
        """Take so many ticks, and more until another task had a turn.

        A machine that stands still may make several ticks come at once.
        """
        taken = 0
        began = time.perf_counter()
        with Pace(rate) as pace:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(other)
                while taken < count or (not turns and taken < MOST):
                    await pace.tick(trio.lowlevel.wait_readable)
                    taken += 1
                nursery.cancel_scope.cancel()
        return time.perf_counter() - began

    assert trio.run(take, RATE, 100) >= 100 / RATE
    turns = 0
    assert trio.run(take, 5, 1) >= 0.2
    assert turns
