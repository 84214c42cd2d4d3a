"""The helper that places two events at exact steps."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock as Clock

from trikafka.testing.steps import Moment, moments, two_at_once


def test_moments_differ_and_are_spread_evenly() -> None:
    found = list(moments(["a", "b"], steps=5, total=60))
    assert len(set(found)) == 60
    assert set(Counter((moment.first, moment.second) for moment in found).values()) == {15}
    assert {moment.at for moment in found} == set(range(5))
    assert {moment.gap for moment in found} == {0, 1, 2}


def test_few_moments_reach_all_steps() -> None:
    found = list(moments(["a", "b", "c"], steps=40, total=90))
    assert len(set(found)) == 90
    assert max(moment.at for moment in found) == 39
    assert len({moment.at for moment in found}) == 40


def test_unwanted_pairs_are_left_out() -> None:
    found = moments(
        ["a", "b"], steps=2, total=6, leave_out=lambda first, second: first == second == "a"
    )
    assert {(moment.first, moment.second) for moment in found} == {
        ("a", "b"),
        ("b", "a"),
        ("b", "b"),
    }


async def test_events_come_at_their_steps(autojump_clock: Clock) -> None:
    order: list[str] = []

    async def other() -> None:
        for number in range(6):
            order.append(str(number))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await two_at_once(
            lambda: order.append("a"), lambda: order.append("b"), Moment("a", "b", 2, 2)
        )
    assert order.index("a") < order.index("b")
    assert order.index("b") - order.index("a") == 3, "two steps of the other task are between"
    assert 0 < order.index("a") < order.index("5")


async def test_events_come_although_all_tasks_wait(autojump_clock: Clock) -> None:
    came: list[float] = []

    def note() -> None:
        came.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 10)
        await two_at_once(note, note, Moment("a", "b", 1000, 1000))
    assert came == [0, 0]


async def test_failing_event_is_raised(autojump_clock: Clock) -> None:
    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        await two_at_once(lambda: None, fail, Moment("a", "b", 1, 0))
