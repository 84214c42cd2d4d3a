"""The timer of a task and the order of keys beside the processed offset, against simple models."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from trikafka import KafkaTimeoutError, TransactionAbortableError
from trikafka.errors import RecordTooLargeError
from trikafka.tasks.key_order import KeyOrder
from trikafka.tasks.rounds import may_be_done_again
from trikafka.tasks.timer import TaskTimer, timeout_in


def late(call: str = "send") -> KafkaTimeoutError:
    return KafkaTimeoutError(call, 1)


@pytest.mark.parametrize("begun", [0.0, 100.1, 1_700_000_000.7])
def test_timer_ends_just_past_its_limit(
    begun: float,
) -> None:
    for elapsed, last in (
        (0.001, False),
        (299.999, False),
        (300.0, False),
        (300.001, True),
        (400.0, True),
    ):
        timer, first, second = TaskTimer(300_000), late(), late("commit")
        assert not timer.timed_out(first, begun)
        assert timer.timed_out(second, begun + elapsed) is last
        assert timer.final_error(second) is second
        assert second.__cause__ is first


def test_limit_0_allows_no_second_attempt() -> None:
    timer, error = TaskTimer(0), late()
    assert timer.timed_out(error, 5)
    assert timer.final_error(error).__cause__ is None
    assert not TaskTimer(1).timed_out(error, 5)


def test_progress_resets_the_timer() -> None:
    timer = TaskTimer(1_000)
    assert not timer.timed_out(late(), 0)
    timer.progressed()
    assert timer.first is None
    assert not timer.timed_out(late(), 100)
    assert not timer.timed_out(late(), 101)
    assert timer.timed_out(late(), 101.001)


def test_circle_of_causes_ends() -> None:
    """A handler may raise an error from itself, or an error from one that it caused."""
    error, other = TransactionAbortableError("a record failed"), KeyError()
    for cause in (error, other):
        error.__cause__ = cause
        other.__cause__ = error
        assert timeout_in(error) is None
        assert may_be_done_again(error)
    other.__cause__ = RecordTooLargeError("too large")
    assert not may_be_done_again(error)


def test_timeouts_are_found_in_groups_and_causes() -> None:
    error = late()
    assert timeout_in(error) is error
    assert timeout_in(ExceptionGroup("", [error, ExceptionGroup("", [late()])])) is error
    assert timeout_in(ExceptionGroup("", [error, KeyError()])) is None
    assert timeout_in(TimeoutError()) is None
    aborted = TransactionAbortableError("a record failed")
    assert timeout_in(aborted) is None
    aborted.__cause__ = error
    assert timeout_in(aborted) is error


Keys = st.lists(st.sampled_from([None, b"a", b"b", b"c"]), max_size=40)


@given(Keys, st.data())
def test_keys_stay_in_order_in_a_model(keys: list[bytes | None], data: st.DataObject) -> None:
    """Records are added and finish in any possible order.

    A model knows which may run and what is processed.
    """
    order = KeyOrder[int]()
    gaps = iter(data.draw(st.lists(st.integers(0, 3), min_size=len(keys), max_size=len(keys))))
    running: dict[int, bytes | None] = {}
    done: list[int] = []
    taken: dict[int, bytes | None] = {}
    coming, offset = list(keys), 10
    while coming or running:
        if coming and (not running or data.draw(st.booleans())):
            offset += 1 + next(gaps)
            key = coming.pop(0)
            alone = key is None or key not in [
                other for at, other in taken.items() if at not in done
            ]
            taken[offset] = key
            assert order.add(offset, key, offset) is alone
            if alone:
                running[offset] = key
        else:
            at = data.draw(st.sampled_from(sorted(running)))
            key = running.pop(at)
            done.append(at)
            following = order.done(at)
            behind = (
                [other for other in taken if taken[other] == key and other not in done]
                if key is not None
                else []
            )
            assert following == (behind[0] if behind else None)
            if following is not None:
                running[following] = key
        undone = [at for at in taken if at not in done]
        assert order.processed == (min(undone) if undone else max(taken) + 1)
        assert order.running == len(running)
        assert order.outstanding == (
            len([at for at in taken if at >= min(undone)]) if undone else 0
        )
    for key in (b"a", b"b", b"c"):
        assert [at for at in done if taken[at] == key] == [at for at in taken if taken[at] == key]


def test_failed_record_drops_those_behind_its_key() -> None:
    order = KeyOrder[str]()
    assert order.add(0, b"k", "first")
    assert not order.add(1, b"k", "second")
    assert order.add(2, b"other", "third")
    order.abandon(0)
    assert order.done(2) is None
    assert (order.processed, order.running) == (0, 0)


def test_seek_moves_the_offset_if_idle() -> None:
    order = KeyOrder[str]()
    order.passed(7)
    assert order.processed == 7
    order.add(7, None, "")
    order.passed(12)
    assert order.processed == 7
    order.done(7)
    assert order.processed == 12
    order.passed(3)
    assert order.processed == 3


def test_wind_down_starts_only_needed_records() -> None:
    """A waiting record starts only if a finished one behind it would not count otherwise."""
    order = KeyOrder[str]()
    order.add(0, b"k", "first")
    order.add(1, b"k", "second")
    order.add(2, b"other", "third")
    order.add(3, b"k", "fourth")
    order.wind_down()
    assert order.done(2) is None
    assert order.done(0) == "second"
    assert order.done(1) is None
    assert (order.processed, order.running) == (3, 0)
