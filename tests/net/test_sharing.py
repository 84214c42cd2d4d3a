"""Shared work, concurrent work, and signals."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from netting import Asked
from trio.testing import MockClock as Clock
from trio.testing import wait_all_tasks_blocked

from trikafka._net.gather import all_of, with_background
from trikafka._net.signal import Signal
from trikafka._net.singleflight import ClientClosed, SingleFlight
from trikafka.errors import ClientFailedError, KafkaConnectionError, KafkaTimeoutError, from_code


class Work:
    """Work that counts its runs, takes a second, and returns the given results."""

    def __init__(self, *ends: Any) -> None:
        self.ends = ends
        self.runs = 0

    async def __call__(self) -> Any:
        self.runs += 1
        end = self.ends[min(self.runs, len(self.ends)) - 1]
        await trio.sleep(1)
        if isinstance(end, Exception):
            raise end
        return end


async def test_overlapping_calls_share_one_run(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        work = Work("one", "two")
        flight = SingleFlight(nursery.start_soon, work)
        asked = [Asked(nursery, flight) for _ in range(10)]
        await trio.sleep(0.5)
        asked += [Asked(nursery, flight) for _ in range(10)]
        assert flight.busy
        assert [await each.outcome() for each in asked] == ["one"] * 20
        assert (work.runs, flight.busy) == (1, False)
        assert await flight() == "two"


async def test_leaving_callers_do_not_affect_others(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        work = Work("one")
        flight = SingleFlight(nursery.start_soon, work)
        asked = [Asked(nursery, flight) for _ in range(10)]
        await trio.sleep(0.5)
        for each in asked[:9]:  # the first, which began it, included
            each.scope.cancel()
        await wait_all_tasks_blocked()
        assert [each.cancelled for each in asked] == [True] * 9 + [False]
        assert await asked[9].outcome() == "one"
        assert work.runs == 1


async def test_run_ends_though_all_callers_left(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        work = Work("one", "two")
        flight = SingleFlight(nursery.start_soon, work)
        with trio.move_on_after(0):
            await flight()
        assert flight.busy
        await trio.sleep(2)
        assert not flight.busy
        assert await flight() == "two"


@pytest.mark.parametrize(
    "error",
    [
        from_code(15, "g"),
        OSError(2, "no"),
        KafkaTimeoutError("x", 1, 2, None),
        KafkaConnectionError("x"),
    ],
)
async def test_each_caller_has_its_copy_of_an_error(
    autojump_clock: Clock, error: Exception
) -> None:
    error.__cause__ = KeyError("why")
    async with trio.open_nursery() as nursery:
        flight = SingleFlight(nursery.start_soon, Work(error, "fine"))
        asked = [Asked(nursery, flight) for _ in range(5)]
        for each in asked:
            await each.done.wait()
        errors = [each.error for each in asked]
        assert [(type(each), str(each)) for each in errors] == [(type(error), str(error))] * 5
        assert len({id(each) for each in errors}) == 5
        assert all(each is not None and each.__cause__ is error.__cause__ for each in errors)
        assert await flight() == "fine"


async def test_bug_ends_the_client_and_is_the_cause(autojump_clock: Clock) -> None:
    asked: list[Asked] = []
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with trio.open_nursery() as outer:
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    flight = SingleFlight(nursery.start_soon, Work(ZeroDivisionError("bug")))
                    asked += [Asked(outer, flight) for _ in range(3)]
                    await wait_all_tasks_blocked()
    assert caught.group_contains(ZeroDivisionError)
    for each in asked:
        assert isinstance(each.error, ClientFailedError)
        assert isinstance(each.error.__cause__, ZeroDivisionError)


async def test_client_closed_meanwhile_is_closed_error(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as outer:
        async with trio.open_nursery() as nursery:
            flight = SingleFlight(nursery.start_soon, Work("one"))
            asked = [Asked(outer, flight) for _ in range(3)]
            await trio.sleep(0.5)
            nursery.cancel_scope.cancel()
        for each in asked:
            with pytest.raises(trio.ClosedResourceError, match="closed meanwhile"):
                await each.outcome()


async def test_run_that_cannot_start_is_not_waited_for(autojump_clock: Clock) -> None:
    def refuse(async_fn: Any, *args: Any) -> None:
        raise ClientClosed("over")

    flight = SingleFlight(refuse, Work("one"))
    for _ in range(2):
        with pytest.raises(trio.ClosedResourceError, match="over"):
            await flight()
    assert not flight.busy


# -- at the same time
# -----------------------------------------------------------------------------------------------------


async def ends(
    seconds: float, error: Exception | None = None, log: list[float] | None = None
) -> None:
    await trio.sleep(seconds)
    if error is not None:
        raise error
    if log is not None:
        log.append(seconds)


async def test_permanent_error_counts_after_all_ended(autojump_clock: Clock) -> None:
    log: list[float] = []
    retriable, fatal = from_code(6, "t-0"), from_code(29, "t")
    works = [
        lambda: ends(1, retriable),
        lambda: ends(2, fatal),
        lambda: ends(3, from_code(6)),
        lambda: ends(4, None, log),
    ]
    with pytest.raises(type(fatal)) as caught:
        await all_of(works)
    assert caught.value is fatal
    assert (trio.current_time(), log) == (4, [4])


async def test_first_retriable_error_counts(autojump_clock: Clock) -> None:
    first = from_code(6, "t-0")
    with pytest.raises(type(first)) as caught:
        await all_of([lambda: ends(2, from_code(7)), lambda: ends(1, first)])
    assert caught.value is first


@pytest.mark.parametrize("count", [1, 3])
async def test_foreign_error_is_raised_alone_at_once(autojump_clock: Clock, count: int) -> None:
    with pytest.raises(trio.ClosedResourceError):
        await all_of(
            [
                lambda: ends(1, ClientClosed("over")),
                *([lambda: ends(5, from_code(6))] * (count - 1)),
            ]
        )
    assert trio.current_time() == 1


async def test_all_of_accepts_nothing_and_cancelling(autojump_clock: Clock) -> None:
    await all_of([])
    with trio.move_on_after(1) as scope:
        await all_of([lambda: ends(5), lambda: ends(6)])
    assert (scope.cancelled_caught, trio.current_time()) == (True, 1)


async def test_background_ends_with_the_main_work(autojump_clock: Clock) -> None:
    log: list[float] = []
    await with_background(
        [lambda: ends(1, None, log), trio.sleep_forever], lambda: ends(2, None, log)
    )
    assert (log, trio.current_time()) == ([1, 2], 2)


@pytest.mark.parametrize(("background", "main", "first"), [(1, 2, "background"), (2, 1, "main")])
async def test_first_error_of_both_is_raised_alone(
    autojump_clock: Clock, background: float, main: float, first: str
) -> None:
    with pytest.raises(KeyError, match=first):
        await with_background(
            [lambda: ends(background, KeyError("background"))], lambda: ends(main, KeyError("main"))
        )
    assert trio.current_time() == 1


async def test_signal_wakes_only_present_waiters(autojump_clock: Clock) -> None:
    signal = Signal()
    signal.notify()
    async with trio.open_nursery() as nursery:
        asked = [Asked(nursery, signal.wait) for _ in range(3)]
        await wait_all_tasks_blocked()
        signal.notify()
        late = Asked(nursery, signal.wait)
        await wait_all_tasks_blocked()
        assert [each.done.is_set() for each in (*asked, late)] == [True, True, True, False]
        signal.notify()


async def test_cancelled_waiter_is_not_woken(autojump_clock: Clock) -> None:
    signal = Signal()
    woken: list[int] = []
    scopes = [trio.CancelScope() for _ in range(4)]

    async def wait(number: int) -> None:
        with scopes[number]:
            await signal.wait()
            woken.append(number)
            await signal.wait()
            woken.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(wait, number)
        await wait_all_tasks_blocked()
        scopes[1].cancel()
        signal.notify()  # in the step of its cancellation: it has ended
        scopes[2].cancel()  # in the step of its waking: it is awake, and its next wait is cancelled
        await wait_all_tasks_blocked()
        assert sorted(woken) == [0, 2, 3]
        assert [scope.cancelled_caught for scope in scopes] == [False, True, True, False]
        signal.notify()
        await wait_all_tasks_blocked()
        assert sorted(woken) == [0, 0, 2, 3, 3]
    signal.notify()


async def test_signal_wait_may_be_cancelled_often(autojump_clock: Clock) -> None:
    """A sender that lingers wakes once for each notice after that, whatever was cancelled before."""
    signal = Signal()
    for _ in range(300):
        with trio.move_on_after(0.001):
            await signal.wait()
    for _ in range(3):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(signal.wait)
            await wait_all_tasks_blocked()
            signal.notify()
