"""A blocking call in a thread, and its end when its scope is cancelled."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import trio
from trikafka_spark import cancellable_call
from trikafka_spark.cancellable_call import CancellableCall
from trio.testing import wait_all_tasks_blocked


async def test_call_returns_and_raises() -> None:
    limiter = trio.CapacityLimiter(1)
    assert await CancellableCall(lambda: 7, list, limiter).run() == 7
    call = CancellableCall(lambda: 1 // 0, list, limiter)
    with pytest.raises(ZeroDivisionError):
        await call.run()
    assert not call.cancelled  # an error of the function's own is no cancellation


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the limits of a call, which a machine that stands still for seconds would reach."""
    monkeypatch.setattr(cancellable_call, "_CANCEL_LIMIT", 240.0)
    monkeypatch.setattr(cancellable_call, "_SILENCE_LIMIT", 2.0)


@pytest.mark.usefixtures("patient")
async def test_cancellation_is_repeated_until_it_works() -> None:
    """The cancellation of a call is repeated until the call returns.

    The first attempts may come before there is anything to cancel. Another one may come before the
    thread of the call runs again.
    """
    begun, released, times = trio.Event(), threading.Event(), 0

    def function() -> None:
        trio.from_thread.run_sync(begun.set)
        assert released.wait(600)

    def cancel_jobs() -> None:
        nonlocal times
        times += 1
        if times >= 3:
            released.set()

    call = CancellableCall(function, cancel_jobs, trio.CapacityLimiter(1))
    with trio.fail_after(240), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call.run)
            await begun.wait()
            scope.cancel()
    assert scope.cancelled_caught
    assert times >= 3
    assert call.cancelled
    assert not call.left_behind
    assert not call.silent


@pytest.mark.usefixtures("patient")
def test_interrupt_cancels_the_jobs() -> None:
    """In Trio's main task, Ctrl-C is raised by the wait for the thread."""
    released = threading.Event()

    def function() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert released.wait(600)

    call = CancellableCall(function, released.set, trio.CapacityLimiter(1))
    with pytest.raises(KeyboardInterrupt):
        trio.run(call.run)
    assert released.is_set()
    assert call.cancelled
    assert not call.left_behind


async def test_silent_call_is_left_behind() -> None:
    """A call whose cancellation does not respond either is left behind."""
    begun, end = trio.Event(), threading.Event()

    def function() -> None:
        trio.from_thread.run_sync(begun.set)
        end.wait(600)

    call = CancellableCall(function, lambda: end.wait(600), trio.CapacityLimiter(1))
    with trio.fail_after(240), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call.run)
            await begun.wait()
            scope.cancel()
    assert call.silent
    assert call.left_behind
    end.set()


@pytest.mark.usefixtures("patient")
async def test_standstill_is_no_silence_of_the_jvm() -> None:
    """A process that stood still reads the JVM's response late, and still waits for the call.

    Previously a standstill of half a second counted as silence of the JVM, and the call was left
    behind.
    """
    begun, released, stood = trio.Event(), threading.Event(), threading.Event()

    def function() -> None:
        trio.from_thread.run_sync(begun.set)
        assert released.wait(600)

    def cancel_jobs() -> None:
        assert stood.wait(600)
        released.set()

    call = CancellableCall(function, cancel_jobs, trio.CapacityLimiter(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run)
        await begun.wait()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await wait_all_tasks_blocked(0.01)
            # The standstill itself: this process is as if frozen.
            time.sleep(2 * cancellable_call._SILENCE_LIMIT)  # noqa: ASYNC251
            for _ in range(5):
                await trio.lowlevel.checkpoint()  # the limit's clock is read before the response
            stood.set()
    assert not call.silent
    assert not call.left_behind


async def test_cancelled_call_in_the_queue_never_starts() -> None:
    limiter, called = trio.CapacityLimiter(1), []
    await limiter.acquire_on_behalf_of(limiter)
    call = CancellableCall(lambda: called.append(1), lambda: called.append(2), limiter)
    with trio.fail_after(240), trio.move_on_after(0.05) as scope:
        await call.run()
    assert scope.cancelled_caught
    assert called == []
    limiter.release_on_behalf_of(limiter)
    await CancellableCall(lambda: called.append(3), list, limiter).run()
    assert called == [3]
