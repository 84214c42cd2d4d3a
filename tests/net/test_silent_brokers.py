"""Silent brokers: taking requests without a response is an outage, logged early and at its end."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from netting import NODE, Line, connected, metadata_request, open_parts
from trio.testing import MockClock as Clock

import trikafka
from trikafka._net.in_flight import SILENCE, ConnectionListener
from trikafka._net.outages import Outages
from trikafka._net.reminders import REMINDER
from trikafka.errors import KafkaConnectionError
from trikafka.testing import ScriptedCluster
from trikafka.types import Node

T0 = trikafka.TopicPartition("t", 0)
STOPS: list[Callable[[ScriptedCluster, int], None]] = [ScriptedCluster.freeze, ScriptedCluster.lose]


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trikafka")


def logged(caplog: pytest.LogCaptureFixture, name: str = "trikafka.brokers") -> list[str]:
    return [
        f"{record.levelname} {record.getMessage()}"
        for record in caplog.records
        if record.name == name
    ]


def reading(cluster: ScriptedCluster, *topics: str, **settings: Any) -> Any:
    given = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "dial": cluster.dial,
        "auto_offset_reset": "earliest",
    }
    return trikafka.open_consumer(*topics, **(given | settings))


async def test_frozen_broker_is_logged_before_expiry(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, reading(cluster) as consumer:
        consumer.assign([T0])
        await consumer.receive_batch(timeout=1)
        cluster.freeze(0)
        await trio.sleep(SILENCE + 1)  # a fetch may wait within the broker for half a second
        [line] = logged(caplog)
        text = (
            r"WARNING broker 0 does not respond: broker-0:9092 has left \w+ unanswered for [56] "
            r"s; it is the only broker"
        )
        assert re.fullmatch(text, line)
        health = consumer.health()
        assert not health.ok
        assert "broker-0:9092 has left " in health.reasons[0]
        assert [node.node_id for node in health.unreachable] == [0]
        assert consumer.statistics().unreachable == {0}
        await trio.sleep(100)
        assert len(logged(caplog)) == 1
        # health() names the newest cause.
        assert "did not answer as a Kafka broker within " in consumer.health().reasons[0]
        cluster.thaw(0)
        await trio.sleep(20)
        assert len(logged(caplog)) == 2
        assert logged(caplog)[1].startswith(
            "INFO broker 0 is back at broker-0:9092: it was away for 10"
        )
        assert consumer.health().ok
        assert not consumer.statistics().unreachable


async def test_short_freeze_needs_no_new_connection(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, reading(cluster) as consumer:
        consumer.assign([T0])
        await consumer.receive_batch(timeout=1)
        dials = len(cluster.dials)
        cluster.freeze(0)
        await trio.sleep(8)
        cluster.thaw(0)
        await trio.sleep(1)
        assert [line.partition(" ")[0] for line in logged(caplog)] == ["WARNING", "INFO"]
        assert "INFO broker 0 is back at broker-0:9092: it was away for 8." in logged(caplog)[1]
        assert "attempt" not in logged(caplog)[1]
        assert len(cluster.dials) == dials
        assert consumer.health().ok


@pytest.mark.parametrize("stop", STOPS)
async def test_long_outage_is_logged_again_with_cause(
    autojump_clock: Clock,
    caplog: pytest.LogCaptureFixture,
    stop: Callable[[ScriptedCluster, int], None],
) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        open_parts(cluster, background=True) as parts,
    ):
        await trio.sleep(1)
        stop(cluster, 0)
        parts.metadata.request_update()
        # Each reminder is logged at the end of an attempt, so up to 38 s late (KIP-601).
        await trio.sleep(3 * REMINDER + 150)
        lines = logged(caplog)
        assert len(lines) == 4
        for line, seconds in zip(lines[1:], (1, 2, 3), strict=True):
            assert line.startswith("WARNING broker 0 has been away for ")
            assert float(line.split(" for ")[1].split()[0]) == pytest.approx(
                seconds * REMINDER, abs=seconds * 40
            )
            cause = (
                r"attempts failed\): broker-0:9092 did not answer as a Kafka broker within .* s: "
                r"it takes .*; it is the only"
            )
            assert re.search(cause, line)  # within more than at first (KIP-601)


async def test_only_one_of_all_brokers_is_logged_again() -> None:
    outages, lines = Outages(), []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("trikafka.brokers")
    log.addHandler(handler)
    try:
        nodes = [Node(number, f"broker-{number}", 9092) for number in range(3)]
        outages.cluster_is(nodes)
        for node in nodes:
            outages.unreached(node, KafkaConnectionError("refused"))
        for away in outages.unreachable().values():
            away.reminder.logged(away.since - REMINDER)
        for node in nodes:
            outages.unreached(node, KafkaConnectionError("refused"))
    finally:
        log.removeHandler(handler)
    assert len(lines) == 4
    assert lines[3].startswith("broker 0 has been away for ")
    assert lines[3].endswith(
        "(2 attempts failed): refused; now none of the 3 brokers of the cluster can be reached"
    )


async def test_one_slow_request_is_no_outage(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, reading(cluster) as consumer:
        consumer.assign([T0])
        await consumer.receive_batch(timeout=1)
        cluster.delay("ListOffsets", 20)
        await consumer.end_offsets([T0])  # fetches go on beside it
        assert trio.current_time() > 20
        assert logged(caplog) == []


async def test_often_slow_broker_is_logged_seldom(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, background=True) as parts:
        cluster.delay("Metadata", 7)

        async def ask_for(seconds: float) -> None:
            with trio.move_on_after(seconds):
                while True:
                    await parts.brokers.request(NODE, metadata_request())
                    await trio.sleep(1)

        await ask_for(REMINDER - 10)
        assert [line.partition(" ")[0] for line in logged(caplog)] == ["WARNING", "INFO"]
        await ask_for(40)
        assert [line.partition(" ")[0] for line in logged(caplog)] == ["WARNING", "INFO"] * 2
        cluster.stop(0)  # that is another outage
        await trio.sleep(1)
        assert logged(caplog)[4].startswith("WARNING broker 0 is lost: ")


async def test_members_waiting_to_join_are_no_outage(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.delay("JoinGroup", 20, times=1)
        async with reading(cluster, "t", group_id="g", group_protocol="classic") as consumer:
            await consumer.receive_batch(timeout=30)
            assert consumer.assignment() == {T0}
        assert logged(caplog) == []


async def test_response_during_a_blocked_loop_counts(autojump_clock: Clock) -> None:
    """The clock jumps past the limit in the moment in which the response arrives."""
    heard: list[Any] = []
    async with connected() as line:
        _listen(line, heard)
        asked = line.ask()
        request = await line.peer.request()
        await trio.sleep(SILENCE - 0.001)
        autojump_clock.jump(10)
        await line.peer.answer(request, brokers=[], topics=[])
        await asked.outcome()
        await trio.sleep(1)
        assert heard == []
        silent = line.ask()
        request = await line.peer.request()
        begun = trio.current_time()
        await trio.sleep(SILENCE + 0.5)
        assert heard == [("Metadata", begun)]
        await line.peer.answer(request, brokers=[], topics=[])
        await silent.outcome()
        assert heard[1:] == ["heard"]


def _listen(line: Line, heard: list[Any]) -> None:
    line.connection._expiry._listener = ConnectionListener(
        lambda api, since: heard.append((api, since)), lambda: heard.append("heard")
    )


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("stop", [*STOPS, ScriptedCluster.stop])
async def test_closing_in_an_outage_is_logged_once(
    autojump_clock: Clock,
    caplog: pytest.LogCaptureFixture,
    protocol: str,
    stop: Callable[[ScriptedCluster, int], None],
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        async with reading(cluster, "t", group_id="g", group_protocol=protocol) as consumer:
            await consumer.receive_batch(timeout=2)
            stop(cluster, 0)
            await trio.sleep(15)
            caplog.clear()
        [line] = logged(caplog, "trikafka.membership")
        assert line.startswith("WARNING group g: ")
        assert " could not leave, so its partitions have no owner until its session ends: " in line
        assert (
            "broker-0:9092" in line
            or "no response from the coordinator of group 'g' within" in line
        )
        [commit] = logged(caplog, "trikafka.consumer")
        assert commit.startswith("WARNING leaving: the time for the last commit was up (")
        assert "broker-0:9092" in commit
        assert len(caplog.records) == 2


NODES = [Node(number, f"broker-{number}", 9092) for number in range(3)]


async def test_last_of_several_silent_brokers_is_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The last one was silent a while ago. The line says that none is left."""
    caplog.set_level(logging.INFO, "trikafka.brokers")
    outages = Outages()
    outages.cluster_is(NODES)

    async def silence(*nodes: Node) -> None:
        since = trio.current_time()
        await trio.sleep(6)
        for node in nodes:
            outages.silent(node, "Fetch", since)
        await trio.sleep(6)
        for node in nodes:
            outages.reached(node)

    def logged() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return [line.partition("; ")[2] or line.partition(":")[0] for line in lines]

    await silence(NODES[0])
    assert logged() == ["broker 0 does not respond", "broker 0 is back at broker-0"]
    await silence(NODES[1], NODES[2], NODES[0])
    none_left = "now none of the 3 brokers of the cluster can be reached"
    backs = [
        f"broker {node.node_id} is back at {node.host}" for node in (NODES[1], NODES[2], NODES[0])
    ]
    assert logged() == ["broker 1 does not respond", "broker 2 does not respond", none_left, *backs]
    await silence(*NODES)
    assert logged() == [], "all of it was logged in the last minutes"
    await trio.sleep(REMINDER)
    await silence(NODES[1], NODES[2], NODES[0])
    assert logged()[2] == none_left
