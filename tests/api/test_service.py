"""The frame around a client: what it raises, the order of its end, and no task left."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock as Clock

from trikafka._api.client.service import Exit, Service, run_client
from trikafka._net.singleflight import ClientClosed, SingleFlight
from trikafka.config import ClientConfig
from trikafka.errors import ClientFailedError, ConfigurationError, TrikafkaError
from trikafka.testing import assert_all_awaits_cancellable

CONFIG = ClientConfig.build({"bootstrap_servers": "a:1", "close_timeout_ms": 30_000})


class Thing:
    """A client that notes how it is closed, takes a while for it, and may fail."""

    def __init__(
        self, service: Service, close_seconds: float = 0, close_error: Exception | None = None
    ) -> None:
        self.service = service
        self.close_seconds = close_seconds
        self.close_error = close_error
        self.exits: list[Exit] = []
        self.finished = False

    async def _finish(self, how: Exit) -> None:
        self.exits.append(how)
        await trio.sleep(self.close_seconds)
        if self.close_error is not None:
            raise self.close_error
        self.finished = True


class Watch:
    """A frame that opens things, remembers the last, and counts its background tasks."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.tasks = 0
        self.thing: Thing

    @asynccontextmanager
    async def open(self, *works: Callable[[], Awaitable[object]]) -> AsyncIterator[Thing]:
        async def start(service: Service) -> Thing:
            self.thing = Thing(service, **self.options)
            for work in works:
                service.start_soon(self._count, work)
            return self.thing

        async with run_client(CONFIG, start) as thing:
            yield thing

    async def _count(self, work: Callable[[], Awaitable[object]]) -> None:
        self.tasks += 1
        try:
            await work()
        finally:
            self.tasks -= 1


async def fails_after(seconds: float, error: BaseException) -> None:
    await trio.sleep(seconds)
    raise error


def at(seconds: float, error: BaseException) -> Callable[[], Awaitable[None]]:
    return lambda: fails_after(seconds, error)


async def test_clean_body_closes_in_order(autojump_clock: Clock) -> None:
    watch = Watch(close_seconds=3)
    async with watch.open(trio.sleep_forever, trio.sleep_forever):
        await trio.sleep(1)
        assert watch.tasks == 2
    assert (watch.tasks, watch.thing.exits, watch.thing.finished, trio.current_time()) == (
        0,
        [Exit.CLEAN],
        True,
        4,
    )


# -- the body's own exceptions
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (KeyError("mine"), Exit.FAILED),
        (TrikafkaError("mine"), Exit.FAILED),
        (StopIteration("mine"), Exit.FAILED),
        (StopAsyncIteration("mine"), Exit.FAILED),
        (RuntimeError("mine"), Exit.FAILED),
        (ClientClosed("mine"), Exit.FAILED),
        (ExceptionGroup("mine", [KeyError(1), ValueError(2)]), Exit.FAILED),
        (KeyboardInterrupt("mine"), Exit.CANCELLED),
        (SystemExit(3), Exit.CANCELLED),
        (BaseExceptionGroup("mine", [KeyboardInterrupt()]), Exit.CANCELLED),
    ],
)
async def test_bodys_exception_is_unchanged(
    autojump_clock: Clock, error: BaseException, how: Exit
) -> None:
    watch = Watch()
    with pytest.raises(type(error)) as caught:  # noqa: PT012
        async with watch.open(trio.sleep_forever):
            await trio.lowlevel.checkpoint()
            raise error
    assert caught.value is error
    assert error.__cause__ is None
    assert error.__context__ is None
    assert (watch.tasks, watch.thing.finished) == (0, True)
    assert watch.thing.exits == [Exit.FAILED if isinstance(error, Exception) else how]


async def test_group_of_users_nursery_stays_a_group(autojump_clock: Clock) -> None:
    watch = Watch()
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with watch.open(trio.sleep_forever):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(at(1, KeyError("mine")))
                nursery.start_soon(at(1, ValueError("mine, too")))
    assert {type(each) for each in caught.value.exceptions} <= {KeyError, ValueError}
    assert watch.thing.exits == [Exit.FAILED]


async def test_cancelled_body_closes_in_order(autojump_clock: Clock) -> None:
    watch = Watch(close_seconds=0.5)
    with trio.move_on_after(2) as scope:
        async with watch.open(trio.sleep_forever):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert (watch.thing.exits, watch.thing.finished, watch.tasks, trio.current_time()) == (
        [Exit.CANCELLED],
        True,
        0,
        2.5,
    )


async def test_background_tasks_run_until_closed(autojump_clock: Clock) -> None:
    """They run until the cancelled client has closed."""
    watch = Watch(close_seconds=0.5)
    ends: list[float] = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ends.append(trio.current_time())

    with trio.move_on_after(2):
        async with watch.open(work):
            await trio.sleep_forever()
    assert ends == [2.5]


# -- limits of closing
# ----------------------------------------------------------------------------------------------------


