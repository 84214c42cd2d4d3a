"""The state machine of a broker's subscription to metrics (KIP-714)."""

from __future__ import annotations

import math
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikafka._state.telemetry.subscription import (
    DEFAULT_INTERVAL,
    PushSchedule,
    PushState,
    Subscription,
    subscription_of,
)
from trikafka.error_codes import ErrorCode as E

ID = uuid.UUID(int=7)


def subscription(interval_ms: int = 10_000, metrics: tuple[str, ...] = ("*",)) -> Subscription:
    return subscription_of(1, (4, 1), interval_ms, 1_000, True, metrics)


def pushing(interval_ms: int = 10_000) -> PushSchedule:
    schedule = PushSchedule(100.0)
    schedule.known_as(ID)
    schedule.subscribed(subscription(interval_ms), 100.0, 0.5)
    return schedule


def test_first_request_is_due_at_once() -> None:
    schedule = PushSchedule(100.0)
    assert (schedule.state, schedule.due) == (PushState.SUBSCRIPTION_NEEDED, 100.0)
    assert not schedule.wanted


@pytest.mark.parametrize(("chance", "due"), [(0.0, 105.0), (0.5, 110.0), (1.0, 115.0)])
def test_first_push_is_spread(chance: float, due: float) -> None:
    schedule = PushSchedule(100.0)
    schedule.subscribed(subscription(), 100.0, chance)
    assert (schedule.state, schedule.due) == (PushState.PUSH_NEEDED, due)
    assert schedule.wanted
    schedule.pushed(0, 200.0)
    assert schedule.due == 210.0  # no chance in the later ones


def test_an_interval_has_a_least() -> None:
    assert subscription(1).interval == 0.1
    assert subscription(150).interval == 0.15


@pytest.mark.parametrize("interval", [0, -1])
def test_no_interval_means_five_minutes(interval: int) -> None:
    assert subscription(interval).interval == DEFAULT_INTERVAL == 300


def test_star_wants_everything() -> None:
    assert subscription().prefixes == ("",)
    assert subscription(metrics=("a.", "b")).prefixes == ("a.", "b")


def test_subscription_to_nothing_is_asked_again() -> None:
    schedule = PushSchedule(100.0)
    schedule.subscribed(subscription(metrics=()), 100.0, 0.0)
    assert (schedule.state, schedule.due) == (PushState.SUBSCRIPTION_NEEDED, 110.0)
    assert not schedule.wanted


AT_ONCE = {E.UNKNOWN_SUBSCRIPTION_ID, E.UNSUPPORTED_COMPRESSION_TYPE}
LATER = {E.TELEMETRY_TOO_LARGE, E.THROTTLING_QUOTA_EXCEEDED}


@pytest.mark.parametrize("code", list(E))
def test_each_error_of_a_push(code: E) -> None:
    schedule = pushing()
    schedule.pushed(code, 200.0)
    after = (schedule.state, schedule.due)
    if code in AT_ONCE:
        assert after == (PushState.SUBSCRIPTION_NEEDED, 200.0)
    elif code in LATER or not code:
        assert after == (PushState.PUSH_NEEDED, 210.0)
    else:
        assert after == (PushState.OFF, math.inf)
    assert schedule.wanted is (after[0] is PushState.PUSH_NEEDED)


@pytest.mark.parametrize("code", [code for code in E if code])
def test_each_error_of_a_subscription(code: E) -> None:
    schedule = PushSchedule(100.0)
    schedule.get_failed(code, 200.0)
    after = (schedule.state, schedule.due)
    if code in LATER:
        assert after == (PushState.SUBSCRIPTION_NEEDED, 500.0)
    else:
        assert after == (PushState.OFF, math.inf)


def test_lost_request_is_repeated_later() -> None:
    schedule = PushSchedule(100.0)
    schedule.lost(130.0)
    assert (schedule.state, schedule.due) == (PushState.SUBSCRIPTION_NEEDED, 430.0)
    schedule = pushing()
    schedule.lost(130.0)
    assert (schedule.state, schedule.due) == (PushState.PUSH_NEEDED, 140.0)


def test_id_is_taken_over_once() -> None:
    schedule = pushing()
    schedule.known_as(uuid.UUID(int=8))
    assert schedule.instance_id == ID


EVENTS = st.one_of(
    st.tuples(st.just("subscribed"), st.integers(-5, 600_000), st.sampled_from([(), ("*",)])),
    st.tuples(st.just("pushed"), st.integers(-1, 140), st.just(())),
    st.tuples(st.just("get_failed"), st.integers(1, 140), st.just(())),
    st.tuples(st.just("lost"), st.just(0), st.just(())),
)


@given(st.lists(EVENTS, max_size=20))
def test_off_is_final_and_due_never_past(
    events: list[tuple[str, int, tuple[str, ...]]],
) -> None:
    schedule = PushSchedule(0.0)
    now, was_off = 0.0, False
    for name, number, metrics in events:
        now += 1
        if name == "subscribed":
            schedule.subscribed(subscription(number, metrics), now, 0.3)
        elif name == "lost":
            schedule.lost(now)
        else:
            getattr(schedule, name)(number, now)
        was_off = was_off or schedule.state is PushState.OFF
        assert (schedule.state is PushState.OFF) is was_off
        assert schedule.due >= now
        assert (schedule.due == math.inf) is was_off
        if schedule.wanted:
            assert schedule.subscription is not None
