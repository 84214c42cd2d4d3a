"""Outages are logged at their beginning and at their end, with the number of failures."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from netting import NODE, open_parts
from trio.testing import MockClock as Clock

import trikafka
from trikafka._net import outages as module
from trikafka._net.outages import COORDINATOR_PATIENCE, Outages
from trikafka.errors import KafkaConnectionError, TrikafkaError
from trikafka.testing import ScriptedCluster, respond
from trikafka.types import Node

REFUSED = "cannot connect to broker-{0}:9092: nothing listens at broker-{0}:9092"


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trikafka")


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        f"{record.levelname} {record.getMessage()}"
        for record in caplog.records
        if record.name == "trikafka.brokers"
    ]


async def test_restarted_broker_is_two_log_lines(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """No call uses it: the end of its connections lets the client look."""
    async with ScriptedCluster() as cluster, open_parts(cluster, background=True) as parts:
        await trio.sleep(60)
        cluster.stop(0)
        await trio.sleep(0.5)
        assert logged(caplog) == [
            f"WARNING broker 0 is lost: {REFUSED.format(0)}; it is the only broker"
        ]
        await trio.sleep(59.5)
        assert len(logged(caplog)) == 1
        [(node, away)] = parts.brokers.outages.unreachable().items()
        assert (node.node_id, away.since) == (0, 60)
        assert 50 < away.failures < 120
        assert str(away.error) == REFUSED.format(0)
        cluster.start(0)
        # The refresh and the dial take at most 1.2 s each, and the next address is tried after 1 s.
        await trio.sleep(4)
        assert len(logged(caplog)) == 2
        assert logged(caplog)[1].startswith(
            "INFO broker 0 is back at broker-0:9092: it was away for 6"
        )
        assert logged(caplog)[1].endswith(" attempts failed)")
        assert not parts.brokers.outages.unreachable()


async def test_outage_of_each_broker_is_logged_once(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedCluster(nodes=3) as cluster, open_parts(cluster, background=True):
        for node in range(3):
            cluster.stop(node, noticed=False)
        await trio.sleep(30)
        lines = logged(caplog)
        assert len(lines) == 3
        assert all(line.startswith("WARNING broker ") for line in lines)
        scope = "; now none of the 3 brokers of the cluster can be reached"
        assert [line.endswith(scope) for line in lines] == [False, False, True]
        for node in range(3):
            cluster.start(node)
        await trio.sleep(400)  # past the age of the metadata
        backs = logged(caplog)[3:]
        assert backs
        assert all(line.startswith("INFO broker ") for line in backs)


async def test_outage_of_the_coordinator_is_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"group_id": "g", "auto_offset_reset": "earliest", "reconnect_backoff_max_ms": 1000}
    async with ScriptedCluster(nodes=2, topics={"t": 1}, coordinator=1) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial} | settings
        async with trikafka.open_consumer("t", **given) as consumer:
            while not consumer.assignment():
                await consumer.receive_batch(timeout=1)
            cluster.stop(1, noticed=False)
            await consumer.receive_batch(timeout=10)
            assert logged(caplog) == [
                f"WARNING broker 1, the coordinator of group 'g', is lost: {REFUSED.format(1)}"
            ]
            cluster.start(1)
            await consumer.receive_batch(timeout=10)
            assert len(logged(caplog)) == 2
            assert logged(caplog)[1].startswith(
                "INFO broker 1 is back at broker-1:9092: it was away for 1"
            )


async def test_group_without_coordinator_is_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster) as parts:

        async def look(seconds: float) -> None:
            with trio.move_on_after(seconds):
                while True:
                    try:
                        await parts.coordinators.find("g")
                    except TrikafkaError:
                        await trio.sleep(0.5)
                    else:
                        return

        cluster.fail("FindCoordinator", 15, times=None)
        await look(COORDINATOR_PATIENCE - 0.1)
        assert logged(caplog) == []  # a new cluster takes a moment
        await look(10)
        [line] = logged(caplog)
        assert line.startswith("WARNING group 'g' has had no coordinator for 2.4 s: ")
        assert "COORDINATOR_NOT_AVAILABLE" in line
        cluster._script._rules.clear()
        await look(10)
        assert logged(caplog)[1].startswith(
            "INFO group 'g' has a coordinator again, broker 0 at broker-0:9092: it had none for 1"
        )
        assert len(logged(caplog)) == 2


@pytest.mark.parametrize("answers", [True, False])
async def test_advertised_address_is_explained(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, answers: bool
) -> None:
    """A broker in a container: the bootstrap address works, and the advertised one does not."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:

        async def dial(host: str, port: int) -> trio.abc.Stream:
            if host == "localhost":
                return await cluster.dial("broker-0", 9092)
            if not answers:
                await trio.sleep_forever()
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        settings: trikafka.ProducerSettings = {
            "bootstrap_servers": "localhost:29092",
            "dial": dial,
            "delivery_timeout_ms": 40_000,
        }
        hint = (
            r" \(broker 0 advertises this address; if it is a wrong one, correct "
            r"advertised\.listeners of that broker\)"
        )
        says = (
            "cannot connect to broker-0:9092: Name or service not known"
            if answers
            else r"broker-0:9092 did not answer as a Kafka broker within \S+ s: "
            r"it takes no connection"
        )
        async with trikafka.open_producer(**settings) as producer:
            with pytest.raises(trikafka.DeliveryTimeoutError, match=says + hint):
                await producer.send("t", b"x")
        assert re.search("WARNING broker 0 is lost: " + says + hint, logged(caplog)[0])


