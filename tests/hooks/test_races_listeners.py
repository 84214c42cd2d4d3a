"""Listeners that are exchanged while a rebalance is being told."""

from __future__ import annotations

from collections.abc import Sequence

import trio
from test_hooks import Told, plugin, settings
from trio.testing import MockClock

import trikafka
from trikafka import TopicPartition
from trikafka.testing import ScriptedCluster


async def test_a_plugin_is_told_though_the_users_listener_went_in_the_middle_of_it(autojump_clock: MockClock) -> None:
    told: list[str] = []

    class Slow(Told):
        async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            if "began" not in told:
                told.append("began")
                await trio.sleep(5)
            await super().on_partitions_revoked(partitions)

    one = plugin(trikafka_rebalance_listener=lambda: Slow("one", told))
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = settings(cluster, one, group_id="g", group_protocol="classic", partition_assignment_strategy=("range",))
        async with trikafka.open_consumer(**given) as consumer:
            consumer.subscribe(["t"], Told("user", told))
            with trio.fail_after(60):
                await consumer.receive_batch(timeout=5)
                consumer.enforce_rebalance()
                with trio.move_on_after(1) as scope:
                    await consumer.receive()
                assert scope.cancelled_caught
                consumer.subscribe(["t"])
                await consumer.receive_batch(timeout=10)
            assert told == ["one assigned 1", "user assigned 1", "user revoked 1", "began", "one revoked 1", "one assigned 1"]
