"""Offsets and topics that a batch asks for and the cluster does not have."""

from __future__ import annotations

import dataclasses
import logging

import pytest
from trikafka_spark.range_planning import bind_ranges
from trikafka_spark.read_options import read_options

from trikafka import OffsetOutOfRangeError, OffsetRange
from trikafka.testing import ScriptedCluster


async def test_missing_offsets_are_logged(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """With ``failOnDataLoss=false`` a warning takes the place of the error."""
    given = {
        "kafka.bootstrap.servers": "b:1",
        "subscribe": "t",
        "startingOffsets": '{"t": {"0": 5, "1": 0}}',
    }
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        settings = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        strict = dataclasses.replace(read_options(given), settings=settings)
        with pytest.raises(
            OffsetOutOfRangeError, match=r"^t-0 holds the offsets \[0, 0\), but \[5"
        ):
            await bind_ranges(strict)
        lenient = dataclasses.replace(strict, fail_on_data_loss=False)
        caplog.set_level(logging.WARNING, "trikafka.spark")
        ranges = [planned.wanted for planned in await bind_ranges(lenient)]
    assert ranges == [OffsetRange("t", 0, 5, 5), OffsetRange("t", 1, 0, 0)]
    [logged] = [record.getMessage() for record in caplog.records]
    assert logged == (
        "t-0 holds the offsets [0, 0), but [5, 0) were to be read; missing records are skipped "
        "(failOnDataLoss is false)"
    )


async def test_pattern_without_topics_is_logged(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """A typo in a pattern is no error, since topics may come later, but it is not silent."""
    given = {"kafka.bootstrap.servers": "b:1", "subscribePattern": "^ordrs"}
    async with ScriptedCluster(topics={"orders": 1}) as cluster:
        settings = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        caplog.set_level(logging.WARNING, "trikafka.spark")
        assert await bind_ranges(dataclasses.replace(read_options(given), settings=settings)) == []
    assert [record.getMessage() for record in caplog.records] == [
        "subscribePattern '^ordrs' is found in no topic, so the query has no rows"
    ]
