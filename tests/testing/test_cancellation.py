"""The helper that cancels at every await."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.lowlevel
from rawclient import RawClient
from trio.testing import MockClock as Clock

from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable


async def test_each_checkpoint_is_cancelled_once(autojump_clock: Clock) -> None:
    reached: list[int] = []
    checks = 0

    async def scenario() -> None:
        done = 0
        try:
            await trio.sleep(1)
            done = 1
            await trio.sleep(1)
            done = 2
        finally:
            reached.append(done)

    async def check() -> None:
        nonlocal checks
        checks += 1

    assert await assert_all_awaits_cancellable(scenario, check) == 2
    assert reached == [0, 1, 2]
    assert checks == 3
    assert trio.current_time() == 3


async def test_setup_gives_each_run_its_own(autojump_clock: Clock) -> None:
    made: list[list[str]] = []

    @asynccontextmanager
    async def setup() -> AsyncIterator[list[str]]:
        made.append([])
        yield made[-1]
        made[-1].append("closed")

    async def scenario(given: list[str]) -> None:
        await trio.sleep(1)
        given.append("slept")

    async def check(given: list[str]) -> None:
        given.append("checked")

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) == 1
    assert made == [["checked", "closed"], ["slept", "checked", "closed"]]


async def test_failure_names_its_checkpoint(autojump_clock: Clock) -> None:
    async def scenario() -> None:
        await trio.sleep(1)
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            raise ValueError("turned into something else") from None

    with pytest.raises(ValueError, match="something else") as caught:
        await assert_all_awaits_cancellable(scenario)
    assert caught.value.__notes__ == ["in the run that was cancelled at checkpoint 1"]


async def test_too_many_checkpoints_are_an_error(autojump_clock: Clock) -> None:
    async def scenario() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    with pytest.raises(AssertionError, match="more than 5 checkpoints"):
        await assert_all_awaits_cancellable(scenario, limit=5)


async def test_cluster_is_set_up_for_each_run(autojump_clock: Clock) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[ScriptedCluster]:
        async with ScriptedCluster(topics={"t": 1}) as cluster:
            cluster.delay("Metadata", 1)
            yield cluster

    async def scenario(cluster: ScriptedCluster) -> None:
        client = await RawClient.connect(cluster)
        try:
            await client.call("Metadata", 12, topics=None)
        finally:
            await trio.aclose_forcefully(client.stream)

    async def check(cluster: ScriptedCluster) -> None:
        await trio.testing.wait_all_tasks_blocked()
        assert cluster.connections() == 0

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) > 2
