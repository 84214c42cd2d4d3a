"""The end of a Spark context that was started here: it is stopped once, however its exports end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from trikafka_export.sink import FileSink
from trikafka_export.sink_options import SinkOptions
from trikafka_spark import shared_context

BY_SPARK = SinkOptions(runner={"spark_above": 0})


async def start_spark(sink: FileSink) -> None:
    """Start Spark as a write does."""
    runner = await sink._runners.fitting(1)
    await runner.start({})


class Counted:
    """A stand-in for ``shared_context.acquire`` and ``shared_context.release`` that counts the releases.

    ``between`` runs in the thread that starts Spark, just before the context exists.
    """

    def __init__(self, between: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._between = between
        self.released = threading.Semaphore(0)
        monkeypatch.setattr(shared_context, "check_requirements", lambda: None)
        monkeypatch.setattr(shared_context, "acquire", self._acquire)
        monkeypatch.setattr(shared_context, "release", lambda _: self.released.release())

    def _acquire(self, *_: Any) -> object:
        self._between()
        return self

    async def check(self) -> None:
        """Check that the context was released exactly once."""
        assert await trio.to_thread.run_sync(lambda: self.released.acquire(timeout=240))
        assert not self.released.acquire(blocking=False)


async def test_late_context_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A context that starts after its sink was left is released."""
    entered, left = threading.Event(), threading.Event()

    def between() -> None:
        entered.set()
        left.wait(600)

    counted = Counted(between, monkeypatch)
    async with trio.open_nursery() as nursery:

        async def start() -> None:
            async with FileSink(tmp_path, BY_SPARK) as sink:
                await start_spark(sink)

        nursery.start_soon(start)
        await trio.to_thread.run_sync(entered.wait)
        nursery.cancel_scope.cancel()
    left.set()
    await counted.check()


async def test_cancelled_handover_leaves_no_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancellation at the moment of the handover leaves no context."""
    token = trio.lowlevel.current_trio_token()
    for _ in range(100):
        scope = trio.CancelScope()
        counted = Counted(lambda scope=scope: token.run_sync_soon(scope.cancel), monkeypatch)
        with scope:
            async with FileSink(tmp_path, BY_SPARK) as sink:
                await start_spark(sink)
        await counted.check()


async def test_cancelled_start_does_not_spoil_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, left = threading.Event(), threading.Event()

    def between() -> None:
        entered.set()
        left.wait(600)

    counted = Counted(between, monkeypatch)
    async with FileSink(tmp_path, BY_SPARK) as sink:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(start_spark, sink)
            await trio.to_thread.run_sync(entered.wait)
            nursery.cancel_scope.cancel()
        left.set()
        await counted.check()
        await start_spark(sink)
        assert not counted.released.acquire(blocking=False), (
            "the second is kept until the sink is left"
        )
    await counted.check()


class Context:
    """A Spark context, as far as ``session`` uses it."""

    def __init__(self) -> None:
        self.stopped = 0

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[Context]:
    """Return the contexts that are started, the last one first; the process has none of its own."""
    started: list[Context] = []

    def start(*_: Any) -> Context:
        started.insert(0, Context())
        return started[0]

    monkeypatch.setattr(shared_context, "_ours", None)
    monkeypatch.setattr(shared_context, "_users", 0)
    monkeypatch.setattr(shared_context, "_start", start)
    monkeypatch.setattr(shared_context, "_forget_dead", lambda: None)
    monkeypatch.setattr(
        shared_context,
        "_running",
        lambda: started[0] if started and not started[0].stopped else None,
    )
    return started


def test_last_export_stops_the_context(contexts: list[Context]) -> None:
    first, second = shared_context.acquire(None, "a", {}), shared_context.acquire(None, "b", {})
    assert first is second
    stops = []
    for context in (first, second):
        shared_context.release(context)
        stops.append(contexts[0].stopped)
    assert stops == [0, 1]
    assert shared_context.acquire(None, "c", {}) is not first


def test_foreign_context_is_never_stopped(contexts: list[Context]) -> None:
    contexts.append(Context())
    shared_context.release(shared_context.acquire(None, "a", {}))
    assert not contexts[0].stopped


def test_dead_context_does_not_stop_the_next(contexts: list[Context]) -> None:
    """The release of a dead context does not stop the one that replaced it."""
    dead = shared_context.acquire(None, "a", {})
    contexts[0].stopped = 1
    fresh = shared_context.acquire(None, "b", {})
    assert fresh is not dead
    shared_context.release(dead)
    assert not contexts[0].stopped
