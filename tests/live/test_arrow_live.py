"""Tables against a real Kafka: read by us and by another client, docs/columns.md.

Outages while tables are sent are in test_chaos_live.py.
"""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset
import pytest
import trio
import trio.lowlevel
from cluster_waits import topic_reported

import trikafka
from benchmarks.librdkafka import read_topic
from trikafka import TopicPartition
from trikafka._wire.partitioning import partition_for_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikafka_broker.broker import KafkaBroker

DOCUMENT = Path(__file__).parents[2] / "docs" / "columns.md"


async def make_topic(bootstrap: str, partitions: int, **config: str) -> str:
    # The records have old times, and a broker deletes what is older than its retention.
    config = {"retention.ms": "-1", **config}
    name = f"arrow-{uuid.uuid4().hex[:8]}"
    async with trikafka.open_admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics({name: trikafka.NewTopic(partitions, 1, config)})
        await topic_reported(admin, name, partitions)
    return name


async def read(bootstrap: str, topic: str, partitions: int) -> pa.Table:
    """Return the whole topic as one table, read by our own consumer."""
    async with trikafka.open_consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        tables = [table async for table in consumer.arrow_batches(until=ends)]
    return pa.concat_tables(tables)


def a_table(count: int) -> pa.Table:
    numbers = range(count)
    headers = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    table = pa.table(
        {
            "key": pa.array(
                [None if number % 5 == 0 else b"key-%d" % (number % 997) for number in numbers],
                pa.binary(),
            ),
            "value": pa.array(
                [None if n % 7 == 0 else b"%d " % n + b"x" * (n % 300) for n in numbers],
                pa.large_binary(),
            ),
            "timestamp": pa.array(
                [1_700_000_000_000 + number for number in numbers], pa.timestamp("ms", "UTC")
            ),
            "headers": pa.array(
                [[{"key": "n", "value": b"%d" % n}] if n % 3 else [] for n in numbers], headers
            ),
        }
    )
    return pa.concat_tables([table[: count // 3], table[count // 3 :]])


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
async def test_table_is_read_by_us_and_librdkafka(
    kafka_broker: KafkaBroker, compression: str
) -> None:
    bootstrap, count = kafka_broker.bootstrap_servers, 30_000
    topic, table = await make_topic(bootstrap, 3), a_table(count)
    async with trikafka.open_producer(
        bootstrap_servers=bootstrap, compression_type=compression
    ) as producer:
        delivery = await producer.send_arrow(topic, table)
    assert delivery.rows == sum(place.rows for place in delivery.partitions.values()) == count
    rows = {row["timestamp"]: row for row in table.to_pylist()}

    found = await read(bootstrap, topic, 3)
    assert found.num_rows == count
    for row in found.to_pylist():
        given = rows[row["timestamp"]]
        assert {name: row[name] for name in given} == given
        assert row["key"] is None or row["partition"] == partition_for_key(row["key"], 3)
    for number in range(3):
        mine = found.filter(pa.compute.equal(found["partition"], number))
        keyed = mine.filter(pa.compute.is_valid(mine["key"]))["timestamp"].to_pylist()
        assert keyed == sorted(keyed), "the table's order"
        place = delivery.partitions[TopicPartition(topic, number)]
        assert (place.first_offset, place.last_offset, place.rows) == (
            0,
            mine.num_rows - 1,
            mine.num_rows,
        )

    messages = await trio.to_thread.run_sync(read_topic, bootstrap, topic)
    assert len(messages) == count
    theirs = sorted((m.timestamp()[1], m.key(), m.value(), m.headers() or []) for m in messages)
    ours = [
        (stamp, row["key"], row["value"], row["headers"]) for stamp, row in sorted(rows.items())
    ]
    assert theirs == [
        (int(stamp.timestamp() * 1000 + 0.5), key, value, [(h["key"], h["value"]) for h in headers])
        for stamp, key, value, headers in ours
    ]


async def test_pandas_frame_is_sent(kafka_broker: KafkaBroker) -> None:
    import pandas

    bootstrap = kafka_broker.bootstrap_servers
    topic = await make_topic(bootstrap, 2)
    frame = pandas.DataFrame(
        {"id": ["a", None, "c"], "text": ["eins", "zwei", None], "number": [1.5, 2.5, 3.5]}
    )
    async with trikafka.open_producer(bootstrap_servers=bootstrap) as producer:
        assert (
            await producer.send_arrow(topic, frame, key="id", value="text", partition=1)
        ).rows == 3
    found = (await read(bootstrap, topic, 2)).select(["partition", "key", "value"]).to_pylist()
    assert [tuple(row.values()) for row in found] == [
        (1, b"a", b"eins"),
        (1, None, b"zwei"),
        (1, b"c", None),
    ]


async def test_table_fits_a_topic_of_small_batches(kafka_broker: KafkaBroker) -> None:
    """A table is split into batches that the topic accepts."""
    bootstrap = kafka_broker.bootstrap_servers
    topic = await make_topic(bootstrap, 1, **{"max.message.bytes": "50000"})
    table = pa.table({"value": [b"%06d" % number + b"x" * 94 for number in range(20_000)]})
    async with trikafka.open_producer(bootstrap_servers=bootstrap) as producer:
        delivery = await producer.send_arrow(topic, table)
        assert producer.statistics().batches_split > 0
    assert delivery.partitions[TopicPartition(topic, 0)].last_offset == 19_999
    assert (await read(bootstrap, topic, 1))["value"].to_pylist() == table["value"].to_pylist()


# --- docs/columns.md ------------------------------------------------------------------------------


def snippets(name: str) -> str:
    """Return the marked blocks of the document as one async function.

    Its arguments are a producer, a consumer, and the offsets at which to end.
    """
    text = DOCUMENT.read_text(encoding="utf-8")
    blocks = re.findall(rf"<!-- snippet: {name} -->\n```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    return "async def snippet(producer, consumer, ends):\n" + textwrap.indent(
        "\n".join(blocks), "    "
    )


async def run_snippet(
    name: str, topics: dict[str, str], producer: Any, consumer: Any, ends: Any
) -> None:
    modules = [name] if name in ("polars", "duckdb", "pandas") else ["pyarrow", "pyarrow.dataset"]
    names: dict[str, Any] = {"trio": trio, "trikafka": trikafka}
    for module in modules:
        importlib.import_module(module)
        names[module.split(".")[0]] = importlib.import_module(module.split(".")[0])
    text = snippets(name)
    for topic, real in topics.items():
        text = text.replace(f'"{topic}"', f'"{real}"')
    exec(compile(ast.parse(text), f"<{name} in {DOCUMENT.name}>", "exec"), names)
    await names["snippet"](producer, consumer, ends)


@pytest.mark.parametrize("name", ["pyarrow", "polars", "duckdb", "pandas", "dataset"])
async def test_examples_of_the_page_run(
    kafka_broker: KafkaBroker, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bootstrap = kafka_broker.bootstrap_servers
    topics = {topic: await make_topic(bootstrap, 3) for topic in ("flights", "copy")}
    places = [TopicPartition(topics["flights"], number) for number in range(3)]
    flights = pa.table(
        {"key": ["a", None, "b", "c"], "value": ["UA 1545", "DL 461", "UA 1714", "B6 725"]}
    )
    settings = {"bootstrap_servers": bootstrap}
    async with (
        trikafka.open_producer(**settings) as producer,
        trikafka.open_consumer(**settings, auto_offset_reset="earliest") as consumer,
    ):
        await producer.send_arrow(topics["flights"], flights)
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        for part in ["dataset-out", "dataset-in"] if name == "dataset" else [name]:
            await run_snippet(part, topics, producer, consumer, ends)
    if name == "pyarrow":
        found = (await read(bootstrap, topics["flights"], 3)).select(["key", "value"]).to_pylist()
        assert len(found) == 8
        return
    found = (
        (await read(bootstrap, topics["copy"], 3)).select(["key", "value", "partition"]).to_pylist()
    )
    pairs = sorted((row["key"] or b"", row["value"]) for row in found)
    everything = sorted(
        (row["key"].encode() if row["key"] else b"", row["value"].encode())
        for row in flights.to_pylist()
    )
    if name == "polars":
        assert pairs == [(b"a", b"UA 1545"), (b"b", b"UA 1714")]
    elif name == "duckdb":
        assert {key for key, _ in pairs} == {b"UA", b"DL", b"B6"}
        assert sum(int(value) for _, value in pairs) == 4
    elif name == "pandas":
        assert pairs == [pair for pair in everything if pair[0]]
        assert {row["partition"] for row in found} == {0}
    else:
        assert pairs == everything


class Tables:
    """A consumer whose tables begin with the same offset of different partitions."""

    async def arrow_batches(self, **_: Any) -> AsyncIterator[pa.Table]:
        for partition in range(3):
            yield pa.table({"partition": [partition, partition], "offset": [0, 1]})


async def test_files_of_the_page_keep_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await run_snippet("dataset-out", {}, None, Tables(), None)
    assert pyarrow.dataset.dataset("flights").count_rows() == 6
