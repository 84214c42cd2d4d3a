"""Exports into Delta and Iceberg tables from a real Kafka, with other writers: each record once."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from known_topics import add_records
from lakes import Lake, make_lake
from test_local_export_live import delete_records

import trikafka
from trikafka import ExportError, ExportIncompleteError, ExportProgress, TopicPartition
from trikafka.cli.app import run

FORMATS = ["delta", "iceberg"]


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return make_lake(request.param, tmp_path / "lake")


class Stop(Exception):
    """A callback that ends an export at a stage, as a kill would."""


def stop_at(stage: str) -> Any:
    def tell(step: ExportProgress) -> None:
        if step.stage == stage:
            raise Stop

    return tell


async def test_exports_add_only_new_records(kafka_broker: Any, new_topic: Any, lake: Lake) -> None:
    """Repeated exports add only new records; the check finds deleted and doubled rows."""
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(4_000)
    progress: list[ExportProgress] = []

    async def export() -> trikafka.ExportResult:
        return await trikafka.export(
            topic,
            lake.destination,
            group_id=f"g-{topic}",
            bootstrap_servers=servers,
            on_progress=progress.append,
            sink_options=lake.options,
            max_records_per_file=500,
        )

    first = await export()
    assert (first.rows, len(first.files), len(first.versions), first.format) == (
        4_000,
        8,
        1,
        lake.format,
    )
    assert first.exactly_once
    assert [step.stage for step in progress if step.stage != "writing"] == [
        "planned",
        "starting",
        "written",
        "published",
        "committed",
    ]
    lake.check(4_000)
    assert (await export()).already_done
    await add_records(servers, topic, 4_000, 400, 4)
    second = await export()
    assert (second.rows, len(second.versions)) == (400, 1)
    assert second.versions != first.versions
    lake.check(4_400)

    ours = sorted(path.name for path in (lake.root / "_trikafka").rglob("*"))
    await trio.to_thread.run_sync(lake.compact)
    assert sorted(path.name for path in (lake.root / "_trikafka").rglob("*")) == ours, (
        "compaction passes our folder over"
    )
    await add_records(servers, topic, 4_400, 100, 4)
    assert (await export()).rows == 100
    lake.check(4_500)

    found = await trikafka.check_export(lake.destination, sink_options=lake.options)
    assert (found.files, found.rows, found.problems) == (16, 4_500, ())
    await trio.to_thread.run_sync(lake.delete, 2, 7)
    found = await trikafka.check_export(lake.destination, sink_options=lake.options)
    assert (found.rows, found.problems) == (4_499, (f"{topic}-2 [0, 500) has 499 rows, not 500",))
    await trio.to_thread.run_sync(lake.double)
    found = await trikafka.check_export(lake.destination, sink_options=lake.options)
    assert found.rows == 2 * 4_499
    assert (
        f"{topic}-2 [0, 500) has 998 rows, 499 of them not for the first time, not 500"
        in found.problems
    )
    assert (
        f"{topic}-3 [1000, 1100) has 200 rows, 100 of them not for the first time, not 100"
        in found.problems
    )
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        offsets = await admin.list_group_offsets(f"g-{topic}")
    assert {tp: known.offset for tp, known in offsets.items()} == {
        TopicPartition(topic, n): 1_125 for n in range(4)
    }


async def test_lost_records_stop_their_partition_only(
    kafka_broker: Any, new_topic: Any, lake: Lake
) -> None:
    """Records that retention removed stop only their partition, and are reported."""
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(400)
    where = {"bootstrap_servers": servers, "sink_options": lake.options}
    with pytest.raises(Stop):
        await trikafka.export(topic, lake.destination, on_progress=stop_at("planned"), **where)
    await trio.to_thread.run_sync(delete_records, servers, topic, 10)

    with pytest.raises(ExportIncompleteError) as caught:
        await trikafka.export(topic, lake.destination, task_timeout_ms=0, **where)
    assert (caught.value.result.rows, caught.value.result.resumed) == (300, True)
    assert [(each.partition, each.start, each.end) for each in caught.value.result.carried] == [
        (0, 0, 100)
    ]

    result = await trikafka.export(topic, lake.destination, fail_on_data_loss=False, **where)
    assert (result.rows, result.carried) == (90, ())
    assert [(each.partition, each.start, each.end) for each in result.lost] == [(0, 0, 10)]
    rows = lake.read()
    wanted = [
        (partition, offset)
        for partition in range(4)
        for offset in range(0 if partition else 10, 100)
    ]
    assert (
        sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
        == wanted
    )
    assert not (await trikafka.check_export(lake.destination, sink_options=lake.options)).problems


async def test_abandoned_plan_continues_lost_one_fails(
    kafka_broker: Any, new_topic: Any, lake: Lake, tmp_path: Path
) -> None:
    """After an abandoned plan the export continues; a table whose plans are lost is refused."""
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(400)
    where = {"bootstrap_servers": servers, "sink_options": lake.options}
    with pytest.raises(Stop):
        await trikafka.export(topic, lake.destination, on_progress=stop_at("planned"), **where)
    async with trikafka.open_exporter(topic, lake.destination, **where) as exporter:
        given_up = await exporter.abandon()
        assert (given_up.rows, len(given_up.carried), given_up.versions) == (0, 4, ())
        result = await exporter.run()
        assert (result.rows, len(result.versions)) == (400, 1)
        with pytest.raises(ExportError, match=r"another export to .* is at work"):
            await trikafka.export(topic, lake.destination, **where)
    lake.check(400)
    (lake.root / "_trikafka").rename(tmp_path / "lost")
    with pytest.raises(ExportError, match="has rows of an export whose plans are missing"):
        await trikafka.export(topic, lake.destination, **where)
    lake.check(400)


async def test_cancelled_export_is_finished_by_the_next(
    kafka_broker: Any, new_topic: Any, lake: Lake
) -> None:
    """The next export finishes one that was cancelled before, in or after the commit."""
    where = {"bootstrap_servers": kafka_broker.bootstrap_servers, "sink_options": lake.options}
    topic = await new_topic(4_000)
    for stage in ("writing", "written"):
        with trio.CancelScope() as scope:

            def stop(
                step: ExportProgress, scope: trio.CancelScope = scope, stage: str = stage
            ) -> None:
                if step.stage == stage:
                    scope.cancel()

            await trikafka.export(topic, lake.destination, on_progress=stop, **where)
        assert scope.cancelled_caught
    result = await trikafka.export(topic, lake.destination, **where)
    assert (result.resumed, result.rows) == (True, 4_000)
    lake.check(4_000)


async def test_busy_table_gets_each_plan_once(
    kafka_broker: Any, new_topic: Any, lake: Lake
) -> None:
    """Each plan is committed once while another writer commits all the time."""
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(40)
    where = {"bootstrap_servers": servers, "sink_options": lake.options}
    await trikafka.export(topic, lake.destination, **where)
    row = lake.read().slice(0, 1)
    row = row.set_column(
        row.schema.get_field_index("topic"),
        row.schema.field("topic"),
        pa.array(["other"], row["topic"].type),
    )
    wrote = trio.Event()

    async def write() -> None:
        while True:
            with suppress(Exception):  # one of two writers may have to try again
                await trio.to_thread.run_sync(lake.append, row)
                wrote.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        for number in range(40, 100, 20):
            await add_records(servers, topic, number, 20, 4)
            result = await trikafka.export(topic, lake.destination, **where)
            assert (result.rows, len(result.versions)) == (20, 1)
        with trio.fail_after(900):
            await wrote.wait()
        nursery.cancel_scope.cancel()
    rows = lake.read()
    found = zip(
        rows["topic"].to_pylist(),
        rows["partition"].to_pylist(),
        rows["offset"].to_pylist(),
        strict=True,
    )
    ours = sorted((partition, offset) for name, partition, offset in found if name == topic)
    assert ours == sorted((number % 4, number // 4) for number in range(100))


async def test_export_of_an_earlier_release_continues(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """An export that an earlier release began by Spark continues.

    The plans of that release have no more about the table, and its commits have the same notes.
    """
    lake, topic = make_lake("delta", tmp_path), await new_topic(400)
    where = {"bootstrap_servers": kafka_broker.bootstrap_servers, "sink_options": lake.options}
    await trikafka.export(topic, lake.destination, **where)
    for path in (lake.root / "_trikafka").glob("*-000001.json"):
        body = json.loads(path.read_text())
        del body["checksum"]
        known = body["format"]
        body["format"] = {
            "name": "delta",
            "app_id": known["app_id"],
            "exactly_once": True,
            "partition_by": [],
        }
        path.write_text(json.dumps(body))
    await add_records(kafka_broker.bootstrap_servers, topic, 400, 40, 4)
    result = await trikafka.export(topic, lake.destination, **where)
    assert (result.rows, result.versions) == (40, (2,))
    lake.check(440)
    assert not (await trikafka.check_export(lake.destination, sink_options=lake.options)).problems

    for number in (1, 2):
        (lake.root / "_trikafka" / f"manifest-00000{number}.json").unlink()
    (lake.root / "_trikafka" / "plan-000002.json").unlink()
    with pytest.raises(
        ExportError,
        match=r"plan 1 of .* was begun by an earlier release of trikafka, which wrote delta by Spark",
    ):
        await trikafka.export(topic, lake.destination, **where)
    lake.check(440)


def test_command_writes_and_checks_a_table(
    kafka_broker: Any, new_topic: Any, lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(arguments: list[str], code: int = 0) -> str:
        ended, said = run(arguments), capsys.readouterr()
        assert ended == code, said
        return said.err if code else said.out

    topic = trio.run(new_topic, 100)
    options = [
        text
        for name, value in lake.options.items()
        if name != "format"
        for text in ("--option", f"{name}={value}")
    ]
    where = [
        "export",
        topic,
        lake.destination,
        "--format",
        lake.format,
        "-b",
        kafka_broker.bootstrap_servers,
        *options,
    ]
    report = json.loads(command([*where, "--option", "partition_by=date,topic", "--json"]))
    assert (report["records"], report["format"], report["exactly_once"]) == (100, lake.format, True)
    assert len(report["versions"]) == 1
    assert {file.parent.name for file in lake.root.rglob(f"topic={topic}/date=*/*.parquet")} == {
        "date=2023-11-14"
    }
    assert set(lake.check(100)["topic"].to_pylist()) == {topic}
    assert (
        command([*where, "--check"]) == "100 records in 4 ranges of a table, as the manifests say\n"
    )
    if lake.format == "delta":
        said = command(
            ["export", topic, lake.destination, "-b", kafka_broker.bootstrap_servers], code=2
        )
        assert (
            "is a Delta table, in which plain files are not part of the table; exports go there "
            "with format=delta"
        ) in said
