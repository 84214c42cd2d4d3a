"""Exports into Delta tables from a real Kafka: what stands there, once, and what Delta's own commands leave of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from spark_delta import check_delta
from spark_kafka import add_records
from test_local_export_live import delete_records
from trikafka_spark.tables.commits import Commit
from trikafka_spark.tables.delta import DeltaTable
from trikafka_spark.tables.options import TableOptions
from trikafka_spark.tables.rows import RangeToRead, rows_of

import trikafka
from trikafka import ExportError, ExportIncompleteError, ExportProgress, OffsetRange, TableStore, TopicPartition
from trikafka.cli.app import run

DELTA = {"format": "delta"}


class Stop(Exception):
    """Ends an export at a stage, as a kill would."""


def stop_at(stage: str) -> Any:
    def tell(step: ExportProgress) -> None:
        if step.stage == stage:
            raise Stop

    return tell


@contextmanager
def few_partitions(spark: Any) -> Iterator[None]:
    """Two hundred tasks for a handful of files take a minute."""
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


async def test_all_then_nothing_then_what_is_new_and_deltas_own_commands_between(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, spark: Any
) -> None:
    servers, root = kafka_broker.bootstrap_servers, tmp_path / "a table"
    topic = await new_topic(4_000)
    progress: list[ExportProgress] = []

    async def export() -> trikafka.ExportResult:
        return await trikafka.export(
            topic,
            root,
            group_id="g-delta",
            bootstrap_servers=servers,
            on_progress=progress.append,
            sink_options=DELTA,
            max_records_per_file=500,
        )

    first = await export()
    assert (first.rows, len(first.files), first.versions, first.format, first.exactly_once) == (4_000, 8, (0,), "delta", True)
    assert [step.stage for step in progress][-3:] == ["written", "published", "committed"]
    assert (await export()).already_done
    await add_records(servers, topic, 4_000, 400, 4)
    second = await export()
    assert (second.rows, second.versions) == (400, (1,))
    check_delta(spark, root, 4_400)

    table, ours = f"delta.`{root}`", root / "_trikafka"
    before = sorted(path.name for path in ours.rglob("*"))
    with few_partitions(spark):
        await trio.to_thread.run_sync(lambda: spark.sql(f"OPTIMIZE {table}").collect())
        await trio.to_thread.run_sync(lambda: spark.sql(f"VACUUM {table} RETAIN 0 HOURS").collect())
    assert len(list(root.glob("*.parquet"))) == 1, "OPTIMIZE has merged, VACUUM has removed"
    assert sorted(path.name for path in ours.rglob("*")) == before, "VACUUM passes our folder over"

    await add_records(servers, topic, 4_400, 100, 4)
    assert (await export()).rows == 100
    check_delta(spark, root, 4_500)
    with few_partitions(spark):
        found = await trikafka.check_export(root, sink_options=DELTA)
        assert (found.files, found.rows, found.problems) == (16, 4_500, ())
        await trio.to_thread.run_sync(lambda: spark.sql(f"DELETE FROM {table} WHERE partition = 2 AND offset = 7").collect())
        found = await trikafka.check_export(root, sink_options=DELTA)
    assert (found.rows, found.problems) == (4_499, (f"{topic}-2 [0, 500) has 499 rows, not 500",))
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        offsets = await admin.list_group_offsets("g-delta")
    assert {tp: known.offset for tp, known in offsets.items()} == {TopicPartition(topic, n): 1_125 for n in range(4)}


async def test_what_the_log_has_lost_stops_its_partition_only_and_is_told(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, spark: Any
) -> None:
    servers, root = kafka_broker.bootstrap_servers, tmp_path / "out"
    topic = await new_topic(400)
    with pytest.raises(Stop):
        await trikafka.export(topic, root, bootstrap_servers=servers, sink_options=DELTA, on_progress=stop_at("planned"))
    await trio.to_thread.run_sync(delete_records, servers, topic, 10)

    with pytest.raises(ExportIncompleteError) as caught:
        await trikafka.export(topic, root, bootstrap_servers=servers, sink_options=DELTA, task_timeout_ms=0)
    assert (caught.value.result.rows, caught.value.result.resumed) == (300, True)
    assert [(each.partition, each.start, each.end) for each in caught.value.result.carried] == [(0, 0, 100)]

    result = await trikafka.export(topic, root, bootstrap_servers=servers, sink_options=DELTA, fail_on_data_loss=False)
    assert (result.rows, result.carried) == (90, ())
    assert [(each.partition, each.start, each.end) for each in result.lost] == [(0, 0, 10)]
    rows = await trio.to_thread.run_sync(lambda: spark.read.format("delta").load(str(root)).select("partition", "offset").collect())
    wanted = [(partition, offset) for partition in range(4) for offset in range(0 if partition else 10, 100)]
    assert sorted(map(tuple, rows)) == wanted


async def test_a_write_that_comes_late_adds_nothing_to_a_plan_that_was_given_up(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, spark: Any
) -> None:
    """As of a JVM that has outlived its export: it writes when the plan's rows have gone to the next plan already."""
    servers, root = kafka_broker.bootstrap_servers, tmp_path / "out"
    topic = await new_topic(400)
    with pytest.raises(Stop):
        await trikafka.export(topic, root, bootstrap_servers=servers, sink_options=DELTA, on_progress=stop_at("planned"))
    store = TableStore(root)
    plan = store.load().unfinished
    assert plan is not None
    async with trikafka.open_exporter(topic, root, bootstrap_servers=servers, sink_options=DELTA) as exporter:
        given_up = await exporter.abandon()
        assert (given_up.rows, len(given_up.carried)) == (0, 4)

        def write_late() -> None:
            reads = [RangeToRead(str(p), OffsetRange(p.topic, p.partition, p.start, p.end), None) for p in plan.ranges]
            rows = rows_of(spark, reads, {"bootstrap_servers": servers}, "", spark.sparkContext.accumulator(0))
            DeltaTable(root, TableOptions("delta")).write(rows, Commit.of(plan, dict.fromkeys(plan.ranges, ())), ())

        await trio.to_thread.run_sync(write_late)
        result = await exporter.run()
        assert (result.rows, result.versions) == (400, (1,))
        with pytest.raises(ExportError, match=r"another export to .* is at work"):
            await trikafka.export(topic, root, bootstrap_servers=servers, sink_options=DELTA)
    check_delta(spark, root, 400)

    plans = root / "_trikafka"
    plans.rename(tmp_path / "lost")
    with pytest.raises(ExportError, match="has rows of an export whose plans are gone"):
        await trikafka.export(topic, root, bootstrap_servers=servers, sink_options=DELTA)
    check_delta(spark, root, 400)