async def test_hanging_close_ends_at_its_limit(autojump_clock: Clock) -> None:
    watch = Watch(close_seconds=1000)
    async with watch.open(trio.sleep_forever):
        pass
    assert (watch.thing.finished, watch.tasks, trio.current_time()) == (False, 0, 30)


async def test_cancelled_hanging_close_ends_in_a_second(autojump_clock: Clock) -> None:
    watch = Watch(close_seconds=1000)
    with trio.move_on_after(2) as scope:
        async with watch.open(trio.sleep_forever):
            await trio.sleep_forever()
    assert (scope.cancelled_caught, watch.tasks, trio.current_time()) == (True, 0, 3)


@pytest.mark.parametrize(("seconds", "end"), [(2.9, 2.9), (10, 3)])
async def test_cancelled_close_has_a_second(
    seconds: float, end: float, autojump_clock: Clock
) -> None:
    """A close that is cancelled still ends in order if it can within a second.

    It does not use all of ``close_timeout_ms``.
    """
    watch = Watch(close_seconds=seconds)
    with trio.move_on_after(2) as scope:
        async with watch.open(trio.sleep_forever):
            pass
    assert (watch.thing.finished, trio.current_time()) == (seconds == end, end)
    assert not scope.cancelled_caught


@pytest.mark.parametrize("close_error", [None, KeyError("closing")])
async def test_bodys_error_outlives_a_cancel(
    close_error: Exception | None, autojump_clock: Clock
) -> None:
    watch = Watch(close_seconds=2.5, close_error=close_error)
    with trio.move_on_after(2), pytest.raises(ValueError, match="body"):
        async with watch.open(trio.sleep_forever):
            raise ValueError("body")
    assert (watch.thing.exits, trio.current_time()) == ([Exit.FAILED], 2.5)


async def test_error_of_closing_is_raised(autojump_clock: Clock) -> None:
    watch = Watch(close_error=KeyError("closing"))
    with pytest.raises(KeyError, match="closing"):
        async with watch.open(trio.sleep_forever):
            pass
    assert watch.tasks == 0


async def test_bodys_error_precedes_that_of_closing(autojump_clock: Clock) -> None:
    watch = Watch(close_error=KeyError("closing"))
    with pytest.raises(ValueError, match="mine"):
        async with watch.open(trio.sleep_forever):
            raise ValueError("mine")


# -- failures in the background
# -------------------------------------------------------------------------------------------


async def test_failure_ends_the_body_with_its_cause(autojump_clock: Clock) -> None:
    """A background failure is raised once, as ``ClientFailedError`` with its cause."""
    watch, error = Watch(), ZeroDivisionError("bug")
    with pytest.raises(
        ClientFailedError, match="the client failed in the background: bug"
    ) as caught:
        async with watch.open(at(3, error), trio.sleep_forever):
            await trio.sleep_forever()
    assert caught.value.__cause__ is error
    assert (watch.tasks, trio.current_time()) == (0, 3)
    # The body may not have finished its work: a clean exit would commit it.
    assert watch.thing.exits == [Exit.FAILED]


async def test_first_of_several_failures_counts(autojump_clock: Clock) -> None:
    watch, errors = Watch(), [ValueError("first"), KeyError("second")]
    with pytest.raises(ClientFailedError, match="first"):
        async with watch.open(at(1, errors[0]), at(1.5, errors[1])):
            await trio.sleep_forever()


async def test_groups_of_background_tasks_are_unpacked(autojump_clock: Clock) -> None:
    error = ValueError("inner")

    async def nested() -> None:
        async with trio.open_nursery() as outer:
            outer.start_soon(trio.sleep_forever)
            async with trio.open_nursery() as inner:
                inner.start_soon(at(1, error))

    with pytest.raises(ClientFailedError, match="inner") as caught:
        async with Watch().open(nested):
            await trio.sleep_forever()
    assert caught.value.__cause__ is error


async def test_error_among_cancelled_tasks_is_found(autojump_clock: Clock) -> None:
    error = ValueError("on the way out")

    async def nested() -> None:
        async def stubborn() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise error

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stubborn)
            nursery.start_soon(trio.sleep_forever)

    with pytest.raises(ClientFailedError, match="on the way out") as caught:
        async with Watch().open(nested):
            await trio.sleep(1)
    assert caught.value.__cause__ is error


async def test_failure_cancels_at_the_next_checkpoint(autojump_clock: Clock) -> None:
    """The body is in a shielded scope when the background task fails."""
    watch, steps = Watch(), []
    with pytest.raises(ClientFailedError):  # noqa: PT012
        async with watch.open(at(1, ValueError("bug"))):
            with trio.CancelScope(shield=True):
                await trio.sleep(5)
            steps.append("after the shield")
            await trio.lowlevel.checkpoint()
            steps.append("never")
    assert steps == ["after the shield"]


async def test_failure_at_the_bodys_end_is_raised(autojump_clock: Clock) -> None:
    with pytest.raises(ClientFailedError):
        async with Watch().open(at(1, ValueError("bug"))):
            await trio.sleep(1)


