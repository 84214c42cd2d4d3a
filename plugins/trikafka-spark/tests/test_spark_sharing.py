"""Who stops a Spark context that was started here: somebody does, and only once, however its exports end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from trikafka_spark import session
from trikafka_spark.sink import SparkSink


class Counted:
    """Stands for the two functions of ``session``; ``between`` runs in the thread that starts Spark, just before it is there."""

    def __init__(self, between: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._between = between
        self.released = threading.Semaphore(0)
        monkeypatch.setattr(session, "check_requirements", lambda: None)
        monkeypatch.setattr(session, "acquire", self._acquire)
        monkeypatch.setattr(session, "release", lambda _: self.released.release())

    def _acquire(self, *_: Any) -> object:
        self._between()
        return self

    async def check(self) -> None:
        """It was given back, and once."""
        assert await trio.to_thread.run_sync(lambda: self.released.acquire(timeout=60))
        assert not self.released.acquire(blocking=False)


async def test_what_is_there_after_the_sink_was_left_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, left = threading.Event(), threading.Event()

    def between() -> None:
        entered.set()
        left.wait(60)

    counted = Counted(between, monkeypatch)
    async with trio.open_nursery() as nursery:

        async def start() -> None:
            async with SparkSink(tmp_path) as sink:
                await sink._spark.started()

        nursery.start_soon(start)
        await trio.to_thread.run_sync(entered.wait)
        nursery.cancel_scope.cancel()
    left.set()
    await counted.check()


async def test_a_cancel_at_the_moment_of_handing_over_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = trio.lowlevel.current_trio_token()
    for _ in range(100):
        scope = trio.CancelScope()
        counted = Counted(lambda scope=scope: token.run_sync_soon(scope.cancel), monkeypatch)
        with scope:
            async with SparkSink(tmp_path) as sink:
                await sink._spark.started()
        await counted.check()


async def test_a_start_that_was_cancelled_does_not_spoil_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, left = threading.Event(), threading.Event()

    def between() -> None:
        entered.set()
        left.wait(60)

    counted = Counted(between, monkeypatch)
    async with SparkSink(tmp_path) as sink:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sink._spark.started)
            await trio.to_thread.run_sync(entered.wait)
            nursery.cancel_scope.cancel()
        left.set()
        await counted.check()
        await sink._spark.started()
        assert not counted.released.acquire(blocking=False), "the second is kept until the sink is left"
    await counted.check()


class Context:
    """What ``session`` asks of a Spark context."""

    def __init__(self) -> None:
        self.stopped = 0

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[Context]:
    """The contexts that were started, the last one first; the process has none of its own."""
    started: list[Context] = []

    def start(*_: Any) -> Context:
        started.insert(0, Context())
        return started[0]

    monkeypatch.setattr(session, "_ours", None)
    monkeypatch.setattr(session, "_users", 0)
    monkeypatch.setattr(session, "_start", start)
    monkeypatch.setattr(session, "_forget_dead", lambda: None)
    monkeypatch.setattr(session, "_running", lambda: started[0] if started and not started[0].stopped else None)
    return started


def test_the_last_export_stops_what_the_first_has_started(contexts: list[Context]) -> None:
    first, second = session.acquire(None, "a", {}), session.acquire(None, "b", {})
    assert first is second
    stops = []
    for context in (first, second):
        session.release(context)
        stops.append(contexts[0].stopped)
    assert stops == [0, 1]
    assert session.acquire(None, "c", {}) is not first


def test_a_context_of_somebody_else_is_never_stopped(contexts: list[Context]) -> None:
    contexts.append(Context())
    session.release(session.acquire(None, "a", {}))
    assert not contexts[0].stopped


def test_who_gives_back_a_dead_context_does_not_stop_the_next_one(contexts: list[Context]) -> None:
    dead = session.acquire(None, "a", {})
    contexts[0].stopped = 1
    fresh = session.acquire(None, "b", {})
    assert fresh is not dead
    session.release(dead)
    assert not contexts[0].stopped
