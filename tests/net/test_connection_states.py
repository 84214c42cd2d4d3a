"""States of connections as users see them, and the shared waits before a dial."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from netting import NODE, Asked, metadata_request, open_parts
from trio.testing import MockClock as Clock
from trio.testing import wait_all_tasks_blocked

import trikafka
from trikafka.errors import KafkaConnectionError
from trikafka.hooks import hookimpl
from trikafka.interfaces import ConnectionObserver
from trikafka.testing import ScriptedCluster


class Watching(ConnectionObserver):
    """An observer that notes each change."""

    def __init__(self) -> None:
        self.changes: list[tuple[Any, ...]] = []

    @hookimpl
    def trikafka_observer(self, context: Any) -> Watching:
        return self

    def connection_changed(self, event: trikafka.ConnectionEvent) -> None:
        self.changes.append(
            (
                event.node.node_id,
                event.purpose,
                event.before,
                event.state,
                round(event.seconds, 3),
                event.error,
            )
        )


async def test_states_have_their_durations(autojump_clock: Clock) -> None:
    watching = Watching()
    async with ScriptedCluster() as cluster, open_parts(cluster, bootstrap=False) as parts:
        cluster.dial_delay = 2
        parts.brokers.when_changed(watching.connection_changed)
        await parts.brokers.connection(NODE)
        [found] = parts.brokers.statistics()
        assert (found.node, found.purpose, found.state, found.in_flight) == (
            NODE,
            "general",
            "ready",
            0,
        )
        assert found.seconds == {"new": 2, "negotiating": 0, "ready": 0}
        await trio.sleep(3)
        [found] = parts.brokers.statistics()
        assert found.seconds == {"new": 2, "negotiating": 0, "ready": 3}
        cluster.disconnect()
        await wait_all_tasks_blocked()
        [found] = parts.brokers.statistics()
        assert (found.state, found.seconds["closed"]) == ("closed", 0)
    *before, (*closed, error) = watching.changes
    assert before == [
        (0, "general", "new", "negotiating", 2, None),
        (0, "general", "negotiating", "ready", 0, None),
    ]
    assert closed == [0, "general", "ready", "closed", 3]
    assert "the broker closed it" in str(error)


async def test_observer_and_statistics_show_states(autojump_clock: Clock) -> None:
    watching = Watching()
    async with ScriptedCluster() as cluster:
        settings: Any = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "plugins": [watching],
        }
        async with trikafka.open_producer(**settings) as producer:
            found = {
                (each.node.node_id, each.purpose): each.state
                for each in producer.statistics().connections
            }
    assert found[(-1, "general")] == "ready"
    assert [change[3] for change in watching.changes if change[0] == -1] == [
        "negotiating",
        "ready",
        "closed",
    ]


async def test_failed_dial_is_new_until_closed(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster() as cluster,
        open_parts(cluster, bootstrap=False) as parts,
        trio.open_nursery() as nursery,
    ):
        cluster.lose(0)
        asked = Asked(nursery, lambda: parts.brokers.connection(NODE, "fetch"))
        await trio.sleep(4)
        [found] = parts.brokers.statistics()
        assert (found.node, found.purpose, found.state, dict(found.seconds)) == (
            NODE,
            "fetch",
            "new",
            {"new": 4},
        )
        with pytest.raises(KafkaConnectionError):
            await asked.outcome()
        [found] = parts.brokers.statistics()
        assert (found.state, found.seconds["new"]) == ("closed", 10)


async def test_consumers_statistics_show_connections(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster:
        cluster.create_topic("t")
        settings: Any = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "group_id": "g",
        }
        async with trikafka.open_consumer("t", **settings) as consumer:
            with trio.move_on_after(5):
                await consumer.receive()
            found = {
                (each.node.node_id, each.purpose): each.state
                for each in consumer.statistics().connections
            }
    assert found[(-1, "general")] == found[(0, "fetch")] == found[(0, "coordinator")] == "ready", (
        found
    )


async def test_connections_to_a_broker_share_their_wait(autojump_clock: Clock) -> None:
    """A broker that is away is not dialled by each purpose in turn."""
    async with ScriptedCluster() as cluster:
        cluster.stop(0)
        settings = {"reconnect_backoff_ms": 1_000, "reconnect_backoff_max_ms": 100_000}
        async with open_parts(cluster, bootstrap=False, **settings) as parts:
            for number in range(4):
                began = trio.current_time()
                with pytest.raises(KafkaConnectionError):
                    await parts.brokers.connection(NODE, "general" if number % 2 else "fetch")
                waited = trio.current_time() - began
                assert (
                    waited == 0
                    if not number
                    else 0.8 * 2 ** (number - 1) <= waited <= 1.2 * 2 ** (number - 1)
                )
            cluster.start(0)
            await parts.brokers.connection(NODE, "fetch")
            began = trio.current_time()
            await parts.brokers.connection(NODE, "general")
            assert trio.current_time() == began  # the broker is back


async def test_good_connection_keeps_anothers_wait(autojump_clock: Clock) -> None:
    """A connection that works does not end the wait of another one that fails."""
    async with (
        ScriptedCluster() as cluster,
        open_parts(cluster, bootstrap=False) as parts,
        trio.open_nursery() as nursery,
    ):
        for purpose in ("general", "fetch"):
            await parts.brokers.request(NODE, metadata_request(), purpose=purpose)  # type: ignore[arg-type]
        cluster.stop(0)
        await wait_all_tasks_blocked()
        with trio.fail_after(100):
            for _ in range(20):
                both: Any = ("general", "fetch")
                asked = [
                    Asked(nursery, lambda purpose=purpose: parts.brokers.connection(NODE, purpose))
                    for purpose in both
                ]
                for each in asked:
                    with pytest.raises(KafkaConnectionError):
                        await each.outcome()
        assert trio.current_time() > 5


async def test_concurrent_dials_count_once(autojump_clock: Clock) -> None:
    purposes: Any = ("general", "fetch", "produce", "coordinator", "group")
    async with ScriptedCluster() as cluster:
        cluster.stop(0)
        settings = {"reconnect_backoff_ms": 1_000, "reconnect_backoff_max_ms": 100_000}
        async with (
            open_parts(cluster, bootstrap=False, **settings) as parts,
            trio.open_nursery() as nursery,
        ):
            for _ in range(2):
                asked = [
                    Asked(nursery, lambda purpose=purpose: parts.brokers.connection(NODE, purpose))
                    for purpose in purposes
                ]
                for each in asked:
                    with pytest.raises(KafkaConnectionError):
                        await each.outcome()
            assert 0.8 <= trio.current_time() <= 1.2
