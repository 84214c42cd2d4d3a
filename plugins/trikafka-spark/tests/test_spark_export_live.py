"""Exports by Spark from a real Kafka: written rows, no duplicates, cancellation, errors."""

from __future__ import annotations

import inspect
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from known_topics import add_records, check_whole, data_files, make_anew, times_of_files
from trikafka_export.columns import SCHEMA

import trikafka
from trikafka import ConfigurationError, ExportError, ExportProgress, TopicPartition

pytestmark = pytest.mark.usefixtures("spark_context")
SPARK = {"spark_above": 0}


async def test_exports_add_only_new_records(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    servers, root = kafka_broker.bootstrap_servers, tmp_path / "out"
    topic = await new_topic(8_000)
    progress: list[ExportProgress] = []

    async def export() -> trikafka.ExportResult:
        return await trikafka.export(
            topic,
            root,
            group_id="g1",
            bootstrap_servers=servers,
            max_records_per_file=1_000,
            on_progress=progress.append,
            sink_options=SPARK,
        )

    first = await export()
    assert (first.rows, len(first.files)) == (8_000, 8)
    check_whole(root, 8_000, 4)
    stages = [step.stage for step in progress]
    assert stages[:2] == ["planned", "starting"]
    assert stages[-3:] == ["written", "published", "committed"]
    assert (progress[-1].ranges_done, progress[-1].rows_done) == (8, 8_000)
    assert pq.read_schema(data_files(root)[0]).equals(SCHEMA)

    before = times_of_files(root)
    again = await export()
    assert again.already_done
    assert times_of_files(root) == before

    await add_records(servers, topic, 8_000, 1_000, 4)
    more = await export()
    assert (more.rows, len(more.files)) == (1_000, 4)
    check_whole(root, 9_000, 4)
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        offsets = await admin.list_group_offsets("g1")
    assert {tp: known.offset for tp, known in offsets.items()} == {
        TopicPartition(topic, n): 2_250 for n in range(4)
    }


async def test_headers_may_be_absent(kafka_broker: Any, new_topic: Any, tmp_path: Path) -> None:
    topic = await new_topic(20, partitions=1)
    await trikafka.export(
        topic, tmp_path, bootstrap_servers=kafka_broker.bootstrap_servers, sink_options=SPARK
    )
    headers = pq.read_table(data_files(tmp_path)[0])["headers"].to_pylist()
    assert headers[0] == [{"key": "h", "value": b"x"}, {"key": "none", "value": None}]
    assert headers[1] is None


async def test_cancelled_export_cancels_its_job(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, spark_context: Any
) -> None:
    """A cancelled export cancels Spark's job, and can be finished."""
    topic = await new_topic(8_000)

    async def export(root: Path, tell: Any = lambda step: None) -> trikafka.ExportResult:
        return await trikafka.export(
            topic,
            root,
            bootstrap_servers=kafka_broker.bootstrap_servers,
            max_records_per_file=200,
            on_progress=tell,
            sink_options=SPARK,
        )

    # A process that stands still may see the first range only when Spark has written them all.
    for number in itertools.count():
        root, asked = tmp_path / str(number), list[float]()
        with trio.CancelScope() as scope:

            def tell(step: ExportProgress, scope: Any = scope, asked: list[float] = asked) -> None:
                if step.stage == "writing" and 1 <= step.ranges_done < step.ranges_total:
                    asked.append(trio.current_time())
                    scope.cancel()

            await export(root, tell)
        if scope.cancelled_caught and len(data_files(root)) < 40:
            break
    assert trio.current_time() - asked[0] < 60, "at once, as far as a shared machine goes"
    with trio.fail_after(900):
        # A JVM that is slow to respond is not waited for, and ends the job a little later.
        while await trio.to_thread.run_sync(spark_context.statusTracker().getActiveJobsIds):  # noqa: ASYNC110
            await trio.sleep(0.02)
    result = await export(root)
    assert (result.resumed, len(result.files)) == (True, 40)
    check_whole(root, 8_000, 4)


async def test_error_of_a_task_is_the_cause(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """The error of a task is the cause of the export's error, which shows no text of Java's."""
    topic = await new_topic(100, partitions=1)
    servers = kafka_broker.bootstrap_servers

    def spoil(step: ExportProgress) -> None:
        if step.stage == "planned":
            (tmp_path / step.plan.ranges[0].name).write_bytes(b"not Parquet")

    with pytest.raises(ExportError, match="is not a whole Parquet file") as caught:
        await trikafka.export(
            topic, tmp_path, bootstrap_servers=servers, on_progress=spoil, sink_options=SPARK
        )
    assert isinstance(caught.value.__cause__, ExportError)
    assert "java" not in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_recreated_topic_is_refused(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """A topic that was recreated is refused, also if a plan of the old one is unfinished."""
    topic, servers = await new_topic(100, partitions=1), kafka_broker.bootstrap_servers

    class Stop(Exception):
        pass

    def stop(step: ExportProgress) -> None:
        raise Stop

    with pytest.raises(Stop):
        await trikafka.export(
            topic, tmp_path, bootstrap_servers=servers, on_progress=stop, sink_options=SPARK
        )
    await make_anew(servers, topic, 0)
    with pytest.raises(ExportError, match="was deleted and created again"):
        await trikafka.export(topic, tmp_path, bootstrap_servers=servers, sink_options=SPARK)


async def test_exports_at_once_share_spark(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    topics = [await new_topic(1_000), await new_topic(1_000)]
    async with trio.open_nursery() as nursery:
        for topic in topics:
            nursery.start_soon(
                lambda topic=topic: trikafka.export(
                    topic,
                    tmp_path / topic,
                    bootstrap_servers=kafka_broker.bootstrap_servers,
                    sink_options=SPARK,
                )
            )
    for topic in topics:
        check_whole(tmp_path / topic, 1_000, 4)


async def test_second_export_to_a_place_is_refused(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    topic = await new_topic(1_000)
    refused: list[ExportError] = []

    async def export() -> None:
        try:
            await trikafka.export(
                topic,
                tmp_path,
                bootstrap_servers=kafka_broker.bootstrap_servers,
                sink_options=SPARK,
            )
        except ExportError as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(export)
        nursery.start_soon(export)
    assert ["another export to" in str(error) for error in refused] == [True]
    check_whole(tmp_path, 1_000, 4)


async def test_wrong_options_are_refused_first(tmp_path: Path) -> None:
    root = tmp_path / "out"
    with pytest.raises(
        ConfigurationError,
        match="unknown option 'mastr' of an export to Parquet; did you mean 'master'",
    ):
        await trikafka.export(
            "t", root, bootstrap_servers="localhost:1", sink_options={"mastr": "local"}
        )
    with pytest.raises(ConfigurationError, match="compression must be one of"):
        await trikafka.export(
            "t", root, bootstrap_servers="localhost:1", sink_options={"compression": "zip"}
        )
    assert not root.exists()


async def test_unwritable_place_is_refused_first(tmp_path: Path) -> None:
    """An unwritable destination is refused before Kafka and Spark are asked."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(ExportError, match=r"cannot write to .*file/out: Not a directory"):
        await trikafka.export("t", tmp_path / "file" / "out", bootstrap_servers="localhost:1")


@pytest.mark.parametrize("plain", ["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
def test_columns_are_what_spark_expects(spark: Any, plain: str) -> None:
    """The columns keep their types, whatever the session means by TIMESTAMP."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from trikafka_spark.source import DDL, HEADERS_DDL

    def spark_schema(ddl: str) -> pa.Schema:
        # Older Sparks take no time zone: theirs is UTC.
        zone = (
            {"timezone": "UTC"}
            if "timezone" in inspect.signature(to_arrow_schema).parameters
            else {}
        )
        return to_arrow_schema(spark.createDataFrame([], ddl).schema, **zone)

    spark.conf.set("spark.sql.timestampType", plain)
    try:
        assert spark_schema(f"{DDL}, {HEADERS_DDL}").equals(SCHEMA)
        assert spark_schema(DDL).equals(SCHEMA.remove(SCHEMA.get_field_index("headers")))
    finally:
        spark.conf.unset("spark.sql.timestampType")
