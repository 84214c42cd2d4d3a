"""Plugins: found, checked and called once at opening. An error there names the plugin."""

from __future__ import annotations

import re
import types
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import trio
from offered_plugins import plugin, settings
from trio.testing import MockClock

import trikafka
from trikafka import PluginError, TopicPartition
from trikafka._managers.group.heartbeat import Heartbeats
from trikafka._managers.producer.produce import BatchProducing
from trikafka.hooks import answers, first_answer, load_plugins
from trikafka.interfaces import (
    ClientContext,
    ExportFormat,
    ExportRunner,
    Observer,
    RebalanceListener,
    Subcommand,
)
from trikafka.testing import ScriptedCluster


class Recording(RebalanceListener):
    def __init__(self, name: str, called: list[str]) -> None:
        self.name = name
        self.called = called

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.called.append(f"{self.name} assigned {len(partitions)}")

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.called.append(f"{self.name} revoked {len(partitions)}")


async def test_listeners_run_in_reverse_on_revoke(autojump_clock: MockClock) -> None:
    """Listeners of plugins run in the order of registration, and reversed on revoke."""
    called: list[str] = []
    one = plugin(trikafka_rebalance_listener=lambda context: Recording("one", called))
    two = plugin(trikafka_rebalance_listener=lambda: Recording("two", called))
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        cluster.append("t", 0, [b"x"])
        given = settings(cluster, one, two, group_id="g", auto_offset_reset="earliest")
        async with trikafka.open_consumer("t", **given) as consumer:
            await consumer.receive()
    assert called == ["one assigned 2", "two assigned 2", "two revoked 2", "one revoked 2"]


async def test_heartbeat_manager_is_replaced(autojump_clock: MockClock) -> None:
    beats: list[float] = []

    class Counting(Heartbeats):
        async def _send_heartbeat(self) -> None:
            beats.append(trio.current_time())
            await super()._send_heartbeat()

    def manager(kind: str, context: Any) -> object | None:
        if kind != "heartbeat":
            return None
        coordinators, core = context.manager("coordinator"), context.core
        return Counting(
            context.config,
            context.config.group_id,
            context.brokers,
            coordinators,
            core.member,
            core.poll_timer,
            False,
        )

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = settings(
            cluster,
            plugin(trikafka_request_manager=manager),
            group_id="g",
            heartbeat_interval_ms=3_000,
        )
        async with trikafka.open_consumer("t", **given) as consumer:
            await consumer.receive_batch(timeout=10)
        assert len(beats) == len(cluster.requests("Heartbeat")) == 3


async def test_produce_manager_is_replaced(autojump_clock: MockClock) -> None:
    learned: list[str] = []

    class Noting(BatchProducing[trikafka.Ack]):
        async def learn(self, topic: str, partition: int | None) -> None:
            learned.append(topic)
            await super().learn(topic, partition)

    def manager(kind: str, context: Any) -> object | None:
        if kind != "produce":
            return None
        parts = (context.config, context.brokers, context.manager("metadata"), context.start_soon)
        return Noting(*parts, trikafka.Ack, context.partitioner)

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        async with trikafka.open_producer(
            **settings(cluster, plugin(trikafka_request_manager=manager))
        ) as producer:
            assert (await producer.send("t", b"v")).offset == 0
    assert learned == ["t"]


async def test_manager_without_an_attribute_is_refused(autojump_clock: MockClock) -> None:
    class Empty(BatchProducing[trikafka.Ack]):
        accumulator: Any = property(lambda self: None, lambda self, value: None)

    def manager(kind: str, context: Any) -> object | None:
        if kind != "produce":
            return None
        return Empty(
            context.config,
            context.brokers,
            context.manager("metadata"),
            context.start_soon,
            trikafka.Ack,
        )

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(
            PluginError, match="returned Empty, which is no ProduceManager: it has no accumulator"
        ):
            async with trikafka.open_producer(
                **settings(cluster, plugin(trikafka_request_manager=manager))
            ):
                pass


