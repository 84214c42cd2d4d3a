"""Causes of timeouts: what the call waited for, and how that failed last."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from netting import Parts, config, open_parts
from trio.testing import MockClock as Clock

from trikafka._net import reasons
from trikafka._net.deadlines import RunningCall, run_call
from trikafka._net.retry import Retry
from trikafka.errors import (
    KafkaConnectionError,
    KafkaTimeoutError,
    NotLeaderError,
    RequestTimedOutError,
    TrikafkaError,
    from_code,
)
from trikafka.testing import ScriptedCluster
from trikafka.types import Node

NODE = Node(0, "broker-0", 9092)


def root(error: BaseException) -> BaseException:
    """Return the end of the chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


async def timed_out(
    parts: Parts, work: Callable[[], Awaitable[Any]], timeout: float, what: str = "a step"
) -> KafkaTimeoutError:
    async def attempt(call: RunningCall) -> Any:
        return await call.step(what, work)

    with pytest.raises(KafkaTimeoutError) as caught:
        await run_call("x", attempt, config=parts.config, timeout=timeout)
    return caught.value


async def test_step_cut_in_a_backoff_has_its_cause(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster() as cluster,
        open_parts(cluster, reconnect_backoff_ms=1000, retry_backoff_ms=10) as parts,
    ):
        cluster.stop(0, noticed=False)
        error = await timed_out(parts, lambda: parts.brokers.connection(NODE), 0.218)
        assert trio.current_time() == pytest.approx(0.218, abs=1e-9)  # sums of floats
        assert isinstance(root(error), ConnectionRefusedError)
        assert isinstance(error.last_error, RequestTimedOutError)
        assert error.attempts == 2
        assert (
            "while waiting for a connection to broker-0:9092; before that: cannot connect to "
            "broker-0:9092: "
        ) in str(error)


@pytest.mark.parametrize("what", ["refresh", "coordinator", "topic"])
async def test_shared_lookups_have_their_cause(autojump_clock: Clock, what: str) -> None:
    settings = {
        "reconnect_backoff_ms": 5000,
        "reconnect_backoff_max_ms": 5000,
        "retry_backoff_ms": 10,
    }
    async with (
        ScriptedCluster(nodes=2, topics={"t": 1}) as cluster,
        open_parts(cluster, **settings) as parts,
    ):
        works: dict[str, Callable[[], Awaitable[Any]]] = {
            "refresh": parts.metadata.refresh,
            "coordinator": lambda: parts.coordinators.find("g"),
            "topic": lambda: parts.metadata.topic("t"),
        }
        cluster.stop(0, noticed=False)
        cluster.stop(1, noticed=False)
        errors: list[KafkaTimeoutError] = []

        async def one() -> None:
            errors.append(await timed_out(parts, works[what], 0.7))

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(one)
        assert trio.current_time() == pytest.approx(0.7, abs=1e-9)
        assert len(errors) == 100
        for error in errors:
            assert isinstance(root(error), ConnectionRefusedError)
            assert "cannot connect to broker-" in str(error)


@pytest.mark.parametrize(
    ("how", "doing"),
    [("lose", "a connection to broker-0:9092"), ("freeze", "ApiVersions to broker-0:9092")],
)
async def test_first_attempt_is_named_by_what_it_awaits(
    autojump_clock: Clock, how: str, doing: str
) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        getattr(cluster, how)(0)
        error = await timed_out(parts, parts.metadata.refresh, 0.7)
        assert (
            str(error.last_error) == f"a step: no response within 0.7 s while waiting for {doing}"
        )
        assert error.last_error is not None
        assert error.last_error.__cause__ is None


async def test_connection_made_at_last_is_no_cause(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        cluster.stop(0)
        with pytest.raises(KafkaConnectionError):
            await parts.brokers.connection(Node(-1, "broker-0", 9092))
        cluster.start(0)
        await parts.brokers.connection(Node(-1, "broker-0", 9092))
        cluster.freeze(0)
        error = await timed_out(parts, parts.metadata.refresh, 0.7)
        assert "while waiting for Metadata to broker-0:9092" in str(error)
        assert error.last_error is root(error)


async def test_cut_attempt_does_not_hide_the_last_error(autojump_clock: Clock) -> None:
    async def attempt(call: RunningCall) -> None:
        if call.attempts < 3:
            raise from_code(6, "t-0")
        await call.step("a step", trio.sleep_forever)

    with pytest.raises(KafkaTimeoutError, match="NOT_LEADER_OR_FOLLOWER") as caught:
        await run_call("x", attempt, config=config(), timeout=2)
    assert isinstance(root(caught.value), NotLeaderError)
    assert (caught.value.attempts, trio.current_time()) == (3, 2)


async def test_attempt_with_its_full_time_is_the_cause(autojump_clock: Clock) -> None:
    async def attempt(call: RunningCall) -> None:
        if call.attempts == 1:
            raise from_code(6, "t-0")
        await call.step("a step", trio.sleep_forever)

    with pytest.raises(KafkaTimeoutError) as caught:
        await run_call(
            "x", attempt, config=config(request_timeout_ms=1000, retry_backoff_ms=0), timeout=2
        )
    assert (str(caught.value.last_error), caught.value.attempts) == (
        "a step: no response within 1 s",
        3,
    )


async def test_call_without_steps_has_its_cause(autojump_clock: Clock) -> None:
    async def attempt(call: RunningCall) -> None:
        with trio.move_on_after(call.left):
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                reasons.failed(TrikafkaError("the broker is on fire"))
                raise
        raise call.expired()

    with pytest.raises(KafkaTimeoutError, match="the broker is on fire"):
        await run_call("flush", attempt, config=config(), timeout=2)


async def test_nothing_is_noted_outside_of_a_call(autojump_clock: Clock) -> None:
    reasons.waiting_for("something", TrikafkaError("x"))
    reasons.failed(TrikafkaError("x"))
    with reasons.waiting_behind(reasons.WaitContext()), reasons.reasoning() as reason:
        assert reason.blame() == ("", None)


async def test_retry_waits_grow_until_reset(autojump_clock: Clock) -> None:
    retry = Retry(config(retry_backoff_ms=100, retry_backoff_max_ms=1000))
    for number in range(8):
        before = trio.current_time()
        await retry.wait()
        base = min(1.0, 0.1 * 2**number)
        assert 0.8 * base - 1e-9 <= trio.current_time() - before <= min(1.0, 1.2 * base) + 1e-9
    assert retry.failures == 8
    retry.reset()
    assert retry.failures == 0
    assert 0.08 <= retry.delay() <= 0.12
    again = Retry.to_reconnect(config(reconnect_backoff_ms=7000, reconnect_backoff_max_ms=7000))
    assert 5.6 <= again.delay() <= 7
