"""A connection that reaches another cluster's broker is refused, and the cluster found again.

See KIP-1242: the address of a broker may be given to another cluster while a client runs.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from netting import metadata_request, open_parts
from trio.testing import MockClock as Clock

from trikafka import open_producer
from trikafka.testing import ScriptedCluster


class Network:
    """Two clusters; the address of the first one's broker 0 leads to the second once ``moved``."""

    def __init__(self, right: ScriptedCluster, wrong: ScriptedCluster) -> None:
        self.right = right
        self.wrong = wrong
        self.moved = False

    async def dial(self, host: str, port: int) -> trio.abc.Stream:
        wrong = self.moved and host == "broker-0"
        return await (self.wrong if wrong else self.right).dial(host, port)


def clusters() -> tuple[ScriptedCluster, ScriptedCluster]:
    return (
        ScriptedCluster(nodes=2, topics={"t": 1}),
        ScriptedCluster(nodes=2, topics={"t": 1}, cluster_id="another"),
    )


def stated(cluster: ScriptedCluster) -> list[tuple[int, str | None, int]]:
    """Return version, cluster id and node id of each ApiVersions request that was understood."""
    return [
        (seen.version, seen.request.cluster_id, seen.request.node_id)
        for seen in cluster.requests("ApiVersions")
        if seen.request is not None
    ]


async def test_ids_are_stated_once_known(autojump_clock: Clock) -> None:
    """The first connection is to a bootstrap address; no version is tried in vain."""
    async with ScriptedCluster() as cluster, open_parts(cluster) as parts:
        await parts.brokers.request(parts.metadata.snapshot.nodes[0], metadata_request())
    assert stated(cluster) == [(4, None, -1), (5, "scripted-cluster", 0)]


@pytest.mark.parametrize(
    "settings", [{"metadata_cluster_check_enable": False}, {"metadata_recovery_strategy": "none"}]
)
async def test_ids_are_not_stated_if_off(autojump_clock: Clock, settings: Any) -> None:
    async with ScriptedCluster() as cluster, open_parts(cluster, **settings) as parts:
        await parts.brokers.request(parts.metadata.snapshot.nodes[0], metadata_request())
    assert stated(cluster) == [(4, None, -1)] * 2


async def test_older_broker_is_not_asked_twice(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(api_versions={"ApiVersions": (0, 4)}) as cluster,
        open_parts(cluster) as parts,
    ):
        await parts.brokers.request(parts.metadata.snapshot.nodes[0], metadata_request())
    assert stated(cluster) == [(4, None, -1)] * 2


async def test_broker_restarted_in_an_older_version(autojump_clock: Clock) -> None:
    """A downgraded broker refuses version 5, and is asked in one that it has."""
    async with ScriptedCluster(nodes=2) as cluster, open_parts(cluster) as parts:
        cluster.offer("ApiVersions", (0, 4), node=1)
        await parts.brokers.request(parts.metadata.snapshot.nodes[1], metadata_request())
        assert [seen.version for seen in cluster.requests("ApiVersions", node=1)][-2:] == [5, 3]


async def test_other_cluster_gets_no_records(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    right, wrong = clusters()
    async with right, wrong:
        network = Network(right, wrong)
        async with open_producer(
            bootstrap_servers="broker-1:9092", dial=network.dial, linger_ms=0
        ) as producer:
            await producer.send("t", b"before", partition=0)
            network.moved = True
            right.disconnect(0)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(producer.send, "t", b"after")
                await trio.sleep(10)
                assert 10 < len(stated(wrong)) <= 50  # it goes on, with a wait in between
                network.moved = False
        assert [record.value for record in right.records("t", 0)] == [b"before", b"after"]
        assert wrong.records("t", 0) == []
    assert wrong.requests("Produce") == wrong.requests("Metadata") == []
    assert {each[1] for each in stated(wrong)} <= {"scripted-cluster"}
    messages = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    # Once, however often the connections are closed meanwhile.
    assert sum("looking for the cluster again" in message for message in messages) == 1


async def test_all_known_addresses_lead_astray(autojump_clock: Clock) -> None:
    """The bootstrap address names them again and again: the dials back off, to one a second each."""
    right = ScriptedCluster(nodes=3, topics={"t": 3})
    wrong = ScriptedCluster(nodes=3, topics={"t": 3}, cluster_id="another")
    moved, dials = False, 0

    async def dial(host: str, port: int) -> trio.abc.Stream:
        nonlocal dials
        dials += 1
        if host == "bootstrap":
            return await right.dial("broker-0", port)
        return await (wrong if moved else right).dial(host, port)

    async with (
        right,
        wrong,
        open_producer(
            bootstrap_servers="bootstrap:9092",
            dial=dial,
            linger_ms=0,
            delivery_timeout_ms=600_000,
        ) as producer,
    ):
        await producer.send("t", b"before", partition=0)
        moved = True
        right.disconnect()
        acks = [await producer.enqueue("t", b"after", partition=number) for number in range(3)]
        await trio.sleep(30)
        for _ in range(3):
            dials = 0
            await trio.sleep(60)
            assert 60 < dials <= 300
        moved = False
        began = trio.current_time()
        for ack in acks:
            with trio.fail_after(10):
                await ack.wait()
        assert trio.current_time() - began < 2
        # After a quiet time the next order is followed at once again.
        await trio.sleep(60)
        moved = True
        right.disconnect()
        ack = await producer.enqueue("t", b"later", partition=1)
        await trio.sleep(1)
        moved = False
        with trio.fail_after(3):
            await ack.wait()
    assert wrong.requests("Produce") == wrong.requests("Metadata") == []