async def test_bodys_error_is_raised_and_failure_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(KeyError, match="mine"):  # noqa: PT012
        async with Watch().open(at(1, ValueError("bug"))):
            try:
                await trio.sleep_forever()
            finally:
                raise KeyError("mine")
    assert "the client failed in the background" in caplog.text
    assert "ValueError: bug" in caplog.text


async def test_cancelled_scope_precedes_a_failure(autojump_clock: Clock) -> None:
    with trio.move_on_after(1) as scope:
        async with Watch().open(at(1, ValueError("bug"))):
            await trio.sleep_forever()
            raise AssertionError("unreachable")
    if not scope.cancelled_caught:  # the failure was first
        raise AssertionError("a cancelled scope must see Cancelled")


async def test_failure_while_closing_is_raised(autojump_clock: Clock) -> None:
    watch = Watch(close_seconds=5)
    with pytest.raises(ClientFailedError):
        async with watch.open(at(2, ValueError("bug"))):
            pass
    assert watch.thing.exits == [Exit.CLEAN]
    # The end that closing waits for may never come; a second is left for the rest.
    assert trio.current_time() == 3


class OtherError(BaseException):  # as pytest.fail() raises in a function of a test
    """An error that is no Exception."""


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(3), OtherError()])
async def test_background_interrupt_is_unchanged(
    autojump_clock: Clock, interrupt: BaseException
) -> None:
    watch = Watch(close_seconds=0.5)
    with pytest.raises(type(interrupt)) as caught:
        async with watch.open(at(1, interrupt), trio.sleep_forever):
            await trio.sleep_forever()
    assert caught.value is interrupt
    assert (watch.thing.exits, watch.thing.finished, watch.tasks) == ([Exit.CANCELLED], True, 0)


async def test_task_on_a_closed_client_is_no_failure(autojump_clock: Clock) -> None:
    async with Watch().open(at(1, ClientClosed("closed"))):
        await trio.sleep(2)


# -- starting
# -------------------------------------------------------------------------------------------------------------


def opens(start: Callable[[Service], Awaitable[Any]]) -> Any:
    return run_client(CONFIG, start)


@pytest.mark.parametrize("error", [ConfigurationError("wrong"), KeyError("x"), KeyboardInterrupt()])
async def test_failed_start_is_unchanged(autojump_clock: Clock, error: BaseException) -> None:
    """The error is raised as it is, and no task is left."""
    tasks: list[str] = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            tasks.append("ended")

    async def start(service: Service) -> Thing:
        service.start_soon(work)
        await trio.sleep(1)
        raise error

    with pytest.raises(type(error)) as caught:
        async with opens(start):
            raise AssertionError("it opened")
    assert caught.value is error
    assert tasks == ["ended"]


@pytest.mark.parametrize("shared", [True, False])
async def test_task_failing_during_start_is_the_cause(autojump_clock: Clock, shared: bool) -> None:
    error = ZeroDivisionError("bug")

    async def start(service: Service) -> Thing:
        if shared:
            await SingleFlight(service.start_soon, at(1, error))()
        service.start_soon(at(1, error))
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    with pytest.raises(ClientFailedError, match="bug") as caught:
        async with opens(start):
            raise AssertionError("it opened")
    assert caught.value.__cause__ is error
    assert trio.current_time() == 1


async def test_cancelled_start_ends_at_once(autojump_clock: Clock) -> None:
    async def start(service: Service) -> Thing:
        service.start_soon(trio.sleep_forever)
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    with trio.move_on_after(1) as scope:
        async with opens(start):
            raise AssertionError("it opened")
    assert (scope.cancelled_caught, trio.current_time()) == (True, 1)


async def test_cancelled_scope_cancels_opening(autojump_clock: Clock) -> None:
    caught: list[type[BaseException]] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            async with Watch().open(trio.sleep_forever):
                await trio.lowlevel.checkpoint()
        except BaseException as error:
            caught.append(type(error))
            raise
    assert caught == [trio.Cancelled]


async def test_cancelled_body_raises_bare_cancelled(autojump_clock: Clock) -> None:
    caught: list[type[BaseException]] = []
    with trio.move_on_after(1):
        try:
            async with Watch().open(trio.sleep_forever):
                await trio.sleep_forever()
        except BaseException as error:
            caught.append(type(error))
            raise
    assert caught == [trio.Cancelled]


async def test_closed_frame_starts_no_task(autojump_clock: Clock) -> None:
    watch = Watch()
    async with watch.open():
        pass
    with pytest.raises(trio.ClosedResourceError):
        watch.thing.service.start_soon(trio.sleep_forever)


async def test_frame_leaves_no_task_at_any_cancellation(autojump_clock: Clock) -> None:
    watch = Watch(close_seconds=0.5)

    async def scenario() -> None:
        async with watch.open(trio.sleep_forever, trio.sleep_forever):
            await trio.sleep(1)

    async def check() -> None:
        assert watch.tasks == 0

    assert await assert_all_awaits_cancellable(scenario, check) >= 2
