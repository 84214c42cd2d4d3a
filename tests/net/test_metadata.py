"""Metadata and coordinators: one request for all callers, from the quickest broker, never outdated."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from netting import Asked, Parts, open_parts
from trio.testing import MockClock as Clock
from trio.testing import wait_all_tasks_blocked

from trikafka._managers.cluster import coordinator
from trikafka._managers.cluster.coordinator import CoordinatorKind, CoordinatorState
from trikafka._net import reasons
from trikafka.errors import (
    BootstrapError,
    CoordinatorError,
    KafkaConnectionError,
    NotLeaderError,
    ProtocolError,
    TrikafkaError,
    UnknownTopicOrPartitionError,
)
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable, respond
from trikafka.types import TopicPartition

TP = TopicPartition("t", 0)


def asked_for(cluster: ScriptedCluster) -> list[set[str] | None]:
    """Return the topics of each Metadata request; ``None`` means everything."""
    return [
        None if s.request.topics is None else {t.name for t in s.request.topics}
        for s in cluster.requests("Metadata")
    ]


# -- the first contact
# ----------------------------------------------------------------------------------------------------


async def test_bootstrap_finds_the_cluster(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=3, topics={"t": 3}) as cluster, open_parts(cluster) as parts:
        snapshot = parts.metadata.snapshot
        assert {node.node_id: str(node) for node in snapshot.nodes.values()} == {
            n: f"broker-{n}:9092" for n in range(3)
        }
        assert snapshot.cluster_id == "scripted-cluster"
        assert cluster.connections() == 1


async def opening_fails(cluster: ScriptedCluster, **settings: Any) -> BootstrapError:
    with pytest.raises(BootstrapError) as caught:
        async with open_parts(cluster, **settings):
            raise AssertionError("it opened")
    await wait_all_tasks_blocked()
    assert cluster.connections() == 0
    return caught.value


async def test_each_dead_address_has_its_cause(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2) as cluster:
        cluster.stop(0)
        cluster.drop("ApiVersions", node=1)
        error = await opening_fails(
            cluster, bootstrap_servers="broker-0:9092,broker-1:9092,nobody:1"
        )
        assert str(error).startswith("no bootstrap address could be reached: ")
        assert "cannot connect to broker-0:9092: " in str(error)
        assert "lost the connection to broker-1:9092: the broker closed it" in str(error)
        assert "cannot connect to nobody:1: there is no host nobody:1" in str(error)
        assert isinstance(error.__cause__, KafkaConnectionError)
        assert trio.current_time() == 0


async def of_nobody(request: Any, default: Any) -> Any:
    """Return the metadata of a broker that has just started and does not even know itself."""
    return respond(request, brokers=[], cluster_id=None, controller_id=-1, topics=[])


async def test_starting_cluster_is_waited_for(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trikafka")
    async with ScriptedCluster(nodes=1) as cluster:
        cluster.on("Metadata", of_nobody, times=4)
        async with open_parts(cluster) as parts:
            assert set(parts.metadata.snapshot.nodes) == {0}
            assert 1 < trio.current_time() < 2  # 100, 200, 400 and 800 ms, with a jitter of a fifth
        logged = [
            line
            for line in caplog.messages
            if "does not know of any broker yet; it is asked again" in line
        ]
        assert len(logged) == 1


async def test_cluster_that_never_starts_is_an_error(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=1) as cluster:
        cluster.on("Metadata", of_nobody)
        error = await opening_fails(cluster, default_api_timeout_ms=5_000)
        assert str(error).startswith(
            "no bootstrap address answered as a Kafka broker: the broker is not available"
        )
        assert 3.8 < trio.current_time() <= 5


async def test_port_of_another_protocol_is_named(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster:
        cluster.garbage("ApiVersions", b"HTTP/1.1 400 Bad Request")
        error = await opening_fails(cluster)
        assert str(error).startswith(
            "no bootstrap address answered as a Kafka broker: broker-0:9092 does not speak"
        )
        assert isinstance(error.__cause__, ProtocolError)


async def test_silent_address_ends_at_the_setup_time(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster:
        cluster.freeze(0)
        error = await opening_fails(cluster, socket_connection_setup_timeout_ms=2000)
        assert "did not answer as a Kafka broker within 2 s" in str(error)
        assert trio.current_time() == 2


async def test_broker_without_metadata_is_named(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster:
        cluster.delay("Metadata", 1000)
        error = await opening_fails(cluster, request_timeout_ms=3000)
        assert "broker-0:9092" in str(error)
        assert "no response within 3 s" in str(error) or "did not respond" in str(error)
        assert trio.current_time() == 3


async def test_slow_address_is_overtaken_after_a_second(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=3) as cluster:
        cluster.freeze(0)
        cluster.lose(1)
        async with open_parts(cluster):
            assert trio.current_time() == 2


async def test_refused_address_is_overtaken_at_once(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=3) as cluster:
        cluster.stop(0)
        cluster.stop(1)
        async with open_parts(cluster) as parts:
            assert trio.current_time() == 0
            assert set(parts.metadata.snapshot.nodes) == {2}


@pytest.mark.parametrize("version", range(1, 14))
async def test_every_version_of_metadata_is_read(autojump_clock: Clock, version: int) -> None:
    async with ScriptedCluster(
        nodes=2, topics={"t": 2}, api_versions={"Metadata": (0, version)}
    ) as cluster:
        async with open_parts(cluster) as parts:
            snapshot = await parts.metadata.refresh(["t", "none"])
            assert [snapshot.leader(TopicPartition("t", n)).node_id for n in range(2)] == [0, 1]
            assert snapshot.leader_epoch(TP) == (0 if version >= 7 else -1)
            assert await parts.metadata.topic("none") is None
            parts.metadata.want((), everything=True)
            assert set((await parts.metadata.refresh()).topics) == {"t"}


# -- sharing
# --------------------------------------------------------------------------------------------------------------


async def test_concurrent_lookups_are_one_request(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        open_parts(cluster) as parts,
        trio.open_nursery() as nursery,
    ):
        cluster.delay("Metadata", 0.5)
        asked = [Asked(nursery, lambda: parts.metadata.topic("t")) for _ in range(200)]
        for each in asked:
            assert len((await each.outcome()).partitions) == 1
        assert asked_for(cluster) == [set(), {"t"}]


async def test_other_topics_share_the_next_request(autojump_clock: Clock) -> None:
    names = [f"t{number}" for number in range(20)]
    async with (
        ScriptedCluster(topics=dict.fromkeys(names, 1)) as cluster,
        open_parts(cluster) as parts,
    ):
        cluster.delay("Metadata", 0.5)
        async with trio.open_nursery() as nursery:
            first = Asked(nursery, lambda: parts.metadata.topic("t0"))
            await trio.sleep(0.1)
            others = [
                Asked(nursery, lambda name=name: parts.metadata.topic(name)) for name in names
            ]  # type: ignore[misc]
            assert (await first.outcome()).name == "t0"
            assert [(await each.outcome()).name for each in others] == names
        assert asked_for(cluster) == [set(), {"t0"}, set(names[1:])]
        assert trio.current_time() == 1.0


async def test_topic_lookup_waits_for_a_full_one(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        open_parts(cluster) as parts,
        trio.open_nursery() as nursery,
    ):
        cluster.delay("Metadata", 0.5)
        parts.metadata.want((), everything=True)
        nursery.start_soon(parts.metadata.refresh)
        await trio.sleep(0.1)
        assert (await parts.metadata.topic("t")) is not None
        assert asked_for(cluster) == [set(), None]


async def test_topic_is_found_if_all_become_wanted(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        open_parts(cluster) as parts,
        trio.open_nursery() as nursery,
    ):
        cluster.delay("Metadata", 0.5)
        nursery.start_soon(parts.metadata.refresh)  # of no topic at all
        await trio.sleep(0.1)
        parts.metadata.want((), everything=True)
        assert (await parts.metadata.topic("t")) is not None


async def test_leaving_caller_fails_no_other(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        open_parts(cluster) as parts,
        trio.open_nursery() as nursery,
    ):
        cluster.delay("Metadata", 0.5)
        asked = [Asked(nursery, lambda: parts.metadata.topic("t")) for _ in range(10)]
        await trio.sleep(0.1)
        for each in asked[:5]:
            each.scope.cancel()
        for each in asked[5:]:
            assert await each.outcome() is not None
        assert len(asked_for(cluster)) == 2


async def test_error_goes_to_all_and_the_next_call_asks(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        open_parts(cluster) as parts,
        trio.open_nursery() as nursery,
    ):
        cluster.stop(0, noticed=False)
        asked = [Asked(nursery, lambda: parts.metadata.topic("t")) for _ in range(10)]
        for each in asked:
            with pytest.raises(KafkaConnectionError):
                await each.outcome()
        cluster.start(0)
        assert await parts.metadata.topic("t") is not None


async def test_closing_meanwhile_fails_all_waiters(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, trio.open_nursery() as outer:
        async with open_parts(cluster, background=True) as parts:
            cluster.freeze(0)
            asked = [Asked(outer, lambda: parts.metadata.topic("t")) for _ in range(3)]
            asked += [
                Asked(outer, lambda: parts.metadata.ask_any(lambda: None)),
                Asked(outer, lambda: parts.coordinators.find("g")),
            ]
            await trio.sleep(0.3)
        for each in asked:
            with pytest.raises((trio.ClosedResourceError, KafkaConnectionError)):
                await each.outcome()
        with pytest.raises(trio.ClosedResourceError):
            await parts.metadata.refresh(["t"])
        with pytest.raises(trio.ClosedResourceError):
            await parts.coordinators.find("g")
        assert parts.service.failure is None


# -- the choice of the broker


async def test_slow_known_broker_is_overtaken(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster, open_parts(cluster) as parts:
        cluster.freeze(0)
        for _ in range(10):
            before = trio.current_time()
            assert await parts.metadata.refresh(["t"])
            assert trio.current_time() - before in (0, 1)


async def test_bootstrap_is_tried_when_brokers_are_gone(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=3, topics={"t": 3}) as cluster:
        behind = 0

        async def dial(host: str, port: int) -> trio.abc.Stream:
            return await cluster.dial(f"broker-{behind}" if host == "boot" else host, port)

        cluster.stop(2)
        async with open_parts(cluster, dial=dial, bootstrap_servers="boot:9092") as parts:
            assert set(parts.metadata.snapshot.nodes) == {0, 1}
            cluster.stop(0)
            cluster.stop(1)
            with pytest.raises(KafkaConnectionError):
                await parts.metadata.refresh()
            cluster.start(2)
            behind = 2
            await parts.metadata.refresh()
            assert set(parts.metadata.snapshot.nodes) == {2}


async def test_retriable_error_precedes_a_permanent_one(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(nodes=2) as cluster,
        open_parts(cluster, bootstrap_servers="broker-0:9092") as parts,
    ):
        cluster.garbage("ApiVersions", b"HTTP/1.1 400", times=None, node=0)
        cluster.stop(1, noticed=False)
        cluster.disconnect()
        for _ in range(5):
            with pytest.raises(TrikafkaError) as caught:
                await parts.metadata.refresh()
            assert caught.value.retriable


async def test_broker_that_knows_no_broker_is_skipped(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster, open_parts(cluster) as parts:
        cluster.on("Metadata", of_nobody, node=0)
        for _ in range(5):
            assert set((await parts.metadata.refresh(["t"])).nodes) == {0, 1}
        cluster.on("Metadata", of_nobody, node=1)
        with pytest.raises(TrikafkaError, match="does not know of any broker yet") as caught:
            await parts.metadata.refresh(["t"])
        assert caught.value.retriable
        assert set(parts.metadata.snapshot.nodes) == {0, 1}


async def test_top_level_error_is_no_answer(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=1, topics={"t": 1}) as cluster, open_parts(cluster) as parts:

        async def again(request: Any, default: Any) -> Any:
            response = await default()
            response.error_code = 129
            return response

        cluster.on("Metadata", again, times=1)
        assert await parts.metadata.refresh(["t"])
        assert len(cluster.requests("Metadata")) == 3  # the bootstrap address came next


# -- what is known
# --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [True, False])
async def test_leader_epoch_never_goes_back(autojump_clock: Clock, wanted: bool) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster, open_parts(cluster) as parts:
        if wanted:
            parts.metadata.want(["t"])
        old = cluster.partition("t", 0)
        cluster.move_leader("t", 0, 1)
        snapshot = await parts.metadata.refresh(["t"])
        assert (snapshot.leader(TP).node_id, snapshot.leader_epoch(TP)) == (1, 1)
        # a broker that lags behind answers
        old.leader = 0
        old.leader_epoch = 0
        snapshot = await parts.metadata.refresh(["t"])
        assert (snapshot.leader(TP).node_id, snapshot.leader_epoch(TP)) == (1, 1)
        old.leader = 0
        old.leader_epoch = 2
        snapshot = await parts.metadata.refresh(["t"])
        assert (snapshot.leader(TP).node_id, snapshot.leader_epoch(TP)) == (0, 2)


async def test_recreated_topic_begins_with_its_epochs(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster, open_parts(cluster) as parts:
        parts.metadata.want(["t"])
        cluster.move_leader("t", 0, 1)
        assert (await parts.metadata.refresh()).leader_epoch(TP) == 1
        cluster.delete_topic("t")
        cluster.create_topic("t", 1)
        assert (await parts.metadata.refresh()).leader_epoch(TP) == 0


async def test_missing_leader_is_the_fitting_error(autojump_clock: Clock) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster, open_parts(cluster) as parts:
        with pytest.raises(UnknownTopicOrPartitionError, match="topic 'none'"):
            await parts.metadata.leader(TopicPartition("none", 0))
        with pytest.raises(
            UnknownTopicOrPartitionError, match=r"partition t-7 \(the topic has 1 partition\)"
        ):
            await parts.metadata.leader(TopicPartition("t", 7))
        cluster.move_leader("t", 0, None)
        await parts.metadata.refresh(["t"])
        with pytest.raises(NotLeaderError, match="LEADER_NOT_AVAILABLE"):
            parts.metadata.snapshot.leader(TP)
        cluster.move_leader("t", 0, 1)
        assert (await parts.metadata.leader(TP)).node_id == 1


# -- the task that keeps it fresh
# -----------------------------------------------------------------------------------------


async def test_metadata_is_refreshed_by_age(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster() as cluster,
        open_parts(cluster, background=True, metadata_max_age_ms=60_000),
    ):
        await trio.sleep(130)
        assert [round(seen.time, 6) for seen in cluster.requests("Metadata")] == [0, 60, 120.1]


async def test_many_stale_marks_are_few_requests(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, background=True) as parts:
        for _ in range(100):
            parts.metadata.request_update()
        await trio.sleep(0.05)
        assert len(cluster.requests("Metadata")) == 2
        for _ in range(1000):
            parts.metadata.request_update()
            await trio.sleep(0.001)
        assert len(cluster.requests("Metadata")) <= 2 + 11
        await trio.sleep(100)
        assert len(cluster.requests("Metadata")) <= 2 + 12


async def test_failed_refresh_is_retried_until_it_works(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        open_parts(cluster, background=True) as parts,
    ):
        seen = parts.metadata.snapshot
        cluster.stop(0, noticed=False)
        parts.metadata.request_update()
        await trio.sleep(20)
        assert 10 <= len(cluster.dials) <= 60
        cluster.start(0)
        with trio.fail_after(3):
            await parts.metadata.changed(seen)


async def test_missing_topic_is_looked_up_every_second(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        open_parts(cluster, background=True) as parts,
    ):
        parts.metadata.want(["t", "later"])
        parts.metadata.request_update()
        await trio.sleep(5)
        cluster.create_topic("later", 1)
        await trio.sleep(1.2)
        assert parts.metadata.snapshot.partitions_of("later") == [TopicPartition("later", 0)]
        count = len(cluster.requests("Metadata"))
        await trio.sleep(100)
        assert len(cluster.requests("Metadata")) == count


# -- coordinators
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
async def test_coordinator_lookups_are_shared(autojump_clock: Clock, version: int) -> None:
    async with ScriptedCluster(
        nodes=2, api_versions={"FindCoordinator": (0, version)}, coordinator=1
    ) as cluster:
        async with open_parts(cluster) as parts, trio.open_nursery() as nursery:
            cluster.delay("FindCoordinator", 0.5)
            asked = [Asked(nursery, lambda: parts.coordinators.find("g")) for _ in range(200)]
            await trio.sleep(0.1)
            asked[0].scope.cancel()
            assert {(await each.outcome()).node_id for each in asked[1:]} == {1}
            assert len(cluster.requests("FindCoordinator")) == 1
            await parts.coordinators.find("g")
            assert len(cluster.requests("FindCoordinator")) == 1
            cluster.move_coordinator(0, "g")
            parts.coordinators.mark_unknown("g")
            assert (await parts.coordinators.find("g")).node_id == 0
            assert len(cluster.requests("FindCoordinator")) == 2


async def test_other_keys_and_kinds_are_other_lookups(autojump_clock: Clock) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster) as parts:
        for key, kind in [
            ("g", CoordinatorKind.GROUP),
            ("h", CoordinatorKind.GROUP),
            ("g", CoordinatorKind.TRANSACTION),
        ]:
            await parts.coordinators.find(key, kind)
        assert [
            (s.request.coordinator_keys, s.request.key_type)
            for s in cluster.requests("FindCoordinator")
        ] == [
            (["g"], 0),
            (["h"], 0),
            (["g"], 1),
        ]


async def test_missing_coordinator_is_an_error_for_all(autojump_clock: Clock) -> None:
    """Nothing of it is kept."""
    async with (
        ScriptedCluster() as cluster,
        open_parts(cluster) as parts,
        trio.open_nursery() as nursery,
    ):
        cluster.fail("FindCoordinator", 15, times=1)
        asked = [Asked(nursery, lambda: parts.coordinators.find("g")) for _ in range(5)]
        for each in asked:
            with pytest.raises(CoordinatorError, match="coordinator of group 'g'") as caught:
                await each.outcome()
            assert caught.value.retriable
            assert caught.value.refresh_coordinator
        assert (await parts.coordinators.find("g")).node_id == 0


# -- cancellation
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["topic", "leader", "coordinator", "any"])
async def test_every_await_can_be_cancelled(autojump_clock: Clock, what: str) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[tuple[ScriptedCluster, Parts]]:
        async with (
            ScriptedCluster(nodes=2, topics={"t": 1}) as cluster,
            open_parts(cluster) as parts,
        ):
            cluster.delay("Metadata", 0.5, node=0)
            cluster.delay("Metadata", 1.5, node=1)
            yield cluster, parts

    async def scenario(given: tuple[ScriptedCluster, Parts]) -> None:
        metadata = given[1].metadata
        if what == "topic":
            await metadata.topic("t")
        elif what == "leader":
            await metadata.leader(TP)
        elif what == "coordinator":
            await given[1].coordinators.find("g")
        else:
            from netting import metadata_request

            await metadata.ask_any(metadata_request)

    async def check(given: tuple[ScriptedCluster, Parts]) -> None:
        await trio.sleep(5)
        assert await given[1].metadata.topic("t") is not None
        assert given[1].service.failure is None

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 1


# -- what no cluster can look like
# ----------------------------------------------------------------------------------------


def _index(response: Any, number: int) -> None:
    response.topics[0].partitions[0].partition_index = number


def _bad_port(response: Any) -> None:
    response.brokers[0].port = 0


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            lambda response: _index(response, 20_000_000),
            "a partition 20000000 of topic 't', which has 1",
        ),
        (lambda response: _index(response, -1), "a partition -1"),
        (_bad_port, "a broker 0 at 'broker-0':0"),
    ],
)
async def test_impossible_metadata_is_refused(
    autojump_clock: Clock, damage: Any, says: str
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, open_parts(cluster) as parts:

        async def damaged(request: Any, default: Any) -> Any:
            response = await default()
            damage(response)
            return response

        seen = parts.metadata.snapshot
        rule = cluster.on("Metadata", damaged)
        with pytest.raises(ProtocolError, match=says) as caught:
            await parts.metadata.refresh(["t"])
        assert caught.value.retriable
        assert parts.metadata.snapshot is seen
        rule.remove()
        assert (await parts.metadata.refresh(["t"])).leader(TP).node_id == 0


@pytest.mark.parametrize("turn", range(12))  # Trio chooses at random which task goes on first
async def test_topic_is_found_beside_another_lookup(autojump_clock: Clock, turn: int) -> None:
    """The second caller comes in the very step in which the first request ended."""
    async with (
        ScriptedCluster(topics={"a": 1, "b": 1, "c": 1}) as cluster,
        open_parts(cluster) as parts,
    ):
        metadata, held, found = parts.metadata, trio.Event(), []

        async def hold(request: Any, default: Any) -> Any:
            await held.wait()
            return await default()

        async def ask() -> None:
            found.append(await metadata.topic("b"))

        async def quick() -> None:
            while metadata._flight.busy:  # checks at every step, which no clock may jump over
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


async def test_topic_wanted_during_a_refresh_is_found(autojump_clock: Clock) -> None:
    """A pattern must not wait until ``metadata_max_age_ms`` has passed."""
    async with (
        ScriptedCluster(topics={"a": 1, "b": 1}) as cluster,
        open_parts(cluster, background=True) as parts,
    ):
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


async def test_cut_off_caller_sees_the_last_failure(autojump_clock: Clock) -> None:
    """On a stopped machine the error was "no response within 0.2 s".

    The broker that refused all the time was not named.
    """
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
        assert "broker-0:9092" in str(reason.blame().error)


async def opens_with_late_names(seconds: float, **settings: Any) -> float:
    """Open a client whose names can be resolved after ``seconds``; return when it was open."""
    async with ScriptedCluster() as cluster:

        async def dial(host: str, port: int) -> trio.abc.Stream:
            if trio.current_time() < seconds:
                raise socket.gaierror(-3, "Temporary failure in name resolution")
            return await cluster.dial(host, port)

        async with open_parts(cluster, dial=dial, **settings):
            return trio.current_time()


async def test_late_names_are_looked_up_again(autojump_clock: Clock) -> None:
    """The names of a new pod may be resolvable only after some seconds (KIP-909)."""
    assert 5 <= await opens_with_late_names(5, bootstrap_resolve_timeout_ms=30_000) < 7


@pytest.mark.parametrize("limit", [0, 4_000])
async def test_look_up_of_names_has_its_limit(autojump_clock: Clock, limit: int) -> None:
    with pytest.raises(BootstrapError, match=r"could be reached: .*name resolution"):
        await opens_with_late_names(5, bootstrap_resolve_timeout_ms=limit)
    assert trio.current_time() <= limit / 1000


async def test_remembered_coordinators_are_bounded(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admin client may be asked about other groups for weeks."""
    monkeypatch.setattr(coordinator, "MOST", 3)
    groups = [f"g{number}" for number in range(5)]
    async with ScriptedCluster() as cluster, open_parts(cluster) as parts:
        for group in groups:
            await parts.coordinators.find(group)
        states = [parts.coordinators.state(group) for group in groups]
        assert states[-1] is CoordinatorState.STABLE
        assert states.count(CoordinatorState.INITIALIZED) == 2
        await parts.coordinators.find(groups[states.index(CoordinatorState.INITIALIZED)])
        assert len(cluster.requests("FindCoordinator")) == 6


async def test_walks_over_many_groups_use_the_cache(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One group too many does not make each walk look all of them up again."""
    monkeypatch.setattr(coordinator, "MOST", 50)
    async with ScriptedCluster() as cluster, open_parts(cluster) as parts:
        for _ in range(10):
            for number in range(51):
                await parts.coordinators.find(f"g{number}")
        # The first walk makes 51. With the oldest forgotten each time, all walks made 510.
        assert 60 <= len(cluster.requests("FindCoordinator")) < 300
