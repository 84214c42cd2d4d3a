"""The tools of Java and librdkafka read our records, of every way of writing and every codec.

With ``read_committed`` both see the committed transactions, and nothing of the aborted ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import trio
from cluster_waits import settled, topic_reported

import trikafka
from benchmarks.librdkafka import read_topic
from trikafka import NewTopic

if TYPE_CHECKING:
    from trikafka_broker.cluster import KafkaCluster

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
WAYS = ("send", "enqueue", "send_nowait", "send_arrow")
HEADERS: tuple[tuple[str, bytes | None], ...] = (
    ("a", b"1"),
    ("empty", b""),
    ("none", None),
    ("a", b"2"),
)
TIME = 1_700_000_000_000
COUNT = 20


class Row(NamedTuple):
    """A record in the form that all clients print."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


def rows(way: str, codec: str) -> list[Row]:
    """Return records with null and empty keys and values, headers or none, and a long value."""
    return [
        Row(
            None if number % 5 == 0 else b"" if number % 5 == 1 else b"key-%d" % number,
            None
            if number % 7 == 3
            else b""
            if number % 7 == 4
            else f"{way} {codec} {number} ä".encode() * (1 + 40 * (number % 3)),
            HEADERS if number % 4 == 1 else (),
            TIME + number,
        )
        for number in range(COUNT)
    ]


async def write(producer: trikafka.Producer, topic: str, way: str, todo: list[Row]) -> None:
    """Write all of ``todo`` by one of the ways, in order, into partition 0."""
    if way == "send_arrow":
        pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        columns = {
            "key": pa.array([row.key for row in todo], pa.binary()),
            "value": pa.array([row.value for row in todo], pa.binary()),
            "headers": pa.array(
                [[{"key": k, "value": v} for k, v in row.headers] for row in todo], pairs
            ),
            "timestamp": pa.array([row.timestamp for row in todo], pa.timestamp("ms", "UTC")),
            "partition": pa.array([0] * len(todo), pa.int32()),
        }
        await producer.send_arrow(topic, pa.table(columns), partition="partition")
        return
    for row in todo:
        more: dict[str, Any] = {
            "key": row.key,
            "headers": row.headers,
            "timestamp": row.timestamp,
            "partition": 0,
        }
        if way == "send":
            await producer.send(topic, row.value, **more)
        elif way == "enqueue":
            await producer.enqueue(topic, row.value, **more)
        else:
            producer.send_nowait(topic, row.value, **more)
    await producer.flush()


async def write_in_transactions(bootstrap: str, topic: str) -> list[Row]:
    """Write three transactions of each codec, of which only the second is committed.

    Returns the committed records.
    """
    committed = []
    for codec in CODECS:
        settings: dict[str, Any] = {
            "compression_type": codec,
            "transactional_id": f"interop-{codec}",
        }
        async with trikafka.open_producer(bootstrap_servers=bootstrap, **settings) as producer:
            await producer.partitions_for(topic)
            for number, abort in enumerate((True, False, True)):
                async with producer.transaction() as txn:
                    for way in WAYS:
                        await write(producer, topic, way, todo := rows(f"{way} {number}", codec))
                        committed += [] if abort else todo
                    if abort:
                        await txn.abort()
    return committed


def read_by_librdkafka(
    bootstrap: str, topic: str, isolation: str = "read_uncommitted"
) -> list[Row]:
    messages = read_topic(bootstrap, topic, isolation)
    return [Row(m.key(), m.value(), tuple(m.headers() or ()), m.timestamp()[1]) for m in messages]


def as_java_prints(row: Row) -> str:
    def text(data: bytes | None) -> str:
        return "NULL" if data is None else data.decode()

    headers = ",".join(f"{name}:{text(value)}" for name, value in row.headers) or "NO_HEADERS"
    return f"CreateTime:{row.timestamp}|{headers}|{text(row.key)}|{text(row.value)}"


def read_by_java(cluster: KafkaCluster, topic: str, count: int, *options: str) -> list[str]:
    """Return what Kafka's own console consumer prints of partition 0."""
    properties = {
        **{f"print.{what}": "true" for what in ("key", "headers", "timestamp")},
        "key.separator": "|",
        "null.literal": "NULL",
    }
    given = [
        part
        for name, value in properties.items()
        for part in ("--formatter-property", f"{name}={value}")
    ]
    where = [
        "--bootstrap-server",
        cluster.bootstrap_servers,
        "--topic",
        topic,
        "--partition",
        "0",
        "--offset",
        "earliest",
    ]
    done = cluster.run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *where,
        "--max-messages",
        str(count),
        *options,
        *given,
        timeout=240,
    )
    return str(done.stdout).splitlines()


async def test_java_and_librdkafka_read_our_records(kafka_broker_cluster: KafkaCluster) -> None:
    topic, in_transactions, expected = "interop", "interop-in-transactions", []
    cluster = kafka_broker_cluster
    with trio.fail_after(400):
        bootstrap = cluster.bootstrap_servers
        async with trikafka.open_admin(bootstrap_servers=bootstrap) as admin:
            await admin.create_topics(
                dict.fromkeys((topic, in_transactions), NewTopic(1, 1, {"retention.ms": -1}))
            )
            for name in topic, in_transactions:
                await topic_reported(admin, name, 1)
        for codec in CODECS:
            async with trikafka.open_producer(
                bootstrap_servers=bootstrap, compression_type=codec
            ) as producer:
                await producer.partitions_for(topic)
                for way in WAYS:
                    expected += (todo := rows(way, codec))
                    await write(producer, topic, way, todo)
        count = len(expected)
        assert await trio.to_thread.run_sync(read_by_librdkafka, bootstrap, topic) == expected
        printed = await trio.to_thread.run_sync(read_by_java, cluster, topic, count)
        assert printed == [as_java_prints(row) for row in expected]
        committed = await write_in_transactions(bootstrap, in_transactions)
        await settled(bootstrap)
        found = await trio.to_thread.run_sync(
            read_by_librdkafka, bootstrap, in_transactions, "read_committed"
        )
        assert found == committed
        assert len(
            await trio.to_thread.run_sync(read_by_librdkafka, bootstrap, in_transactions)
        ) == 3 * len(committed)
        isolated = ("--isolation-level", "read_committed")
        printed = await trio.to_thread.run_sync(
            read_by_java, cluster, in_transactions, len(committed), *isolated
        )
        assert printed == [as_java_prints(row) for row in committed]
