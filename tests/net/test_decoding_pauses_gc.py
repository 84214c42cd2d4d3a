"""The garbage collector while a very large response is decoded.

Python's collector would stop the process for seconds to go through the new objects, so it waits.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from netting import connected, metadata_request
from test_large_responses import metadata_of

from trikafka._managers.cluster.metadata_responses import read_metadata
from trikafka._net import decoding
from trikafka._net.decoding import use_up, worked_out

MANY = 100_000


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.unfreeze()  # what conftest.py has frozen: a program has nothing frozen
    gc.set_threshold(700, 10, 10)  # as a program has it, and not as conftest.py sets it
    yield
    gc.unfreeze()
    gc.enable()
    gc.set_threshold(*before)
    if frozen:
        gc.freeze()


def waits() -> bool:
    """Return whether no number of objects lets the collector begin."""
    return gc.get_threshold()[0] == decoding._NEVER


@contextmanager
def collections() -> Iterator[list[int]]:
    """Record the generations that are collected meanwhile."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    gc.callbacks.append(note)
    try:
        yield seen
    finally:
        gc.callbacks.remove(note)


def objects() -> list[list[int]]:
    return [[number] for number in range(MANY)]


async def test_collector_waits_for_a_large_response(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as line:
        asked = line.ask(
            type(metadata_request())(topics=None, allow_auto_topic_creation=False, max_version=5)
        )
        request = await line.peer.request()
        frame = metadata_of(MANY, request.header.correlation_id)
        within: list[list[int]] = []
        inner = decoding._collector.kept_away

        @contextmanager
        def counted() -> Iterator[None]:
            with inner(), collections() as seen:
                yield
            within.append(seen)

        monkeypatch.setattr(decoding._collector, "kept_away", counted)
        await line.peer.stream.send_all(frame)
        with trio.fail_after(240):
            response = await asked.outcome()
            topics = response.topics
            snapshot = await read_metadata(response)
        assert within == [[], []]  # while it was decoded, and while it was looked through
        assert not waits()
        assert len(snapshot.topics["t"].partitions) == MANY
        assert topics == []  # used up where other threads run meanwhile


async def test_environment_keeps_the_collector_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIKAFKA_PAUSE_GC", "0")
    before, on = gc.get_threshold(), []

    def work() -> None:
        on.append(gc.get_threshold() == before)

    await worked_out(MANY, work)
    assert on == [True]
    assert gc.get_threshold() == before


async def test_collector_resumes_without_new_objects() -> None:
    """The collector does not begin with the decoded objects."""
    assert gc.isenabled()
    made = await worked_out(MANY, objects)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    with collections() as seen:
        young = gc.get_count()[0]
        more = [[number] for number in range(gc.get_threshold()[0] * 2)]
    assert young < MANY
    assert {0, 1} & {*seen}  # the youngest one is 1 in Python 3.14
    assert len(more) < len(made) == MANY


async def test_garbage_made_meanwhile_is_found_later() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me = self

    cycle = Cycle()
    gone = weakref.ref(cycle)

    def work() -> None:
        nonlocal cycle
        del cycle
        objects()

    await worked_out(MANY, work)
    gc.collect()
    assert gone() is None


async def test_disabled_or_frozen_collector_stays_so() -> None:
    gc.disable()
    await worked_out(MANY, objects)
    assert not gc.isenabled()
    gc.enable()
    gc.freeze()
    assert gc.get_freeze_count()
    await worked_out(MANY, objects)
    assert gc.get_freeze_count()
    assert gc.isenabled()


async def test_failure_resumes_the_collector() -> None:
    def fail() -> None:
        assert waits()
        raise LookupError

    with pytest.raises(LookupError):
        await worked_out(MANY, fail)
    assert not waits()


@pytest.mark.parametrize("before", [True, False])
async def test_switch_of_the_program_meanwhile_stays(before: bool) -> None:
    """A ``gc.disable()`` or ``gc.enable()`` of meanwhile is not undone."""
    (gc.enable if before else gc.disable)()
    threshold = gc.get_threshold()

    def work() -> None:
        assert waits()
        assert gc.isenabled() is before
        (gc.disable if before else gc.enable)()

    await worked_out(MANY, work)
    assert gc.isenabled() is not before
    assert gc.get_threshold() == threshold


@pytest.mark.parametrize("threshold", [(0, 10, 10), (50_000, 20, 100)])
async def test_threshold_of_the_program_stays(threshold: tuple[int, int, int]) -> None:
    def work() -> None:
        gc.set_threshold(*threshold)

    await worked_out(MANY, work)
    assert gc.get_threshold()[:2] == threshold[:2]  # Python 3.14 has no third one


async def test_explicit_collection_still_runs() -> None:
    with collections() as seen:
        await worked_out(MANY, lambda: gc.collect(1))
    assert 1 in seen


async def test_small_response_leaves_collector_alone() -> None:
    on: list[bool] = []
    await worked_out(decoding.MANY, lambda: on.append(waits()))
    assert on == [False]


async def test_loops_in_two_threads_share_the_pause() -> None:
    """The first one that is ready does not resume the collector for the other."""
    begun, other_is_done = threading.Event(), threading.Event()
    states: list[bool] = []

    def slow() -> None:
        begun.set()
        other_is_done.wait(240)
        states.append(waits())

    def quick() -> None:
        begun.wait(240)
        states.append(waits())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, lambda: trio.run(worked_out, MANY, slow))
        await trio.to_thread.run_sync(lambda: trio.run(worked_out, MANY, quick))
        states.append(waits())
        other_is_done.set()
    assert states == [True] * 3
    assert not waits()


def test_forked_process_collects() -> None:
    """The thread that would resume the collector is the parent's, and any thread may hold the lock."""
    with decoding._collector.kept_away(), decoding._collector._lock:
        child = os.fork()
        if not child:
            free = decoding._collector._lock.acquire(blocking=False)
            os._exit(0 if not waits() and free else 1)
        assert waits()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_list_is_freed_in_slices() -> None:
    """Other threads run between two slices."""
    items: list[Any] = []
    left: Counter[int] = Counter()  # in the list, while one that has been taken off goes

    class Item:
        def __del__(self) -> None:
            left[len(items)] += 1

    items += [Item() for _ in range(12_000)]
    use_up(items)
    assert dict(left) == {7_000: 5_000, 2_000: 5_000, 0: 2_000}


def test_used_up_list_is_empty() -> None:
    items: list[Any] = objects()
    use_up(items)
    assert items == []
    use_up(None)