async def test_a_cancelled_export_is_finished_by_the_next(kafka_broker: Any, new_topic: Any, tmp_path: Path, spark: Any) -> None:
    """Wherever the cancel finds it: before the commit, or after."""
    servers, root = kafka_broker.bootstrap_servers, tmp_path / "out"
    topic = await new_topic(4_000)
    for _ in range(2):
        with trio.CancelScope() as scope:

            def stop(step: ExportProgress, scope: trio.CancelScope = scope) -> None:
                if step.stage == "writing":
                    scope.cancel()

            await trikafka.export(topic, root, bootstrap_servers=servers, sink_options=DELTA, on_progress=stop)
        assert scope.cancelled_caught
    result = await trikafka.export(topic, root, bootstrap_servers=servers, sink_options=DELTA)
    assert (result.resumed, result.rows) == (True, 4_000)
    check_delta(spark, root, 4_000)


def test_the_command_says_what_it_wrote_and_counts_it(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(arguments: list[str], code: int = 0) -> str:
        ended, said = run(arguments), capsys.readouterr()
        assert ended == code, said
        return said.err if code else said.out

    topic, root = trio.run(new_topic, 100), tmp_path / "out"
    where = ["export", topic, str(root), "--format", "delta", "-b", kafka_broker.bootstrap_servers]
    report = json.loads(command([*where, "--option", "partition_by=date,topic", "--json"]))
    assert (report["records"], report["format"], report["exactly_once"], report["versions"]) == (100, "delta", True, [0])
    assert [path.name for path in root.glob("topic=*/date=*")] == ["date=2023-11-14"]
    check_delta(spark, root, 100)
    assert command([*where, "--check"]) == "100 records in 4 ranges of a table, as the manifests say\n"
    said = command(["export", topic, str(root), "-b", kafka_broker.bootstrap_servers], code=2)
    assert "is a Delta table, to which files are not just added; exports go there with format=delta" in said
