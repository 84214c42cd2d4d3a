"""Exports by Spark from a real Kafka: written rows, no duplicates, cancellation, errors."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from known_topics import add_records, check_whole, data_files, times_of_files
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
    """A cancelled export cancels Spark's job within a second, and can be finished.

    The best of three counts: other load on this machine can only make it longer.
    """
    topic = await new_topic(20_000)
    took: list[float] = []

    async def cancel_half_way() -> None:
        writing = trio.Event()

        def watch(step: ExportProgress) -> None:
            if step.stage == "writing" and 1 <= step.ranges_done < step.ranges_total:
                writing.set()

        async with trio.open_nursery() as nursery:

            async def export() -> None:
                await trikafka.export(
                    topic,
                    tmp_path,
                    bootstrap_servers=kafka_broker.bootstrap_servers,
                    max_records_per_file=500,
                    on_progress=watch,
                    sink_options=SPARK,
                )

            nursery.start_soon(export)
            await writing.wait()
            asked = trio.current_time()
            nursery.cancel_scope.cancel()
        took.append(trio.current_time() - asked)
        assert spark_context.statusTracker().getActiveJobsIds() == []
        assert len(data_files(tmp_path)) < 40

    while not took or (min(took) > 1 and len(took) < 3):
        await cancel_half_way()
    assert min(took) < 15, "at once, as far as a shared machine goes"
    result = await trikafka.export(
        topic, tmp_path, bootstrap_servers=kafka_broker.bootstrap_servers, sink_options=SPARK
    )
    assert (result.resumed, len(result.files)) == (True, 40)
    check_whole(tmp_path, 20_000, 4)


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
    async with (
        trikafka.open_admin(bootstrap_servers=servers) as admin,
        trikafka.open_consumer(bootstrap_servers=servers) as consumer,
    ):
        old = (await consumer.topic_ids([topic]))[topic]
        await admin.delete_topics([topic])
        await admin.create_topics({topic: trikafka.NewTopic(1, 1, {})})
        with trio.fail_after(900):
            while (await consumer.topic_ids([topic])).get(topic, old) == old:  # noqa: ASYNC110  (Kafka does not report when it knows)
                await trio.sleep(0.05)
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


def test_columns_are_what_spark_expects(spark: Any) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from trikafka_spark.source import DDL, HEADERS_DDL

    def spark_schema(ddl: str) -> pa.Schema:
        zone = (
            {"timezone": "UTC"}
            if "timezone" in inspect.signature(to_arrow_schema).parameters
            else {}
        )  # previously UTC
        return to_arrow_schema(spark.createDataFrame([], ddl).schema, **zone)

    assert spark_schema(f"{DDL}, {HEADERS_DDL}").equals(SCHEMA)
    assert spark_schema(DDL).equals(SCHEMA.remove(SCHEMA.get_field_index("headers")))
