"""Metadata that is wanted while a request is under way which does not ask for it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from netting import open_parts
from trio.testing import MockClock as Clock

from trikafka import TrikafkaError
from trikafka._net import reasons
from trikafka.testing import ScriptedCluster


@pytest.mark.parametrize("turn", range(12))  # Trio chooses at random who goes on first
async def test_who_asked_for_a_topic_gets_it_whoever_asks_for_another_just_then(autojump_clock: Clock, turn: int) -> None:
    """He went on with the request of one who asked in the very step in which the one before had ended."""
    async with ScriptedCluster(topics={"a": 1, "b": 1, "c": 1}) as cluster, open_parts(cluster) as parts:
        metadata, held, found = parts.metadata, trio.Event(), []

        async def hold(request: Any, default: Any) -> Any:
            await held.wait()
            return await default()

        async def ask() -> None:
            found.append(await metadata.topic("b"))

        async def quick() -> None:
            while metadata._flight.busy:  # looks in every step, which no clock may jump over
                await trio.lowlevel.checkpoint()
            await metadata.refresh(["c"])

        cluster.on("Metadata", hold, 1)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(metadata.refresh, ["a"])
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                held.set()
                nursery.start_soon(quick)
        assert [info.name for info in found if info is not None] == ["b"]


async def test_what_is_wanted_while_a_refresh_is_under_way_is_asked_for_after_it(autojump_clock: Clock) -> None:
    """Else a pattern would not be matched before ``metadata_max_age_ms`` has passed."""
    async with ScriptedCluster(topics={"a": 1, "b": 1}) as cluster, open_parts(cluster, background=True) as parts:
        metadata = parts.metadata
        cluster.delay("Metadata", 0.1)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(metadata.refresh, ["a"])
                await trio.sleep(0.05)
                metadata.want((), everything=True)
                metadata.request_update()
                await trio.sleep(0.3)
        assert set(metadata.snapshot.topics) == {"a", "b"}


async def test_who_is_cut_off_before_a_request_has_begun_is_told_why_the_last_one_failed(autojump_clock: Clock) -> None:
    """Seen live, on a machine that stood still: "no response within 0.2 s", and no word of the broker that refused all the time."""
    async with ScriptedCluster(topics={"a": 1}) as cluster, open_parts(cluster) as parts:
        metadata = parts.metadata
        cluster.refuse(0)
        cluster.disconnect()
        with trio.fail_after(600):
            with pytest.raises(TrikafkaError):
                await metadata.refresh(["a"])
            with reasons.reasoning() as reason, trio.CancelScope() as scope:
                scope.cancel()
                await metadata.refresh(["a"])
            assert scope.cancelled_caught
        assert "broker-0:9092" in str(reason.told().error)
