"""Plugins: found, checked, asked once at open; what is wrong with one is said there, and names it."""

import types
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import trikafka
from trikafka import PluginError, TopicPartition, hookimpl
from trikafka._managers.heartbeat import Heartbeats
from trikafka._managers.produce import ProduceManager
from trikafka.hooks import call_first, load_plugins
from trikafka.interfaces import ClientContext, Observer, RebalanceListener
from trikafka.testing import ScriptedCluster


def plugin(**hooks: Any) -> object:
    return types.SimpleNamespace(**{name: hookimpl(function) for name, function in hooks.items()})


class Told(RebalanceListener):
    def __init__(self, name: str, told: list[str]) -> None:
        self.name, self.told = name, told

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.told.append(f"{self.name} assigned {len(partitions)}")

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.told.append(f"{self.name} revoked {len(partitions)}")


def settings(cluster: ScriptedCluster, *plugins: object, **more: Any) -> dict[str, Any]:
    return {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial, "plugins": plugins, **more}


async def test_listeners_of_plugins_in_order_of_registration_reversed_on_revoke(autojump_clock: MockClock) -> None:
    told: list[str] = []
    one = plugin(trikafka_rebalance_listener=lambda context: Told("one", told))
    two = plugin(trikafka_rebalance_listener=lambda: Told("two", told))
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        cluster.append("t", 0, [b"x"])
        given = settings(cluster, one, two, group_id="g", auto_offset_reset="earliest")
        async with trikafka.open_consumer("t", **given) as consumer:
            await consumer.receive()
    assert told == ["one assigned 2", "two assigned 2", "two revoked 2", "one revoked 2"]


async def test_a_request_manager_is_replaced_and_used(autojump_clock: MockClock) -> None:
    beats: list[float] = []

    class Counting(Heartbeats):
        async def _beat(self) -> None:
            beats.append(trio.current_time())
            await super()._beat()

    def manager(kind: str, context: Any) -> object | None:
        if kind != "heartbeat":
            return None
        coordinators, core = context.manager("coordinator"), context.core
        return Counting(context.config, context.config.group_id, context.brokers, coordinators, core.member, core.poll_timer, False)

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = settings(cluster, plugin(trikafka_request_manager=manager), group_id="g", heartbeat_interval_ms=3_000)
        async with trikafka.open_consumer("t", **given) as consumer:
            await consumer.receive_batch(timeout=10)
        assert len(beats) == len(cluster.requests("Heartbeat")) == 3


async def test_the_produce_manager_is_replaced_and_used(autojump_clock: MockClock) -> None:
    learned: list[str] = []

    class Noting(ProduceManager[trikafka.Ack]):
        async def learn(self, topic: str, partition: int | None) -> None:
            learned.append(topic)
            await super().learn(topic, partition)

    def manager(kind: str, context: Any) -> object | None:
        if kind != "produce":
            return None
        parts = (context.config, context.brokers, context.manager("metadata"), context.start_soon)
        return Noting(*parts, trikafka.Ack, context.partitioner)

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        async with trikafka.open_producer(**settings(cluster, plugin(trikafka_request_manager=manager))) as producer:
            assert (await producer.send("t", b"v")).offset == 0
    assert learned == ["t"]


async def test_a_manager_without_what_it_must_hold_is_refused(autojump_clock: MockClock) -> None:
    class Empty(ProduceManager[trikafka.Ack]):
        accumulator: Any = property(lambda self: None, lambda self, value: None)

    def manager(kind: str, context: Any) -> object | None:
        if kind != "produce":
            return None
        return Empty(context.config, context.brokers, context.manager("metadata"), context.start_soon, trikafka.Ack)

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(PluginError, match="returned Empty, which is no ProduceManager: it has no accumulator"):
            async with trikafka.open_producer(**settings(cluster, plugin(trikafka_request_manager=manager))):
                pass


