"""Exports into Delta tables from a real Kafka: what stands there, once, and what Delta's own commands leave of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from spark_kafka import add_records, value_of

import trikafka
from trikafka import ConfigurationError, ExportError, ExportProgress, TopicPartition

pytestmark = pytest.mark.usefixtures("spark_context")
DELTA = {"format": "delta"}


def check_table(spark: Any, root: Path, records: int, partitions: int = 4) -> None:
    """Every record stands in the table once, as it was."""
    rows = spark.read.format("delta").load(str(root)).select("partition", "offset", "value").collect()
    found = Counter((row.partition, row.offset) for row in rows)
    assert set(found) == {(number % partitions, number // partitions) for number in range(records)}
    assert max(found.values()) == 1, "no row twice"
    for row in rows:
        assert row.value == value_of(row.offset * partitions + row.partition)


async def test_all_then_nothing_then_what_is_new_and_deltas_own_commands_between(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, spark: Any
) -> None:
    servers, root = kafka_broker.bootstrap_servers, tmp_path / "a table"
    topic = await new_topic(4_000)
    progress: list[ExportProgress] = []

    async def export() -> trikafka.ExportResult:
        return await trikafka.export(
            topic, root, group_id="g-delta", bootstrap_servers=servers, on_progress=progress.append, sink_options=DELTA,
            max_records_per_file=500,
        )  # fmt: skip

    first = await export()
    assert (first.rows, len(first.files), first.versions, first.format, first.exactly_once) == (4_000, 8, (0,), "delta", True)
    assert [step.stage for step in progress][-3:] == ["written", "published", "committed"]
    assert (await export()).already_done
    await add_records(servers, topic, 4_000, 400, 4)
    second = await export()
    assert (second.rows, second.versions) == (400, (1,))
    check_table(spark, root, 4_400)

    path = f"delta.`{root}`"
    spark.sql(f"OPTIMIZE {path}").collect()
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        spark.sql(f"VACUUM {path} RETAIN 0 HOURS").collect()
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    assert len(list(root.glob("*.parquet"))) == 1, "OPTIMIZE has merged, VACUUM has removed"
    ours = sorted(path.name for path in (root / "_trikafka").iterdir())
    assert ours == ["lock", "manifest-000001.json", "manifest-000002.json", "plan-000001.json", "plan-000002.json", "work"]

    await add_records(servers, topic, 4_400, 100, 4)
    assert (await export()).rows == 100
    check_table(spark, root, 4_500)
    found = await trikafka.check_export(root, sink_options=DELTA)
    assert (found.files, found.rows, found.problems) == (16, 4_500, ())
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        offsets = await admin.list_group_offsets("g-delta")
    assert {tp: known.offset for tp, known in offsets.items()} == {TopicPartition(topic, n): 1_125 for n in range(4)}
