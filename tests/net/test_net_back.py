"""That a broker is back is told when it is seen, and for how long it was away no more exactly than anybody saw."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from netting import open_parts
from trio.testing import MockClock as Clock

from trikafka._net.outages import Outages
from trikafka.errors import KafkaConnectionError
from trikafka.testing import ScriptedCluster
from trikafka.types import Node

ONE, TWO = Node(1, "one", 9092), Node(2, "two", 9092)


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trikafka")


@pytest.fixture
async def outages() -> Outages:
    made = Outages()
    made.cluster_is([ONE, TWO])
    return made


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "trikafka.brokers"]


REFUSED = KafkaConnectionError("refused")
LOST = "broker 2 is lost: refused"


async def test_one_that_leaves_the_metadata_and_comes_back(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, outages: Outages
) -> None:
    """Before, it was told when the client dialled it, perhaps hours later, as if it had been away until then."""
    outages.unreached(TWO, REFUSED)
    await trio.sleep(9)
    outages.cluster_is([ONE])
    await trio.sleep(20)
    assert told(caplog) == [LOST]
    outages.cluster_is([ONE, TWO])
    line = "broker 2 is in the cluster again, at two:9092: it was away for at most 29.0 s (one attempt failed)"
    assert told(caplog)[1:] == [line]
    assert not outages.unreachable()
    await trio.sleep(600)
    outages.reached(TWO)
    assert len(told(caplog)) == 2  # one line a way
    outages.unreached(TWO, REFUSED)
    assert told(caplog)[2:] == [LOST]


async def test_brokers_that_are_not_of_one_mind_for_a_moment(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, outages: Outages
) -> None:
    outages.unreached(TWO, REFUSED)
    for _ in range(5):
        outages.cluster_is([ONE])
        await trio.sleep(0.9)
        outages.cluster_is([ONE, TWO])
    assert told(caplog) == [LOST]
    assert list(outages.unreachable()) == [TWO]


@pytest.mark.parametrize(
    ("pause", "took"), [(4.0, "14.0 s"), (600.0, "10.0 to 610.0 s")], ids=["somebody looked", "nobody looked for long"]
)
async def test_one_that_was_not_dialled_meanwhile(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, outages: Outages, pause: float, took: str
) -> None:
    for _ in range(11):
        outages.unreached(TWO, REFUSED)
        await trio.sleep(1)
    await trio.sleep(pause - 1)
    outages.reached(TWO)
    assert told(caplog) == [LOST, f"broker 2 is back at two:9092: it was away for {took} (11 attempts failed)"]


async def test_one_that_was_silent_and_goes_on(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, outages: Outages
) -> None:
    """That is heard when it happens, however long nobody dials."""
    outages.silent(TWO, "Fetch", trio.current_time() - 5)
    await trio.sleep(20)
    outages.heard(TWO)
    assert told(caplog)[1:] == ["broker 2 is back at two:9092: it was away for 25.0 s"]


async def test_a_cluster_without_one_of_two(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """It leads nothing, so nobody dials it: its return is seen by a refresh."""
    away = False

    async def without(request: Any, default: Any) -> Any:
        response = await default()
        response.brokers = [broker for broker in response.brokers if not away or broker.node_id != 1]
        return response

    async with ScriptedCluster(nodes=2) as cluster, open_parts(cluster, background=True, metadata_max_age_ms=10_000) as parts:
        cluster.on("Metadata", without)
        cluster.stop(1, noticed=False)
        with pytest.raises(KafkaConnectionError):
            await parts.brokers.connection(parts.metadata.snapshot.nodes[1])
        away = True
        await trio.sleep(60)
        assert [line.partition(":")[0] for line in told(caplog)] == ["broker 1 is lost"]
        cluster.start(1)
        away = False
        await trio.sleep(12)
        [_, line] = told(caplog)
        assert line.startswith("broker 1 is in the cluster again, at broker-1:9092: it was away for at most ")
        assert 60 < float(line.split("at most ")[1].split(" s")[0]) < 72
