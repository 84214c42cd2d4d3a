"""Spark's own Kafka connector reads our records: codecs, headers, nulls, tables, transactions."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import trio
from known_topics import TIME, create_known
from pyspark.sql import SparkSession

import trikafka

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPIC = "for-the-connector"
COUNT = 20
PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
#: Key, value, headers, milliseconds.
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int]


def rows(what: str) -> list[Row]:
    """Return rows with null and empty keys and values, none or several headers, and long values."""
    return [
        (
            None if number % 5 == 0 else b"key-%d" % number if number % 5 > 1 else b"",
            None
            if number % 7 == 3
            else b""
            if number % 7 == 4
            else f"{what} {number} ä".encode() * (1 + 40 * (number % 3)),
            [("a", b"1"), ("empty", b""), ("none", None), ("a", b"2")] if number % 4 == 1 else None,
            TIME + number,
        )
        for number in range(COUNT)
    ]


async def write(producer: trikafka.Producer, todo: list[Row]) -> None:
    """Write one half record by record, the other as a table; all in order."""
    half = len(todo) // 2
    for key, value, headers, time in todo[:half]:
        await producer.enqueue(
            TOPIC, value, key=key, headers=headers or (), timestamp=time, partition=0
        )
    keys, values, headers_of, times = zip(*todo[half:], strict=True)
    columns = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "headers": pa.array(
            [[{"key": name, "value": value} for name, value in each or ()] for each in headers_of],
            PAIRS,
        ),
        "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
    }
    await producer.send_arrow(TOPIC, pa.table(columns), partition=0)


async def write_all(bootstrap: str) -> list[Row]:
    """Write, for each codec, records outside of transactions and three transactions.

    Only the second transaction is committed. Returns the committed records in order.
    """
    counts: list[Row] = []
    for codec in CODECS:
        async with trikafka.open_producer(
            bootstrap_servers=bootstrap, compression_type=codec
        ) as producer:
            counts += (todo := rows(f"{codec}, plain"))
            await write(producer, todo)
        settings: dict[str, Any] = {
            "compression_type": codec,
            "transactional_id": f"connector-{codec}",
        }
        async with trikafka.open_producer(bootstrap_servers=bootstrap, **settings) as producer:
            for abort in (True, False, True):
                async with producer.transaction() as txn:
                    todo = rows(f"{codec}, {'aborted' if abort else 'committed'}")
                    await write(producer, todo)
                    if abort:
                        await txn.abort()
                    else:
                        counts += todo
    return counts


@pytest.mark.usefixtures("sparks_connector")
async def test_sparks_connector_reads_what_we_write(spark_context: Any, kafka_broker: Any) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    async with trikafka.open_admin(bootstrap_servers=bootstrap) as admin:
        await create_known(admin, TOPIC)
    expected = await write_all(bootstrap)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, "includeHeaders": "true"}
    reader = SparkSession(spark_context).read.format("kafka").options(**options)

    def read(isolation: str) -> list[Row]:
        frame = reader.option("kafka.isolation.level", isolation).load().orderBy("offset")
        return [
            _row(each) for each in frame.selectExpr("*", "unix_millis(timestamp) AS ms").collect()
        ]

    assert await trio.to_thread.run_sync(read, "read_committed") == expected
    assert len(await trio.to_thread.run_sync(read, "read_uncommitted")) == len(expected) * 2


def _row(found: Any) -> Row:
    headers = (
        None
        if found.headers is None
        else [(each.key, _bytes(each.value)) for each in found.headers]
    )
    return _bytes(found.key), _bytes(found.value), headers, found.ms


def _bytes(found: Any) -> bytes | None:
    return None if found is None else bytes(found)
