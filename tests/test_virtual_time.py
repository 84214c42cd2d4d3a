"""Virtual time under the root's conftest: the clock does not jump while a thread works."""

from __future__ import annotations

import time

import pytest
import trio
from trio.testing import MockClock


async def test_time_does_not_jump_while_a_thread_works(autojump_clock: MockClock) -> None:
    async def work(seconds: float) -> None:
        with trio.fail_after(1):
            await trio.to_thread.run_sync(time.sleep, seconds)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, 0.05)
        nursery.start_soon(work, 0.2)
    assert trio.current_time() < 1
    assert autojump_clock.autojump_threshold == 0, "it jumps again at once"
    await trio.sleep(10_000)


async def test_time_jumps_again_after_a_failed_thread(autojump_clock: MockClock) -> None:
    """Time also jumps again after an abandoned thread."""
    with pytest.raises(ZeroDivisionError):
        await trio.to_thread.run_sync(lambda: 1 / 0)
    with trio.CancelScope() as scope:
        scope.cancel()
        await trio.to_thread.run_sync(time.sleep, 0.1, abandon_on_cancel=True)
    assert autojump_clock.autojump_threshold == 0
    await trio.sleep(10_000)
