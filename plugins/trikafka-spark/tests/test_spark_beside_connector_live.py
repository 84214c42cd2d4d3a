"""Jobs written for Spark's own Kafka connector, read by both sources: one word differs, no row."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from known_topics import TIME, add_records, create_known, settled
from pyspark.sql import DataFrame, SparkSession

import trikafka

pytestmark = pytest.mark.usefixtures("sparks_connector")
SOURCES = ("kafka", "trikafka")
#: Of the topic ``T``, which has ten records in each of three partitions: record ``n`` in partition
#: ``n % 3``, at ``TIME + n``.
ALL = {"subscribe": "T"}
SAME: dict[str, dict[str, str]] = {
    "assign, headers": {"assign": '{"T": [0, 2]}', "includeHeaders": "true"},
    "a pattern that is found anywhere": {"subscribePattern": r"beside-\w+\Z"},
    "two topics, names in any case": {"SUBSCRIBE": "T, U", "INCLUDEHEADERS": "TRUE"},
    "offsets of each kind": ALL
    | {
        "startingOffsets": '{"T":{"0":4,"1":-2,"2":10}}',
        "endingOffsets": '{"T":{"0":9,"1":-1,"2":-1}}',
    },
    "times of partitions": ALL
    | {
        "startingOffsetsByTimestamp": json.dumps({"T": {"0": TIME + 3, "1": TIME, "2": TIME + 29}}),
        "endingOffsetsByTimestamp": json.dumps(
            {"T": {"0": TIME + 4, "1": TIME + 1_000, "2": TIME + 1_000}}
        ),
    },
    "a time goes before times of partitions, and these before offsets": ALL
    | {
        "startingTimestamp": str(TIME + 25),
        "startingOffsetsByTimestamp": json.dumps({"T": {"0": TIME, "1": TIME, "2": TIME}}),
        "startingOffsets": "earliest",
        "endingOffsetsByTimestamp": json.dumps(
            {"T": {"0": TIME + 28, "1": TIME + 28, "2": TIME + 28}}
        ),
        "endingOffsets": "latest",
    },
    "a time that is too late": ALL
    | {"startingTimestamp": str(TIME + 28), "startingOffsetsByTimestampStrategy": "LATEST"},
    "half a task for each": {"assign": '{"T": [0, 2]}', "minPartitions": "5"},
    "more tasks": ALL | {"minPartitions": "7", "maxRecordsPerPartition": "6"},
    "what is gone": {
        "subscribe": "V",
        "startingOffsets": '{"V":{"0":2}}',
        "failOnDataLoss": "false",
    },
    "transactions, and what is for the JVM's client": {
        "subscribe": "W",
        "kafka.isolation.level": "read_committed",
        "groupIdPrefix": "x",
        "kafka.group.id": "g",
        "kafkaConsumer.pollTimeoutMs": "60000",
        "fetchOffset.numRetries": "2",
    },
}
#: Options that both refuse.
REFUSED: dict[str, dict[str, str]] = {
    "nothing chosen": {},
    "two choices": ALL | {"assign": '{"T": [0]}'},
    "no topic": {"subscribe": " "},
    "latest as a start": ALL | {"startingOffsets": "latest"},
    "-1 as a start": ALL | {"startingOffsets": '{"T":{"0":-1,"1":0,"2":0}}'},
    "earliest as an end": ALL | {"endingOffsets": "earliest"},
    "-2 as an end": ALL | {"endingOffsets": '{"T":{"0":-2,"1":1,"2":1}}'},
    "a partition that lacks": ALL | {"startingOffsets": '{"T":{"0":1,"1":1}}'},
    "a partition that is not there": ALL | {"startingOffsets": '{"T":{"0":1,"1":1,"2":1,"3":1}}'},
    "no JSON": ALL | {"startingOffsets": "{"},
    "an end before the start": ALL
    | {"startingTimestamp": str(TIME + 9), "endingTimestamp": str(TIME + 8)},
    "a time that is too late": ALL
    | {"startingTimestamp": str(TIME + 10_000), "fetchOffset.numRetries": "1"},
    "no strategy": ALL | {"startingOffsetsByTimestampStrategy": "never"},
    "no task": ALL | {"minPartitions": "0"},
    "a reset": ALL | {"kafka.auto.offset.reset": "latest"},
    "a deserializer": ALL | {"kafka.value.deserializer": "x.Y"},
    "commits": ALL | {"kafka.enable.auto.commit": "true"},
}


@pytest.fixture(scope="module")
def names() -> dict[str, str]:
    return {letter: f"beside-{letter.lower()}" for letter in "TUVW"}


async def fill(servers: str, names: dict[str, str]) -> None:
    """Fill the topics of this page.

    T and U have three partitions, V lacks its first records, and W has an aborted transaction.
    """
    from test_local_export_live import delete_records

    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        if names["T"] in await admin.list_topics():
            return
        for each in "UVWT":
            await create_known(admin, names[each], 3 if each in "TU" else 1)
    for each in "TU":
        await add_records(servers, names[each], 0, 30, 3)
    await add_records(servers, names["V"], 0, 20, 1)
    await trio.to_thread.run_sync(delete_records, servers, names["V"], 5)
    async with trikafka.open_producer(
        bootstrap_servers=servers, transactional_id="beside"
    ) as producer:
        for abort in (False, True, False):
            async with producer.transaction() as txn:
                await producer.send(names["W"], b"aborted" if abort else b"committed")
                if abort:
                    await txn.abort()
    await settled(servers)  # or the second source would find more than the first


def named(options: dict[str, str], names: dict[str, str]) -> dict[str, str]:
    """Return the options with the topics' real names instead of their letters."""
    found = {}
    for option, text in options.items():
        for letter, name in names.items():
            text = text.replace(f'"{letter}"', f'"{name}"')
        if option.lower() == "subscribe":
            text = ", ".join(names.get(each.strip(), each) for each in text.split(","))
        found[option] = text
    return found


