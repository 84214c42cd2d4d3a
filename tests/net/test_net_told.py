"""What is said of brokers that are silent one after the other, and of a port that wants TLS."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing
from trio.testing import MockClock as Clock

from trikafka._net.frames import FrameReader
from trikafka._net.outages import REMINDER, Outages
from trikafka._net.transport import transport_of
from trikafka.errors import ProtocolError
from trikafka.types import Node

NODES = [Node(number, f"broker-{number}", 9092) for number in range(3)]


async def test_that_none_is_left_is_told_though_the_last_was_silent_a_while_ago(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
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

    def told() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return [line.partition("; ")[2] or line.partition(":")[0] for line in lines]

    await silence(NODES[0])
    assert told() == ["broker 0 does not respond", "broker 0 is back at broker-0"]
    await silence(NODES[1], NODES[2], NODES[0])
    none_left = "now none of the 3 brokers of the cluster can be reached"
    backs = [f"broker {node.node_id} is back at {node.host}" for node in (NODES[1], NODES[2], NODES[0])]
    assert told() == ["broker 1 does not respond", "broker 2 does not respond", none_left, *backs]
    await silence(*NODES)
    assert told() == [], "all that has been told in the last minutes"
    await trio.sleep(REMINDER)
    await silence(NODES[1], NODES[2], NODES[0])
    assert told()[2] == none_left


async def test_a_port_that_wants_tls_is_recognized() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(b"\x15\x03\x03\x00\x02\x02P")
    with trio.fail_after(60), pytest.raises(ProtocolError, match="but needs TLS: set security_protocol to 'SSL'"):
        await FrameReader(transport_of(ours), 1_000_000, "broker-0").read()
