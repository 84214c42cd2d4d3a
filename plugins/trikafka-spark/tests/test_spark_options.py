"""The data source's options, and the tasks made of offset ranges. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StructField, StructType
from trikafka_spark.query_columns import QueryColumns
from trikafka_spark.range_partition import read_planned
from trikafka_spark.range_planning import Planned, plan_tasks
from trikafka_spark.read_options import EARLIEST, LATEST, read_options

from trikafka import ConfigurationError, OffsetRange, TopicPartition

BASE = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}


def test_defaults_are_the_connectors() -> None:
    options = read_options(BASE)
    assert (options.starting.everywhere, options.ending.everywhere) == (EARLIEST, LATEST)
    assert (options.subscribe, options.fail_on_data_loss, options.include_headers) == (
        ("t",),
        True,
        False,
    )
    assert options.settings == {"bootstrap_servers": "h:1"}


def test_names_ignore_case() -> None:
    """Names of options ignore case, and settings of Kafka are passed on."""
    options = read_options(
        {
            "KAFKA.bootstrap.servers": "h:1,i:2",
            "SUBSCRIBE": "a, b,a",
            "includeheaders": "TRUE",
            "minPartitions": "7",
            "kafka.isolation.level": "read_committed",
            "kafka.request.timeout.ms": "5000",
            "kafka.group.id": "ignored",
            "maxOffsetsPerTrigger": "1",
            "kafkaConsumer.pollTimeoutMs": "1500",
        }
    )
    assert options.subscribe == ("a", "b")
    assert (options.include_headers, options.min_partitions, options.stall_limit) == (True, 7, 1.5)
    assert options.settings == {
        "bootstrap_servers": "h:1,i:2",
        "isolation_level": "read_committed",
        "request_timeout_ms": 5000,
    }


def test_offsets_are_read_by_partition() -> None:
    options = read_options(
        {
            **BASE,
            "startingOffsets": '{"t": {"0": 5, "1": -2}}',
            "endingOffsets": '{"t": {"0": -1, "1": 9}}',
        }
    )
    assert options.starting.offsets == {TopicPartition("t", 0): 5, TopicPartition("t", 1): EARLIEST}
    assert options.ending.offsets == {TopicPartition("t", 0): LATEST, TopicPartition("t", 1): 9}
    assert options.starting.everywhere is None


def test_times_override_offsets() -> None:
    """A time for all partitions overrides times by partition, which override offsets."""
    texts = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"t": {"0": 7}}'}
    assert read_options({**BASE, **texts}).starting.timestamps == {TopicPartition("t", 0): 7}
    options = read_options(
        {**BASE, **texts, "startingTimestamp": "1000", "endingTimestamp": "2000"}
    )
    assert (options.starting.timestamp, options.starting.timestamps, options.ending.timestamp) == (
        1000,
        {},
        2000,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "t"}, r"'kafka\.bootstrap\.servers' is missing"),
        ({"kafka.bootstrap.servers": "h:1"}, "exactly one of the options"),
        ({**BASE, "assign": '{"t": [0]}'}, "exactly one of the options"),
        ({**BASE, "startingOfsets": "earliest"}, "did you mean 'startingOffsets'"),
        ({**BASE, "path": "/x"}, r"'path' is not for topics: call load\(\) without a path"),
        ({**BASE, "option.subscribe": "t", "provider": "trikafka"}, "use CREATE TEMPORARY VIEW"),
        ({}, "^the query has no options. Spark does not pass the options of a table"),
        ({"kafka.bootstrap.servers": "h:1", "topic": "t"}, "'topic' is for writes; a read takes"),
        ({**BASE, "checkpointlocation": "/x"}, "'checkpointLocation' is for writeStream"),
        ({**BASE, "exactlyonce": "true"}, "'exactlyOnce' is for writes"),
        ({**BASE, "kafka.bootstrap.server": "h:1"}, r"did you mean 'kafka\.bootstrap\.servers'"),
        ({**BASE, "startingOffsets": "{}"}, "startingOffsets names no partition"),
        ({**BASE, "startingOffsets": '{"t": {}}'}, "startingOffsets names no partition"),
        ({**BASE, "endingOffsets": ""}, "endingOffsets must be JSON like"),
        ({**BASE, "endingOffsetsByTimestamp": "{}"}, "endingOffsetsByTimestamp names no partition"),
        ({**BASE, "startingOffsets": '{"t": {"a": 1}}'}, "'a' is not a partition number"),
        ({**BASE, "startingOffsets": '{"t": {"0": 1, "0": 2}}'}, "a name occurs twice"),
        ({**BASE, "startingOffsets": '{"t": {"00": 1, "0": 2}}'}, "t-0 occurs twice"),
        (
            {**BASE, "startingOffsets": '{"t": {"0": "earliest"}}'},
            r"not a whole number of at least -2 \(-2 is the beginning, -1 the end\)",
        ),
        (
            {**BASE, "startingOffsetsByTimestamp": '{"t": {"0": -2}}'},
            r"not a whole number of at least 0 \(milliseconds since 1970\)",
        ),
        (
            {**BASE, "startingOffsetsByTimestamp": "earliest"},
            r'JSON like \{"topic": \{"0": 1700000000000\}\}, not',
        ),
        ({**BASE, "startingTimestamp": "2024-01-01"}, "milliseconds since 1970"),
        ({**BASE, "failOnDataLoss": ""}, "failOnDataLoss must be true or false, not ''"),
        (
            {**BASE, "startingOffsets": '{"t": {"0": 9}}', "endingOffsets": '{"t": {"0": 5}}'},
            "startingOffsets has 9 for t-0, which is after 5 of endingOffsets",
        ),
        (
            {**BASE, "startingTimestamp": "20", "endingTimestamp": "10"},
            "endingTimestamp 10 is before startingTimestamp 20",
        ),
        (
            {**BASE, "startingTimestamp": "20", "endingOffsetsByTimestamp": '{"t": {"0": 10}}'},
            "the ending timestamp 10 of t-0 is before its starting timestamp 20",
        ),
        (
            {"kafka.bootstrap.servers": "h:1", "assign": '{"t": [true]}'},
            "True is not a partition number",
        ),
        (
            {"kafka.bootstrap.servers": "h:1", "assign": '{"t": [-1]}'},
            "-1 is not a partition number",
        ),
        (
            {**BASE, "maxRecordsPerPartition": "-5"},
            "maxRecordsPerPartition must be a whole number of at least 1",
        ),
        ({**BASE, "minPartitions": "²"}, "minPartitions must be a whole number"),
        ({**BASE, "maxTriggerDelay": "soon"}, "maxTriggerDelay must be a time such as 15m"),
        (
            {**BASE, "maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"},
            r"minOffsetsPerTrigger \(6\) must not be above",
        ),
        ({**BASE, "groupId": " "}, "groupId is empty"),
        ({"kafka.bootstrap.servers": "h:1", "subscribePattern": " "}, "subscribePattern is empty"),
        ({**BASE, "kafka.key.deserializer": "x"}, "is not supported"),
        ({**BASE, "kafka.auto.offset.reset": "latest"}, "is not supported"),
        ({**BASE, "startingOffsets": "latest"}, "must not be 'latest'"),
        ({**BASE, "endingOffsets": "earliest"}, "must not be 'earliest'"),
        ({**BASE, "startingOffsets": '{"t": {"0": -1}}'}, "must not be 'latest'"),
        ({**BASE, "endingOffsets": '{"t": {"0": -2}}'}, "must not be 'earliest'"),
        ({**BASE, "startingOffsets": '{"t": {"0": -3}}'}, "not a whole number of at least -2"),
        ({**BASE, "startingOffsets": '{"t": {"0": true}}'}, "not a whole number"),
        ({**BASE, "startingOffsets": '{"t": [0]}'}, "must be JSON like"),
        ({**BASE, "startingOffsets": "middle"}, "must be JSON like"),
        ({**BASE, "subscribe": "t,a b"}, "topic 'a b' has ' ' in its name"),
        ({**BASE, "startingOffsets": "5"}, "must be JSON like .*, not '5'$"),
        ({**BASE, "startingOffsets": "null"}, "must be JSON like .*, not 'null'$"),
        ({"kafka.bootstrap.servers": "h:1", "assign": "t"}, "assign must be JSON"),
        ({"kafka.bootstrap.servers": "h:1", "assign": "{}"}, "names no partition"),
        ({"kafka.bootstrap.servers": "h:1", "subscribe": " , "}, "names no topic"),
        ({"kafka.bootstrap.servers": "h:1", "subscribePattern": "("}, "not a regular expression"),
        ({**BASE, "minPartitions": "0"}, "minPartitions must be a whole number of at least 1"),
        ({**BASE, "failOnDataLoss": "yes"}, "failOnDataLoss must be true or false"),
        ({**BASE, "startingTimestamp": "-1"}, "startingTimestamp must be"),
        ({**BASE, "startingOffsetsByTimestampStrategy": "earliest"}, "must be 'error' or 'latest'"),
    ],
)
def test_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_options(options)


WIDTHS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10_000)), max_size=6)


@given(
    widths=WIDTHS, at_least=st.none() | st.integers(1, 50), most=st.none() | st.integers(200, 3_000)
)
def test_tasks_cover_the_ranges_once(
    widths: list[tuple[int, int]], at_least: int | None, most: int | None
) -> None:
    ranges = [
        OffsetRange("t", number, start, start + width)
        for number, (start, width) in enumerate(widths)
    ]
    tasks = plan_tasks(ranges, at_least, most)
    for whole in ranges:
        mine = [task for task in tasks if task.partition == whole.partition]
        assert [task.start for task in mine] == [whole.start, *(task.end for task in mine)][
            : len(mine)
        ]
        assert sum(task.end - task.start for task in mine) == whole.end - whole.start
    assert all(task.end > task.start for task in tasks)
    if most is not None:
        assert all(task.end - task.start <= most for task in tasks)


def test_number_of_tasks_is_split_by_size() -> None:
    tasks = plan_tasks(
        [OffsetRange("t", 0, 0, 900), OffsetRange("t", 1, 0, 100), OffsetRange("t", 2, 5, 5)],
        10,
        None,
    )
    assert [task.partition for task in tasks] == [0] * 9 + [1]


@pytest.mark.parametrize(("wanted", "tasks"), [(3, 4), (4, 4), (5, 6), (7, 8), (8, 8), (9, 10)])
def test_half_a_task_is_a_whole_one(wanted: int, tasks: int) -> None:
    """Spark's connector rounds halves up: two equal halves of an odd number get one more."""
    ranges = [OffsetRange("t", number, 0, 100) for number in range(2)]
    assert len(plan_tasks(ranges, wanted, None)) == tasks


