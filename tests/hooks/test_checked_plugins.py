"""Wrong assignors, partitioners, observers and tasks: found early, with the plugin's name."""

from __future__ import annotations

import functools
import logging
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import trio
from offered_plugins import plugin, settings
from trio.testing import MockClock

import trikafka
from trikafka import ConfigurationError, HandshakeError, PluginError, TopicPartition
from trikafka.interfaces import (
    ClientContext,
    ConsumerContext,
    Observer,
    ProducerContext,
    RebalanceListener,
)
from trikafka.testing import ScriptedCluster, respond

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


# Assignors.


class Deals:
    """An assignor that returns the result of ``deal`` for the member's id."""

    name = "deals"
    cooperative = False

    def __init__(self, deal: Callable[[str], Any]) -> None:
        self._deal = deal
        self.calls = 0

    def assign(self, members: Any, partitions: Any) -> Any:
        self.calls += 1
        (member,) = members
        return self._deal(member)


def group_settings(cluster: ScriptedCluster, assignor: Deals) -> dict[str, Any]:
    offered = plugin(trikafka_assignor=lambda name: assignor if name == "deals" else None)
    strategy = ("deals",)
    return settings(
        cluster,
        offered,
        group_id="g",
        group_protocol="classic",
        partition_assignment_strategy=strategy,
    )


@pytest.mark.parametrize(
    ("deal", "text"),
    [
        (lambda member: [T0], "which is not a mapping"),
        (
            lambda member: {member: [], "else": [T0]},
            "partitions for 'else', which is not a member of the group",
        ),
        (lambda member: {}, "nothing for the member 'trikafka-"),
        (lambda member: {member: None}, "returned None for the member 'trikafka-"),
        (lambda member: {member: "t"}, "returned 't' for the member 'trikafka-"),
        (lambda member: {member: [("t", "0")]}, "which is no TopicPartition"),
        (
            lambda member: {member: [TopicPartition("t", 7)]},
            "t-7 for the member 'trikafka-.*no such partition",
        ),
        (
            lambda member: {member: [TopicPartition("u", 0)]},
            "u-0 for the member 'trikafka-.*no such partition",
        ),
        (lambda member: {member: [T0, T1, T0]}, "t-0 for the member 'trikafka-.* twice"),
    ],
)
async def test_wrong_assignment_is_raised_and_logged(
    deal: Callable[[str], Any],
    text: str,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: MockClock,
) -> None:
    assignor = Deals(deal)
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        async with trikafka.open_consumer("t", **group_settings(cluster, assignor)) as consumer:
            for _ in range(3):
                with pytest.raises(
                    PluginError,
                    match=r"^plugin 'SimpleNamespace': assignor 'deals'\.assign returned .*",
                ) as caught:
                    await consumer.receive_batch(timeout=100)
                assert caught.match(text)
            await trio.sleep(100)
            health = consumer.health()
            assert not health.ok
            assert any("assignor 'deals'" in reason for reason in health.reasons)
        assert assignor.calls == 1
        assert len(cluster.requests("JoinGroup")) <= 2
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert (
        len([line for line in lines if line.startswith("group g:") and "assignor 'deals'" in line])
        == 1
    )


async def test_assignor_gets_members_of_its_own(autojump_clock: MockClock) -> None:
    class Empties(Deals):
        def assign(self, members: Any, partitions: Any) -> Any:
            assert type(partitions["t"]) is tuple  # the leader compares them later
            member, _ = members.popitem()
            return {member: [T0, T1]}

    async with ScriptedCluster(topics={"t": 2}) as cluster:
        cluster.append("t", 1, [b"x"])
        given = group_settings(cluster, Empties(lambda member: None))
        async with trikafka.open_consumer("t", **given, auto_offset_reset="earliest") as consumer:
            assert (await consumer.receive()).value == b"x"


@pytest.mark.parametrize("made", [tuple, list, set, iter])
async def test_any_collection_of_partitions_is_accepted(
    made: Callable[[Any], Any], autojump_clock: MockClock
) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        assignor = Deals(lambda member: types.MappingProxyType({member: made([T0, T1])}))
        async with trikafka.open_consumer("t", **group_settings(cluster, assignor)) as consumer:
            await consumer.receive_batch(timeout=1)
            assert consumer.assignment() == {T0, T1}


# Tasks.


@pytest.mark.parametrize(
    "how", ["raises", "a group", "a partial", "an error of trikafka's", "a manager's factory"]
)
async def test_failing_task_names_the_plugin(how: str, autojump_clock: MockClock) -> None:
    cause = (
        trikafka.KafkaConnectionError("gone")
        if how == "an error of trikafka's"
        else KeyError("oops")
    )

    async def watch() -> None:
        await trio.sleep(1)
        if how == "a group":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
        await fail()

    async def fail() -> None:
        raise cause

    class Watching(Observer):
        def opened(self, context: ClientContext) -> None:
            if how != "a manager's factory":
                context.start_soon(functools.partial(watch) if how == "a partial" else watch)

    def manager(kind: str, context: ClientContext) -> None:
        if how == "a manager's factory" and kind == "fetch":
            context.start_soon(watch)

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        watching = plugin(
            trikafka_observer=lambda context: Watching(), trikafka_request_manager=manager
        )
        text = r"plugin 'SimpleNamespace': its background task .*watch failed"
        with pytest.raises(trikafka.ClientFailedError, match=text) as caught:
            async with trikafka.open_consumer(**settings(cluster, watching)):
                await trio.sleep_forever()
    assert isinstance(caught.value.__cause__, PluginError)
    assert caught.value.__cause__.__cause__ is cause