async def test_an_observer_sees_the_client_open_fail_and_close(autojump_clock: MockClock) -> None:
    seen: list[str] = []

    class Watching(Observer):
        def opened(self, context: ClientContext) -> None:
            seen.append(f"opened {context.config.client_id}")
            context.start_soon(self.fail)

        async def fail(self) -> None:
            raise ValueError("broken")

        def failed(self, error: Exception) -> None:
            seen.append(f"failed {error}")

        def closed(self) -> None:
            seen.append("closed")

    watching = plugin(trikafka_observer=lambda context: Watching())
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(trikafka.ClientFailedError) as caught:
            async with trikafka.open_consumer(**settings(cluster, watching)):
                await trio.sleep_forever()
    assert isinstance(caught.value.__cause__, ValueError)
    assert seen == ["opened trikafka", "failed broken", "closed"]


async def test_an_assignor_of_a_plugin_deals_out(autojump_clock: MockClock) -> None:
    class LastOnly:
        name = "last-only"
        cooperative = False

        def assign(self, members: Any, partitions: Any) -> Any:
            return {member: [TopicPartition(topic, max(numbers)) for topic, numbers in partitions.items()] for member in members}

    offered = plugin(trikafka_assignor=lambda name: LastOnly() if name == "last-only" else None)
    async with ScriptedCluster(topics={"t": 3}) as cluster:
        given = settings(cluster, offered, group_id="g", partition_assignment_strategy=("last-only",))
        async with trikafka.open_consumer("t", **given) as consumer:
            await consumer.receive_batch(timeout=1)
            assert consumer.assignment() == {TopicPartition("t", 2)}


async def test_an_unknown_assignor_is_an_error_before_any_request(autojump_clock: MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = settings(cluster, group_id="g", partition_assignment_strategy=("nobody-knows",))
        with pytest.raises(trikafka.ConfigurationError, match="nobody-knows"):
            async with trikafka.open_consumer("t", **given):
                pass
        assert not cluster.log


def test_a_hook_that_does_not_exist_is_named() -> None:
    with pytest.raises(PluginError, match="trikafka_reqest_manager"):
        load_plugins([plugin(trikafka_reqest_manager=lambda kind: None)])


def test_an_argument_that_the_hook_does_not_have_is_named() -> None:
    with pytest.raises(PluginError, match=r"trikafka_sink.*colour|colour"):
        load_plugins([plugin(trikafka_sink=lambda colour: None)])


def test_an_async_hook_is_an_error_at_registration() -> None:
    async def sink(scheme: str) -> None: ...

    with pytest.raises(PluginError, match=r"trikafka_sink is async"):
        load_plugins([plugin(trikafka_sink=sink)])


def test_a_hook_that_raises_is_named_with_its_cause() -> None:
    def sink(scheme: str) -> object:
        raise KeyError(scheme)

    with pytest.raises(PluginError, match=r"^plugin 'SimpleNamespace': trikafka_sink failed: KeyError") as caught:
        call_first(load_plugins([plugin(trikafka_sink=sink)]), "trikafka_sink", scheme="s3", options={})
    assert isinstance(caught.value.__cause__, KeyError)


async def test_a_manager_of_the_wrong_shape_is_an_error_at_open(autojump_clock: MockClock) -> None:
    class Half:
        async def run(self) -> None: ...

    half = plugin(trikafka_request_manager=lambda kind: Half() if kind == "positions" else None)
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(PluginError, match=r"^plugin 'SimpleNamespace': .*Half.*no PositionsManager.*last_error"):
            async with trikafka.open_consumer(**settings(cluster, half)):
                pass


def test_a_plugin_without_hooks_is_an_error() -> None:
    class Regions:
        def trikafka_rebalance_listener(self) -> None: ...

    with pytest.raises(PluginError, match=r"^plugin 'Regions' is wrong: it implements no hook; is @trikafka.hookimpl missing\?$"):
        load_plugins([Regions()])


def test_a_wrapper_is_an_error() -> None:
    class Around:
        @trikafka.hookimpl(wrapper=True)
        def trikafka_sink(self, scheme: str) -> Any:
            return (yield)

    with pytest.raises(PluginError, match="'Around' is wrong: trikafka_sink is a wrapper"):
        load_plugins([Around()])


def test_the_same_plugin_twice_is_an_error() -> None:
    twice = plugin(trikafka_sink=lambda scheme: None)
    with pytest.raises(PluginError, match="wrong"):
        load_plugins([twice, twice])