def test_stream_starts_at_the_latest_offsets() -> None:
    """A stream begins at the latest offsets by default, and an end is refused."""
    assert read_options(BASE, streaming=True).starting.everywhere == LATEST
    assert (
        read_options({**BASE, "startingOffsets": "latest"}, streaming=True).starting.everywhere
        == LATEST
    )
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        with pytest.raises(ConfigurationError, match=f"{name} is not valid in a streaming query"):
            read_options({**BASE, name: "latest"}, streaming=True)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("value", ["true", "false"])
def test_push_filters_is_refused(value: str, streaming: bool) -> None:
    """The error of the removed option names the options that replace it."""
    with pytest.raises(
        ConfigurationError, match=r"'pushFilters' was removed: .*startingOffsets.*startingTimestamp"
    ):
        read_options({**BASE, "pushFilters": value}, streaming=streaming)


def test_rates_of_a_stream_are_read() -> None:
    options = read_options(
        {
            **BASE,
            "maxOffsetsPerTrigger": "100",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "5m",
        }
    )
    assert (options.rates.most, options.rates.least, options.rates.delay) == (100, 10, 300.0)
    assert read_options(BASE).rates.delay == 900.0
    assert read_options({**BASE, "maxTriggerDelay": "1500"}).rates.delay == 1.5


