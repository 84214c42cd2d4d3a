"""Returns of lost brokers: logged when noticed, with a duration no more exact than known."""

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


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "trikafka.brokers"]


REFUSED = KafkaConnectionError("refused")
LOST = "broker 2 is lost: refused"


async def test_return_to_the_metadata_is_logged_then(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, outages: Outages
) -> None:
    """The broker is back when the metadata lists it.

    The client may dial it hours later.
    """
    outages.unreached(TWO, REFUSED)
    await trio.sleep(9)
    outages.cluster_is([ONE])
    await trio.sleep(20)
    assert logged(caplog) == [LOST]
    outages.cluster_is([ONE, TWO])
    line = (
        "broker 2 is in the cluster again, at two:9092: it was away for at most 29.0 s (one "
        "attempt failed)"
    )
    assert logged(caplog)[1:] == [line]
    assert not outages.unreachable()
    await trio.sleep(600)
    outages.reached(TWO)
    assert len(logged(caplog)) == 2  # one line a way
    outages.unreached(TWO, REFUSED)
    assert logged(caplog)[2:] == [LOST]


async def test_disagreeing_brokers_are_not_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, outages: Outages
) -> None:
    outages.unreached(TWO, REFUSED)
    for _ in range(5):
        outages.cluster_is([ONE])
        await trio.sleep(0.9)
        outages.cluster_is([ONE, TWO])
    assert logged(caplog) == [LOST]
    assert list(outages.unreachable()) == [TWO]


@pytest.mark.parametrize(
    ("pause", "took"),
    [(4.0, "14.0 s"), (600.0, "10.0 to 610.0 s")],
    ids=["dialled meanwhile", "not dialled for long"],
)
async def test_return_has_a_range_if_not_dialled(
    autojump_clock: Clock,
    caplog: pytest.LogCaptureFixture,
    outages: Outages,
    pause: float,
    took: str,
) -> None:
    for _ in range(11):
        outages.unreached(TWO, REFUSED)
        await trio.sleep(1)
    await trio.sleep(pause - 1)
    outages.reached(TWO)
    assert logged(caplog) == [
        LOST,
        f"broker 2 is back at two:9092: it was away for {took} (11 attempts failed)",
    ]


async def test_end_of_silence_is_logged_when_it_happens(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, outages: Outages
) -> None:
    """A response is noticed, however long the client does not dial."""
    outages.silent(TWO, "Fetch", trio.current_time() - 5)
    await trio.sleep(20)
    outages.heard(TWO)
    assert logged(caplog)[1:] == ["broker 2 is back at two:9092: it was away for 25.0 s"]


async def test_return_is_seen_by_a_refresh(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker leads nothing, so no call dials it."""
    away = False

    async def without(request: Any, default: Any) -> Any:
        response = await default()
        response.brokers = [
            broker for broker in response.brokers if not away or broker.node_id != 1
        ]
        return response

    async with (
        ScriptedCluster(nodes=2) as cluster,
        open_parts(cluster, background=True, metadata_max_age_ms=10_000) as parts,
    ):
        cluster.on("Metadata", without)
        cluster.stop(1, noticed=False)
        with pytest.raises(KafkaConnectionError):
            await parts.brokers.connection(parts.metadata.snapshot.nodes[1])
        away = True
        await trio.sleep(60)
        assert [line.partition(":")[0] for line in logged(caplog)] == ["broker 1 is lost"]
        cluster.start(1)
        away = False
        await trio.sleep(12)
        [_, line] = logged(caplog)
        assert line.startswith(
            "broker 1 is in the cluster again, at broker-1:9092: it was away for at most "
        )
        assert 60 < float(line.split("at most ")[1].split(" s")[0]) < 72
