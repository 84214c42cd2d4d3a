"""The one place that counts a call's time, in exact virtual time. The rules are seed 000's."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
from netting import config
from trio.testing import MockClock as Clock

from trikafka._net.deadlines import GRACE, RunningCall, check_timeout, run_call
from trikafka._net.retry import backoff
from trikafka.errors import (
    KafkaConnectionError,
    KafkaTimeoutError,
    RequestTimedOutError,
    TrikafkaError,
    UnknownTopicOrPartitionError,
    from_code,
)
from trikafka.testing import assert_all_awaits_cancellable

NO_BACKOFF = {"retry_backoff_ms": 0}


class Attempts:
    """The work of a call: attempt n takes ``seconds[n]`` and ends with ``ends[n]``.

    The last of each holds for all further attempts.
    """

    def __init__(self, *seconds: float, ends: Any = None) -> None:
        self.seconds = seconds
        self.ends = ends if isinstance(ends, list) else [ends]
        self.times: list[float] = []
        self.limits: list[float] = []

    async def __call__(self, call: RunningCall) -> Any:
        number = len(self.times)
        self.times.append(trio.current_time())
        self.limits.append(call.step_limit)
        await call.step(
            "a step", partial(trio.sleep, self.seconds[min(number, len(self.seconds) - 1)])
        )
        end = self.ends[min(number, len(self.ends) - 1)]
        if isinstance(end, Exception):
            raise end
        return end


async def test_third_attempt_succeeds_in_time(autojump_clock: Clock) -> None:
    """The first example of seed 000."""
    work = Attempts(math.inf, math.inf, 3, ends="offsets")
    settings = config(request_timeout_ms=30_000, **NO_BACKOFF)
    assert await run_call("end_offsets", work, config=settings, timeout=100) == "offsets"
    assert work.times == [0, 30, 60]
    assert work.limits == [30, 30, 30]
    assert trio.current_time() == 63


async def test_third_attempt_gets_what_is_left(autojump_clock: Clock) -> None:
    """The second example of seed 000."""
    work = Attempts(math.inf)
    settings = config(request_timeout_ms=30_000, **NO_BACKOFF)
    with pytest.raises(KafkaTimeoutError) as caught:
        await run_call("end_offsets", work, config=settings, timeout=70)
    assert work.times == [0, 30, 60]
    assert work.limits == [30, 30, 10]
    assert trio.current_time() == 70
    error = caught.value
    assert isinstance(error, trio.TooSlowError)
    assert (error.call, error.limit, error.attempts) == ("end_offsets", 70, 3)
    assert isinstance(error.last_error, RequestTimedOutError)
    assert error.__cause__ is error.last_error
    assert str(error) == (
        "end_offsets did not finish within 70 s (3 attempts; the last one failed with: a step: no "
        "response within 10 s)"
    )


async def test_backoff_counts_and_the_end_is_exact(autojump_clock: Clock) -> None:
    work = Attempts(math.inf)
    settings = config(request_timeout_ms=30_000, retry_backoff_ms=100, retry_backoff_max_ms=1000)
    with pytest.raises(KafkaTimeoutError):
        await run_call("x", work, config=settings, timeout=70)
    assert trio.current_time() == 70
    assert work.times[0] == 0
    assert 30.08 <= work.times[1] <= 30.12
    assert 60.24 <= work.times[2] <= 60.36
    assert work.limits[2] == pytest.approx(70 - work.times[2])


async def test_default_limit_is_a_setting(autojump_clock: Clock) -> None:
    with pytest.raises(KafkaTimeoutError, match=r"x did not finish within 12 s \(1 attempt"):
        await run_call("x", Attempts(math.inf), config=config(default_api_timeout_ms=12_000))
    assert trio.current_time() == 12


async def test_endless_limit_retries_for_ever(autojump_clock: Clock) -> None:
    work = Attempts(0, ends=[from_code(6)] * 500 + ["at last"])
    assert await run_call("x", work, config=config(), timeout=math.inf) == "at last"
    assert len(work.times) == 501


# -- attempt, then check
# --------------------------------------------------------------------------------------------------


async def test_zero_timeout_is_one_attempt(autojump_clock: Clock) -> None:
    assert await run_call("x", Attempts(0, ends="answer"), config=config(), timeout=0) == "answer"
    assert (
        await run_call("x", Attempts(0.02, ends="answer"), config=config(), timeout=0) == "answer"
    )


async def test_zero_timeout_without_response_has_grace(autojump_clock: Clock) -> None:
    work = Attempts(math.inf)
    with pytest.raises(
        KafkaTimeoutError,
        match=r"x did not finish within 0 s \(1 attempt; .*no response within 0.025 s",
    ):
        await run_call("x", work, config=config(), timeout=0)
    assert trio.current_time() == GRACE == 0.025
    assert len(work.times) == 1


async def test_zero_timeout_with_an_error_ends_at_once(autojump_clock: Clock) -> None:
    work = Attempts(0, ends=from_code(6, "t-0"))
    with pytest.raises(
        KafkaTimeoutError, match=r"1 attempt; the last one failed with: .*NOT_LEADER"
    ):
        await run_call("x", work, config=config(), timeout=0)
    assert (trio.current_time(), len(work.times)) == (0, 1)


async def test_series_of_quick_steps_is_not_cut(autojump_clock: Clock) -> None:
    async def attempt(call: RunningCall) -> str:
        for _ in range(10):
            await call.step("a step", partial(trio.sleep, 0.02))
        return "all ten"

    assert await run_call("x", attempt, config=config(), timeout=0.03) == "all ten"
    assert trio.current_time() == pytest.approx(0.2)


@pytest.mark.parametrize("timeout", [0.001, 0.01, 0.7, 5])
async def test_stuck_step_overshoots_by_grace_at_most(
    autojump_clock: Clock, timeout: float
) -> None:
    async def attempt(call: RunningCall) -> None:
        await call.step("quick", partial(trio.sleep, 0.9 * timeout))
        await call.step("stuck", trio.sleep_forever)

    with pytest.raises(KafkaTimeoutError, match="stuck: no response"):
        await run_call("x", attempt, config=config(), timeout=timeout)
    assert timeout <= trio.current_time() <= timeout + GRACE


async def test_clock_is_read_only_after_a_failure(autojump_clock: Clock) -> None:
    async def attempt(call: RunningCall) -> str:
        await trio.sleep(5)  # not a step, so it is not cut
        return "late"

    assert await run_call("x", attempt, config=config(), timeout=1) == "late"


# -- what is tried again
# --------------------------------------------------------------------------------------------------


async def test_permanent_error_is_unchanged(autojump_clock: Clock) -> None:
    error = from_code(29, "topic t")
    with pytest.raises(TrikafkaError) as caught:
        await run_call("x", Attempts(0, ends=error), config=config())
    assert caught.value is error
    assert trio.current_time() == 0


async def test_foreign_error_is_unchanged(autojump_clock: Clock) -> None:
    with pytest.raises(ZeroDivisionError):
        await run_call("x", Attempts(0, ends=ZeroDivisionError()), config=config())


async def test_recover_is_called_after_each_failure(autojump_clock: Clock) -> None:
    errors = [from_code(6), KafkaConnectionError("gone"), from_code(15)]
    recovered: list[tuple[int, TrikafkaError]] = []
    work = Attempts(0, ends=[*errors, "done"])
    assert (
        await run_call(
            "x",
            work,
            config=config(),
            recover=lambda error: recovered.append((len(work.times), error)),
        )
        == "done"
    )
    assert recovered == [(1, errors[0]), (2, errors[1]), (3, errors[2])]


async def test_unknown_topic_has_limited_patience(autojump_clock: Clock) -> None:
    error = from_code(3, "topic 't'")
    work = Attempts(0, ends=error)
    with pytest.raises(UnknownTopicOrPartitionError) as caught:
        await run_call("x", work, config=config(), timeout=60)
    assert caught.value is error
    assert 3 <= trio.current_time() <= 4
    assert len(work.times) >= 4


async def test_patience_does_not_exceed_the_limit(autojump_clock: Clock) -> None:
    with pytest.raises(KafkaTimeoutError) as caught:
        await run_call("x", Attempts(0, ends=from_code(3, "topic 't'")), config=config(), timeout=2)
    assert isinstance(caught.value.__cause__, UnknownTopicOrPartitionError)
    assert trio.current_time() == 2


async def test_another_error_renews_the_patience(autojump_clock: Clock) -> None:
    async def attempt(call: RunningCall) -> str:
        now = trio.current_time()
        if now > 5:
            return "it appeared"
        raise from_code(6) if 2 < now < 3.5 else from_code(3)

    assert await run_call("x", attempt, config=config()) == "it appeared"


@pytest.mark.parametrize("failures", range(1, 12))
def test_backoff_is_within_its_bounds(failures: int) -> None:
    base = min(1000, 100 * 2 ** (failures - 1)) / 1000
    waits = [backoff(failures, 100, 1000) for _ in range(300)]
    assert base * 0.8 <= min(waits) < max(waits) <= min(1.0, base * 1.2)


def test_backoff_of_extremes() -> None:
    assert backoff(10**9, 100, 1000) <= 1
    assert backoff(1, 0, 0) == 0
    assert backoff(1, 5000, 1000) <= 1


# -- limits that are none
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "timeout", [-1, -0.001, -math.inf, math.nan, True, False, "5", b"5", [1], 1j]
)
async def test_invalid_timeout_is_refused_at_once(autojump_clock: Clock, timeout: Any) -> None:
    work = Attempts(0)
    with pytest.raises(ValueError, match="timeout must be a number of seconds, at least 0, not"):
        await run_call("x", work, config=config(), timeout=timeout)
    assert work.times == []


@pytest.mark.parametrize(
    ("given", "limit"), [(None, 7), (0, 0), (3, 3), (0.5, 0.5), (math.inf, math.inf)]
)
def test_valid_timeouts_become_limits(given: float | None, limit: float) -> None:
    assert check_timeout(given, 7) == limit


# -- cancellation
# ---------------------------------------------------------------------------------------------------------


async def test_users_scope_raises_only_cancelled(autojump_clock: Clock) -> None:
    for work in (Attempts(math.inf), Attempts(0, ends=from_code(6))):
        start = trio.current_time()
        with trio.move_on_after(0.3333) as scope:
            await run_call("x", work, config=config())
        assert scope.cancelled_caught
        assert trio.current_time() - start == pytest.approx(0.3333)


async def test_every_await_can_be_cancelled(autojump_clock: Clock) -> None:
    async def scenario() -> None:
        await run_call("x", Attempts(1, ends=[from_code(6), from_code(6), "done"]), config=config())

    assert await assert_all_awaits_cancellable(scenario) == 6


async def test_users_limit_wins_at_the_same_instant(autojump_clock: Clock) -> None:
    call: Callable[[], Awaitable[Any]] = lambda: run_call(  # noqa: E731
        "x", Attempts(math.inf), config=config(), timeout=2
    )
    with trio.move_on_after(2) as scope:
        await call()
    assert scope.cancelled_caught
    assert trio.current_time() == 2
