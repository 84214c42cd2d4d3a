"""The tools of :mod:`trikafka.toolkit`, as a program of a third party uses them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from trikafka import (
    ConfigurationError,
    ConsumerConfig,
    IllegalStateError,
    TrikafkaError,
    toolkit,
)


class Worker:
    """A client of a third party."""


@toolkit.opens
async def open_worker(name: str) -> AsyncIterator[Worker]:
    yield Worker()


async def test_opened_object_is_that_of_the_generator() -> None:
    async with open_worker("x") as worker:
        assert isinstance(worker, Worker)
        toolkit.check_client("use", worker, Worker, "{}")


async def test_missing_block_is_an_error_with_the_line() -> None:
    with pytest.raises(IllegalStateError, match=r"async with trikafka\.open_worker"):
        await open_worker("x")  # type: ignore[misc]
    with pytest.raises(ConfigurationError, match=r"one that is not open yet.*open_worker\(...\)"):
        toolkit.check_client("use", open_worker("x"), Worker, "{}")


def test_secret_argument_is_not_shown() -> None:
    assert toolkit.shown("topic") == "'topic'"
    assert "hunter2" not in toolkit.shown("https://user:hunter2@host")


@pytest.mark.parametrize("wrong", [-1, float("nan"), True, "3"])
def test_wrong_timeout_is_refused(wrong: float) -> None:
    with pytest.raises(ConfigurationError, match="timeout must be"):
        toolkit.check_timeout(wrong, 5.0)
    assert toolkit.check_timeout(None, 5.0) == 5.0
    assert toolkit.check_timeout(0, 5.0) == 0.0


async def test_retry_waits_as_the_settings_say(autojump_clock: MockClock) -> None:
    config = ConsumerConfig.build({"retry_backoff_ms": 1_000, "retry_backoff_max_ms": 2_000})
    retry = toolkit.Retry(config)
    began = trio.current_time()
    await retry.wait()
    assert 0.8 <= trio.current_time() - began <= 1.2
    assert 1.6 <= retry.delay() <= 2.0
    retry.reset()
    assert 0.8 <= retry.delay() <= 1.2
    assert toolkit.backoff(30, 1_000, 2_000) <= 2.0


async def test_background_ends_with_the_main_work(autojump_clock: MockClock) -> None:
    ended = []

    async def beside() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("beside")

    async def main() -> None:
        await trio.sleep(1)
        ended.append("main")

    await toolkit.with_background([beside], main)
    assert ended == ["main", "beside"]


async def test_interrupt_leaves_its_group() -> None:
    async def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), toolkit.interrupts_unwrapped():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupted)


def test_checksum_is_that_of_record_batches() -> None:
    assert toolkit.crc32c(b"123456789") == 0xE3069283
    assert toolkit.crc32c(b"6789", toolkit.crc32c(b"12345")) == 0xE3069283


async def test_results_and_errors_come_by_key(autojump_clock: MockClock) -> None:
    at_once = []
    running = 0

    async def work(seconds: int) -> int:
        nonlocal running
        running += 1
        at_once.append(running)
        await trio.sleep(seconds)
        running -= 1
        if seconds == 2:
            raise TrikafkaError("two")
        return seconds * 10

    results, errors = await toolkit.call_each(work, iter([3, 2, 1]), at_once=2)
    assert list(results.items()) == [(3, 30), (1, 10)]
    assert [(key, str(error)) for key, error in errors.items()] == [(2, "two")]
    assert max(at_once) == 2


async def test_foreign_error_cancels_other_calls(autojump_clock: MockClock) -> None:
    async def work(fails: bool) -> None:
        if fails:
            raise ValueError("a bug")
        await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await toolkit.call_each(work, [False, True])
    assert caught.group_contains(ValueError, match="a bug")


async def test_interrupt_of_a_call_is_in_no_group(autojump_clock: MockClock) -> None:
    async def work(interrupted: bool) -> None:
        if interrupted:
            raise KeyboardInterrupt
        await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        await toolkit.call_each(work, [False, True])


async def test_failed_calls_are_freed_at_once(autojump_clock: MockClock) -> None:
    given = Worker()
    freed = weakref.ref(given)

    async def work(key: int, given: Worker) -> None:
        raise TrikafkaError(f"{key}")

    gc.disable()
    try:
        _, errors = await toolkit.call_each(partial(work, given=given), [1, 2])
        assert len(errors) == 2
        del errors, given, work
        assert freed() is None
    finally:
        gc.enable()


async def test_calls_need_a_place() -> None:
    with pytest.raises(ValueError, match="at_once must be at least 1, not 0"):
        await toolkit.call_each(trio.sleep, [1], at_once=0)