def load(spark: SparkSession, source: str, broker: Any, options: dict[str, str]) -> DataFrame:
    return (
        spark.read.format(source)
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .options(**options)
        .load()
    )


def rows(frame: DataFrame, case: str) -> tuple[str, int | None, list[Any]]:
    """Return the columns, the number of tasks, and the rows in order.

    The connector has tasks without rows, and only cuts ranges with ``minPartitions``. So the
    numbers of tasks are compared only with that option.
    """
    found = frame.selectExpr("*", "unix_millis(timestamp) AS ms").drop("timestamp").collect()
    found.sort(key=lambda row: (row.topic, row.partition, row.offset))
    return (
        frame.schema.simpleString(),
        frame.rdd.getNumPartitions() if "minPartitions" in SAME[case] else None,
        found,
    )


@pytest.mark.parametrize("case", SAME)
async def test_batch_has_the_same_rows(
    case: str, spark: SparkSession, kafka_broker: Any, names: dict[str, str]
) -> None:
    await fill(kafka_broker.bootstrap_servers, names)
    options = named(SAME[case], names)
    found = [
        await trio.to_thread.run_sync(
            lambda each=each: rows(load(spark, each, kafka_broker, options), case)
        )
        for each in SOURCES
    ]
    assert found[0] == found[1]
    assert found[0][2], "and there are some"


@pytest.mark.parametrize("case", REFUSED)
async def test_invalid_options_are_refused_by_both(
    case: str, spark: SparkSession, kafka_broker: Any, names: dict[str, str]
) -> None:
    await fill(kafka_broker.bootstrap_servers, names)
    options = named(REFUSED[case], names)
    for source in SOURCES:
        with pytest.raises(Exception) as raised:  # noqa: PT011  (each of the two has words of its own)
            await trio.to_thread.run_sync(
                lambda source=source: load(spark, source, kafka_broker, options).collect()
            )
        if source == "trikafka":
            assert "Error: " in str(raised.value)