async def test_context_of_a_plugin_is_typed(autojump_clock: MockClock) -> None:
    seen: list[Any] = []
    watching = plugin(
        trikafka_observer=lambda context: types.SimpleNamespace(
            opened=seen.append, failed=seen.append, closed=lambda: None
        ),
        trikafka_request_manager=lambda kind, context: seen.append(context),
    )
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        async with trikafka.open_consumer(**settings(cluster, watching)):
            pass
        assert all(
            isinstance(context, ConsumerContext) and not isinstance(context, ProducerContext)
            for context in seen
        )
        assert len(set(map(id, seen))) == 1
        seen.clear()
        async with trikafka.open_producer(**settings(cluster, watching)):
            pass
        assert all(
            isinstance(context, ProducerContext) and not isinstance(context, ConsumerContext)
            for context in seen
        )


# Partitioners.


async def waits(topic: str, key: bytes | None, numbers: Any) -> int:
    return 0


@pytest.mark.parametrize(
    ("choose", "text"),
    [
        (lambda topic, key: 0, "cannot be called with 3 arguments, it is <lambda>\\(topic, key\\)"),
        (lambda topic, key, numbers, value: 0, "cannot be called with 3 arguments"),
        (lambda *, topic, key, numbers: 0, "cannot be called with 3 arguments"),
        (waits, "(has to|must) be a plain function"),
    ],
)
@pytest.mark.parametrize("offered", [False, True])
async def test_partitioner_is_checked_at_opening(
    offered: bool, choose: Any, text: str, autojump_clock: MockClock
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = settings(cluster, partitioner=choose)
        error: type[Exception] = ConfigurationError
        if offered:
            given = settings(
                cluster, plugin(trikafka_partitioner=lambda name: choose), partitioner="mine"
            )
            error, text = PluginError, f"^plugin 'SimpleNamespace': partitioner 'mine' .*{text}"
        with pytest.raises(error, match=text):
            async with trikafka.open_producer(**given):
                pass
        assert not cluster.log


async def test_plugins_partitioner_keeps_its_name(autojump_clock: MockClock) -> None:
    """A plugin's own partitioner counts, though a built-in one has the same name."""
    last = plugin(trikafka_partitioner=lambda name: lambda topic, key, numbers: numbers[-1])
    async with ScriptedCluster(topics={"t": 3}) as cluster:
        given = settings(cluster, last, partitioner="random")
        async with trikafka.open_producer(**given) as producer:
            assert (await producer.send("t", b"1", key=b"k")).partition == 2


@pytest.mark.parametrize("choose", [lambda *args: 0, lambda topic, key, numbers, more=None: 0])
async def test_partitioner_may_take_more_arguments(choose: Any, autojump_clock: MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        async with trikafka.open_producer(**settings(cluster, partitioner=choose)) as producer:
            assert (await producer.send("t", b"1")).partition == 0


# Observers.


async def test_misspelt_observer_method_is_logged(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    class Watching(Observer):
        def batch_delivred(self, event: Any) -> None: ...

        def batch_acked(self, event: Any) -> None: ...

        def membership_change(self, event: Any) -> None: ...

        def batch_failed(self, event: Any) -> None: ...

        def render(self) -> str:
            return ""

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        async with trikafka.open_producer(
            **settings(cluster, plugin(trikafka_observer=lambda: Watching()))
        ):
            pass
    lines = [record.getMessage() for record in caplog.records if record.name == "trikafka.plugins"]
    assert [line.split(" is never")[0] for line in lines] == [
        f"plugin 'SimpleNamespace': observer.{name}"
        for name in ("batch_acked", "batch_delivred", "membership_change")
    ]
    assert lines[1].endswith("batch_delivered is one")


class Mechanism:
    def __init__(self, first: Any = b"x", response: Any = None) -> None:
        self._first = first
        self._response = response

    def first(self) -> Any:
        return self._first

    def respond(self, challenge: bytes) -> Any:
        return self._response


class Failing(Mechanism):
    async def first(self) -> Any:
        raise KeyError("region")


class NoMechanism:
    def respond(self, challenge: bytes) -> None: ...


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            None,
            "PluginError: plugin 'SimpleNamespace': .* None, which .*: it has no first, respond",
        ),
        (("user", "hidden"), "returned tuple, which is not a mechanism: it has no first, respond$"),
        (NoMechanism(), "PluginError: plugin 'SimpleNamespace': .*: it has no first$"),
        (
            Mechanism("text"),
            r"plugin 'SimpleNamespace': the mechanism's first\(\) returned str, not bytes$",
        ),
        (Mechanism(None), r"the mechanism's first\(\) returned None, not bytes$"),
        (Mechanism(response="text"), r"the mechanism's respond\(\) returned str, not bytes$"),
        (
            Failing(),
            r"plugin 'SimpleNamespace': the mechanism's first\(\) failed: KeyError: 'region'$",
        ),
    ],
)
async def test_wrong_mechanism_is_named(made: Any, said: str, autojump_clock: MockClock) -> None:
    async def accept(request: Any, default: Any) -> Any:
        return respond(
            request, error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=0
        )

    async def agree(request: Any, default: Any) -> Any:
        return respond(request, error_code=0, mechanisms=["MINE"])

    async with ScriptedCluster() as cluster:
        cluster.offer("SaslHandshake", (1, 1))
        cluster.offer("SaslAuthenticate", (0, 2))
        cluster.on("SaslHandshake", agree)
        cluster.on("SaslAuthenticate", accept)
        given = settings(
            cluster,
            plugin(trikafka_sasl=lambda mechanism: lambda node: made),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="MINE",
        )
        with pytest.raises(HandshakeError, match=said):
            async with trikafka.open_producer(**given):
                pass