def test_strategy_ignores_case() -> None:
    assert (
        read_options({**BASE, "startingOffsetsByTimestampStrategy": "LATEST"}).after_the_last
        == "latest"
    )
    assert (
        read_options({**BASE, "startingOffsetsByTimestampStrategy": "Error"}).after_the_last
        == "error"
    )


def test_repeated_column_is_refused() -> None:
    """Spark's JVM fails with "not all nodes, buffers and variadicBufferCounts were consumed"."""
    field = StructField("value", BinaryType())
    with pytest.raises(ConfigurationError, match="asks for 'value' twice: repeat the column in a"):
        QueryColumns(StructType([field, field]))
    QueryColumns(StructType([field, StructField("VALUE", BinaryType())]))


def test_errors_of_lost_records_name_sparks_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader is the exporter's, which has another name for the option."""
    seen: dict[str, Any] = {}

    def read_groups(*given: Any, **more: Any) -> Iterator[Any]:
        seen.update(more)
        yield from ()

    monkeypatch.setattr("trikafka_export.reading.read_groups", read_groups)
    columns = QueryColumns(StructType([StructField("value", BinaryType())]))
    planned = Planned(OffsetRange("t", 0, 0, 1), None)
    assert list(read_planned(planned, read_options(BASE), columns)) == []
    assert seen["loss_option"] == "failOnDataLoss=false"
