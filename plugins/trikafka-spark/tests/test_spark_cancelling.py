"""A blocking call in a thread, and its end when its scope is cancelled."""

from __future__ import annotations

import threading

import pytest
import trio
from trikafka_spark.cancellable_call import CancellableCall


async def test_call_returns_and_raises() -> None:
    limiter = trio.CapacityLimiter(1)
    assert await CancellableCall(lambda: 7, list, limiter).run() == 7
    with pytest.raises(ZeroDivisionError):
        await CancellableCall(lambda: 1 // 0, list, limiter).run()


async def test_cancellation_is_repeated_until_it_works() -> None:
    """The cancellation of a call is repeated until the call returns.

    The first attempts may come before there is anything to cancel.
    """
    begun, told, times = trio.Event(), threading.Event(), 0

    def function() -> None:
        trio.from_thread.run_sync(begun.set)
        assert told.wait(60)

    def cancel_jobs() -> None:
        nonlocal times
        times += 1
        if times == 3:
            told.set()

    call = CancellableCall(function, cancel_jobs, trio.CapacityLimiter(1))
    with trio.fail_after(60), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call.run)
            await begun.wait()
            scope.cancel()
    assert scope.cancelled_caught
    assert times == 3
    assert call.cancelled
    assert not call.left_behind
    assert not call.silent


async def test_silent_call_is_left_behind() -> None:
    """A call whose cancellation does not respond either is left behind."""
    begun, end = trio.Event(), threading.Event()

    def function() -> None:
        trio.from_thread.run_sync(begun.set)
        end.wait(60)

    call = CancellableCall(function, lambda: end.wait(60), trio.CapacityLimiter(1))
    with trio.fail_after(55), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call.run)
            await begun.wait()
            scope.cancel()
    assert call.silent
    assert call.left_behind
    end.set()


async def test_cancelled_call_in_the_queue_never_starts() -> None:
    limiter, called = trio.CapacityLimiter(1), []
    await limiter.acquire_on_behalf_of(limiter)
    call = CancellableCall(lambda: called.append(1), lambda: called.append(2), limiter)
    with trio.fail_after(60), trio.move_on_after(0.05) as scope:
        await call.run()
    assert scope.cancelled_caught
    assert called == []
    limiter.release_on_behalf_of(limiter)
    await CancellableCall(lambda: called.append(3), list, limiter).run()
    assert called == [3]