class Tickets:
    """Kerberos by another library."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def first(self) -> bytes:
        self.threads.add(threading.get_ident())
        return b"one"

    def respond(self, challenge: bytes) -> bytes | None:
        self.threads.add(threading.get_ident())
        return None if challenge == b"end" else b"two"


class AsyncTickets(Tickets):
    async def first(self) -> bytes:  # type: ignore[override]
        return super().first()

    async def respond(self, challenge: bytes) -> bytes | None:  # type: ignore[override]
        return super().respond(challenge)


@pytest.mark.parametrize("made", [Tickets(), AsyncTickets()])
async def test_plugin_offers_kerberos(made: Tickets, autojump_clock: MockClock) -> None:
    """Plain functions are called in a thread, as trikafka's own: they may block."""
    seen: list[bytes] = []

    async def accept(request: Any, default: Any) -> Any:
        seen.append(bytes(request.auth_bytes))
        end = b"end" if seen[-1] == b"two" else b""
        return respond(
            request, error_code=0, error_message=None, auth_bytes=end, session_lifetime_ms=0
        )

    async def agree(request: Any, default: Any) -> Any:
        return respond(request, error_code=0, mechanisms=["GSSAPI"])

    async with ScriptedCluster() as cluster:
        cluster.offer("SaslHandshake", (1, 1))
        cluster.offer("SaslAuthenticate", (0, 2))
        cluster.on("SaslHandshake", agree)
        cluster.on("SaslAuthenticate", accept)
        given = settings(
            cluster,
            plugin(trikafka_sasl=lambda mechanism: lambda node: made),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="GSSAPI",
        )
        async with trikafka.open_producer(**given):
            assert seen[:2] == [b"one", b"two"]
            in_trio = made.threads == {threading.get_ident()}
            assert in_trio is isinstance(made, AsyncTickets)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (lambda: Mechanism(), "the function of trikafka_sasl cannot be called with one argument"),
        (5, "trikafka_sasl returned int, which cannot be called"),
    ],
)
async def test_wrong_factory_of_mechanisms_is_refused(
    factory: Any, said: str, autojump_clock: MockClock
) -> None:
    async with ScriptedCluster() as cluster:
        given = settings(
            cluster,
            plugin(trikafka_sasl=lambda mechanism: factory),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="MINE",
        )
        with pytest.raises(PluginError, match=f"^plugin 'SimpleNamespace': {said}"):
            async with trikafka.open_producer(**given):
                pass
        assert not cluster.log


async def test_failing_factory_of_mechanisms_is_named(autojump_clock: MockClock) -> None:
    async def fail(node: Any) -> Any:
        raise KeyError("region")

    async with ScriptedCluster() as cluster:
        given = settings(
            cluster,
            plugin(trikafka_sasl=lambda mechanism: fail),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="MINE",
        )
        said = "plugin 'SimpleNamespace': the function of trikafka_sasl failed: KeyError: 'region'$"
        with pytest.raises(HandshakeError, match=said):
            async with trikafka.open_producer(**given):
                pass


@pytest.mark.parametrize("hook", ["trikafka_rebalance_listener", "trikafka_observer"])
async def test_class_in_place_of_an_object_is_refused(hook: str, autojump_clock: MockClock) -> None:
    kind = RebalanceListener if hook == "trikafka_rebalance_listener" else Observer
    said = rf"{hook} returned the class {kind.__name__}; .* object, such as {kind.__name__}\(\)$"
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(PluginError, match=said):
            async with trikafka.open_consumer(**settings(cluster, plugin(**{hook: lambda: kind}))):
                pass
        assert not cluster.log