async def test_reached_addresses_are_not_explained(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """One address that only the cluster names works: so do the others, when their brokers run."""
    async with ScriptedCluster(nodes=2) as cluster:

        async def dial(host: str, port: int) -> trio.abc.Stream:
            return await cluster.dial("broker-0" if host == "localhost" else host, port)

        async with trikafka.open_admin(bootstrap_servers="localhost:9092", dial=dial) as admin:
            await admin.describe_log_dirs()
            cluster.stop(1)
            await trio.sleep(5)
        [line] = logged(caplog)
        assert line.startswith(f"WARNING broker 1 is lost: {REFUSED.format(1)}")
        assert "advertises" not in line


async def test_ended_connections_are_no_outage(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"connections_max_idle_ms": 5000}
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        open_parts(cluster, background=True, **settings) as parts,
    ):
        cluster.disconnect(0)
        await trio.sleep(20)
        cluster.drop("Metadata", times=3)
        parts.metadata.request_update()
        await trio.sleep(20)  # and idle at the end
        await parts.metadata.refresh()
    assert logged(caplog) == []


async def test_dead_bootstrap_address_is_logged_once(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedCluster(nodes=2) as cluster:
        cluster.stop(0, noticed=False)
        async with open_parts(cluster):
            lines = [
                record.getMessage()
                for record in caplog.records
                if record.levelno >= logging.WARNING
            ]
            assert lines == [f"a bootstrap address cannot be used: {REFUSED.format(0)}"]


async def test_return_at_another_address_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages()
    outages.cluster_is([NODE])
    outages.unreached(NODE, KafkaConnectionError("refused"))
    outages.cluster_is([Node(1, "other", 9092)])
    assert not outages.unreachable()  # the node is not in the cluster
    moved = Node(0, "elsewhere", 9093)
    outages.cluster_is([moved])
    outages.reached(moved)
    assert logged(caplog) == [
        "WARNING broker 0 is lost: refused; it is the only broker",
        "INFO broker 0 is back at elsewhere:9093: it was away for 0.0 s (one attempt failed)",
    ]


async def test_memory_of_lost_brokers_is_bounded() -> None:
    outages = Outages()
    for number in range(1000):
        outages.cluster_is([Node(number, "h", 1)])
        outages.connection_lost(Node(number, "h", 1))
        outages.unreached(Node(number, "h", 1), KafkaConnectionError("refused"))
    outages.cluster_is([])
    assert len(outages._away) == 100
    assert not outages._ended


async def test_broken_connections_cause_no_storm(autojump_clock: Clock) -> None:
    """Two thousand callers, each with its own backoff, share the waits of the dials."""
    async with ScriptedCluster() as cluster, open_parts(cluster) as parts:
        cluster.drop("Metadata", times=None)

        async def again_and_again() -> None:
            while True:
                with pytest.raises(TrikafkaError):
                    await parts.metadata.refresh()
                await trio.sleep(0.001)

        with trio.move_on_after(10):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(again_and_again)
        assert len(cluster.dials) < 40  # of two places, the bootstrap address and the broker


def holes_beside(cluster: ScriptedCluster) -> Callable[[str, int], Awaitable[trio.abc.Stream]]:
    """Return a dial where hosts called ``hole...`` neither accept nor refuse a connection."""

    async def dial(host: str, port: int) -> trio.abc.Stream:
        if host.startswith("hole"):
            await trio.sleep_forever()
        return await cluster.dial(host, port)

    return dial


async def test_brokers_that_come_and_go_leave_nothing(autojump_clock: Clock) -> None:
    """Each refresh names another broker that is unreachable: its dials end with it."""
    async with (
        ScriptedCluster() as cluster,
        open_parts(cluster, dial=holes_beside(cluster)) as parts,
    ):
        await parts.metadata.refresh()
        before = trio.lowlevel.current_statistics().tasks_living
        for number in range(100, 200):
            node = Node(number, "hole", 9092)
            parts.brokers.keep_only(frozenset([NODE, node]))
            with trio.move_on_after(0.01):
                await parts.brokers.connection(node)
        parts.brokers.keep_only(frozenset([NODE]))
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == before
        assert len(parts.brokers._slots) <= 2


async def test_bootstrap_is_reached_beside_black_holes(autojump_clock: Clock) -> None:
    """All known brokers neither accept nor refuse a connection."""
    holes = [
        {"node_id": number, "host": f"hole-{number}", "port": 9092, "rack": None}
        for number in range(1, 51)
    ]
    async with ScriptedCluster(topics={"t": 1}) as cluster:

        async def only_holes(request: Any, default: object) -> Any:
            return respond(request, brokers=holes, cluster_id="c", controller_id=1, topics=[])

        cluster.on("Metadata", only_holes, times=1)
        async with open_parts(cluster, dial=holes_beside(cluster)) as parts:
            assert len(parts.metadata.snapshot.nodes) == 50
            assert list((await parts.metadata.refresh()).nodes) == [0]
            assert trio.current_time() <= 2


async def test_only_the_newest_groups_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_COORDINATED", 3)
    outages = Outages()
    for number in range(5):
        outages.coordinator_found(f"group 'a{number}'", NODE)
    assert list(outages._coordinators) == [f"group 'a{number}'" for number in (2, 3, 4)]


async def test_many_groups_without_coordinator_are_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than are remembered: those that are remembered are logged. Old ones make room."""
    monkeypatch.setattr(module, "_MOST_COORDINATED", 3)
    outages = Outages()
    for _ in range(3):
        for number in range(5):
            outages.coordinator_missing(f"group 'b{number}'", KafkaConnectionError("none"))
        await trio.sleep(COORDINATOR_PATIENCE)
    assert logged(caplog) == [
        f"WARNING group 'b{number}' has had no coordinator for 2.0 s: none" for number in range(3)
    ]
    await trio.sleep(60)
    for number in range(5, 8):
        outages.coordinator_missing(f"group 'b{number}'", KafkaConnectionError("none"))
    assert list(outages._without) == [f"group 'b{number}'" for number in (5, 6, 7)]


async def test_later_failure_is_not_the_old_outage(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A group that is looked up a day later has an outage of its own.

    Previously a single failure was logged at once, with the whole day as its duration. The
    reminders of an outage that was logged stay five minutes apart.
    """
    outages = Outages()
    outages.coordinator_missing("group 'a'", KafkaConnectionError("none"))
    await trio.sleep(86_400)
    for _ in range(2):
        outages.coordinator_missing("group 'a'", KafkaConnectionError("none"))
        assert logged(caplog) == []
        await trio.sleep(COORDINATOR_PATIENCE / 2)
    text = "WARNING group 'a' has had no coordinator for 2.0 s: none"
    for lines in (1, 1, 1, 2):  # each after a pause of 100 seconds
        outages.coordinator_missing("group 'a'", KafkaConnectionError("none"))
        await trio.sleep(COORDINATOR_PATIENCE)
        outages.coordinator_missing("group 'a'", KafkaConnectionError("none"))
        assert logged(caplog) == [text] * lines
        await trio.sleep(100)


async def test_late_found_coordinator_has_bounds(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The group may have had a coordinator again since the look-up that failed last."""
    outages = Outages()
    for pause in (COORDINATOR_PATIENCE, 1_000.0):
        outages.coordinator_missing("group 'a'", KafkaConnectionError("none"))
        await trio.sleep(pause)
    outages.coordinator_found("group 'a'", NODE)
    assert logged(caplog)[1].endswith("it had none for 2.0 to 1002.0 s (2 attempts failed)")