async def test_observer_sees_opening_failure_and_close(autojump_clock: MockClock) -> None:
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
    named = caught.value.__cause__
    assert isinstance(named, PluginError)
    assert isinstance(named.__cause__, ValueError)
    text = (
        f"plugin 'SimpleNamespace': its background task {Watching.fail.__qualname__} failed: "
        "ValueError('broken')"
    )
    assert str(named) == text
    assert text in str(caught.value)
    assert seen == ["opened trikafka", f"failed {text}", "closed"]


async def test_plugins_assignor_is_used(autojump_clock: MockClock) -> None:
    class LastOnly:
        name = "last-only"
        cooperative = False

        def assign(self, members: Any, partitions: Any) -> Any:
            return {
                member: [
                    TopicPartition(topic, max(numbers)) for topic, numbers in partitions.items()
                ]
                for member in members
            }

    offered = plugin(trikafka_assignor=lambda name: LastOnly() if name == "last-only" else None)
    async with ScriptedCluster(topics={"t": 3}) as cluster:
        given = settings(
            cluster, offered, group_id="g", partition_assignment_strategy=("last-only",)
        )
        async with trikafka.open_consumer("t", **given) as consumer:
            await consumer.receive_batch(timeout=1)
            assert consumer.assignment() == {TopicPartition("t", 2)}


