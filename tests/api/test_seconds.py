"""Times in seconds, given where Kafka has milliseconds: one line of the log, and no error."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa
import pytest
from trio.testing import MockClock as Clock

import trikafka
from trikafka import OffsetSpec, TopicPartition
from trikafka._state.seconds import like_seconds, seconds_hint
from trikafka.cli.running import Stop, run
from trikafka.testing import ScriptedCluster

SECONDS = 1_764_365_400
T0 = TopicPartition("t", 0)
HINT = (
    f"in milliseconds {SECONDS} is 1970-01-21; in seconds it would be 2025-11-28: "
    "int(time.time() * 1000) has milliseconds"
)
SENT = (
    "timestamps of records for topic {} were probably given in seconds, so retention may delete "
    "these records at once: " + HINT
)
LOOKED_UP = "a time to look up was probably given in seconds: " + HINT


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    return lambda: [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.fixture
async def given(autojump_clock: Clock) -> AsyncIterator[dict[str, Any]]:
    async with ScriptedCluster(topics={"t": 2, "u": 1}) as cluster:
        yield {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}


@pytest.mark.parametrize(
    ("time", "hinted"),
    [
        (-1, False),  # a special value of a look-up
        (0, False),
        (999_999_999, False),
        (1_000_000_000, True),
        (9_999_999_999, True),
        (10_000_000_000, False),
        (SECONDS * 1000, False),
        (OffsetSpec.LATEST, False),
    ],
)
def test_seconds_are_recognized(time: int, hinted: bool) -> None:
    assert (seconds_hint(time) is not None) is like_seconds(time) is hinted


async def test_records_in_seconds_are_logged(
    autojump_clock: Clock, given: dict[str, Any], lines: Callable[[], list[str]]
) -> None:
    """Once for each topic; the records are written as they are."""
    async with trikafka.open_producer(linger_ms=0, **given) as producer:
        for stamp in (None, 0, 1, SECONDS * 1000):
            await producer.send("t", b"x", timestamp=stamp)
        assert lines() == []
        for _ in range(3):
            sent = await producer.send("t", b"x", timestamp=SECONDS)
            assert sent.timestamp == SECONDS
        await producer.send("t", b"x", timestamp=SECONDS, headers=[("a", b"b")], partition=1)
        assert lines() == [SENT.format("t")]
        await producer.send("u", b"x", timestamp=SECONDS)
        assert lines() == [SENT.format("t"), SENT.format("u")]


async def test_rows_in_seconds_are_logged(
    autojump_clock: Clock, given: dict[str, Any], lines: Callable[[], list[str]]
) -> None:
    table = pa.table({"value": [b"a", b"b"], "timestamp": [SECONDS, SECONDS]})
    async with trikafka.open_producer(**given) as producer:
        await producer.send_arrow("t", table)
    assert lines() == [SENT.format("t")]


async def test_look_ups_in_seconds_are_logged(
    autojump_clock: Clock, given: dict[str, Any], lines: Callable[[], list[str]]
) -> None:
    async with trikafka.open_consumer(**given) as consumer:
        for time in (0, 1, SECONDS * 1000):
            await consumer.offsets_for_times({T0: time})
        await consumer.beginning_offsets([T0])
        assert lines() == []
        for _ in range(2):
            await consumer.offsets_for_times({T0: SECONDS})
        assert lines() == [LOOKED_UP]
    async with trikafka.open_admin(**given) as admin:
        await admin.list_offsets({T0: SECONDS})
        assert lines() == [LOOKED_UP] * 2


def test_command_has_no_hint_about_dates(
    lines: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """The command refuses seconds itself, so a date of 1970 is meant."""

    async def work(stop: Stop) -> None:
        async with (
            ScriptedCluster(topics={"t": 1}) as cluster,
            trikafka.open_consumer(
                bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
            ) as consumer,
        ):
            await consumer.offsets_for_times({T0: SECONDS})

    run(work)
    assert lines() == []
    logging.getLogger("trikafka.offsets").warning(LOOKED_UP)
    assert lines() == [LOOKED_UP], "only while a command runs"
