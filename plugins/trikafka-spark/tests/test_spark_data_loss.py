"""Offsets, topics and partitions that a query asks for and the cluster does not have."""

from __future__ import annotations

import dataclasses
import logging

import pytest
from trikafka_spark.range_planning import bind_ranges, open_reader
from trikafka_spark.read_options import read_options
from trikafka_spark.stream_reader import _Topics

from trikafka import OffsetOutOfRangeError, OffsetRange, TopicPartition
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


@pytest.mark.parametrize("strict", [True, False])
async def test_partition_unknown_to_a_broker_yet_is_read(
    strict: bool, autojump_clock: object
) -> None:
    """A stream neither fails nor skips records if a broker is late to hear of a new partition."""
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
    old, new = TopicPartition("t", 0), TopicPartition("t", 1)
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        settings = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        options = dataclasses.replace(
            read_options(given, streaming=True), settings=settings, fail_on_data_loss=strict
        )
        cluster.append("t", 1, [b"x"])
        topics = _Topics(options)
        async with open_reader(options) as consumer:
            late = cluster.leave_out("Metadata", "t", 1)
            assert await topics.look(consumer, {old: 0, new: 0}) == {old: 0, new: 1}
            assert late.used == 1
            late = cluster.leave_out("Metadata", "t", 1)
            planned = await topics.plan(consumer, {old: 0}, {old: 0, new: 1}, {}, first_again=False)
            assert late.used == 1
    assert [each.wanted for each in planned] == [OffsetRange("t", 1, 0, 1)]


async def test_error_names_the_beginning_after_retention(autojump_clock: object) -> None:
    """A run plans the first batch of an earlier run again, whose records are deleted meanwhile."""
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
    tp = TopicPartition("t", 0)
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        options = dataclasses.replace(read_options(given, streaming=True), settings=settings)
        cluster.append("t", 0, [b"x"] * 10)
        cluster.delete_records("t", 0, 7)
        async with open_reader(options) as consumer:
            with pytest.raises(
                OffsetOutOfRangeError,
                match=r"^t-0 begins with offset 7, but the batch ends at offset 4",
            ):
                await _Topics(options).plan(consumer, {tp: 7}, {tp: 4}, {}, first_again=False)