async def test_unknown_assignor_is_refused_early(autojump_clock: MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = settings(cluster, group_id="g", partition_assignment_strategy=("nobody-knows",))
        with pytest.raises(trikafka.ConfigurationError, match="nobody-knows"):
            async with trikafka.open_consumer("t", **given):
                pass
        assert not cluster.log


def test_unknown_hook_is_named() -> None:
    with pytest.raises(PluginError, match="trikafka_reqest_manager"):
        load_plugins([plugin(trikafka_reqest_manager=lambda kind: None)])


def test_unknown_argument_of_a_hook_is_named() -> None:
    with pytest.raises(PluginError, match=r"trikafka_sink.*colour|colour"):
        load_plugins([plugin(trikafka_sink=lambda colour: None)])


def test_async_hook_is_refused() -> None:
    async def sink(scheme: str) -> None: ...

    with pytest.raises(PluginError, match=r"trikafka_sink is async"):
        load_plugins([plugin(trikafka_sink=sink)])


def test_failing_hook_is_named_with_its_cause() -> None:
    def sink(scheme: str) -> object:
        raise KeyError(scheme)

    with pytest.raises(
        PluginError, match=r"^plugin 'SimpleNamespace': trikafka_sink failed: KeyError"
    ) as caught:
        first_answer(
            load_plugins([plugin(trikafka_sink=sink)]), "trikafka_sink", scheme="s3", options={}
        )
    assert isinstance(caught.value.__cause__, KeyError)


def test_plugin_that_exits_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script without a guard exits as it is imported; the program would end without a word."""

    def leave(*given: object) -> None:
        raise SystemExit("no licence")

    with pytest.raises(
        PluginError, match=r"'SimpleNamespace': trikafka_sink failed: SystemExit\('"
    ):
        first_answer(load_plugins([plugin(trikafka_sink=leave)]), "trikafka_sink", scheme="s3")
    point = types.SimpleNamespace(name="toys", value="toys:plugin", load=leave)
    monkeypatch.setattr("trikafka.hooks._entry_points", lambda: [point])
    with pytest.raises(PluginError, match=r"^plugin 'toys' \(toys:plugin\) failed to load: System"):
        load_plugins()


async def test_manager_of_the_wrong_shape_is_refused(autojump_clock: MockClock) -> None:
    class Half:
        async def run(self) -> None: ...

    half = plugin(trikafka_request_manager=lambda kind: Half() if kind == "positions" else None)
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(
            PluginError, match=r"^plugin 'SimpleNamespace': .*Half.*no PositionsManager.*last_error"
        ):
            async with trikafka.open_consumer(**settings(cluster, half)):
                pass


def test_plugin_without_hooks_is_refused() -> None:
    class Regions:
        def trikafka_rebalance_listener(self) -> None: ...

    with pytest.raises(
        PluginError,
        match=r"^plugin 'Regions' is wrong: it implements no hook; is @trikafka.hookimpl missing\?$",
    ):
        load_plugins([Regions()])


def test_hook_wrapper_is_refused() -> None:
    class Around:
        @trikafka.hookimpl(wrapper=True)
        def trikafka_sink(self, scheme: str) -> Any:
            return (yield)

    with pytest.raises(PluginError, match="'Around' is wrong: trikafka_sink is a wrapper"):
        load_plugins([Around()])


def test_plugin_given_twice_is_refused() -> None:
    twice = plugin(trikafka_sink=lambda scheme: None)
    with pytest.raises(PluginError, match="is wrong: it is the same as plugin 'SimpleNamespace'"):
        load_plugins([twice, twice])


def test_refusal_of_equal_plugins_shows_no_content() -> None:
    @dataclass
    class Stored:
        password: str

        @trikafka.hookimpl
        def trikafka_sink(self, scheme: str) -> None: ...

    with pytest.raises(PluginError) as caught:
        load_plugins([Stored("hidden"), Stored("hidden")])
    assert str(caught.value) == (
        "plugin 'Stored' is wrong: it is equal to plugin 'Stored', so its hooks would be called "
        "twice; give it once"
    )


def test_plugin_that_cannot_be_compared_is_named() -> None:
    class Odd:
        @trikafka.hookimpl
        def trikafka_sink(self, scheme: str) -> None: ...

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("boom")

        __hash__ = object.__hash__

    with pytest.raises(PluginError, match=r"plugin 'Odd' cannot be compared with .*boom"):
        load_plugins([Odd(), Odd()])


def test_plugin_that_cannot_be_searched_is_named() -> None:
    class Odd:
        def __getattr__(self, name: str) -> object:
            return {}[name]  # type: ignore[misc]  # a KeyError, where an AttributeError is right

        @trikafka.hookimpl
        def trikafka_sink(self, scheme: str) -> None: ...

    with pytest.raises(PluginError, match=r"plugin 'Odd' is wrong: it cannot be searched .*Key"):
        load_plugins([Odd()])


def test_class_as_a_plugin_is_refused() -> None:
    class Regions:
        @trikafka.hookimpl
        def trikafka_sink(self) -> None: ...

    with pytest.raises(
        PluginError,
        match=r"^plugin 'Regions' is wrong: it is a class; give an object, .*Regions\(\)$",
    ):
        load_plugins([Regions])


def test_class_with_static_hooks_is_a_plugin() -> None:
    class Regions:
        @staticmethod
        @trikafka.hookimpl
        def trikafka_value_format(name: str) -> object:
            return len

    found = first_answer(load_plugins([Regions]), "trikafka_value_format", name="length")
    assert found is not None
    assert found[1] is len


def test_misspelt_hook_gets_a_suggestion() -> None:
    with pytest.raises(
        PluginError,
        match=r"there is no hook 'trikafka_asignor'; did you mean 'trikafka_assignor'\?$",
    ):
        load_plugins([plugin(trikafka_asignor=lambda name: None)])


def test_hook_of_another_release_may_be_optional() -> None:
    class Newer:
        @trikafka.hookimpl
        def xylophone(self) -> None: ...

    class Optional:
        @trikafka.hookimpl(optionalhook=True)
        def xylophone(self) -> None: ...

    with pytest.raises(PluginError, match=r"no hook 'xylophone'; .*hookimpl\(optionalhook=True\)$"):
        load_plugins([Newer()])
    load_plugins([Optional()])


def test_entry_points_may_share_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package may also use trikafka's own name."""

    def point(name: str, value: str) -> object:
        def fail(scheme: str) -> None:
            raise KeyError(value)

        made = plugin(trikafka_sink=fail)
        return types.SimpleNamespace(name=name, value=value, load=lambda: made)

    points = [point("lake", "one:plugin"), point("lake", "two:plugin"), point("trikafka", "three")]
    monkeypatch.setattr("trikafka.hooks._entry_points", lambda: points)
    for number, name in ((3, "trikafka (three)"), (2, "lake (two:plugin)"), (1, "lake")):
        with pytest.raises(
            PluginError, match=rf"^plugin '{re.escape(name)}': trikafka_sink failed"
        ):
            first_answer(load_plugins(), "trikafka_sink", scheme="s3")
        del points[number - 1]


def test_installed_plugin_may_be_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It then comes before other installed ones, and its hooks are called once."""
    calls: list[str] = []
    mine = plugin(trikafka_sink_options=lambda scheme: calls.append("mine"))
    other = plugin(trikafka_sink_options=lambda scheme: calls.append("other"))
    points = [
        types.SimpleNamespace(name=name, value="toys:plugin", load=lambda made=made: made)
        for name, made in (("mine", mine), ("also-mine", mine), ("other", other))
    ]
    monkeypatch.setattr("trikafka.hooks._entry_points", lambda: points)
    for extra, order in (((), ["other", "mine"]), ((mine,), ["mine", "other"])):
        calls.clear()
        answers(load_plugins(extra), "trikafka_sink_options", object, scheme="file")
        assert calls == order


@pytest.mark.parametrize("names", ["machines", b"x", [3], {"machines": 1}.items(), iter(["x"]), 5])
def test_options_must_be_names(names: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text would be a collection of letters."""
    monkeypatch.setattr("trikafka.hooks._entry_points", lambda: ())
    manager = load_plugins([plugin(trikafka_sink_options=lambda scheme: names)])
    with pytest.raises(
        PluginError,
        match=r"^plugin 'SimpleNamespace': .* returned .*, which is not a collection of",
    ):
        answers(manager, "trikafka_sink_options", Collection, scheme="file")


async def test_replaced_listener_skips_no_plugin(autojump_clock: MockClock) -> None:
    """The user's listener is replaced while a revocation is under way.

    A plugin's listener is still called.
    """
    called: list[str] = []

    class Slow(Recording):
        async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            if "began" not in called:
                called.append("began")
                await trio.sleep(5)
            await super().on_partitions_revoked(partitions)

    one = plugin(trikafka_rebalance_listener=lambda: Slow("one", called))
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = settings(
            cluster,
            one,
            group_id="g",
            group_protocol="classic",
            partition_assignment_strategy=("range",),
        )
        async with trikafka.open_consumer(**given) as consumer:
            consumer.subscribe(["t"], Recording("user", called))
            with trio.fail_after(60):
                await consumer.receive_batch(timeout=5)
                consumer.enforce_rebalance()
                with trio.move_on_after(1) as scope:
                    await consumer.receive()
                assert scope.cancelled_caught
                consumer.subscribe(["t"])
                await consumer.receive_batch(timeout=10)
            assert called == [
                "one assigned 1",
                "user assigned 1",
                "user revoked 1",
                "began",
                "one revoked 1",
                "one assigned 1",
            ]


class HalfARunner:
    """A runner whose ``run`` is plain."""

    above = 0

    def check(self) -> None: ...

    async def start(self, settings: object) -> None: ...

    def run(self, tasks: object, report: object) -> None: ...

    async def close(self, limit: float) -> None: ...


@pytest.mark.parametrize(
    ("hook", "shape", "made", "said"),
    [
        ("trikafka_export_runner", ExportRunner, HalfARunner(), "run must be `async def`"),
        (
            "trikafka_export_runner",
            ExportRunner,
            object(),
            "it has no above, check, close, run, start",
        ),
        (
            "trikafka_export_format",
            ExportFormat,
            object(),
            "it has no files, name, option_names, table",
        ),
        ("trikafka_command", Subcommand, object(), "it has no help, load, name"),
    ],
)
def test_a_wrong_part_of_an_export_is_named(
    hook: str, shape: type, made: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trikafka.hooks._entry_points", lambda: ())
    manager = load_plugins([plugin(**{hook: lambda: made})])
    with pytest.raises(PluginError, match=said):
        answers(manager, hook, shape)
